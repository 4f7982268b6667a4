// Package e2e tests the program from outside: the real binary with real OPA, real
// Redis and the stand-in API, each its own process.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// shared is the stack of all tests that leave it as they found it. It starts with
// the first of them.
var shared struct {
	once sync.Once
	st   *stack.Stack
	err  error
}

// attached: HEADGATE_STACK holds what `bench up --json` prints, of a stack that
// others run. Tests of the shared stack then use that one.
var attached = os.Getenv("HEADGATE_STACK") != ""

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.st != nil {
		if err := shared.st.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the shared stack did not stop in order:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func sharedStack(t *testing.T) *stack.Stack {
	t.Helper()
	shared.once.Do(func() {
		if attached {
			var info stack.Info
			if shared.err = json.Unmarshal([]byte(os.Getenv("HEADGATE_STACK")), &info); shared.err == nil {
				shared.st = stack.Attach(info)
			}
			return
		}
		shared.st, shared.err = stack.Start(context.Background(), stack.Options{
			Env: map[string]string{"TEST_USERS": "true", "DEBUG_HEADERS": "true"},
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.st
}

// request is sent byte for byte: no client library repairs the target.
type request struct {
	method, target string
	header         []string // "Name: value"
	body           string
}

func (r request) with(header ...string) request {
	r.header = append(append([]string{}, r.header...), header...)
	return r
}

func get(target string, header ...string) request {
	return request{method: http.MethodGet, target: target, header: header}
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// reply is what came back.
type reply struct {
	status int
	header http.Header
	body   string
}

// deadline bounds every exchange of these tests.
const deadline = time.Minute

// send puts one request on a connection of its own.
func send(t *testing.T, base string, r request) reply {
	t.Helper()
	answer, err := try(base, r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.target, err)
	}
	return answer
}

func try(base string, r request) (reply, error) { return tryFrom("", base, r) }

// tryFrom is try by a client of another address of this machine.
func tryFrom(address, base string, r request) (reply, error) {
	u, err := url.Parse(base)
	if err != nil {
		return reply{}, err
	}
	dialer := net.Dialer{Timeout: deadline}
	if address != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(address)}
	}
	c, err := dialer.Dial("tcp", u.Host)
	if err != nil {
		return reply{}, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
		return reply{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", r.method, r.target, u.Host)
	for _, line := range r.header {
		b.WriteString(line + "\r\n")
	}
	if r.body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.body))
	}
	b.WriteString("\r\n" + r.body)
	if _, err := io.WriteString(c, b.String()); err != nil {
		return reply{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: r.method})
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(body)}, err
}

// object reads a JSON object.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("no JSON object: %v: %s", err, text)
	}
	return o
}

// await waits for a condition.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	awaitLong(t, what, deadline, condition)
}

// awaitLong is await for what takes its time.
func awaitLong(t *testing.T, what string, bound time.Duration, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// token mints a token of the stand-in's issuer.
func token(t *testing.T, st *stack.Stack, ask standin.TokenRequest) string {
	t.Helper()
	s, err := st.Token(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
