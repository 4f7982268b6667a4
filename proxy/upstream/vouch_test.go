package upstream

import (
	"bufio"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// A gateway is told of the client's credentials what Forward would let through, and
// of what neither it nor we can take away that it is refused.
func TestVouch(t *testing.T) {
	for _, c := range []struct {
		name, lines   string
		settings      []setting
		authorization string
		cookie        string
		refused       string // the header named
	}{
		{name: "nothing"},
		{name: "a token", lines: "Authorization: Bearer t\r\nAccept: x\r\n", authorization: "Bearer t"},
		{name: "a scheme that was not decided on", lines: "Authorization: Basic t\r\n", settings: []setting{noAuthorization}},
		{name: "cookies of an anonymous caller", lines: "Cookie: a=1; JSESSIONID=2; b=3\r\n", settings: []setting{noAuthorization, noCookies}, cookie: "a=1; b=3"},
		{name: "a session", lines: "Cookie: a=1; JSESSIONIDSSO=2\r\n", settings: []setting{noAuthorization}, cookie: "a=1; JSESSIONIDSSO=2"},
		{name: "a session beside a token", lines: "Cookie: JSESSIONID=2\r\nAuthorization: Bearer t\r\n", authorization: "Bearer t"},
		{name: "two lines of cookies", lines: "Cookie: a=1\r\nCookie: b=2\r\n", settings: []setting{noAuthorization}, cookie: "a=1; b=2"},
		{name: "the context header of the client, which the gateway replaces", lines: "X-Cwms-Auth-Context: forged\r\n"},
		{name: "look-alike of it", lines: "X_Cwms_Auth_Context: forged\r\n", refused: "X_Cwms_Auth_Context"},
		{name: "another look-alike", lines: "x-cwms--auth.context: forged\r\n", refused: "x-cwms--auth.context"},
		{name: "another method", lines: "X-HTTP-Method-Override: DELETE\r\n", refused: "X-HTTP-Method-Override"},
		{name: "another method, a look-alike", lines: "X_HTTP_Method: DELETE\r\n", refused: "X_HTTP_Method"},
		{name: "another path", lines: "X-Rewrite-URL: /admin\r\n", refused: "X-Rewrite-URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config("127.0.0.1:1")
			f, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var rc fasthttp.RequestCtx
			raw := "GET /x HTTP/1.1\r\nHost: h\r\n" + c.lines + "\r\n"
			if err := rc.Request.Header.Read(bufio.NewReader(strings.NewReader(raw))); err != nil {
				t.Fatal(err)
			}
			g := grant()
			for _, s := range c.settings {
				s(&Config{}, g)
			}
			err = f.Vouch(&rc, g)
			if c.refused != "" {
				if !errors.Is(err, authz.ErrMalformed) || !strings.Contains(err.Error(), "the header "+c.refused+" may") || len(rc.Response.Header.Peek(cfg.ContextHeader)) > 0 {
					t.Errorf("%v, want that %s is refused", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h := &rc.Response.Header
			if a, k := string(h.Peek("Authorization")), string(h.Peek("Cookie")); a != c.authorization || k != c.cookie {
				t.Errorf("Authorization %q, Cookie %q; want %q, %q", a, k, c.authorization, c.cookie)
			}
			if context := string(h.Peek("x-cwms-auth-context")); !strings.HasPrefix(context, `{"policy":{"allow":true,"decision_id":"d1"}`) {
				t.Errorf("context %s", context)
			}
			// Forward says the same, if on as many lines as the client.
			seen, _ := onWire(t, get(c.lines), c.settings...)
			req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(seen[:strings.Index(seen, "[ours")] + "\r\n")))
			if err != nil {
				t.Fatal(err)
			}
			if a, k := req.Header.Get("Authorization"), strings.Join(req.Header["Cookie"], "; "); a != c.authorization || k != c.cookie {
				t.Errorf("forwarded: Authorization %q, Cookie %q; want %q, %q", a, k, c.authorization, c.cookie)
			}
		})
	}
}

// With no context header there is none; with one that does not fit there is no allow.
func TestVouchContext(t *testing.T) {
	for _, c := range []struct {
		header      string
		constraints string
		err         error
	}{
		{"", `{}`, nil},
		{"x-decided", `{}`, nil},
		{"x-decided", `{"a":"` + strings.Repeat("a", authz.MaxContextHeader) + `"}`, authz.ErrObligation},
	} {
		cfg := config("127.0.0.1:1")
		cfg.ContextHeader = c.header
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var rc fasthttp.RequestCtx
		g := grant()
		g.Decision.Constraints = []byte(c.constraints)
		if err := f.Vouch(&rc, g); !errors.Is(err, c.err) {
			t.Errorf("%q: %v, want %v", c.header, err, c.err)
		}
		if has := len(rc.Response.Header.Peek("x-decided")) > 0; has != (c.header != "" && c.err == nil) {
			t.Errorf("%q: there is a context: %v", c.header, has)
		}
		f.Close()
	}
}
