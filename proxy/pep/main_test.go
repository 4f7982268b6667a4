package pep

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// What fasthttp starts once, and a worker pool that looks only every few
		// seconds whether it was stopped.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// table is a small API: items belong to an office, files to nobody.
var table = func() *route.Table {
	t, err := route.Load([]byte(`
params: []
routes:
  /items: {GET: {office: query office}, POST: {office: json /office}}
  /items/{id}: {GET DELETE: {office: query office}}
  /files: {GET: , POST PUT: }
`), "/api")
	if err != nil {
		panic(err)
	}
	return t
}()

var asked = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func allow() authz.Decision {
	return authz.Decision{
		Allow: true, Reason: "ok: fine", Constraints: []byte(`{"a":1}`),
		ID: "d1", OPAID: "o1", Revision: "r1", Asked: asked, Source: authz.FromCache,
	}
}

func deny() authz.Decision {
	return authz.Decision{Reason: "embargo: too young", ID: "d2", OPAID: "o2", Revision: "r1", Asked: asked, Source: authz.FromOPA}
}

// stages are closures in the place of the real ones: a token or a cookie names
// its user, everybody but nobody is known, everything is allowed, and the API
// answers "ok" once it has the whole body.
func stages() *Handler {
	return &Handler{
		Routes: table,
		Identify: func(_ context.Context, c authz.Credentials) (*authz.Principal, error) {
			switch {
			case c.Authorization != nil:
				return token(string(bytes.TrimPrefix(c.Authorization, []byte("Bearer "))))
			case c.Cookie != nil:
				return &authz.Principal{Method: authz.Session, ID: string(c.Cookie)}, nil
			}
			return &authz.Principal{Method: authz.None}, nil
		},
		Subject: func(_ context.Context, p *authz.Principal) (*authz.Subject, error) {
			if p.Anonymous() {
				return authz.AnonymousSubject, nil
			}
			u := authz.User{ID: p.ID, Username: p.ID, Offices: []string{"SWT"}, PrimaryOffice: "SWT"}
			if p.User != nil {
				u = *p.User
			}
			return authz.NewSubject(p, u, asked), nil
		},
		Decide: func(context.Context, authz.Question) (authz.Decision, error) { return allow(), nil },
		Forward: func(rc *fasthttp.RequestCtx, _ *authz.Grant) error {
			if stream := rc.RequestBodyStream(); stream != nil {
				if _, err := io.Copy(io.Discard, stream); err != nil {
					return authz.Refuse(authz.ErrMalformed, "the request body broke off").Because(err)
				}
			}
			rc.SetBodyString("ok")
			return nil
		},
		Token: func(_ context.Context, t string) (*authz.Principal, error) { return token(t) },
		AssertedUser: func(user json.RawMessage) (*authz.Principal, error) {
			return &authz.Principal{Method: authz.Asserted, User: &authz.User{ID: string(user), Username: "asserted"}}, nil
		},
		AuthorizeSecret: "s3cret",
		Ready:           func() Readiness { return NewReadiness(nil, nil, nil, nil, asked) },
		Bodies:          &BodyLimit{Each: 1 << 20, Total: 4 << 20},
		Base:            context.Background(),
	}
}

func token(name string) (*authz.Principal, error) {
	if name == "bad" {
		return nil, authz.Refuse(authz.ErrUnauthenticated, "the token has expired")
	}
	return &authz.Principal{Method: authz.JWT, ID: name}, nil
}

// front is a Handler behind a real listener.
type front struct {
	*Handler
	addr     string
	server   *fasthttp.Server
	listener *listener

	mu     sync.Mutex
	events []Event
}

func serve(t testing.TB, with func(*Handler), set ...func(*fasthttp.Server)) *front {
	t.Helper()
	return serveTLS(t, nil, with, set...)
}

// serveTLS serves with TLS if there is a configuration of it.
func serveTLS(t testing.TB, config *tls.Config, with func(*Handler), set ...func(*fasthttp.Server)) *front {
	t.Helper()
	h := stages()
	if with != nil {
		with(h)
	}
	f := &front{Handler: h, server: h.Server()}
	for _, set := range set {
		set(f.server)
	}
	if record := h.Record; record != nil {
		h.Record = func(e *Event) { f.keep(e); record(e) }
	} else {
		h.Record = f.keep
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	f.listener = Listen(l, config).(*listener)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.server.Serve(f.listener)
	}()
	t.Cleanup(func() {
		_ = f.server.Shutdown()
		<-done
		if n := h.InFlight(); n != 0 {
			t.Errorf("%d requests are still in flight", n)
		}
		until(t, func() bool {
			f.listener.mu.Lock()
			defer f.listener.mu.Unlock()
			return f.listener.open == 0 && len(f.listener.of) == 0
		})
		h.Bodies.mu.Lock()
		defer h.Bodies.mu.Unlock()
		if n := h.Bodies.held; n != 0 {
			t.Errorf("%d bytes of bodies are still held", n)
		}
	})
	return f
}

// keep copies an Event, whose strings are views.
func (f *front) keep(e *Event) {
	c := *e
	c.RequestID, c.Method = strings.Clone(e.RequestID), strings.Clone(e.Method)
	c.Route, c.Resource, c.Action = strings.Clone(e.Route), strings.Clone(e.Resource), strings.Clone(e.Action)
	c.Input = bytes.Clone(e.Input)
	c.Offices, c.Match = nil, nil
	for _, office := range e.Offices {
		c.Offices = append(c.Offices, strings.Clone(office))
	}
	if e.Decision != nil {
		d := *e.Decision
		c.Decision = &d
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, c)
}

// recorded returns the Events so far, when there are n of them.
func (f *front) recorded(t testing.TB, n int) []Event {
	t.Helper()
	until(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.events) >= n
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) != n {
		t.Fatalf("%d Events, want %d: %+v", len(f.events), n, f.events)
	}
	return slices.Clone(f.events)
}

// the returns the only Event, without what differs from run to run: that is
// checked here.
func (f *front) the(t testing.TB, a answer) Event {
	t.Helper()
	e := f.recorded(t, 1)[0]
	if e.RequestID != a.header.Get("X-Request-Id") || len(e.RequestID) != 32 {
		t.Errorf("request id %q in the Event, %q in the answer", e.RequestID, a.header.Get("X-Request-Id"))
	}
	if e.Status != a.status {
		t.Errorf("status %d in the Event, %d in the answer", e.Status, a.status)
	}
	if e.Start.IsZero() || e.Duration <= 0 || e.Identify+e.Context+e.Decide+e.Forward > e.Duration {
		t.Errorf("times: %v %v %v %v of %v", e.Identify, e.Context, e.Decide, e.Forward, e.Duration)
	}
	e.Start, e.RequestID = time.Time{}, ""
	e.Identify, e.Context, e.Decide, e.Forward, e.Duration = 0, 0, 0, 0, 0
	return e
}

func until(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 10 s")
		}
	}
}

// answer is an answer as the client got it.
type answer struct {
	status int
	header http.Header
	body   string
	close  bool // the connection was closed after it
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// client is a connection to a front.
type client struct {
	net.Conn
	br *bufio.Reader
	t  testing.TB
}

func (f *front) dial(t testing.TB) *client {
	t.Helper()
	var c net.Conn
	var err error
	if f.listener.config == nil {
		c, err = net.Dial("tcp", f.addr)
	} else {
		c, err = tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &client{c, bufio.NewReader(c), t}
}

func (c *client) send(raw string) {
	c.t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		c.t.Fatal(err)
	}
}

// read reads one answer; the request must say that it is HEAD.
func (c *client) read(method string) answer {
	c.t.Helper()
	res, err := http.ReadResponse(c.br, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("broken answer: %v", err)
	}
	return answer{res.StatusCode, res.Header, string(body), res.Close}
}

// closed reports whether nothing comes any more.
func (c *client) closed() bool {
	_, err := c.br.ReadByte()
	return err == io.EOF
}

// send sends one request on a connection of its own.
func (f *front) send(t testing.TB, raw string) answer {
	t.Helper()
	c := f.dial(t)
	c.send(raw)
	method, _, _ := strings.Cut(raw, " ")
	return c.read(method)
}

// get is a GET with further header lines.
func get(target string, lines ...string) string { return request("GET", target, "", lines...) }

// request is a request; with a body it has a Content-Length.
func request(method, target, body string, lines ...string) string {
	raw := method + " " + target + " HTTP/1.1\r\nHost: h\r\n"
	for _, line := range lines {
		raw += line + "\r\n"
	}
	if body != "" {
		raw += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	return raw + "\r\n" + body
}

// refusal is the body of an error.
func refusal(a answer, phrase, message string) string {
	return `{"error":"` + phrase + `","message":"` + message + `","incidentIdentifier":"` + a.header.Get("X-Request-Id") + `"}`
}
