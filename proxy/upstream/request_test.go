package upstream

import (
	"bytes"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"

// What we add ends each head; tests shorten it to [ours client, proto, host].
var added = regexp.MustCompile(`X-Request-Id: r1\r\nX-Forwarded-For: ([^\r]*)\r\nX-Forwarded-Proto: ([^\r]*)\r\nX-Forwarded-Host: ([^\r]*)\r\nx-cwms-auth-context: \{[^\r]*"\}\r\n\r\n`)

type setting func(*Config, *authz.Grant)

func noAuthorization(_ *Config, g *authz.Grant) { g.DropAuthorization = true }
func noCookies(_ *Config, g *authz.Grant)       { g.DropCookies = true }
func trusting(c *Config, _ *authz.Grant) {
	c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}
func secure(c *Config, _ *authz.Grant) { c.Secure = true }

// onWire sends raw to a proxy, ended by Connection: close, and returns what the
// API saw and what the client got.
func onWire(t *testing.T, raw string, settings ...setting) (seen, got string) {
	t.Helper()
	a := answering(t, okAnswer)
	cfg := config(a.Addr().String())
	for _, s := range settings {
		s(&cfg, grant())
	}
	p := front(t, cfg, func(_ *fasthttp.RequestCtx, g *authz.Grant) {
		for _, s := range settings {
			s(&Config{}, g)
		}
	})
	got = p.send(t, raw)
	seen = strings.Join(a.requests(), "")
	seen = strings.ReplaceAll(seen, "Host: "+a.Addr().String(), "Host: api")
	return added.ReplaceAllString(seen, "[ours $1 $2 $3]"), got
}

// get is a GET of /x with further header lines; head is how the API sees it.
func get(lines string) string {
	return "GET /x HTTP/1.1\r\nHost: h\r\n" + lines + "Connection: close\r\n\r\n"
}
func head(lines string) string {
	return "GET /x HTTP/1.1\r\nHost: api\r\n" + lines + "[ours 127.0.0.1 http h]"
}

// Requests as the client sends them and as the API sees them.
func TestRequestOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		settings       []setting
	}{
		{"target, order, spelling and repeats are the client's",
			"GET /cwms-data/x?a=[b]|c%2f&\xc3\xa9&&d HTTP/1.1\r\nHost: h\r\nx-B: 1\r\nX-a:2\r\nx-B:  3 \r\nConnection: close\r\n\r\n",
			"GET /cwms-data/x?a=[b]|c%2f&\xc3\xa9&&d HTTP/1.1\r\nHost: api\r\nx-B: 1\r\nX-a:2\r\nx-B:  3 \r\n[ours 127.0.0.1 http h]", nil},
		{"encoded path segments and an empty query stay",
			"GET /a%20b/%25-Opening/%3B+/? HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
			"GET /a%20b/%25-Opening/%3B+/? HTTP/1.1\r\nHost: api\r\n[ours 127.0.0.1 http h]", nil},
		{"a query of 8 KiB passes",
			"GET /x?" + strings.Repeat("q", 8192) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
			"GET /x?" + strings.Repeat("q", 8192) + " HTTP/1.1\r\nHost: api\r\n[ours 127.0.0.1 http h]", nil},
		{"a request of HTTP/1.0 goes on as 1.1",
			"GET /x HTTP/1.0\r\nX-A: 1\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: api\r\nX-A: 1\r\n[ours 127.0.0.1 http ]", nil},

		{"a body of known length",
			"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
			"POST /x HTTP/1.1\r\nHost: api\r\nContent-Length: 5\r\n[ours 127.0.0.1 http h]hello", nil},
		{"DELETE with a body",
			"DELETE /x HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\nConnection: close\r\n\r\n[\"TS\"]",
			"DELETE /x HTTP/1.1\r\nHost: api\r\nContent-Length: 6\r\n[ours 127.0.0.1 http h][\"TS\"]", nil},
		{"a POST without a body says so",
			"POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
			"POST /x HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\n[ours 127.0.0.1 http h]", nil},
		{"a chunked body loses its trailer and its extensions",
			"POST /x HTTP/1.1\r\nHost: h\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
			"POST /x HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n[ours 127.0.0.1 http h]5\r\nhello\r\n0\r\n\r\n", nil},
		{"multipart is not touched",
			"POST /x HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 5\r\nConnection: close\r\n\r\n--b--",
			"POST /x HTTP/1.1\r\nHost: api\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 5\r\n[ours 127.0.0.1 http h]--b--", nil},
		{"Expect has been met",
			"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
			"POST /x HTTP/1.1\r\nHost: api\r\nContent-Length: 2\r\n[ours 127.0.0.1 http h]ok", nil},

		{"each of several requests on one connection is one",
			"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 19\r\n\r\nGET /3 HTTP/1.1\r\n\r\n" +
				"POST /4 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n\r\nGET /5 HTTP/1.1\r\nHost: h\r\n\r\n",
			"GET /1 HTTP/1.1\r\nHost: api\r\n[ours 127.0.0.1 http h]POST /2 HTTP/1.1\r\nHost: api\r\nContent-Length: 19\r\n[ours 127.0.0.1 http h]GET /3 HTTP/1.1\r\n\r\n" +
				"POST /4 HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n[ours 127.0.0.1 http h]1\r\nx\r\n0\r\n\r\n", nil},

		{"headers of one hop",
			get("Keep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nProxy: http://evil\r\n"), head(""), nil},
		{"no other protocol",
			"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", head(""), nil},
		{"Connection names headers further up and further down, in all its lines",
			"GET /x HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nConnection: close, x-ONE\r\nConnection: ,x-two ,\r\nX-Two: 2\r\nX-Three: 3\r\n\r\n", head("X-Three: 3\r\n"), nil},

		{"the context header, however spelled",
			get("x-cwms-auth-context: forged\r\nX-Cwms-Auth-Context: forged\r\nX_CWMS_AUTH_CONTEXT: forged\r\nx.cwms.auth.context: forged\r\nx--cwms__auth-.context: forged\r\n"), head(""), nil},
		{"our other headers, however spelled",
			get("X-Request-Id: 1\r\nx_request_id: 1\r\nX-Authorize-Secret: s\r\nX-Test-User: {}\r\nx.test.user: {}\r\nX-Decision: allow\r\n"), head(""), nil},
		{"what would change client, path or method",
			get("X-Forwarded-For: 6.6.6.6\r\nX_Forwarded_Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Prefix: /p\r\nForwarded: for=6.6.6.6\r\n" +
				"X-Real-IP: 6.6.6.6\r\nX-Client-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nRemote-User: root\r\nX_Remote_User: root\r\nX-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX-HTTP-Method-Override: DELETE\r\nX-HTTP-Method: DELETE\r\nX-Method-Override: DELETE\r\n"), head(""), nil},
		{"framing in another spelling",
			get("Content_Length: 5\r\nTransfer_Encoding: chunked\r\nX-Forwarded: 1\r\n"), head(""), nil},
		{"names that only begin alike pass",
			get("X-Request: 1\r\nX-Requested-With: a\r\nContent-Language: en\r\nX-CWMS-LRTS-Formatting: true\r\n"),
			head("X-Request: 1\r\nX-Requested-With: a\r\nContent-Language: en\r\nX-CWMS-LRTS-Formatting: true\r\n"), nil},

		{"a credential that was decided on passes",
			get("Authorization: Bearer t\r\n"), head("Authorization: Bearer t\r\n"), nil},
		{"a credential that was not does not",
			get("Authorization: Basic eA==\r\nCookie: a=1\r\n"), head("Cookie: a=1\r\n"), []setting{noAuthorization}},
		{"session cookies alone pass",
			get("Cookie: a=1; JSESSIONID=s; JSESSIONIDSSO=t\r\n"), head("Cookie: a=1; JSESSIONID=s; JSESSIONIDSSO=t\r\n"), nil},
		{"session cookies beside an Authorization do not",
			get("Cookie: a=1; JSESSIONID=s; b=2; JSESSIONIDSSO=t\r\nAuthorization: Bearer t\r\n"), head("Cookie: a=1; b=2\r\nAuthorization: Bearer t\r\n"), nil},
		{"beside one that is dropped they do",
			get("Cookie: JSESSIONID=s\r\nAuthorization: Basic eA==\r\n"), head("Cookie: JSESSIONID=s\r\n"), []setting{noAuthorization}},
		{"an unknown session cookie is no credential",
			get("Cookie: JSESSIONID=s; a=1\r\nCookie: JSESSIONID=t\r\ncookie: c=\"x y\"\r\n"), head("Cookie: a=1\r\ncookie: c=\"x y\"\r\n"), []setting{noCookies}},

		{"a trusted proxy's word is kept and ours appended",
			get("X-Forwarded-For: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2, 3.3.3.3\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: public.example\r\nForwarded: for=1.1.1.1\r\n"),
			"GET /x HTTP/1.1\r\nHost: api\r\n[ours 1.1.1.1, 2.2.2.2, 3.3.3.3, 127.0.0.1 https public.example]", []setting{trusting}},
		{"but not in another spelling, nor a protocol that is none",
			get("X_Forwarded_For: 1.1.1.1\r\nX-Forwarded-Proto: gopher\r\nX_Forwarded_Host: evil\r\n"), head(""), []setting{trusting}},
		{"a TLS listener says https",
			get(""), "GET /x HTTP/1.1\r\nHost: api\r\n[ours 127.0.0.1 https h]", []setting{secure}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if seen, got := onWire(t, c.in, c.settings...); seen != c.want {
				t.Errorf("the API saw\n%q\nwant\n%q\nthe client got\n%q", seen, c.want, got)
			}
		})
	}
}

// Requests that cannot be passed on reach nobody and are answered 400.
func TestRequestRefused(t *testing.T) {
	for _, c := range []struct{ name, in string }{
		{"Connection names the context header", get("Connection: x-cwms-auth-context\r\n")},
		{"Connection names it in another spelling", get("Connection: keep-alive, X_Cwms.Auth_Context\r\n")},
		{"Connection names the credential", get("Connection: authorization\r\n")},
		{"Connection names the cookies", get("Connection: Cookie\r\n")},
		{"Connection names Host", get("Connection: host\r\n")},
		{"Connection names a forwarded header", get("Connection: X-Forwarded-For\r\n")},
		{"Connection names the type of the body", get("Connection: content-type\r\n")},
		{"Connection names the length of the body", get("Connection: content-length\r\n")},
		{"Connection holds no token", get("Connection: a b\r\n")},
		{"a folded line", get("X-A: 1\r\n 2\r\n")},
		{"a line without CR", "GET /x HTTP/1.1\r\nHost: h\r\nX-A: 1\nX-B: 2\r\nConnection: close\r\n\r\n"},
		{"a space in a name", get("X A: 1\r\n")},
		{"a space behind a name", get("X-A : 1\r\n")},
		{"a target with a host", "GET http://evil/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"},
		{"a target that is a star", "OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"},
		{"a chunked body that is none", "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nnot a size\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen, got := onWire(t, c.in)
			if seen != "" || !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("the API saw\n%q\nthe client got\n%q", seen, got)
			}
		})
	}
}

// A context header that does not fit cannot be left out.
func TestContextTooLarge(t *testing.T) {
	_, got := onWire(t, get(""), func(_ *Config, g *authz.Grant) {
		g.Decision.Constraints = []byte(`{"x":"` + strings.Repeat("x", authz.MaxContextHeader) + `"}`)
	})
	if !strings.HasPrefix(got, "HTTP/1.1 500 ") {
		t.Errorf("got %q", got)
	}
}

// What the API takes of a head counts with all that we add. Up to there a request
// passes whole; where it would not, the context gives way, and then the request.
func TestHeaderMax(t *testing.T) {
	const max = 8 << 10
	limited := func(c *Config, _ *authz.Grant) { c.HeaderMax = max }
	user := func(roles, privileges int) setting {
		u := authz.User{ID: "bob", Username: "bob", Offices: []string{"SWT"}, PrimaryOffice: "SWT"}
		if roles > 0 {
			u.Roles = []string{strings.Repeat("r", roles)}
		}
		if privileges > 0 {
			u.Privileges = []byte(`["` + strings.Repeat("p", privileges) + `"]`)
		}
		s := authz.NewSubject(&authz.Principal{Method: authz.JWT}, u, time.Time{})
		return func(_ *Config, g *authz.Grant) { g.Subject = s }
	}
	// sent is the size of the head that the API sees of a target this long.
	sent := func(length int, settings ...setting) (size int, seen, got string) {
		t.Helper()
		a := answering(t, okAnswer)
		cfg := config(a.Addr().String())
		for _, s := range settings {
			s(&cfg, grant())
		}
		p := front(t, cfg, func(_ *fasthttp.RequestCtx, g *authz.Grant) {
			for _, s := range settings {
				s(&Config{}, g)
			}
		})
		got = p.send(t, "GET /"+strings.Repeat("x", length-1)+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		seen = strings.Join(a.requests(), "")
		return len(seen), seen, got
	}
	all := func(seen string) (roles, privileges bool) {
		return strings.Contains(seen, `"roles":[`), strings.Contains(seen, `"ts_privileges":[`)
	}
	without := func(c *Config, _ *authz.Grant) { c.ContextHeader = "" }

	whole, _, _ := sent(1, user(1000, 1000))
	noPrivileges, _, _ := sent(1, user(1000, 0))
	least, _, _ := sent(1, user(0, 0))
	least -= len(`"roles":[],`)
	none, _, _ := sent(1, without)
	for _, c := range []struct {
		name       string
		length     int
		settings   []setting
		size       int // of the head that the API sees; 0: the client is told so
		roles, all bool
	}{
		{"just whole", 1 + max - whole, nil, max, true, true},
		{"one more", 2 + max - whole, nil, noPrivileges + 1 + max - whole, true, false},
		{"just without privileges", 1 + max - noPrivileges, nil, max, true, false},
		{"and one more", 2 + max - noPrivileges, nil, least + 1 + max - noPrivileges, false, false},
		{"just without roles", 1 + max - least, nil, max, false, false},
		{"too long", 2 + max - least, nil, 0, false, false},
		{"much too long", 9 << 10, nil, 0, false, false},
		{"just without a context", 1 + max - none, []setting{without}, max, false, false},
		{"too long without a context", 2 + max - none, []setting{without}, 0, false, false},
	} {
		before := contextReduced.Get()
		size, seen, got := sent(c.length, append([]setting{limited, user(1000, 1000)}, c.settings...)...)
		roles, privileges := all(seen)
		if size != c.size || roles != c.roles || privileges != c.all {
			t.Errorf("%s: the API sees %d bytes, roles %v, privileges %v; want %d, %v, %v", c.name, size, roles, privileges, c.size, c.roles, c.all)
		}
		want := "HTTP/1.1 200 "
		if c.size == 0 {
			want = "HTTP/1.1 431 "
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: the client got %.300q", c.name, got)
		}
		if reduced := contextReduced.Get() > before; reduced != (c.settings == nil && c.size > 0 && !c.all) {
			t.Errorf("%s: reduced is counted: %v", c.name, reduced)
		}
	}

	// Where the client is not to blame it is not told that it is.
	_, seen, got := sent(1, limited, func(c *Config, g *authz.Grant) {
		c.HeaderMax = 4 << 10
		g.Decision.Constraints = []byte(`{"x":"` + strings.Repeat("x", 4<<10) + `"}`)
	})
	if seen != "" || !strings.HasPrefix(got, "HTTP/1.1 500 ") {
		t.Errorf("constraints that never fit: the API sees %q, the client got %.300q", seen, got)
	}

	// Unless told otherwise, what the listener takes in passes with the largest context.
	if size, _, got := sent(15<<10, func(_ *Config, g *authz.Grant) {
		g.Decision.Constraints = []byte(`{"x":"` + strings.Repeat("x", 5<<10) + `"}`)
	}); size < 20<<10 || !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("by default: the API sees %d bytes, the client got %.300q", size, got)
	}
}

// An API that takes less than it was said to is noticed.
func TestLargeHeaderRefused(t *testing.T) {
	a := answering(t, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	p := front(t, config(a.Addr().String()), nil)
	before := headerRefused.Get()
	p.send(t, get(""))
	if n := headerRefused.Get() - before; n != 0 {
		t.Errorf("a small header is counted %d times", n)
	}
	p.send(t, get("X-Pad: "+strings.Repeat("x", 8<<10)+"\r\n"))
	if n := headerRefused.Get() - before; n != 1 {
		t.Errorf("a large header is counted %d times", n)
	}
}

// Without a context header the usual one is still taken out.
func TestNoContextHeader(t *testing.T) {
	seen, _ := onWire(t, get("x-cwms-auth-context: forged\r\n"), func(c *Config, _ *authz.Grant) { c.ContextHeader = "" })
	want := "GET /x HTTP/1.1\r\nHost: api\r\nX-Request-Id: r1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\n\r\n"
	if seen != want {
		t.Errorf("got %q", seen)
	}
}

// A body that was read for its attributes is sent as it was read.
func TestBodyAlreadyRead(t *testing.T) {
	a := answering(t, okAnswer)
	p := front(t, config(a.Addr().String()), func(rc *fasthttp.RequestCtx, _ *authz.Grant) {
		rc.Request.SetBodyRaw(bytes.Clone(rc.Request.Body()))
	})
	p.send(t, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	seen := strings.Join(a.requests(), "")
	if !strings.Contains(seen, "\r\nContent-Length: 5\r\n") || !strings.HasSuffix(seen, "\r\n\r\nhello") {
		t.Errorf("the API saw %q", seen)
	}
}

// A large one is sent from where it is: its memory is in a budget, a copy would
// not be.
func TestLargeBodyAlreadyRead(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 100_000)
	a := answering(t, okAnswer)
	p := front(t, config(a.Addr().String()), func(rc *fasthttp.RequestCtx, _ *authz.Grant) {
		rc.Request.SetBodyRaw(body)
	})
	p.send(t, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
	seen := strings.Join(a.requests(), "")
	if !strings.Contains(seen, "\r\nContent-Length: 1000000\r\n") || !strings.HasSuffix(seen, "\r\n\r\n"+string(body)) {
		t.Errorf("the API saw %d bytes", len(seen))
	}

	var rc fasthttp.RequestCtx
	rc.Request.SetBodyRaw(body)
	q := request{length: int64(len(body))}
	if err := q.load(&rc, time.Second); err != nil || cap(q.buf) != 0 || &q.body[0] != &body[0] {
		t.Errorf("%d bytes were copied, %v", cap(q.buf), err)
	}
}

// The reader of a body quotes what it does not understand. That must not get into
// a record.
func TestBrokenBodyIsNotQuoted(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"trailer", "5\r\nhello\r\n0\r\nAuthorization Bearer s3cret\r\n\r\n"},
		{"folded trailer", "0\r\n s3cret\r\n\r\n"},
		{"chunk size", "s3cret\r\n"},
	} {
		p := front(t, config(answering(t, okAnswer).Addr().String()), nil)
		got := p.send(t, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"+c.body)
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Contains(got, "s3cret") {
			t.Errorf("%s: got %q", c.name, got)
		}
		if err := <-p.errs; strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
}

func TestAppendCookies(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a=1; JSESSIONID=s", "a=1"},
		{"JSESSIONID=s; a=1", "a=1"},
		{"JSESSIONID=s", ""},
		{"JSESSIONID", ""},
		{" JSESSIONID = s ;a=1;b=2", "a=1;b=2"},
		{"jsessionid=s; JSessionIdSso=t; a=1", "a=1"},
		{"$Version=1, JSESSIONID=s, a=1", "$Version=1, a=1"}, // RFC 2109
		{"XJSESSIONID=s; JSESSIONIDX=t", "XJSESSIONID=s; JSESSIONIDX=t"},
		{`a="x; JSESSIONID=s; y"`, `a="x; y"`}, // a server that knows no quotes sees the cookie
		{"a=JSESSIONID=s", "a=JSESSIONID=s"},
		{";;", ""},
	} {
		want := c.want
		if want != "" {
			want = "Cookie: " + want + "\r\n"
		}
		if got := string(appendCookies(nil, []byte("Cookie:"), []byte(c.in))); got != want {
			t.Errorf("%q: got %q, want %q", c.in, got, want)
		}
	}
}

// Of X-Forwarded-For only what trusted proxies wrote is believed: from the right, up
// to the first address that is none of theirs.
func TestClient(t *testing.T) {
	f := forwarder(t, netip.MustParsePrefix("10.0.0.0/8"))
	for _, c := range []struct{ peer, forwardedFor, want string }{
		{"192.0.2.1", "", "192.0.2.1"},
		{"192.0.2.1", "203.0.113.9", "192.0.2.1"},
		{"10.0.0.1", "", "10.0.0.1"},
		{"10.0.0.1", "203.0.113.9", "203.0.113.9"},
		{"10.0.0.1", "6.6.6.6, 203.0.113.9", "203.0.113.9"},
		{"10.0.0.1", "6.6.6.6,203.0.113.9 , 10.0.0.2,\t10.0.0.3", "203.0.113.9"},
		{"10.0.0.1", "10.0.0.2", "10.0.0.2"},
		{"10.0.0.1", "2001:db8::1", "2001:db8::1"},
		{"10.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"},
		{"10.0.0.1", "203.0.113.9, unknown", "10.0.0.1"},
		{"10.0.0.1", "203.0.113.9,", "10.0.0.1"},
		{"10.0.0.1", ",,,", "10.0.0.1"},
	} {
		rc := &fasthttp.RequestCtx{}
		rc.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.ParseIP(c.peer), Port: 1}, nil)
		if got := f.Client(rc, []byte(c.forwardedFor)).String(); got != c.want {
			t.Errorf("peer %s, X-Forwarded-For %q: %s, want %s", c.peer, c.forwardedFor, got, c.want)
		}
	}
}
