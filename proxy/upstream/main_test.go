package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// What fasthttp starts once and what its client and dialer leave behind
		// for a while.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*TCPDialer).tcpAddrsClean"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// api is a raw upstream. It reads a whole request by its framing, records the
// exact bytes, and lets the test write the answer.
type api struct {
	net.Listener
	mu    sync.Mutex
	seen  []string
	conns int
	wg    sync.WaitGroup
	open  map[net.Conn]bool
}

// answering starts an api that writes one answer to each request.
func answering(t testing.TB, answer string) *api {
	return serving(t, func(c net.Conn, _ int) bool {
		_, err := io.WriteString(c, answer)
		return err == nil
	})
}

// serving starts an api. After each request it calls reply with the number of
// the request, from one; false closes the connection.
func serving(t testing.TB, reply func(c net.Conn, n int) bool) *api {
	return accepting(t, func(a *api, c net.Conn) {
		br := bufio.NewReader(c)
		for {
			req, err := readRequest(br)
			if err != nil {
				return
			}
			a.mu.Lock()
			a.seen = append(a.seen, req)
			n := len(a.seen)
			a.mu.Unlock()
			if !reply(c, n) {
				return
			}
		}
	})
}

// accepting starts an api that hands each connection to serve.
func accepting(t testing.TB, serve func(a *api, c net.Conn)) *api {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &api{Listener: l, open: map[net.Conn]bool{}}
	a.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns++
			a.open[c] = true
			a.mu.Unlock()
			a.wg.Go(func() {
				defer func() {
					a.mu.Lock()
					delete(a.open, c)
					a.mu.Unlock()
					c.Close()
				}()
				serve(a, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		a.mu.Lock()
		for c := range a.open {
			c.Close()
		}
		a.mu.Unlock()
		a.wg.Wait()
	})
	return a
}

// requests returns what the api has seen so far.
func (a *api) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.seen...)
}

func (a *api) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conns
}

// readRequest reads one request, byte for byte.
func readRequest(br *bufio.Reader) (string, error) {
	var b bytes.Buffer
	length, chunked := int64(0), false
	for {
		line, err := br.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			return "", err
		}
		if line == "\r\n" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			for _, c := range value {
				length = length*10 + int64(c-'0')
			}
		case "transfer-encoding":
			chunked = true
		}
	}
	if _, err := io.CopyN(&b, br, length); err != nil {
		return "", err
	}
	for chunked {
		line, err := br.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			return "", err
		}
		var size int64
		for _, c := range strings.TrimSpace(line) {
			size = size*16 + int64(strings.IndexRune("0123456789abcdef", c))
		}
		if _, err := io.CopyN(&b, br, size+2); err != nil {
			return "", err
		}
		chunked = size > 0
	}
	return b.String(), nil
}

// alice is a user whose decision is allow.
var alice = authz.NewSubject(&authz.Principal{Method: authz.JWT}, authz.User{
	ID: "alice", Username: "alice", Offices: []string{"SWT"}, PrimaryOffice: "SWT",
}, time.Time{})

func grant() *authz.Grant {
	return &authz.Grant{
		Subject:   alice,
		Decision:  &authz.Decision{Allow: true, ID: "d1", Constraints: []byte(`{}`)},
		Context:   []byte(`{}`),
		RequestID: "r1",
	}
}

// config is the configuration towards an api at addr.
func config(addr string) Config {
	return Config{
		URL:              &url.URL{Scheme: "http", Host: addr, Path: "/cwms-data"},
		FirstByteTimeout: 30 * time.Second,
		ContextHeader:    "x-cwms-auth-context",
	}
}

// proxy is the public listener with nothing but a Forwarder behind it.
type proxy struct {
	addr string
	f    *Forwarder
	errs chan error // of Forward, in order
}

// front starts a proxy that forwards under the grant that with has changed.
func front(t testing.TB, cfg Config, with func(rc *fasthttp.RequestCtx, g *authz.Grant)) *proxy {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{f: f, errs: make(chan error, 1024)}
	s := publicServer(func(rc *fasthttp.RequestCtx) {
		g := grant()
		if with != nil {
			with(rc, g)
		}
		if err := f.Forward(rc, g); err != nil {
			select {
			case p.errs <- err:
			default:
			}
			rc.SetStatusCode(statusOf(err))
			rc.SetBodyString(err.Error())
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-done
		f.Close()
	})
	return p
}

// publicServer is set as the proxy's public listener is.
func publicServer(h fasthttp.RequestHandler) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      h,
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		ReadBufferSize:               16 << 10,
		IdleTimeout:                  5 * time.Second,
		Logger:                       quiet{},
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func statusOf(err error) int {
	for kind, status := range map[error]int{
		authz.ErrMalformed:       400,
		authz.ErrSlowClient:      408,
		authz.ErrUpstream:        502,
		authz.ErrUnavailable:     503,
		authz.ErrUpstreamTimeout: 504,
		authz.ErrObligation:      500,
		authz.ErrHeaderTooLarge:  431,
	} {
		if errors.Is(err, kind) {
			return status
		}
	}
	return 599
}

// send writes raw bytes to the proxy and returns everything that comes back
// until it closes; the request should say Connection: close.
func (p *proxy) send(t testing.TB, raw string) string {
	t.Helper()
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil && len(b) == 0 {
		t.Fatal(err)
	}
	return string(b)
}

// client is a Go client that keeps what it gets as it came.
func client(t testing.TB) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}
