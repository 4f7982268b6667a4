package pep

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// reset ends a connection without the client having read anything.
func reset(t *testing.T, c *client) {
	t.Helper()
	tcp := c.Conn.(*net.TCPConn)
	if err := errors.Join(tcp.SetLinger(0), tcp.Close()); err != nil {
		t.Fatal(err)
	}
}

// half ends the sending side of a connection.
func half(t *testing.T, c *client) {
	t.Helper()
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// pair is a connection and its other end.
func pair(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := Listen(l, nil).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
	return near.(plain).conn, far
}

// Within a body the deadline moves on with every read; the next header has one of
// its own again.
func TestReadDeadlines(t *testing.T) {
	c, far := pair(t)
	past := time.Unix(1, 0)
	if err := c.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1)
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in a header: %v", err)
	}
	c.inBody.Store(true)
	c.credit.Store(int64(patienceMax))
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); err != nil {
		t.Errorf("in a body: %v", err)
	}
	// A byte pays for a thousandth of a second of waiting; without credit none is
	// waited for.
	c.credit.Store(0)
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in a body without credit: %v", err)
	}
	const credit = 20 * time.Second
	c.credit.Store(int64(credit))
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); err != nil || c.credit.Load() > int64(credit+time.Second/slowest) {
		t.Errorf("after a byte: %v, credit %v", err, time.Duration(c.credit.Load()))
	}
	// Some bodies have an end, too, however well they come.
	c.bodyEnd.Store(past.UnixNano())
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in a body that should be there by now: %v", err)
	}
	c.next()
	if err := c.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in the next header: %v", err)
	}
}

// A write always has a deadline: also after somebody took it away.
func TestWriteDeadlines(t *testing.T) {
	c, _ := pair(t)
	for _, step := range []struct {
		name string
		set  time.Time
	}{{"at first", time.Time{}}, {"after it was taken away", time.Time{}}} {
		if err := c.SetWriteDeadline(step.set); err != nil {
			t.Fatal(err)
		}
		if c.written.Load() != 0 {
			t.Errorf("%s: the next write would not set one", step.name)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if c.written.Load() == 0 {
			t.Errorf("%s: a write set none", step.name)
		}
	}
	// One that was set on purpose stays.
	if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a deadline that has passed: %v", err)
	}
}

// A kept connection does not linger: a stop would wait for it.
func TestKeptConnectionsDoNotLinger(t *testing.T) {
	f := serve(t, deciding(deny()))
	c := f.dial(t)
	c.send(request("POST", "/api/files", "abc", bearer))
	c.read("POST")
	c.send(get("/api/items", bearer))
	c.read("GET")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.server.Shutdown()
	}()
	if !c.closed() {
		t.Error("the connection stays open")
	}
	<-done
}

// Beyond the limits a connection is told so, counted, and leaves its room to others.
func TestConnectionLimits(t *testing.T) {
	for _, c := range []struct {
		name      string
		max, each int
		counter   *metrics.Counter
	}{{"all together", 2, 9, crowded}, {"of one address", 9, 2, crowdedAddress}} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, nil)
			f.listener.mu.Lock()
			f.listener.max, f.listener.each = c.max, c.each
			f.listener.mu.Unlock()
			before := c.counter.Get()
			open := []*client{f.dial(t), f.dial(t)}
			for _, c := range open {
				c.send(get("/health"))
				c.read("GET")
			}
			third := f.dial(t)
			third.send(get("/health"))
			a := third.read("GET")
			if a.status != 503 || !a.close || a.header.Get("Retry-After") == "" || a.body != refusal(a, "Service Unavailable", "too many connections") {
				t.Errorf("got %v %v", a, a.header)
			}
			if !third.closed() || c.counter.Get() != before+1 {
				t.Errorf("counted %d", c.counter.Get()-before)
			}
			_ = open[0].Close()
			until(t, func() bool {
				f.listener.mu.Lock()
				defer f.listener.mu.Unlock()
				return f.listener.open == 1
			})
			if a := f.send(t, get("/health")); a.status != 200 {
				t.Errorf("with room again: %v", a)
			}
		})
	}
}

// Identify is told whom the connection showed last, and of no other connection.
func TestLastPrincipal(t *testing.T) {
	last := make(chan string, 1)
	f := serve(t, func(h *Handler) {
		identify := h.Identify
		h.Identify = func(ctx context.Context, c authz.Credentials) (*authz.Principal, error) {
			name := "nobody"
			if c.Last != nil {
				name = string(c.Last.Method) + " " + c.Last.ID
			}
			last <- name
			return identify(ctx, c)
		}
	})
	one, other := f.dial(t), f.dial(t)
	for i, step := range []struct {
		by            *client
		authorization string
		want          string
	}{
		{one, "Authorization: Bearer alice", "nobody"},
		{other, "Authorization: Bearer bob", "nobody"},
		{one, "Authorization: Bearer alice", "jwt alice"},
		{one, "Authorization: Bearer bad", "jwt alice"},
		{one, "Authorization: Bearer carol", "jwt alice"},
		{one, "Accept: */*", "jwt carol"},
		{one, "Authorization: Bearer alice", "none "},
		{other, "Accept: */*", "jwt bob"},
	} {
		step.by.send(get("/api/items?office=SWT", step.authorization))
		step.by.read("GET")
		if got := <-last; got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}

// certified is a server with a certificate, which its client knows.
func certified(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Uploads that are refused, and those that wait, are the same with TLS.
func TestTLS(t *testing.T) {
	certified := certified(t)
	f := serveTLS(t, certified.TLS, deciding(deny()))
	c := certified.Client()
	c.Timeout = time.Minute
	defer c.CloseIdleConnections()
	for range 5 {
		c, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer, err := upload(c, 20<<20, true); err != nil || status != 403 {
			t.Errorf("an upload: %d %s %v", status, answer, err)
		}
	}
	for _, size := range []int64{0, 100} {
		for range 5 {
			req, err := http.NewRequest("POST", "https://"+f.addr+"/api/files", io.LimitReader(zeros{}, size))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = size
			if size == 100 {
				req.Header.Set("Expect", "100-continue")
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode != 403 {
				t.Errorf("%d bytes: %d", size, res.StatusCode)
			}
		}
	}
}

// Connections are counted by what a client cannot choose for each of them.
func TestOrigin(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "::1": "::",
	} {
		if got := origin(&net.TCPAddr{IP: net.ParseIP(address), Port: 1}).String(); got != want {
			t.Errorf("%s counts as %s, want %s", address, got, want)
		}
	}
}

// The stages learn where a request comes from: from its peer, or from whom a trusted
// proxy speaks for.
func TestWhereARequestComesFrom(t *testing.T) {
	got := make(chan netip.Addr, 1)
	f := serve(t, func(h *Handler) {
		identify := h.Identify
		h.Identify = func(ctx context.Context, c authz.Credentials) (*authz.Principal, error) {
			got <- c.From
			return identify(ctx, c)
		}
		h.Client = func(rc *fasthttp.RequestCtx, forwardedFor []byte) netip.Addr {
			return netip.MustParseAddr(string(forwardedFor))
		}
	})
	for header, want := range map[string]string{
		"":                                     "127.0.0.1",
		"X-Forwarded-For: 2001:db8:1:2::9\r\n": "2001:db8:1:2::",
		"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n": "192.0.2.2",
	} {
		f.send(t, "GET /api/files HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"+header+"\r\n")
		if from := <-got; from.String() != want {
			t.Errorf("%q: from %v, want %s", header, from, want)
		}
	}
}
