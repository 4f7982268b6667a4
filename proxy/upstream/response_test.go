package upstream

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

func anonymous(_ *Config, g *authz.Grant) { g.Subject = authz.AnonymousSubject }

// tail is what Forward adds to each answer for a known user.
const tail = "Vary: Authorization, Cookie\r\nCache-Control: private\r\nConnection: close\r\n"

// Answers as the API sends them and as the client of a GET gets them.
func TestAnswerOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		settings       []setting
	}{
		{"spelling and repeats are the API's; nothing is invented",
			"HTTP/1.1 200 \r\netag: \"1\"\r\nX-a: 1\r\nX-a: 2\r\nWWW-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\netag: \"1\"\r\nX-a: 1\r\nX-a: 2\r\nWWW-Authenticate: Basic\r\n" + tail + "\r\nok", nil},
		{"Date, Server and Location pass",
			"HTTP/1.1 201 Made\r\nServer: cwms-data-api/1\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nLocation: /x/1\r\nContent-Length: 0\r\n\r\n",
			"HTTP/1.1 201 Made\r\nServer: cwms-data-api/1\r\nContent-Length: 0\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nLocation: /x/1\r\n" + tail + "\r\n", nil},
		{"no line for no type, no content",
			"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
			"HTTP/1.1 204 No Content\r\nX-A: 1\r\n" + tail + "\r\n", nil},
		{"304 keeps its length",
			"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nContent-Length: 500\r\n\r\n",
			"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"1\"\r\n" + tail + "\r\n", nil},
		{"a range",
			"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\nContent-Range: bytes 0-1/9\r\n" + tail + "\r\nok", nil},
		{"compressed bytes are bytes",
			"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x00",
			"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n" + tail + "\r\n\x1f\x8b\x00", nil},
		{"an error of the API is its answer",
			"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}",
			"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n" + tail + "\r\n{}", nil},
		{"interim answers are not final",
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + tail + "\r\nok", nil},

		{"chunks without extensions and trailers",
			"HTTP/1.1 200 OK\r\nTrailer: Cache-Control, X-T\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + tail + "\r\n5\r\nhello\r\n0\r\n\r\n", nil},
		{"a body that ends with the connection",
			"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
			"HTTP/1.1 200 OK\r\nVary: Authorization, Cookie\r\nCache-Control: private\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n", nil},
		{"an answer of HTTP/1.0",
			"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + tail + "\r\nok", nil},

		{"headers of one hop, and what their Connection names",
			"HTTP/1.1 200 OK\r\nX-Hop: 1\r\nConnection: keep-alive, x-hop, content-length\r\nKeep-Alive: timeout=20\r\nUpgrade: h2c\r\nProxy-Authenticate: x\r\nTE: x\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + tail + "\r\nok", nil},
		{"what only we may say",
			"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nX-Decision: allow\r\nx-cwms-auth-context: {}\r\naccess-control-allow-origin: *\r\nAccess-Control-Allow-Headers: *\r\nX-Accel-Redirect: /secret\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + tail + "\r\nok", nil},
		{"repeats stay in order around what is taken out",
			"HTTP/1.1 200 OK\r\nLink: <1>\r\nX-Decision: 1\r\nLink: <2>\r\nX-Hop: 1\r\nLink: <3>\r\nConnection: X-HOP\r\nLink: <4>\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nLink: <1>\r\nLink: <2>\r\nLink: <3>\r\nLink: <4>\r\n" + tail + "\r\nok", nil},
		{"Set-Cookie lines stay apart, in order",
			"HTTP/1.1 200 OK\r\nSet-Cookie: b=2; Path=/\r\nSet-Cookie: a=1, x\r\nset-cookie: b=2; Path=/\r\nSet-Cookie: JSESSIONID=s\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVary: Authorization, Cookie\r\nCache-Control: private\r\nSet-Cookie: b=2; Path=/\r\nSet-Cookie: a=1, x\r\nSet-Cookie: b=2; Path=/\r\nSet-Cookie: JSESSIONID=s\r\nConnection: close\r\n\r\nok", nil},

		{"an age stays, private is added, shared caches are sent away",
			"HTTP/1.1 200 OK\r\nCache-Control: public, max-age=300\r\ncache-control: s-maxage=9\r\nVary: Accept\r\nvary: Origin\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVary: Accept, Origin, Authorization, Cookie\r\nCache-Control: private, max-age=300\r\nConnection: close\r\n\r\nok", nil},
		{"a guest's answer may be shared, among guests",
			"HTTP/1.1 200 OK\r\nCache-Control: max-age=300\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVary: Authorization, Cookie\r\nCache-Control: max-age=300\r\nConnection: close\r\n\r\nok", []setting{anonymous}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := serving(t, func(nc net.Conn, _ int) bool {
				_, _ = io.WriteString(nc, c.in)
				return false
			})
			p := front(t, config(a.Addr().String()), func(_ *fasthttp.RequestCtx, g *authz.Grant) {
				for _, s := range c.settings {
					s(&Config{}, g)
				}
			})
			if got := p.send(t, get("")); got != c.want {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

// Beside an Authorization the API's session cookies do not reach the client.
func TestSessionCookiesAreNotSet(t *testing.T) {
	a := answering(t, "HTTP/1.1 200 OK\r\nSet-Cookie: JSESSIONID=s; Path=/; HttpOnly\r\nSet-Cookie: a=1\r\nSet-Cookie: JSESSIONIDSSO=t\r\nContent-Length: 2\r\n\r\nok")
	p := front(t, config(a.Addr().String()), nil)
	got := p.send(t, get("Authorization: Bearer t\r\n"))
	want := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVary: Authorization, Cookie\r\nCache-Control: private\r\nSet-Cookie: a=1\r\nConnection: close\r\n\r\nok"
	if got != want {
		t.Errorf("got %q", got)
	}
}

// The answer to HEAD has no body, whatever its head says, and its connection
// serves on.
func TestHead(t *testing.T) {
	for _, framing := range []string{"Content-Length: 500\r\n", "Transfer-Encoding: chunked\r\n"} {
		a := answering(t, "HTTP/1.1 200 OK\r\n"+framing+"\r\n")
		p := front(t, config(a.Addr().String()), nil)
		for range 2 {
			got := p.send(t, "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
			if want := "HTTP/1.1 200 OK\r\n" + framing + tail + "\r\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if n := a.connections(); n != 1 {
			t.Errorf("%d connections", n)
		}
	}
}

// An HTTP/1.0 client knows no chunks.
func TestHTTP10Client(t *testing.T) {
	a := answering(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
	p := front(t, config(a.Addr().String()), nil)
	for range 2 {
		got := p.send(t, "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		if want := "HTTP/1.1 200 OK\r\n" + tail + "\r\nhello world"; got != want {
			t.Errorf("got %q", got)
		}
	}
	if n := a.connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Answers that cannot be passed on: the client gets a whole error and nothing
// of them, and their connection is not used again.
func TestAnswerRefused(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     int
	}{
		{"a protocol nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 502},
		{"not HTTP", "SSH-2.0-OpenSSH\r\n\r\n", 502},
		{"a status that is none", "HTTP/1.1 20 OK\r\n\r\n", 502},
		{"HTTP/2", "HTTP/2 200 OK\r\n\r\n", 502},
		{"a head too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", readBuffer) + "\r\n\r\n", 502},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", 502},
		{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", 502},
		{"another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 502},
		{"a folded line", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", 502},
		{"a line without CR", "HTTP/1.1 200 OK\r\nX: a\nY: b\r\nContent-Length: 2\r\n\r\nok", 502},
		{"a space in a name", "HTTP/1.1 200 OK\r\nX A: a\r\nContent-Length: 2\r\n\r\nok", 502},
		{"a control byte", "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\nok", 502},
		{"a control byte in the reason", "HTTP/1.1 200 O\x00K\r\nContent-Length: 2\r\n\r\nok", 502},
		{"an escape in the reason", "HTTP/1.1 200 \x1b[2J\r\nContent-Length: 2\r\n\r\nok", 502},
		{"interim answers without end", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 40), 502},
		{"a head that breaks off", "HTTP/1.1 200 OK\r\nX-Half: ", 502},
		{"a body that breaks off", "HTTP/1.1 200 OK\r\nSet-Cookie: secret=1\r\nContent-Length: 9\r\n\r\nok", 502},
		{"no answer", "", 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := serving(t, func(nc net.Conn, n int) bool {
				_, _ = io.WriteString(nc, c.in)
				return c.want != 502 || strings.Contains(c.in, "101") // a 101 leaves the connection open
			})
			p := front(t, config(a.Addr().String()), nil)
			got := p.send(t, get(""))
			if status := statusOf(<-p.errs); status != c.want || !strings.HasPrefix(got, "HTTP/1.1 502 ") {
				t.Errorf("status %d, got %q", status, got)
			}
			if strings.Contains(got, "Vary") || strings.Contains(got, "secret") {
				t.Errorf("part of the answer got through: %q", got)
			}
			if n := p.f.Open(); n != 0 {
				t.Errorf("%d connections are open", n)
			}
		})
	}
}

func TestFirstByteTimeout(t *testing.T) {
	release := make(chan struct{})
	a := serving(t, func(net.Conn, int) bool { <-release; return false })
	defer close(release)
	cfg := config(a.Addr().String())
	cfg.FirstByteTimeout = 300 * time.Millisecond
	p := front(t, cfg, nil)
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 504 ") {
		t.Errorf("got %q", got)
	}
	if n := len(a.requests()); n > 1 {
		t.Errorf("the API saw %d requests", n)
	}
}

func TestAppendPrivate(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "private"},
		{"max-age=300", "private, max-age=300"},
		{"PUBLIC,max-age=300,S-MaxAge=9", "private, max-age=300"},
		{"private", "private"},
		{`private="Set-Cookie, X", no-cache="a, public", max-age=1`, `private, no-cache="a, public", max-age=1`},
		{"no-store", "private, no-store"},
		{`x="a\", public", public`, `private, x="a\", public"`},
	} {
		if got := string(appendPrivate(nil, []byte(c.in))); got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
	}
}
