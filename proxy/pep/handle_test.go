package pep

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

const bearer = "Authorization: Bearer alice"

// deciding makes every decision the same.
func deciding(d authz.Decision) func(*Handler) {
	return func(h *Handler) {
		h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { return d, nil }
	}
}

func failing(stage string, err error) func(*Handler) {
	return func(h *Handler) {
		switch stage {
		case "identify":
			h.Identify = func(context.Context, authz.Credentials) (*authz.Principal, error) { return nil, err }
		case "subject":
			h.Subject = func(context.Context, *authz.Principal) (*authz.Subject, error) { return nil, err }
		case "decide":
			h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { return authz.Decision{}, err }
		case "forward":
			h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error { return err }
		}
	}
}

// What a client sees when something is missing: every row of the failure table.
func TestFailures(t *testing.T) {
	secret := errors.New("dial 10.0.0.7: s3cret")
	for _, c := range []struct {
		name    string
		with    func(*Handler)
		status  int
		phrase  string
		message string
		header  string // that the answer has
	}{
		{"OPA is down", failing("decide", authz.Refuse(authz.ErrNoDecision, "no decision could be obtained").Because(secret)),
			503, "Service Unavailable", "no decision could be obtained", "Retry-After: 1"},
		{"signing keys are missing", failing("identify", authz.Refuse(authz.ErrUnavailable, "tokens cannot be verified now").Because(secret)),
			503, "Service Unavailable", "tokens cannot be verified now", "Retry-After: 1"},
		{"the profile API is down", failing("subject", authz.Refuse(authz.ErrUnavailable, "your profile cannot be read now").Because(secret)),
			503, "Service Unavailable", "your profile cannot be read now", "Retry-After: 1"},
		{"the profile API says 401", failing("subject", authz.Refuse(authz.ErrUnauthenticated, "the API does not know you").Because(secret)),
			401, "Unauthorized", "the API does not know you", `WWW-Authenticate: Bearer error="invalid_token"`},
		{"the token is bad", failing("identify", authz.Refuse(authz.ErrUnauthenticated, "the token has expired").Because(secret)),
			401, "Unauthorized", "the token has expired", `WWW-Authenticate: Bearer error="invalid_token"`},
		{"policy denies", deciding(deny()),
			403, "Forbidden", "embargo", "Cache-Control: no-store"},
		{"policy denies without a reason", deciding(authz.Decision{}),
			403, "Forbidden", "denied", "Cache-Control: no-store"},
		{"upstream refused", failing("forward", authz.Refuse(authz.ErrUpstream, "the API cannot be reached").Because(secret)),
			502, "Bad Gateway", "the API cannot be reached", "Content-Type: application/json"},
		{"upstream timed out", failing("forward", authz.Refuse(authz.ErrUpstreamTimeout, "the API did not answer in time").Because(secret)),
			504, "Gateway Timeout", "the API did not answer in time", "Content-Type: application/json"},
		{"upstream is busy", failing("forward", authz.Refuse(authz.ErrUnavailable, "too many requests are under way").Because(secret)),
			503, "Service Unavailable", "too many requests are under way", "Retry-After: 1"},
		{"the context header does not fit", failing("forward", authz.Refuse(authz.ErrObligation, "context header too large").Because(secret)),
			500, "Internal Server Error", "context header too large", "Content-Type: application/json"},
		{"a refusal for the cause of which another status stands", failing("subject", authz.Refuse(authz.ErrUnavailable, "later").Because(authz.ErrMalformed)),
			503, "Service Unavailable", "later", "Retry-After: 1"},
		{"an error of no kind", failing("subject", secret),
			500, "Internal Server Error", "internal error", "Content-Type: application/json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, c.with)
			a := f.send(t, get("/api/items?office=SWT", bearer))
			if a.status != c.status || a.body != refusal(a, c.phrase, c.message) {
				t.Errorf("got %v\nwant %d %s", a, c.status, refusal(a, c.phrase, c.message))
			}
			name, value, _ := strings.Cut(c.header, ": ")
			if a.header.Get(name) != value {
				t.Errorf("%s is %q, want %q", name, a.header.Get(name), value)
			}
			if e := f.the(t, a); e.Status != c.status || e.Err == nil {
				t.Errorf("Event %+v", e)
			}
			if strings.Contains(a.body, "10.0.0.7") {
				t.Errorf("the client reads the cause: %s", a.body)
			}
		})
	}
}

// The record of a request, whole, for each way in which one ends.
func TestEvent(t *testing.T) {
	const user = `{"id":"alice","username":"alice","authenticated":true,"auth_method":"jwt","roles":[],"offices":["SWT"],"primary_office":"SWT"}`
	input := func(context string) []byte {
		return []byte(`{"user":` + user + `,"resource":"items","action":"read","context":` + context + `}`)
	}
	const swt = `{"method":"GET","route":"/items","subresource":"","params":{},"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null}`
	allowed, denied := allow(), deny()
	known := Event{
		Method: "GET", Route: "/items", Resource: "items", Action: "read",
		Subject: "alice", AuthMethod: authz.JWT, Fetched: asked, Offices: []string{"SWT"}, Input: input(swt),
	}
	with := func(e Event, change func(*Event)) Event {
		change(&e)
		return e
	}
	down := authz.Refuse(authz.ErrNoDecision, "no decision")
	gone := authz.Refuse(authz.ErrUpstream, "gone")
	for _, c := range []struct {
		name string
		with func(*Handler)
		raw  string
		want Event
	}{
		{"allowed", nil, get("/api/items?office=swt", bearer),
			with(known, func(e *Event) { e.Decision, e.Status = &allowed, 200 })},
		{"denied", deciding(denied), get("/api/items?office=SWT", bearer),
			with(known, func(e *Event) { e.Decision, e.Status, e.Err = &denied, 403, errDenied })},
		{"denied, reported only", func(h *Handler) { deciding(denied)(h); h.Report = true }, get("/api/items?office=SWT", bearer),
			with(known, func(e *Event) { e.Decision, e.Status, e.Reported = &denied, 200, true })},
		{"no decision", failing("decide", down), get("/api/items?office=SWT", bearer),
			with(known, func(e *Event) { e.Status, e.Err = 503, down })},
		{"allowed, but not served", failing("forward", gone), get("/api/items?office=SWT", bearer),
			with(known, func(e *Event) { e.Decision, e.Status, e.Err = &allowed, 502, gone })},
		{"anonymous, unknown route", nil, get("/api/nowhere/x"), Event{
			Method: "GET", Route: "unknown", Resource: "nowhere", Action: "read", Subject: "anonymous", AuthMethod: authz.None,
			Input: []byte(`{"user":{"id":"anonymous","username":"anonymous","authenticated":false,"auth_method":"none","roles":[],"roles_by_office":{},"offices":[]},` +
				`"resource":"nowhere","action":"read","context":{"method":"GET","route":"unknown","subresource":"","params":{},"offices":[],"office_scope":"unknown","office_mask":null}}`),
			Decision: &allowed, Status: 200,
		}},
		{"a bad token", nil, get("/api/items", "Authorization: Bearer bad"), Event{
			Method: "GET", Route: "/items", Resource: "items", Action: "read", Status: 401,
			Err: authz.Refuse(authz.ErrUnauthenticated, "the token has expired"),
		}},
		{"our own endpoint", nil, get("/health"), Event{Method: "GET", Endpoint: "health", Status: 200}},
		{"no endpoint", nil, get("/favicon.ico"), Event{Method: "GET", Status: 404, Err: errNotFound}},
		{"a refused target", nil, get("/api/../health"), Event{
			Method: "GET", Status: 400, Err: authz.Refuse(authz.ErrMalformed, "the path holds a dot segment"),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, c.with)
			if got := f.the(t, f.send(t, c.raw)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v %v %s\nwant %+v %v %s", got, got.Decision, got.Input, c.want, c.want.Decision, c.want.Input)
			}
		})
	}
}

// A request whose stage panics is answered with 500 and recorded, and the process
// serves on: whether the panic comes before 100 Continue or after.
func TestPanics(t *testing.T) {
	boom := map[string]func(*Handler){
		"identify": func(h *Handler) {
			h.Identify = func(context.Context, authz.Credentials) (*authz.Principal, error) { panic("boom") }
		},
		"subject": func(h *Handler) {
			h.Subject = func(context.Context, *authz.Principal) (*authz.Subject, error) { panic("boom") }
		},
		"decide": func(h *Handler) {
			h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { panic("boom") }
		},
		"forward": func(h *Handler) {
			h.Forward = func(rc *fasthttp.RequestCtx, _ *authz.Grant) error {
				rc.SetBodyString("half")
				panic("boom")
			}
		},
		"record": func(h *Handler) {
			first := true
			h.Record = func(*Event) {
				if first {
					first = false
					panic("boom")
				}
			}
		},
	}
	for stage, with := range boom {
		for _, raw := range []string{
			get("/api/items", bearer),
			request("POST", "/api/files", "abc", bearer, "Expect: 100-continue"),
		} {
			method, _, _ := strings.Cut(raw, " ")
			t.Run(stage+" "+method, func(t *testing.T) {
				f := serve(t, with)
				before := panics.Get()
				c := f.dial(t)
				c.send(raw)
				a := c.read(method)
				if a.status == 100 {
					a = c.read(method)
				}
				if a.status != 500 || strings.Contains(a.body, "boom") || strings.Contains(a.body, "half") {
					t.Errorf("got %v", a)
				}
				if n := panics.Get() - before; n != 1 {
					t.Errorf("%d panics counted", n)
				}
				if e := f.recorded(t, 1)[0]; stage != "record" && (e.Status != 500 || !strings.Contains(e.Err.Error(), "boom")) {
					t.Errorf("Event %+v", e)
				}
				if a := f.send(t, get("/health")); a.status != 200 {
					t.Errorf("afterwards: %v", a)
				}
			})
		}
	}
}

// What the header alone tells. The status of each, and whose request it was.
func TestCredentials(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  string // status and subject
	}{
		{"nobody", nil, "200 anonymous"},
		{"a token", []string{bearer}, "200 alice"},
		{"two Authorization headers", []string{bearer, "authorization: Bearer bob"}, "400 "},
		{"the same one twice", []string{bearer, bearer}, "400 "},
		{"a session", []string{"Cookie: a=b; JSESSIONID=x"}, "200 JSESSIONID=x"},
		{"both session cookies, in one order", []string{"Cookie: JSESSIONIDSSO=s; JSESSIONID=x"}, "200 JSESSIONID=x; JSESSIONIDSSO=s"},
		{"two Cookie lines", []string{"Cookie: JSESSIONIDSSO=s", "Cookie: JSESSIONID=x"}, "200 JSESSIONID=x; JSESSIONIDSSO=s"},
		{"a session twice, the same", []string{"Cookie: JSESSIONID=x; JSESSIONID=x"}, "200 JSESSIONID=x"},
		{"a session with two values", []string{"Cookie: JSESSIONID=x; JSESSIONID=y"}, "400 "},
		{"… on two lines", []string{"Cookie: JSESSIONID=x", "cookie: JSESSIONID=y"}, "400 "},
		{"… one behind blanks", []string{"Cookie: JSESSIONID=x; JSESSIONID =y"}, "400 "},
		{"… one behind a comma", []string{"Cookie: JSESSIONID=x,JSESSIONID=y"}, "400 "},
		{"other cookies are none of ours", []string{"Cookie: jsession=1; XJSESSIONID=2; JSESSIONIDX=3"}, "200 anonymous"},
		{"an empty session is none", []string{"Cookie: JSESSIONID="}, "200 anonymous"},
		{"two asserting secrets", []string{"X-Authorize-Secret: a", "X-Authorize-Secret: b"}, "400 "},
		{"two test users", []string{"X-Test-User: {}", "x-test-user: {}"}, "400 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, nil)
			a := f.send(t, get("/api/items", c.lines...))
			e := f.the(t, a)
			if got := fmt.Sprintf("%d %s", a.status, e.Subject); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if a.status == 400 && !a.close {
				t.Error("the connection stays open")
			}
		})
	}
}

// What of the client's credentials is forwarded: only those that were decided on.
func TestGrant(t *testing.T) {
	for _, c := range []struct {
		name                   string
		method                 authz.Method
		authorization, cookies bool // are dropped
	}{
		{"anonymous", authz.None, true, true},
		{"token", authz.JWT, false, true},
		{"key", authz.APIKey, false, true},
		{"session", authz.Session, true, false},
		{"test user", authz.Test, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got authz.Grant
			f := serve(t, func(h *Handler) {
				h.Identify = func(context.Context, authz.Credentials) (*authz.Principal, error) {
					return &authz.Principal{Method: c.method}, nil
				}
				h.Forward = func(_ *fasthttp.RequestCtx, g *authz.Grant) error {
					got = *g
					got.RequestID, got.Context = strings.Clone(g.RequestID), []byte(string(g.Context))
					decision := *g.Decision
					got.Decision = &decision
					return nil
				}
			})
			a := f.send(t, get("/api/items"))
			decision := allow()
			want := authz.Grant{
				Subject: got.Subject, Decision: &decision, RequestID: a.header.Get("X-Request-Id"),
				Context:           []byte(`{"method":"GET","route":"/items","subresource":"","params":{},"offices":[],"office_scope":"none","office_mask":null}`),
				DropAuthorization: c.authorization, DropCookies: c.cookies,
			}
			if !reflect.DeepEqual(got, want) || got.Subject.Method != c.method {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	t.Run("a session that the API does not know", func(t *testing.T) {
		dropped := false
		f := serve(t, func(h *Handler) {
			h.Subject = func(context.Context, *authz.Principal) (*authz.Subject, error) { return authz.AnonymousSubject, nil }
			h.Forward = func(_ *fasthttp.RequestCtx, g *authz.Grant) error { dropped = g.DropCookies; return nil }
		})
		if a := f.send(t, get("/api/items", "Cookie: JSESSIONID=old")); a.status != 200 || !dropped {
			t.Errorf("got %v, cookies dropped: %v", a, dropped)
		}
	})
}

// Only a true preflight is answered without a decision, and only a known origin
// may read answers.
func TestCrossOrigin(t *testing.T) {
	const known, foreign = "Origin: https://app.example", "Origin: https://evil.example"
	const wanted = "Access-Control-Request-Method: PUT"
	for _, c := range []struct {
		name string
		raw  string
		want string // status, decisions, allowed origin, methods, headers
	}{
		{"no origin", get("/api/items"), "200 1 - - -"},
		{"a known origin", get("/api/items", known), "200 1 https://app.example - -"},
		{"a foreign origin", get("/api/items", foreign), "200 1 - - -"},
		{"a refusal to a known origin", get("/api/items", known, "Authorization: Bearer bad"), "401 0 https://app.example - -"},
		{"a preflight", request("OPTIONS", "/api/items", "", known, wanted, "Access-Control-Request-Headers: authorization, x-a"),
			"204 0 https://app.example GET, HEAD, POST, PUT, PATCH, DELETE authorization, x-a"},
		{"a preflight from a foreign origin", request("OPTIONS", "/api/items", "", foreign, wanted), "403 0 - - -"},
		{"OPTIONS with an origin only", request("OPTIONS", "/api/items", "", known), "200 1 https://app.example - -"},
		{"OPTIONS with a method only", request("OPTIONS", "/api/items", "", wanted), "200 1 - - -"},
		{"OPTIONS with a body and no origin", request("OPTIONS", "/api/items", "abc", wanted), "200 1 - - -"},
		{"two origins", get("/api/items", foreign, known), "400 0 - - -"},
		{"no such endpoint", get("/", known), "404 0 https://app.example - -"},
	} {
		t.Run(c.name, func(t *testing.T) {
			decisions := 0
			f := serve(t, func(h *Handler) {
				h.Origins = []string{"https://app.example"}
				h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { decisions++; return allow(), nil }
			})
			a := f.send(t, c.raw)
			or := func(name string) string {
				if v := a.header.Get(name); v != "" {
					return v
				}
				return "-"
			}
			got := fmt.Sprintf("%d %d %s %s %s", a.status, decisions,
				or("Access-Control-Allow-Origin"), or("Access-Control-Allow-Methods"), or("Access-Control-Allow-Headers"))
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if strings.Contains(c.raw, "Origin: https") && a.status != 400 && !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin") {
				t.Errorf("Vary is %q", a.header.Values("Vary"))
			}
			f.the(t, a)
		})
	}
}

// A browser sends cookies by itself, also for a page of somebody else.
func TestCrossSite(t *testing.T) {
	const session = "Cookie: JSESSIONID=x"
	for _, c := range []struct {
		name, method string
		lines        []string
		status       int
	}{
		{"a foreign page writes", "POST", []string{session, "Origin: https://evil.example"}, 403},
		{"a page without origin writes", "POST", []string{session, "Origin: null"}, 403},
		{"an old browser tells by another header", "DELETE", []string{session, "Sec-Fetch-Site: cross-site"}, 403},
		{"our own page writes", "POST", []string{session, "Origin: https://h"}, 200},
		{"another port is another page", "POST", []string{session, "Origin: https://h:8443"}, 403},
		{"a known page writes", "PUT", []string{session, "Origin: https://app.example"}, 200},
		{"no browser", "POST", []string{session}, 200},
		{"the same site", "POST", []string{session, "Sec-Fetch-Site: same-origin"}, 200},
		{"a foreign page reads", "GET", []string{session, "Origin: https://evil.example"}, 200},
		{"a foreign page writes with a token", "POST", []string{bearer, "Origin: https://evil.example"}, 200},
		{"a foreign page writes as nobody", "POST", []string{"Origin: https://evil.example"}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) { h.Origins = []string{"https://app.example"} })
			a := f.send(t, request(c.method, "/api/files", "", append(c.lines, "Content-Length: 0")...))
			if a.status != c.status {
				t.Errorf("got %v, want %d", a, c.status)
			}
			f.the(t, a)
		})
	}
}

// 100 Continue is sent only when the body is of use.
func TestExpect(t *testing.T) {
	const expect = "Expect: 100-continue"
	questions := func(h *Handler) *[]string {
		var asked []string
		decide := h.Decide
		h.Decide = func(ctx context.Context, q authz.Question) (authz.Decision, error) {
			asked = append(asked, string(q.Context))
			return decide(ctx, q)
		}
		return &asked
	}
	refuseStrangers := func(h *Handler) {
		h.Decide = func(_ context.Context, q authz.Question) (authz.Decision, error) {
			if q.Anonymous {
				return deny(), nil
			}
			return allow(), nil
		}
	}
	for _, c := range []struct {
		name      string
		with      func(*Handler)
		head      string
		body      string
		want      string // statuses
		decisions int
	}{
		{"allowed", nil, "POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n" + bearer, "abc", "100 200", 1},
		{"allowed, chunked", nil, "POST /api/files HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + bearer, "3\r\nabc\r\n0\r\n\r\n", "100 200", 1},
		{"denied", deciding(deny()), "POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n" + bearer, "", "403", 1},
		{"a bad token", nil, "POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nAuthorization: Bearer bad", "", "401", 0},
		{"a body needed for the decision", nil, "POST /api/items HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n" + bearer, `{"office":"SWT"}`, "100 200", 1},
		{"… and denied then", deciding(deny()), "POST /api/items HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n" + bearer, `{"office":"SWT"}`, "100 403", 1},
		{"… from a stranger who is refused", refuseStrangers, "POST /api/items HTTP/1.1\r\nHost: h\r\nContent-Length: 16", "", "403", 1},
		{"… from a stranger who is not", nil, "POST /api/items HTTP/1.1\r\nHost: h\r\nContent-Length: 16", `{"office":"SWT"}`, "100 200", 2},
		{"… from a stranger, refused only in a report", func(h *Handler) { refuseStrangers(h); h.Report = true },
			"POST /api/items HTTP/1.1\r\nHost: h\r\nContent-Length: 16", `{"office":"SWT"}`, "100 200", 2},
		{"too large", func(h *Handler) { h.BodyMax = 2 }, "POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n" + bearer, "", "413", 0},
		{"our own endpoint", nil, "POST /authorize HTTP/1.1\r\nHost: h\r\nContent-Length: 36", `{"resource":"items","action":"read"}`, "100 200", 1},
		{"an endpoint that wants no body", nil, "POST /health HTTP/1.1\r\nHost: h\r\nContent-Length: 3", "", "405", 0},
		{"another expectation", nil, "POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: miracles", "abc", "400", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var decisions *[]string
			f := serve(t, func(h *Handler) {
				if c.with != nil {
					c.with(h)
				}
				decisions = questions(h)
			})
			conn := f.dial(t)
			head := c.head
			if !strings.Contains(head, "Expect:") {
				head += "\r\n" + expect
			}
			conn.send(head + "\r\n\r\n")
			if head == c.head {
				conn.send(c.body)
			}
			a := conn.read("POST")
			got := fmt.Sprint(a.status)
			if a.status == 100 {
				conn.send(c.body)
				a = conn.read("POST")
				got += fmt.Sprint(" ", a.status)
			}
			if got != c.want || len(*decisions) != c.decisions {
				t.Errorf("got %s after %d decisions (%q), want %s after %d", got, len(*decisions), *decisions, c.want, c.decisions)
			}
			if a.status >= 300 && !strings.HasPrefix(c.want, "100") && !conn.closed() {
				t.Error("the connection stays open though the body may be under way")
			}
			e := f.the(t, a)
			if reported := e.Reported; reported != strings.Contains(c.name, "report") {
				t.Errorf("reported: %v", reported)
			}
		})
	}
}

// A client that goes away between 100 Continue and its body leaves one Event and
// nothing behind.
func TestExpectAbandoned(t *testing.T) {
	f := serve(t, nil)
	c := f.dial(t)
	c.send("POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
	if a := c.read("POST"); a.status != 100 {
		t.Fatalf("got %v", a)
	}
	_ = c.Close()
	e := f.recorded(t, 1)[0]
	if e.Status != 400 || e.Route != "/files" || !e.Decision.Allow || e.Method != "POST" {
		t.Errorf("Event %+v", e)
	}
	until(t, func() bool { return f.InFlight() == 0 })
}

// The same when not even the 100 can be sent any more.
func TestExpectNotSent(t *testing.T) {
	decide, decided := make(chan struct{}), make(chan struct{})
	f := serve(t, func(h *Handler) {
		h.Decide = func(context.Context, authz.Question) (authz.Decision, error) {
			close(decided)
			<-decide
			return allow(), nil
		}
		h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error {
			t.Error("forwarded")
			return nil
		}
	})
	c := f.dial(t)
	c.send("POST /api/files HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
	<-decided
	reset(t, c)
	close(decide)
	if e := f.recorded(t, 1)[0]; e.Status != 400 || !e.Decision.Allow {
		t.Errorf("Event %+v", e)
	}
	until(t, func() bool { return f.InFlight() == 0 })
}

// A body that is read for its attributes is bounded, whole, and forwarded as it
// came.
func TestInspection(t *testing.T) {
	const kib = 1 << 10
	item := func(size int) string {
		return `{"office":"SWT","pad":"` + strings.Repeat("x", size-len(`{"office":"SWT","pad":""}`)) + `"}`
	}
	chunked := func(body string) string {
		return fmt.Sprintf("POST /api/items HTTP/1.1\r\nHost: h\r\n%s\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", bearer, len(body), body)
	}
	for _, c := range []struct {
		name string
		raw  string
		want string // status, and offices asked about
	}{
		{"a body", request("POST", "/api/items", `{"office":"SWT"}`, bearer), "200 SWT"},
		{"the largest", request("POST", "/api/items", item(200*kib), bearer), "200 SWT"},
		{"the largest, chunked", chunked(item(200 * kib)), "200 SWT"},
		{"a byte more", request("POST", "/api/items", item(200*kib+1), bearer), "413 "},
		{"a byte more, chunked", chunked(item(200*kib + 1)), "413 "},
		{"more than all may have", request("POST", "/api/items", "", bearer, "Content-Length: 99999999999") + "{", "413 "},
		{"no body", request("POST", "/api/items", "", bearer, "Content-Length: 0"), "400 "},
		{"not JSON", request("POST", "/api/items", `{"office":`, bearer, "Content-Type: application/json"), "400 "},
		{"another type", request("POST", "/api/items", `office=SWT`, bearer, "Content-Type: application/x-www-form-urlencoded"), "415 "},
		{"compressed", request("POST", "/api/items", `{"office":"SWT"}`, bearer, "Content-Encoding: gzip"), "415 "},
		{"a broken chunk", strings.Replace(chunked(`{"office":"SWT"}`), "\r\n10\r\n", "\r\nzz\r\n", 1), "400 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var forwarded string
			f := serve(t, func(h *Handler) {
				h.Bodies = &BodyLimit{Each: 200 * kib, Total: 512 * kib}
				h.Forward = func(rc *fasthttp.RequestCtx, _ *authz.Grant) error {
					forwarded = string(rc.Request.Body())
					return nil
				}
			})
			a := f.send(t, c.raw)
			e := f.the(t, a)
			if got := fmt.Sprintf("%d %s", a.status, strings.Join(e.Offices, " ")); got != c.want {
				t.Errorf("got %s, want %s (%v)", got, c.want, e.Err)
			}
			if a.status == 200 && !strings.Contains(c.raw, forwarded) {
				t.Errorf("forwarded %d bytes", len(forwarded))
			}
			if a.status == 200 && len(forwarded) < 16 {
				t.Errorf("forwarded %q", forwarded)
			}
		})
	}
}

// A body that ends with the connection is not taken for whole.
func TestInspectionOfACutBody(t *testing.T) {
	f := serve(t, func(h *Handler) {
		h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error {
			t.Error("forwarded")
			return nil
		}
	})
	c := f.dial(t)
	c.send(request("POST", "/api/items", "", bearer, "Content-Length: 100") + `{"office":"SWT"}`)
	half(t, c)
	if a := c.read("POST"); a.status != 400 {
		t.Errorf("got %v", a)
	}
}

// What becomes of a body that does not come as announced.
func TestReadAll(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream io.Reader
		length int
		status int
	}{
		{"whole", strings.NewReader("0123456789"), 10, 200},
		{"whole, length unknown", strings.NewReader("0123456789"), -1, 200},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("0123456789")), 10, 200},
		{"its end with the last byte", iotest.DataErrReader(strings.NewReader("0123456789")), -1, 200},
		{"too short", strings.NewReader("012345678"), 10, 400},
		{"too long", strings.NewReader("0123456789x"), -1, 413},
		{"announced too long", strings.NewReader(""), 11, 413},
		{"slow", iotest.ErrReader(os.ErrDeadlineExceeded), 10, 408},
		{"slow at the end", io.MultiReader(strings.NewReader("012345678"), iotest.ErrReader(os.ErrDeadlineExceeded)), -1, 408},
		{"broken", iotest.ErrReader(errors.New("reset")), 10, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rc fasthttp.RequestCtx
			rc.Request.SetBodyStream(c.stream, c.length)
			l := BodyLimit{Each: 10, Total: 100}
			body, done, err := l.read(&rc, "alice")
			status := 200
			if err != nil {
				status = statusOf(err)
			} else {
				if string(body) != "0123456789" || l.held == 0 {
					t.Errorf("read %q, %d bytes held", body, l.held)
				}
				done()
			}
			if status != c.status || l.held != 0 {
				t.Errorf("%d, want %d; %d bytes held", status, c.status, l.held)
			}
		})
	}
}

// Bodies that are read for their attributes share one budget: who finds it spent
// is told to come again.
func TestInspectionBudget(t *testing.T) {
	forwarding, forward := make(chan struct{}), make(chan struct{})
	f := serve(t, func(h *Handler) {
		h.Bodies = &BodyLimit{Each: 1 << 20, Total: 100 << 10}
		h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error {
			forwarding <- struct{}{}
			<-forward
			return nil
		}
	})
	body := `{"office":"SWT","pad":"` + strings.Repeat("x", 60<<10) + `"}`
	first := f.dial(t)
	first.send(request("POST", "/api/items", body, bearer))
	<-forwarding
	if a := f.send(t, request("POST", "/api/items", body, bearer)); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("got %v", a)
	}
	// What is announced costs nothing yet.
	announced := f.dial(t)
	announced.send(request("POST", "/api/items", "", bearer, "Content-Length: 1000000"))
	close(forward)
	if a := first.read("POST"); a.status != 200 {
		t.Errorf("got %v", a)
	}
	go func() { <-forwarding }()
	if a := f.send(t, request("POST", "/api/items", body, bearer)); a.status != 200 {
		t.Errorf("with memory back: %v", a)
	}
}

// One subject may fill half of the budget and no more.
func TestInspectionShare(t *testing.T) {
	l := BodyLimit{Each: 10, Total: 100}
	for range 5 {
		if !l.take("alice", 10) {
			t.Fatal("half of it is refused")
		}
	}
	if l.take("alice", 1) {
		t.Error("more than half is granted")
	}
	if !l.take("bob", 50) || l.take("carol", 1) {
		t.Error("the other half is for others, and then there is none")
	}
	l.take("alice", -50)
	if !l.take("carol", 50) || l.held != 100 || len(l.by) != 2 {
		t.Errorf("%d held, by %v", l.held, l.by)
	}
}

// BODY_MAX holds whether or not the length is announced, read for attributes or
// not.
func TestBodyMax(t *testing.T) {
	chunked := "Transfer-Encoding: chunked"
	for _, c := range []struct {
		name, raw string
		status    int
	}{
		{"as much as allowed", request("POST", "/api/files", "0123456789abcdef", bearer), 200},
		{"as much as allowed, chunked", request("POST", "/api/files", "", bearer, chunked) + "10\r\n0123456789abcdef\r\n0\r\n\r\n", 200},
		{"a byte more", request("POST", "/api/files", "0123456789abcdefg", bearer), 413},
		{"a byte more, chunked", request("POST", "/api/files", "", bearer, chunked) + "11\r\n0123456789abcdefg\r\n0\r\n\r\n", 413},
		{"a byte more, in two chunks", request("POST", "/api/files", "", bearer, chunked) + "10\r\n0123456789abcdef\r\n1\r\ng\r\n0\r\n\r\n", 413},
		{"read for attributes", request("POST", "/api/items", `{"office":"SWT"}`, bearer), 200},
		{"read for attributes, a byte more", request("POST", "/api/items", `{"office":"SWT"} `, bearer), 413},
		{"read for attributes, chunked", request("POST", "/api/items", "", bearer, chunked) + "11\r\n{\"office\":\"SWT\"} \r\n0\r\n\r\n", 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) { h.BodyMax = 16 })
			a := f.send(t, c.raw)
			if a.status != c.status {
				t.Errorf("got %v, want %d", a, c.status)
			}
			f.the(t, a)
		})
	}
}

// What never became a request is answered, recorded once, and its connection
// closed.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		status    int
		phrase    string
	}{
		{"no HTTP", "hello there\r\n\r\n", 400, "Bad Request"},
		{"no Host", "GET /health HTTP/1.1\r\n\r\n", 400, "Bad Request"},
		{"two Hosts", "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "Bad Request"},
		{"a header too large", get("/health", "X: "+strings.Repeat("x", 20<<10)), 431, "Request Header Fields Too Large"},
		{"much too large", get("/health", "X: "+strings.Repeat("x", 4<<20)), 431, "Request Header Fields Too Large"},
		{"a target too large", get("/health?" + strings.Repeat("x", 20<<10)), 431, "Request Header Fields Too Large"},
		{"an unknown version", "GET /health HTTP/1.7\r\nHost: h\r\n\r\n", 400, "Bad Request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, nil)
			conn := f.dial(t)
			go func() { _, _ = io.WriteString(conn, c.raw) }()
			a := conn.read("GET")
			if a.status != c.status || !strings.HasPrefix(a.body, `{"error":"`+c.phrase+`","message":"`) {
				t.Errorf("got %v", a)
			}
			if !conn.closed() {
				t.Error("the connection stays open")
			}
			f.the(t, a)
		})
	}
}

func TestSlowHeader(t *testing.T) {
	f := serve(t, nil, func(s *fasthttp.Server) { s.ReadTimeout = 500 * time.Millisecond })
	a := f.send(t, "GET /health HTTP/1.1\r\nHost:")
	if a.status != 408 || a.body != refusal(a, "Request Timeout", "the request did not arrive in time") {
		t.Errorf("got %v", a)
	}
	f.the(t, a)
}

func TestMethods(t *testing.T) {
	for _, c := range []struct {
		method string
		status int
		action string
	}{
		{"GET", 200, "read"},
		{"HEAD", 200, "read"},
		{"POST", 200, "create"},
		{"PUT", 200, "update"},
		{"DELETE", 200, "delete"},
		{"PATCH", 200, "update"},
		{"OPTIONS", 200, "options"},
		{"TRACE", 405, ""},
		{"CONNECT", 405, ""},
		{"PROPFIND", 405, ""},
		{"get", 405, ""},
	} {
		t.Run(c.method, func(t *testing.T) {
			f := serve(t, nil)
			a := f.send(t, request(c.method, "/api/files", "", "Content-Length: 0"))
			e := f.the(t, a)
			if a.status != c.status || e.Action != c.action || (a.status == 405) != (a.header.Get("Allow") != "") {
				t.Errorf("got %v, action %q, Allow %q", a, e.Action, a.header.Get("Allow"))
			}
			if c.method == "HEAD" && a.body != "" {
				t.Errorf("body %q", a.body)
			}
		})
	}
	t.Run("HEAD is judged as GET", func(t *testing.T) {
		var inputs []string
		f := serve(t, func(h *Handler) {
			h.Decide = func(_ context.Context, q authz.Question) (authz.Decision, error) {
				inputs = append(inputs, string(q.Body))
				return deny(), nil
			}
		})
		got := f.send(t, get("/api/items?office=SWT", bearer))
		head := f.send(t, request("HEAD", "/api/items?office=SWT", "", bearer))
		if inputs[0] != inputs[1] || head.status != 403 || head.body != "" || head.header.Get("Content-Length") != got.header.Get("Content-Length") {
			t.Errorf("GET %v, HEAD %v %v, questions %q", got, head, head.header, inputs)
		}
	})
}

func TestDebugHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(*Handler)
		want string // but for the age
	}{
		{"allowed", nil, "allow; source=cache; age_ms=; id=d1; revision=r1"},
		{"denied", deciding(deny()), "deny; source=opa; age_ms=; id=d2; revision=r1"},
		{"not decided", failing("identify", authz.ErrUnauthenticated), "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) {
				if c.with != nil {
					c.with(h)
				}
				h.DebugHeaders = true
			})
			got := f.send(t, get("/api/items")).header.Get("X-Decision")
			if before, after, ok := strings.Cut(got, "age_ms="); ok {
				got = before + "age_ms=" + strings.TrimLeft(after, "0123456789")
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	f := serve(t, nil)
	if got := f.send(t, get("/api/items")).header.Get("X-Decision"); got != "" {
		t.Errorf("without being asked: %q", got)
	}
}

// While the replica drains it serves, and sends its clients elsewhere.
func TestDrain(t *testing.T) {
	f := serve(t, nil)
	c := f.dial(t)
	c.send(get("/api/items"))
	if a := c.read("GET"); a.status != 200 || a.close {
		t.Fatalf("got %v", a)
	}
	f.Drain()
	c.send(get("/api/items"))
	if a := c.read("GET"); a.status != 200 || !a.close || !c.closed() {
		t.Errorf("draining: %v, closed by header: %v", a, a.close)
	}
}

func TestHealthAndReady(t *testing.T) {
	broken := errors.New("cannot connect to 10.0.0.7:8181") // for operators, not for everybody
	for _, c := range []struct {
		name                       string
		opa, keys, redis, upstream error
		status                     int
		body                       string
	}{
		{"all is well", nil, nil, nil, nil, 200,
			`{"status":"ready","downstream":"available","checks":{"keys":"ok","opa":"ok","redis":"ok","upstream":"ok"},"timestamp":"2026-01-02T03:04:05.000Z"}`},
		{"no policy", broken, nil, nil, nil, 503,
			`{"status":"not-ready","downstream":"available","checks":{"keys":"ok","opa":"unavailable","redis":"ok","upstream":"ok"},"timestamp":"2026-01-02T03:04:05.000Z"}`},
		{"no keys", nil, broken, nil, nil, 503,
			`{"status":"not-ready","downstream":"available","checks":{"keys":"unavailable","opa":"ok","redis":"ok","upstream":"ok"},"timestamp":"2026-01-02T03:04:05.000Z"}`},
		{"no Redis", nil, nil, broken, nil, 200,
			`{"status":"degraded","downstream":"available","checks":{"keys":"ok","opa":"ok","redis":"unavailable","upstream":"ok"},"timestamp":"2026-01-02T03:04:05.000Z"}`},
		{"no API", nil, nil, nil, broken, 200,
			`{"status":"degraded","downstream":"unavailable","checks":{"keys":"ok","opa":"ok","redis":"ok","upstream":"unavailable"},"timestamp":"2026-01-02T03:04:05.000Z"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) {
				h.Ready = func() Readiness { return NewReadiness(c.opa, c.keys, c.redis, c.upstream, asked) }
			})
			a := f.send(t, get("/ready"))
			if a.status != c.status || a.body != c.body || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("got %v\nwant %d %s", a, c.status, c.body)
			}
			if alive := f.send(t, get("/health")); alive.status != 200 || !strings.HasPrefix(alive.body, `{"status":"healthy","timestamp":"`) ||
				!strings.HasSuffix(alive.body, `Z","service":"authorizer-proxy"}`) {
				t.Errorf("health: %v", alive)
			}
		})
	}
}

// Every answer of ours has one Date.
func TestDate(t *testing.T) {
	f := serve(t, func(h *Handler) { h.Origins = []string{"https://app.example"} })
	for _, raw := range []string{
		get("/health"),
		get("/nowhere"),
		get("/api/files", "Authorization: Bearer bad"),
		request("OPTIONS", "/api/files", "", "Origin: https://app.example", "Access-Control-Request-Method: PUT"),
		request("POST", "/authorize", `{"resource":"items","action":"read","context":{}}`),
		"hello there\r\n\r\n",
	} {
		a := f.send(t, raw)
		dates := a.header["Date"]
		if len(dates) != 1 {
			t.Errorf("%q: Date %q in %v", raw, dates, a)
		} else if _, err := http.ParseTime(dates[0]); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

// Where the API has the root to itself, our endpoints move away.
func TestOwnPrefix(t *testing.T) {
	f := serve(t, func(h *Handler) { h.OwnPrefix = "/-" })
	for target, status := range map[string]int{"/-/health": 200, "/health": 404, "/-/ready": 200, "/-/other": 404, "/-health": 404} {
		if a := f.send(t, get(target)); a.status != status {
			t.Errorf("%s: %v, want %d", target, a, status)
		}
	}
}

// The answer to a refused upload reaches a client that is still sending.
func TestLingeringClose(t *testing.T) {
	f := serve(t, deciding(deny()))
	for i := range 50 {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		status, answer, err := upload(c, 20<<20, i%2 == 0)
		if err != nil || status != 403 || !strings.Contains(answer, "embargo") {
			t.Fatalf("upload %d: %d %s %v", i, status, answer, err)
		}
	}
	f.recorded(t, 50)
}

// upload sends a body and reads the answer beside it, as a good client does; Go's
// own may give up on the answer when a write fails first, so it is no judge here.
func upload(c net.Conn, size int64, known bool) (status int, answer string, err error) {
	framing := "Transfer-Encoding: chunked"
	if known {
		framing = "Content-Length: " + strconv.FormatInt(size, 10)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = fmt.Fprintf(c, "POST /api/files HTTP/1.1\r\nHost: h\r\n%s\r\n%s\r\n\r\n", bearer, framing)
		body := io.LimitReader(zeros{}, size)
		if known {
			_, _ = io.Copy(c, body)
			return
		}
		chunks := httputil.NewChunkedWriter(c)
		_, _ = io.Copy(chunks, body)
		_ = chunks.Close()
	}()
	defer func() { _ = c.Close(); <-sent }()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A body that was not read is never taken for a request.
func TestUnreadBody(t *testing.T) {
	evil := get("/api/items?office=EVIL", bearer)
	for _, c := range []struct {
		name, raw string
		requests  int
	}{
		{"drained, then the next request", request("POST", "/api/files", evil, bearer) + get("/health"), 2},
		{"chunked, drained, then the next request",
			request("POST", "/api/files", "", bearer, "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(evil), evil) + get("/health"), 2},
		{"too much to drain", request("POST", "/api/files", strings.Repeat(evil, 10000), bearer) + get("/health"), 1},
		{"after a malformed request", "GET /health HTTP/1.1\r\nHost : h\r\n\r\n" + evil, 1},
		{"after a refused target", get("//x") + evil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, deciding(deny()))
			conn := f.dial(t)
			go func() { _, _ = io.WriteString(conn, c.raw) }()
			for range c.requests {
				conn.read("GET")
			}
			if c.requests == 1 && !conn.closed() {
				t.Error("the connection stays open")
			}
			for _, e := range f.recorded(t, c.requests) {
				if len(e.Offices) > 0 {
					t.Errorf("judged the body: %+v", e)
				}
			}
		})
	}
}

// What was found out about a caller does not outlive the wait for a body: the
// right that ended meanwhile is gone, wherever the body is read.
func TestRevokedWhileTheBodyCame(t *testing.T) {
	for _, c := range []struct{ name, method, path, framing string }{
		{"a small body", "POST", "/api/files", "Content-Length: 4"},
		{"a body that is inspected", "POST", "/api/items", "Content-Length: 4"},
		{"a body of a GET", "GET", "/api/files", "Transfer-Encoding: chunked"},
		{"after 100 Continue", "POST", "/api/files", "Content-Length: 4\r\nExpect: 100-continue"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var revoked atomic.Bool
			identified := make(chan struct{}, 8)
			f := serve(t, func(h *Handler) {
				identify := h.Identify
				h.Identify = func(ctx context.Context, cr authz.Credentials) (*authz.Principal, error) {
					defer func() { identified <- struct{}{} }()
					if revoked.Load() {
						return nil, authz.Refuse(authz.ErrUnauthenticated, "revoked")
					}
					return identify(ctx, cr)
				}
			})
			conn := f.dial(t)
			if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n%s\r\n%s\r\n\r\n", c.method, c.path, bearer, c.framing); err != nil {
				t.Fatal(err)
			}
			body := "null"
			if strings.Contains(c.framing, "chunked") {
				body = "4\r\nnull\r\n0\r\n\r\n"
			}
			if strings.Contains(c.framing, "Expect") {
				if a := conn.read("POST"); a.status != 100 {
					t.Fatalf("%v, want 100", a)
				}
			} else if _, err := io.WriteString(conn, body[:1]); err != nil { // the handler starts with the first byte
				t.Fatal(err)
			}
			<-identified
			revoked.Store(true)
			time.Sleep(2 * soon) // so long ago that it must be asked again: what is tested
			rest := body
			if !strings.Contains(c.framing, "Expect") {
				rest = body[1:]
			}
			if _, err := io.WriteString(conn, rest); err != nil {
				t.Fatal(err)
			}
			if a := conn.read(c.method); a.status != 401 {
				t.Errorf("%v, want 401", a)
			}
		})
	}
}

// Policy goes away while a body comes: that is no decision, whatever was decided
// before, and is recorded as such.
func TestNoDecisionAfterTheBodyCame(t *testing.T) {
	for _, path := range []string{"/api/files", "/api/items"} {
		t.Run(path, func(t *testing.T) {
			var away atomic.Bool
			judged := make(chan struct{}, 8)
			var out bytes.Buffer
			var mu sync.Mutex
			f := serve(t, func(h *Handler) {
				identify, decide, record := h.Identify, h.Decide, NewRecorder(&out, false).Record
				h.Identify = func(ctx context.Context, c authz.Credentials) (*authz.Principal, error) {
					defer func() { judged <- struct{}{} }()
					return identify(ctx, c)
				}
				h.Decide = func(ctx context.Context, q authz.Question) (authz.Decision, error) {
					if away.Load() {
						return authz.Decision{}, authz.Refuse(authz.ErrNoDecision, "policy is away")
					}
					return decide(ctx, q)
				}
				h.Record = func(e *Event) {
					mu.Lock()
					defer mu.Unlock()
					record(e)
				}
			})
			conn := f.dial(t)
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n%s\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", path, bearer); err != nil {
				t.Fatal(err)
			}
			if a := conn.read("POST"); a.status != 100 {
				t.Fatalf("%v, want 100", a)
			}
			<-judged
			away.Store(true)
			time.Sleep(2 * soon) // so long ago that it must be asked again: what is tested
			if _, err := io.WriteString(conn, "null"); err != nil {
				t.Fatal(err)
			}
			a := conn.read("POST")
			if path == "/api/files" && (a.status != 503 || a.body != refusal(a, "Service Unavailable", "policy is away")) {
				t.Errorf("%v, want 503", a)
			}
			if e := f.the(t, a); e.Decision != nil {
				t.Errorf("the Event has a decision: %+v", e.Decision)
			}
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(out.String(), `"request_id":"`+a.header.Get("X-Request-Id")) || strings.Contains(out.String(), `"allow"`) {
				t.Errorf("the record is %s", &out)
			}
		})
	}
}
