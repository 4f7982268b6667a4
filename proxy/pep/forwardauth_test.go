package pep

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// asking lets every peer ask, and answers with the user and whether its
// credentials go on.
func asking(h *Handler) {
	h.Trusts = func(*fasthttp.RequestCtx) bool { return true }
	h.Vouch = func(rc *fasthttp.RequestCtx, g *authz.Grant) error {
		rc.Response.Header.Set("X-User", g.Subject.ID)
		if g.DropAuthorization {
			rc.Response.Header.Set("X-Dropped", "authorization")
		}
		return nil
	}
	h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error { return errors.New("BUG: forwarded") }
}

// about is the header of a gateway that asks about a request.
func about(method, uri string, more ...string) []string {
	return append([]string{"X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + uri, "X-Forwarded-Host: api.example.org"}, more...)
}

// What a gateway is told, and what the request is taken for.
func TestForwardAuth(t *testing.T) {
	const session = "Cookie: JSESSIONIDSSO=alice"
	for _, c := range []struct {
		name   string
		with   func(*Handler)
		raw    string
		status int
		says   string // message, or header of an allow
		judged string // method and route of the Event
	}{
		{"allowed", nil, get("/forward-auth", about("GET", "/api/items?office=SWT", bearer)...), 200, "alice", "GET /items"},
		{"anonymous", nil, get("/forward-auth", about("GET", "/api/files")...), 200, "anonymous", "GET /files"},
		{"the method is that of the header, however it is asked", nil, request("POST", "/forward-auth", "", about("DELETE", "/api/items/7?office=SWT", bearer)...), 200, "alice", "DELETE /items/{id}"},
		{"a body that comes along is not read", nil, request("POST", "/forward-auth", `{"office":"SWT"}`, about("POST", "/api/items", bearer)...), 200, "alice", "POST /items"},
		{"names in any case", nil, get("/forward-auth", "x-forwarded-METHOD: GET", "X-FORWARDED-URI: /api/files"), 200, "anonymous", "GET /files"},
		{"HEAD is judged as GET", nil, get("/forward-auth", about("HEAD", "/api/files")...), 200, "anonymous", "HEAD /files"},
		{"denied", deciding(deny()), get("/forward-auth", about("GET", "/api/items?office=SWT", bearer)...), 403, "embargo", "GET /items"},
		{"denied, reported only", func(h *Handler) { deciding(deny())(h); h.Report = true }, get("/forward-auth", about("GET", "/api/files", bearer)...), 200, "alice", "GET /files"},
		{"a bad token", nil, get("/forward-auth", about("GET", "/api/files", "Authorization: Bearer bad")...), 401, "the token has expired", "GET /files"},
		{"no decision", failing("decide", authz.Refuse(authz.ErrNoDecision, "no decision")), get("/forward-auth", about("GET", "/api/files")...), 503, "no decision", "GET /files"},
		{"a preflight is decided like any other", deciding(deny()), get("/forward-auth", about("OPTIONS", "/api/files", "Origin: https://x.example", "Access-Control-Request-Method: GET")...), 403, "embargo", "OPTIONS /files"},

		{"a peer that is not trusted", func(h *Handler) { h.Trusts = func(*fasthttp.RequestCtx) bool { return false } },
			get("/forward-auth", about("GET", "/api/files")...), 403, "TRUSTED_PROXIES does not name the address that asks", "GET forward-auth"},
		{"no method: never that of the question", nil, get("/forward-auth", "X-Forwarded-Uri: /api/files"), 400, "X-Forwarded-Method is missing: want the method of the request that is asked about", "GET forward-auth"},
		{"an empty method", nil, get("/forward-auth", "X-Forwarded-Method: ", "X-Forwarded-Uri: /api/files"), 400, "X-Forwarded-Method is missing: want the method of the request that is asked about", "GET forward-auth"},
		{"no URI", nil, get("/forward-auth", "X-Forwarded-Method: GET"), 400, "X-Forwarded-Uri is missing: want the path and query of the request that is asked about", "GET forward-auth"},
		{"two methods", nil, get("/forward-auth", about("GET", "/api/files", "X-Forwarded-Method: GET")...), 400, "the header X-Forwarded-Method is given twice", "GET forward-auth"},
		{"two URIs, one of them empty", nil, get("/forward-auth", append([]string{"X-Forwarded-Uri:"}, about("GET", "/api/files")...)...), 400, "the header X-Forwarded-Uri is given twice", "GET forward-auth"},
		{"two hosts", nil, get("/forward-auth", about("GET", "/api/files", "X-Forwarded-Host: h")...), 400, "the header X-Forwarded-Host is given twice", "GET forward-auth"},
		{"a method that the API cannot have", nil, get("/forward-auth", about("CONNECT", "/api/files")...), 405, "the method is not allowed", "CONNECT none"},
		{"two methods in one header", nil, get("/forward-auth", about("GET, POST", "/api/files")...), 405, "the method is not allowed", "GET, POST none"},
		{"a whole URL", nil, get("/forward-auth", about("GET", "http://api.example.org/api/files")...), 400, "the request target must be a path that begins with a slash", "GET forward-auth"},
		{"dot segments", nil, get("/forward-auth", about("GET", "/api/x/../files")...), 400, "the path holds a dot segment", "GET forward-auth"},
		{"a path that is not the API's", nil, get("/forward-auth", about("GET", "/other")...), 404, "no such endpoint", "GET forward-auth"},
		{"our own endpoint", nil, get("/forward-auth", about("GET", "/health")...), 404, "no such endpoint", "GET forward-auth"},

		{"a session writes from its own host", nil, get("/forward-auth", about("DELETE", "/api/items/7", session, "Origin: https://api.example.org")...), 200, "JSESSIONIDSSO=alice", "DELETE /items/{id}"},
		{"a session writes from another site", nil, get("/forward-auth", about("DELETE", "/api/items/7", session, "Origin: https://h")...), 403, "a request with a session cookie came from another site", "DELETE /items/{id}"},
		{"a session writes, the host unknown", nil, get("/forward-auth", "X-Forwarded-Method: DELETE", "X-Forwarded-Uri: /api/items/7", session, "Origin: https://h"), 403, "a request with a session cookie came from another site", "DELETE /items/{id}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) {
				asking(h)
				if c.with != nil {
					c.with(h)
				}
			})
			a := f.send(t, c.raw)
			if a.status != c.status {
				t.Fatalf("got %v, want %d", a, c.status)
			}
			if a.status == 200 {
				if a.header.Get("X-User") != c.says || a.body != "" || a.header.Get("Cache-Control") != "no-store" {
					t.Errorf("%v %q, want %s and no body", a.header, a.body, c.says)
				}
			} else if want := refusal(a, fasthttp.StatusMessage(c.status), c.says); a.body != want {
				t.Errorf("got  %s\nwant %s", a.body, want)
			}
			e := f.the(t, a)
			if got := e.Method + " " + e.label(); got != c.judged || !e.Asked {
				t.Errorf("the Event is of %s, asked %v; want %s", got, e.Asked, c.judged)
			}
		})
	}
}

// With an API at the root the endpoint makes way for it.
func TestForwardAuthBelow(t *testing.T) {
	f := serve(t, func(h *Handler) { asking(h); h.OwnPrefix = "/-" })
	if a := f.send(t, get("/-/forward-auth", about("GET", "/api/files")...)); a.status != 200 {
		t.Errorf("got %v", a)
	}
	if a := f.send(t, get("/forward-auth", about("GET", "/api/files")...)); a.status != 404 {
		t.Errorf("got %v", a)
	}
}

// What only a body tells is unknown, and is asked so.
func TestForwardAuthWithoutBody(t *testing.T) {
	var asked string
	f := serve(t, func(h *Handler) {
		asking(h)
		h.Decide = func(_ context.Context, q authz.Question) (authz.Decision, error) {
			asked = string(q.Context)
			return deny(), nil
		}
	})
	if a := f.send(t, get("/forward-auth", about("POST", "/api/items", bearer)...)); a.status != 403 || !strings.Contains(asked, `"office_scope":"unknown"`) {
		t.Errorf("%v, asked with %s", a, asked)
	}
}

// The connection of a gateway is used again, unless a body came along.
func TestForwardAuthKeepsConnection(t *testing.T) {
	f := serve(t, asking)
	c := f.dial(t)
	for range 3 {
		c.send(get("/forward-auth", about("GET", "/api/files")...))
		if a := c.read("GET"); a.status != 200 || a.close {
			t.Fatalf("got %v", a)
		}
	}
	c.send(request("POST", "/forward-auth", "GET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n", about("POST", "/api/files")...))
	if a := c.read("POST"); a.status != 200 || !c.closed() {
		t.Errorf("got %v", a)
	}
	f.recorded(t, 4)
}

// FuzzForwardAuth: whatever a gateway states is taken for what the same bytes are
// taken for in a request line, or refused.
func FuzzForwardAuth(f *testing.F) {
	for _, s := range [][2]string{
		{"GET", "/api/items?office=SWT"}, {"PATCH", "/api/items/7"}, {"get", "/api"}, {"GET ", " /api/files"}, {"", ""},
		{"GET", "//api/files"}, {"GET", "/api/%2e%2e/files"}, {"GET", "http://h/api/files"}, {"GET", "/api/files#x"}, {"GET\r\nX-Forwarded-Method: POST", "/api/files"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, method, uri string) {
		got, err := readStated([]byte("X-Forwarded-Method:" + method + "\r\nX-Forwarded-Uri:" + uri + "\r\n\r\n"))
		if strings.ContainsAny(method+uri, "\n\r") {
			return // more lines than one: a server would not read them as these two
		}
		method, uri = strings.Trim(method, " \t"), strings.Trim(uri, " \t")
		if method == "" || uri == "" {
			if err == nil {
				t.Fatalf("%q %q is taken for %q %q", method, uri, got.method, got.uri)
			}
			return
		}
		if err != nil || string(got.method) != method || string(got.uri) != uri {
			t.Fatalf("%q %q is taken for %q %q, %v", method, uri, got.method, got.uri, err)
		}
		target, err := route.ParseTarget(got.uri)
		if err != nil || !table.InPrefix(target.Path) {
			return
		}
		var stated, sent route.Match
		direct, err := route.ParseTarget([]byte(uri))
		if err != nil {
			t.Fatal(err)
		}
		if a, b := table.Match(&stated, got.method, target), table.Match(&sent, []byte(method), direct); (a == nil) != (b == nil) {
			t.Fatalf("%v, but %v", a, b)
		}
		if a, b := stated.Context.AppendJSON(nil), sent.Context.AppendJSON(nil); string(a) != string(b) {
			t.Fatalf("%s, but %s", a, b)
		}
	})
}
