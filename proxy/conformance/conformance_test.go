package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"headgate/proxy/authz"
	"headgate/proxy/pep"
	"headgate/proxy/route"
	"headgate/proxy/upstream"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*TCPDialer).tcpAddrsClean"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// requestPath is the request path and the real forwarder, with everything allowed to
// whoever shows a credential. It returns its address and the number of requests
// that were allowed.
func requestPath(t *testing.T, api string, config *tls.Config) (addr string, allowed *atomic.Int64) {
	t.Helper()
	forward, err := upstream.New(upstream.Config{
		URL:              &url.URL{Scheme: "http", Host: api, Path: "/cwms-data"},
		FirstByteTimeout: patience, ContextHeader: "x-cwms-auth-context",
	})
	if err != nil {
		t.Fatal(err)
	}
	allowed = new(atomic.Int64)
	h := &pep.Handler{
		Routes: route.Default("/cwms-data"),
		Identify: func(_ context.Context, c authz.Credentials) (*authz.Principal, error) {
			if c.Authorization == nil {
				return &authz.Principal{Method: authz.None}, nil
			}
			return &authz.Principal{Method: authz.JWT}, nil
		},
		Subject: func(_ context.Context, p *authz.Principal) (*authz.Subject, error) {
			return authz.NewSubject(p, authz.User{ID: "somebody", Username: "somebody"}, time.Time{}), nil
		},
		Decide: func(_ context.Context, q authz.Question) (authz.Decision, error) {
			return authz.Decision{Allow: !q.Anonymous, Constraints: []byte("{}")}, nil
		},
		Forward: forward.Forward,
		Record: func(e *pep.Event) {
			if e.Decision != nil && e.Decision.Allow {
				allowed.Add(1)
			}
		},
		Ready:  func() pep.Readiness { return pep.NewReadiness(nil, nil, nil, nil, time.Now()) },
		Bodies: &pep.BodyLimit{Each: 1 << 20, Total: 16 << 20},
		Base:   context.Background(),
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := h.Server()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(pep.Listen(l, config))
	}()
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-done
		forward.Close()
	})
	return l.Addr().String(), allowed
}

var (
	rounds = flag.Int("rounds", 300, "how many connections of mixed and of garbled cases")
	seed   = flag.Uint64("seed", 1, "of their order")
)

const auth = "Authorization: Bearer t\r\n"

func TestRequestPath(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	for name, c := range map[string]struct{ served, dialed *tls.Config }{
		"plain": {},
		"TLS":   {certified.TLS, &tls.Config{InsecureSkipVerify: true}},
	} {
		t.Run(name, func(t *testing.T) {
			api := Listen(t)
			addr, allowed := requestPath(t, api.Addr(), c.served)
			target := Target{Addr: addr, TLS: c.dialed, API: api, Auth: auth, Allowed: func() int { return int(allowed.Load()) }}
			Run(t, target)
			t.Run("mixed", func(t *testing.T) { Mix(t, target, *rounds, *seed) })
			t.Run("garbled", func(t *testing.T) { Garble(t, target, *rounds, *seed) })
		})
	}
}

// What the API says before it has the whole body reaches the client that is still
// sending it.
func TestEarlyAnswer(t *testing.T) {
	for name, answer := range map[string]string{
		"length":         "Content-Length: 4\r\n\r\nlong",
		"chunks":         "Transfer-Encoding: chunked\r\n\r\n4\r\nlong\r\n0\r\n\r\n",
		"until it ends":  "\r\nlong",
		"longer, length": "Content-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1_000_000),
	} {
		t.Run(name, func(t *testing.T) { earlyAnswer(t, answer) })
	}
}

func earlyAnswer(t *testing.T, answer string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				var r Request
				br := bufio.NewReader(c)
				for line := "x"; line != "" && err == nil; {
					line, err = r.line(br)
				}
				_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n"+answer)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	addr, _ := requestPath(t, l.Addr().String(), nil)
	for i := range 10 {
		status, size, err := upload(addr, target)
		if err != nil || status != 413 || size != 4 && size != 1_000_000 {
			t.Fatalf("upload %d: %d, %d bytes, %v", i, status, size, err)
		}
	}
}

// upload sends a body and reads the answer beside it; Go's own client may give up
// on the answer when a write fails first.
func upload(addr, target string) (status, size int, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, 0, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		body := make([]byte, 20<<20)
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\nContent-Length: %d\r\n\r\n", target, len(body))
		_, _ = c.Write(body)
	}()
	defer func() { _ = c.Close(); <-sent }()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, 0, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, 0, err
	}
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, len(answer), err
}

func TestCasesHaveNames(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Cases {
		if names[c.Name] {
			t.Errorf("%q is there twice", c.Name)
		}
		names[c.Name] = true
	}
	t.Logf("%d cases", len(Cases))
}
