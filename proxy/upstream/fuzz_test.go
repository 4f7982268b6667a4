package upstream

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// The rules once more, written another way.
var (
	separators = regexp.MustCompile(`[-_.]+`)
	protected  = regexp.MustCompile(`^(x-cwms-auth-context|x-request-id|x-authorize-secret|x-test-user|x-decision|` +
		`x-forwarded(-.*)?|forwarded|x-real-ip|x-client-ip|x-cluster-client-ip|true-client-ip|remote-user|x-remote-user|x-authenticated-user|x-original-.*|x-rewrite-.*|x-http-method(-override)?|x-method-override|` +
		`host|content-length|transfer-encoding|connection|keep-alive|te|trailer|upgrade|http2-settings|expect|proxy(-.*)?)$`)
)

func foldSlowly(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// FuzzRequestHead feeds header lines of a client through a parser like the
// server's. What comes out holds none of the protected names but in the lines
// that we write, no session cookie beside an Authorization, and every other
// line as it was.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"X-A: 1\r\n", "X_Cwms-Auth.Context: forged\r\n", "x--cwms__auth..context:{}\r\n", "Connection: close, X-A\r\nX-A: 1\r\n",
		"Connection: x-cwms-auth-context\r\n", "Connection: a\r\nconnection: b\r\nA: 1\r\nB: 2\r\n",
		"Authorization: Bearer t\r\nCookie: JSESSIONID=1; a=2\r\n", "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=x\r\n",
		"X: a\r\n b\r\n", "X: a\nY: b\r\n", "Transfer_Encoding: chunked\r\n", "Content-Length: 0\r\n", "Expect: 100-continue\r\n",
	} {
		f.Add([]byte(s))
	}
	fwd := forwarder(f, netip.Prefix{})
	f.Fuzz(func(t *testing.T, lines []byte) {
		rc, ok := received(lines)
		if !ok {
			return
		}
		q := &request{}
		if q.build(fwd, rc, grant(), time.Unix(0, 0)) != nil {
			return
		}
		out, ok := strings.CutPrefix(string(q.buf), "GET /x HTTP/1.1\r\nHost: api:80\r\n")
		if !ok {
			t.Fatalf("start of %q", q.buf)
		}
		theirs := out[:strings.LastIndex(out, "X-Request-Id: ")]
		if mine := out[len(theirs):]; strings.Count(mine, "\r\n") != 6 || !strings.HasSuffix(mine, "\r\n\r\n") {
			t.Fatalf("our own lines are %q", mine)
		}
		var named []string
		for line := range strings.SplitSeq(string(lines), "\r\n") {
			if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "connection") {
				for token := range strings.SplitSeq(value, ",") {
					named = append(named, strings.ToLower(strings.Trim(token, " \t")))
				}
			}
		}
		passes := func(line string) (name string, ok bool) {
			name, _, _ = strings.Cut(line, ":")
			return name, !protected.MatchString(foldSlowly(name)) && !slices.Contains(named, strings.ToLower(name))
		}
		var want []string
		for line := range strings.SplitAfterSeq(string(lines), "\r\n") {
			if name, ok := passes(line); ok && line != "" && !strings.EqualFold(name, "cookie") {
				want = append(want, line)
			}
		}
		var got []string
		for line := range strings.SplitAfterSeq(theirs, "\r\n") {
			if line == "" || line == "Content-Length: 0\r\n" {
				continue
			}
			name, ok := passes(line)
			if !ok {
				t.Errorf("%q passed", line)
			}
			if strings.EqualFold(name, "cookie") {
				if q.session && regexp.MustCompile(`(?i)(^|[:;, \t])JSESSIONID(SSO)?[ \t]*([=;,\r]|$)`).MatchString(line) {
					t.Errorf("%q passed beside an Authorization", line)
				}
				continue
			}
			got = append(got, line)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// FuzzForwarded lets a trusted proxy say who the client is.
func FuzzForwarded(f *testing.F) {
	f.Add("1.1.1.1", "https", "example.com")
	f.Add("", "", "")
	f.Add("a, b,, c", "HTTP", "h:1")
	f.Add("unknown", "javascript", " ")
	fwd := forwarder(f, netip.MustParsePrefix("0.0.0.0/0"))
	f.Fuzz(func(t *testing.T, client, proto, host string) {
		rc, ok := received([]byte("X-Forwarded-For: " + client + "\r\nX-Forwarded-Proto: " + proto + "\r\nX-Forwarded-Host: " + host + "\r\n"))
		if !ok {
			return
		}
		q := &request{}
		if q.build(fwd, rc, grant(), time.Unix(0, 0)) != nil {
			return
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(q.buf)))
		if err != nil {
			t.Fatalf("%v: %q", err, q.buf)
		}
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"} {
			if len(req.Header[name]) != 1 {
				t.Errorf("%q", req.Header)
			}
		}
		if got := req.Header.Get("X-Forwarded-For"); !strings.HasSuffix(got, "0.0.0.0") {
			t.Errorf("for %q", got)
		}
		if got := strings.ToLower(req.Header.Get("X-Forwarded-Proto")); got != "http" && got != "https" {
			t.Errorf("proto %q", got)
		}
	})
}

// FuzzCookies takes the session cookies out and leaves the others, in order.
func FuzzCookies(f *testing.F) {
	for _, s := range []string{"a=1; JSESSIONID=2", "JSESSIONIDSSO=1;b", "$Version=1, JSESSIONID=2", "a=\"x; JSESSIONID=1\"", " ; ,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsAny(value, "\r\n") {
			return
		}
		pairs := func(s string) (list []string) {
			for pair := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ';' || r == ',' }) {
				if pair = strings.Trim(pair, " \t"); pair != "" {
					list = append(list, pair)
				}
			}
			return list
		}
		want := slices.DeleteFunc(pairs(value), func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			name = strings.ToLower(strings.Trim(name, " \t"))
			return name == "jsessionid" || name == "jsessionidsso"
		})
		line := string(appendCookies(nil, []byte("Cookie:"), []byte(value)))
		got := pairs(strings.TrimSuffix(strings.TrimPrefix(line, "Cookie:"), "\r\n"))
		if !slices.Equal(got, want) || line == "Cookie: \r\n" {
			t.Errorf("%q: got %q, want %q", value, line, want)
		}
	})
}

// FuzzAnswerHead feeds heads of an upstream. What is accepted is written so
// that another parser reads it, and holds nothing that is not for the client.
func FuzzAnswerHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "HTTP/1.1 204 \r\nConnection: x, close\r\nX: 1\r\n\r\n",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nCache-Control: public\r\nVary: *\r\n\r\n",
		"HTTP/1.1 200 OK\r\nAccess_Control_Allow.Origin: *\r\nKeep-Alive: 1\r\nTrailer: Vary\r\n\r\n",
		"HTTP/1.1 200 OK\r\nSet-Cookie: JSESSIONID=1\r\nX-Accel-Redirect: /\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	fwd := forwarder(f, netip.Prefix{})
	f.Fuzz(func(t *testing.T, head []byte) {
		c := &conn{br: bufio.NewReaderSize(bytes.NewReader(head), readBuffer)}
		var h fasthttp.ResponseHeader
		h.SetNoDefaultContentType(true)
		if _, err := fwd.readHead(c, &h, &request{session: true}, grant()); err != nil {
			return
		}
		if h.StatusCode() < 200 {
			return
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(h.Header())), &http.Request{Method: http.MethodHead})
		if err != nil {
			// net/http knows the same rules and some of its own.
			if !strings.Contains(err.Error(), "malformed") && !strings.Contains(err.Error(), "bad ") && !strings.Contains(err.Error(), "invalid") && !strings.Contains(err.Error(), "unsupported") {
				t.Errorf("%v: %q", err, h.Header())
			}
			return
		}
		for name, values := range res.Header {
			switch folded := foldSlowly(name); {
			case strings.HasPrefix(folded, "access-control-"), strings.HasPrefix(folded, "x-accel-"), strings.HasPrefix(folded, "proxy-"),
				folded == "keep-alive", folded == "upgrade", folded == "connection", folded == "x-request-id", folded == "x-cwms-auth-context":
				t.Errorf("%s passed", name)
			case folded == "set-cookie":
				for _, v := range values {
					if isSession([]byte(v)) {
						t.Errorf("%q passed", v)
					}
				}
			}
		}
		if !hasToken([]byte(strings.Join(res.Header["Cache-Control"], ",")), "private") || !varies([]byte(strings.Join(res.Header["Vary"], ","))) {
			t.Errorf("%q", h.Header())
		}
	})
}

// FuzzChunks decodes a chunked body as the standard library does, or refuses.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nX: 1\r\n\r\n", "005 \r\nhello\r\n0\r\n\r\n", "A\r\n0123456789\r\n0\r\n\r\n", "ffffffffffffffff\r\n", "5\nhello\n0\n\n"} {
		f.Add([]byte(s))
	}
	fwd := forwarder(f, netip.Prefix{})
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &download{f: fwd, rc: &fasthttp.RequestCtx{}, chunked: true, left: -1}
		d.c = &conn{Conn: silent{}, br: bufio.NewReaderSize(bytes.NewReader(body), readBuffer)}
		var got bytes.Buffer
		if _, err := d.WriteTo(&got); err != nil {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(body)))
		if err != nil && !strings.Contains(err.Error(), "too much non-data") {
			t.Errorf("the standard library says %v", err)
		}
		if err == nil && !bytes.Equal(got.Bytes(), want) {
			t.Errorf("got %q, want %q", &got, want)
		}
	})
}

// silent is a connection whose deadlines nobody keeps.
type silent struct{ net.Conn }

func (silent) SetReadDeadline(time.Time) error { return nil }

func forwarder(tb testing.TB, trusted netip.Prefix) *Forwarder {
	cfg := config("api:80")
	cfg.TrustedProxies = []netip.Prefix{trusted}
	f, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.Close)
	return f
}

// received is a request for /x with further header lines, parsed as the server
// parses it.
func received(lines []byte) (*fasthttp.RequestCtx, bool) {
	rc := &fasthttp.RequestCtx{}
	raw := "GET /x HTTP/1.1\r\nHost: h\r\n" + string(lines) + "\r\n"
	br := bufio.NewReaderSize(strings.NewReader(raw), 16<<10)
	if err := rc.Request.Header.Read(br); err != nil || br.Buffered() > 0 {
		return nil, false
	}
	return rc, true
}

// The work on a warm request allocates nothing.
func TestAllocations(t *testing.T) {
	fwd := forwarder(t, netip.Prefix{})
	rc, _ := received([]byte("Accept: application/json\r\nAccept-Encoding: gzip\r\nAuthorization: Bearer t\r\nCookie: a=1; JSESSIONID=2\r\nUser-Agent: x\r\n"))
	head := []byte("HTTP/1.1 200 \r\nETag: \"1\"\r\nCache-Control: max-age=300\r\nVary: Accept\r\nKeep-Alive: timeout=20\r\nConnection: keep-alive\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n")
	g := grant()
	var src bytes.Reader
	c := &conn{br: bufio.NewReaderSize(&src, readBuffer)}
	n := testing.AllocsPerRun(1000, func() {
		q := requests.Get().(*request)
		if err := q.build(fwd, rc, g, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		src.Reset(head)
		c.br.Reset(&src)
		if _, err := fwd.readHead(c, &rc.Response.Header, q, g); err != nil {
			t.Fatal(err)
		}
		q.release()
	})
	if n > 0 && !raceEnabled {
		t.Errorf("%v allocations", n)
	}
}
