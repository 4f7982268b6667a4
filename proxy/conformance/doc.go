// Package conformance holds byte strings that a client may send, and what must
// come of each: what the client is answered, and what the API sees.
//
// The rule behind the table: the API sees the requests that were judged, no
// others, and sees them as they were judged. Where an RFC lets a server refuse,
// it is refused: with 400, or the status made for it, and a closed connection, so
// that nothing behind it is taken for a request.
//
// Run sends the table to a proxy at any address whose API is an Upstream: to one
// assembled in a test as to a running binary. Every case is sent on a connection of
// its own, and behind other requests: nothing may depend on what came before. The
// package is for tests only.
package conformance

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Case is what a client sends.
type Case struct {
	Name string

	// Send are the bytes. "{auth}" stands for the credential line of Target.
	Send string
	// Want are the statuses of the answers in order, and "close" if the
	// connection must be closed after them. Without it the next request must be
	// served on it.
	Want string
	// Seen are method and target of the requests that the API must have seen.
	Seen []string
	// Body is the body of the first of them.
	Body string
	// Has and Not are parts that the header of the first of them must and must not
	// have, in lower case.
	Has, Not []string
	// End ends the client's side after Send. Where it is not set and the connection
	// must be closed, a further request follows, which nobody may see.
	End bool
}

// Target is a proxy under test.
type Target struct {
	Addr string      // of its public listener
	TLS  *tls.Config // with which it is talked to; nil: without TLS
	API  *Upstream   // which it forwards to

	// Auth is the credential line, with CRLF, of a user who may do everything;
	// without it everything is denied.
	Auth string
	// Allowed counts the requests that were judged and allowed; nil if that cannot
	// be told.
	Allowed func() int
}

const (
	patience = 20 * time.Second
	poison   = "GET /cwms-data/poison HTTP/1.1\r\nHost: h\r\n{auth}\r\n"
	probe    = "GET /cwms-data/probe HTTP/1.1\r\nHost: h\r\n{auth}\r\n"
)

// before is what may come before a case on its connection; without early the case
// is sent when that is answered.
var before = []struct {
	name, send string
	early      bool
}{
	{"first", "", false},
	{"behind GET", at(earlier, ""), false},
	{"behind GET, pipelined", at(earlier, ""), true},
	{"behind a body", earlierPost("Content-Length: 6", "a\n\r\n\r\n"), false},
	{"behind a body, pipelined", earlierPost("Content-Length: 6", "a\n\r\n\r\n"), true},
	{"behind chunks", earlierPost("Transfer-Encoding: chunked", "6\r\na\n\r\n\r\n\r\n0\r\n\r\n"), false},
	{"behind chunks, pipelined", earlierPost("Transfer-Encoding: chunked", "6\r\na\n\r\n\r\n\r\n0\r\nX-T: 1\r\n\r\n"), true},
}

const earlier = "/cwms-data/earlier"

func earlierPost(framing, body string) string {
	return "POST " + earlier + " HTTP/1.1\r\n" + host + framing + "\r\n\r\n" + body
}

// Run sends every case to the target.
func Run(t *testing.T, target Target) {
	for _, b := range before {
		t.Run(b.name, func(t *testing.T) {
			for _, c := range Cases {
				t.Run(c.Name, func(t *testing.T) { target.run(t, c, b.send, b.early) })
			}
		})
	}
}

func (target Target) dial() (net.Conn, error) {
	if target.TLS != nil {
		return tls.Dial("tcp", target.Addr, target.TLS)
	}
	return net.Dial("tcp", target.Addr)
}

func (target Target) run(t *testing.T, c Case, before string, early bool) {
	target.API.Reset()
	allowed := 0
	if target.Allowed != nil {
		allowed = target.Allowed()
	}
	nc, err := target.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	send := func(raw string) { _, _ = io.WriteString(nc, strings.ReplaceAll(raw, "{auth}", target.Auth)) }

	statuses := strings.Fields(c.Want)
	closes := slices.Contains(statuses, "close")
	raw := c.Send
	if closes && !c.End {
		raw += poison
	}
	br := bufio.NewReader(nc)
	answered := func() {
		t.Helper()
		if got, err := answer(br, before); got != "200" || err != nil {
			t.Fatalf("the request before: %s, %v", got, err)
		}
	}
	if early {
		raw = before + raw
	} else if before != "" {
		send(before)
		answered()
	}
	go func() {
		send(raw)
		if c.End {
			_ = nc.(interface{ CloseWrite() error }).CloseWrite()
		}
	}()
	if early {
		answered()
	}
	for _, want := range statuses {
		if want == "close" {
			break
		}
		got, err := answer(br, c.Send)
		if err != nil {
			t.Fatalf("want %s, no answer: %v", want, err)
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if closes {
		if rest, err := io.ReadAll(br); err != nil || len(rest) > 0 {
			t.Errorf("the connection is not closed: %q, %v", rest, err)
		}
	} else {
		send(probe)
		if got, err := answer(br, probe); err != nil || got != "200" {
			t.Errorf("the next request on the connection: %s, %v", got, err)
		}
	}

	seen := target.API.Seen()
	if target.Allowed != nil {
		if n := target.Allowed() - allowed; n < len(seen) {
			t.Errorf("the API has seen %d requests, %d were allowed", len(seen), n)
		}
	}
	seen = slices.DeleteFunc(seen, func(r Request) bool { return r.Target == earlier })
	var lines []string
	for _, r := range seen {
		if line := r.Method + " " + r.Target; line != "GET /cwms-data/probe" {
			lines = append(lines, line)
		}
		for _, fault := range r.faults() {
			t.Errorf("the API sees a request that %s: %q", fault, r.Head)
		}
	}
	if !slices.Equal(lines, c.Seen) {
		t.Errorf("the API has seen %q, want %q", lines, c.Seen)
	}
	if len(seen) == 0 || len(c.Seen) == 0 {
		return
	}
	if seen[0].Body != c.Body {
		t.Errorf("the API has seen the body %q, want %q", seen[0].Body, c.Body)
	}
	head := strings.ToLower(seen[0].Head)
	for _, part := range c.Has {
		if !strings.Contains(head, part) {
			t.Errorf("the API does not see %q: %q", part, head)
		}
	}
	for _, part := range c.Not {
		if strings.Contains(head, part) {
			t.Errorf("the API sees %q: %q", part, head)
		}
	}
}

// Mix sends cases in random order on one connection, cut into random pieces and
// without waiting for answers; at last one that closes it. The API must have seen
// what each of them alone would have made it see.
func Mix(t *testing.T, target Target, rounds int, seed uint64) {
	var open, closing []Case
	for _, c := range Cases {
		switch {
		case c.End || len(c.Send) > 20<<10:
		case strings.HasSuffix(c.Want, "close"):
			closing = append(closing, c)
		default:
			open = append(open, c)
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		var cases []Case
		for range r.IntN(8) {
			cases = append(cases, open[r.IntN(len(open))])
		}
		target.mixed(t, r, append(cases, closing[r.IntN(len(closing))]))
		if t.Failed() {
			t.Fatalf("in round %d of seed %d", round, seed)
		}
	}
}

func (target Target) mixed(t *testing.T, r *rand.Rand, cases []Case) {
	target.API.Reset()
	nc, err := target.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	var names, seen []string
	var raw string
	for _, c := range cases {
		names, seen, raw = append(names, c.Name), append(seen, c.Seen...), raw+c.Send
	}
	raw = strings.ReplaceAll(raw+poison, "{auth}", target.Auth)
	pieces := cut(r, raw)
	go say(nc, pieces)
	br := bufio.NewReader(nc)
	for _, c := range cases {
		for _, want := range strings.Fields(c.Want) {
			if want == "close" {
				break
			}
			if got, err := answer(br, c.Send); err != nil || got != want {
				t.Errorf("%s in %q: got %s, %v, want %s", c.Name, names, got, err, want)
				return
			}
		}
	}
	// What a client goes on to send after a close that it was told of resets it.
	if rest, err := io.ReadAll(br); err != nil && !errors.Is(err, syscall.ECONNRESET) || len(rest) > 0 {
		t.Errorf("%q: the connection is not closed: %.100q, %v", names, rest, err)
	}
	got := target.API.Seen()
	var lines []string
	for _, r := range got {
		lines = append(lines, r.Method+" "+r.Target)
		for _, fault := range r.faults() {
			t.Errorf("%q: the API sees a request that %s: %q", names, fault, r.Head)
		}
	}
	if !slices.Equal(lines, seen) {
		t.Errorf("%q: the API has seen %q, want %q", names, lines, seen)
		return
	}
	for _, c := range cases {
		if len(c.Seen) > 0 {
			if got[0].Body != c.Body {
				t.Errorf("%q: the API has seen the body %q of %s, want %q", names, got[0].Body, c.Name, c.Body)
			}
			got = got[len(c.Seen):]
		}
	}
}

// cut cuts bytes into random pieces.
func cut(r *rand.Rand, raw string) (pieces []string) {
	for most := []int{3, 30, 300, 30 << 10}[r.IntN(4)]; len(raw) > 0; {
		n := min(len(raw), 1+r.IntN(most))
		pieces, raw = append(pieces, raw[:n]), raw[n:]
	}
	return pieces
}

func say(nc net.Conn, pieces []string) {
	for _, p := range pieces {
		if _, err := io.WriteString(nc, p); err != nil {
			return
		}
	}
}

// Garble sends cases in random order with random bytes put in, taken out or written
// over. Nobody knows what must come of them; but the API must not have seen more
// requests than were allowed, nor one that it could misread.
func Garble(t *testing.T, target Target, rounds int, seed uint64) {
	var open []Case
	for _, c := range Cases {
		if !c.End && !strings.HasSuffix(c.Want, "close") && len(c.Send) < 20<<10 {
			open = append(open, c)
		}
	}
	odd := []string{
		"\n", "\r", "\r\n", "\n\n", "\r\n\n", "\r\n\r\n", "\x00", " ", "\t", ":", "0\r\n", "0\r\n\r\n", "5\r\nhello\r\n", "Content-Length: 5\r\n",
		"Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n", smuggled, with(""),
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		var raw string
		for range 1 + r.IntN(5) {
			raw += open[r.IntN(len(open))].Send
		}
		for range 1 + r.IntN(4) {
			at, in, out := r.IntN(len(raw)), odd[r.IntN(len(odd))], 0
			switch r.IntN(3) {
			case 0:
				out = len(in)
			case 1:
				in, out = "", 1+r.IntN(3)
			}
			raw = raw[:at] + in + raw[min(len(raw), at+out):]
		}
		if target.garbled(t, cut(r, strings.ReplaceAll(raw, "{auth}", target.Auth))); t.Failed() {
			t.Fatalf("in round %d of seed %d: %q", round, seed, raw)
		}
	}
}

func (target Target) garbled(t *testing.T, pieces []string) {
	target.API.Reset()
	allowed := target.Allowed()
	nc, err := target.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	go func() {
		say(nc, pieces)
		_ = nc.(interface{ CloseWrite() error }).CloseWrite()
	}()
	_, err = io.Copy(io.Discard, nc)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("it does not end: %v", err)
	}
	seen := target.API.Seen()
	if n := target.Allowed() - allowed; n < len(seen) {
		t.Errorf("the API has seen %d requests, %d were allowed", len(seen), n)
	}
	for _, r := range seen {
		for _, fault := range r.faults() {
			t.Errorf("the API sees a request that %s: %q", fault, r.Head)
		}
	}
}

// answer reads an answer and returns its status.
func answer(br *bufio.Reader, request string) (string, error) {
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return fmt.Sprint(res.StatusCode), err
}
