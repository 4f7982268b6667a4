package pep

import (
	"bufio"
	"bytes"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// Header lines that fasthttp lets pass, or repairs, and that two servers could
// read differently.
func TestHeadRefuses(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"a folded line", "A: b\r\n c\r\n", "folded"},
		{"a line that ends in LF", "A: b\nC: d\r\n", "CRLF"},
		{"an empty line that ends in LF", "A: b\r\n\n", "CRLF"},
		{"a name with a space in it", "A B: c\r\n", "a character"},
		{"a name with a space behind it", "A : c\r\n", "a character"},
		{"a name with a control byte", "A\x01: c\r\n", "a character"},
		{"a name beyond ASCII", "\xc3\xa9: c\r\n", "a character"},
		{"no name", ": c\r\n", "no name"},
		{"no colon", "A\r\n", "no name"},
		{"two lengths, equal", "Content-Length: 1\r\nContent-Length: 1\r\n", "content-length is given twice"},
		{"length and coding", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "both"},
		{"coding and length", "Transfer-Encoding: chunked\r\ncontent-length: 1\r\n", "both"},
		{"identity", "Transfer-Encoding: identity\r\n", "chunked"},
		{"two codings", "Transfer-Encoding: gzip, chunked\r\n", "chunked"},
		{"chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "twice"},
		{"two encodings", "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", "twice"},
		{"too many options", "Connection: a" + strings.Repeat(",a", 8) + "\r\nConnection: b" + strings.Repeat(",b", 7) + "\r\n", "more than 16"},
		{"two types", "Content-Type: a/b\r\nContent-Type: c/d\r\n", "twice"},
		{"two Hosts", "Host: a\r\nhost: b\r\n", "twice"},
		{"a user in Host", "Host: a:b@c\r\n", "user information"},
		{"two expectations", "Expect: 100-continue\r\nExpect: 100-continue\r\n", "twice"},
		{"another expectation", "Expect: 200-ok\r\n", "100-continue"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h head
			err := h.read([]byte(c.lines + "\r\n"))
			if err == nil || statusOf(err) != 400 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Whatever header we accept, net/http reads as the same request, and both see it
// end at the same byte.
func FuzzHead(f *testing.F) {
	for _, seed := range []string{
		"GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Type: a/b\r\n\r\nabc",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n\r\n",
		"GET /a HTTP/1.0\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
		"\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\nCookie: JSESSIONID=x\r\nCookie: b=c; d\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nAuthorization:\tBearer x \r\nX-Test-User: {}\r\nOrigin: null\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\nD: e\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nA B: c\r\nContent-Length: +1\r\n\r\n",
		"GET /a HTTP/2.0\r\nHost: h\r\nA: \x00\xff\r\n\r\n",
		"GET /a HTTP/1.1\nHost: h\n\n",
		"PUT /a HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 9223372036854775807\r\nExpect: 100-Continue\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var rc fasthttp.RequestCtx
		src := bytes.NewReader(raw)
		br := bufio.NewReaderSize(src, headerMax)
		header := &rc.Request.Header
		if header.Read(br) != nil {
			return
		}
		x := exchange{rc: &rc}
		x.event.Method = string(header.Method())
		if x.read() != nil {
			return
		}
		other := bytes.NewReader(raw)
		obr := bufio.NewReaderSize(other, headerMax)
		req, err := http.ReadRequest(obr)
		if err != nil {
			if lax(err) {
				return
			}
			t.Fatalf("net/http refuses %q: %v", raw, err)
		}
		// fasthttp skips empty lines before the request, net/http does not and
		// fails; so both began at the same byte.
		if got, want := br.Buffered()+src.Len(), obr.Buffered()+other.Len(); got != want {
			t.Fatalf("%q: %d bytes follow, net/http says %d", raw, got, want)
		}
		length := int64(header.ContentLength())
		if length == -2 {
			length = 0
		}
		type meaning struct {
			method, target, proto, host string
			length                      int64
			authorization, testUser     []string
			origin, secret, cookies     []string
		}
		one := func(v []byte, seen flags) []string {
			if x.head.seen&seen == 0 {
				return nil
			}
			return []string{string(v)}
		}
		got := meaning{
			x.event.Method, string(header.RequestURI()), string(header.Protocol()), string(header.Host()), length,
			one(x.head.authorization, seenAuthorization), one(x.head.testUser, seenTestUser),
			one(x.head.origin, seenOrigin), one(x.head.secret, seenSecret), nil,
		}
		for _, line := range x.head.cookies {
			got.cookies = append(got.cookies, string(line))
		}
		want := meaning{
			req.Method, req.RequestURI, req.Proto, req.Host, req.ContentLength,
			req.Header["Authorization"], req.Header["X-Test-User"], req.Header["Origin"], req.Header["X-Authorize-Secret"], req.Header["Cookie"],
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\nwe read  %+v\nnet/http %+v", raw, got, want)
		}
	})
}

// lax reports whether net/http refuses what no server could misread: it parses
// the target as a URL, and it takes a message for what it is without looking at
// empty lines before it.
func lax(err error) bool {
	text := err.Error()
	return strings.Contains(text, "invalid URL") || strings.Contains(text, "parse ") || strings.Contains(text, `malformed HTTP request ""`)
}

// Every session cookie that net/http finds, we find with the same value, or we
// refuse the request.
func FuzzSessionCookies(f *testing.F) {
	for _, seed := range []string{
		"JSESSIONID=x", "a=b; JSESSIONIDSSO=y; c", "JSESSIONID=x; JSESSIONID=y", "JSESSIONID =x", " JSESSIONID= x ;", "a=b, JSESSIONID=x",
		"JSESSIONID=\"x\"", "JSESSIONID=\" \"", "jsessionid=x", "JSESSIONID", "=JSESSIONID", "JSESSIONID==x=", ";;JSESSIONID=x\nJSESSIONIDSSO=y",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		if strings.ContainsAny(lines, "\r\v\f\x00") {
			return // stands in no header that reaches us
		}
		var raw [][]byte
		r := http.Request{Header: http.Header{}}
		for line := range strings.SplitSeq(lines, "\n") {
			raw = append(raw, []byte(line))
			r.Header.Add("Cookie", line)
		}
		got, err := sessionCookies(nil, raw)
		if err != nil {
			return
		}
		found := strings.Split(string(got), "; ")
		for _, c := range r.Cookies() {
			if !slices.Contains(sessionNames[:], c.Name) || c.Value == "" {
				continue
			}
			value := strings.Trim(c.Value, " \t")
			if c.Quoted {
				value = `"` + c.Value + `"`
			}
			if !slices.Contains(found, c.Name+"="+value) {
				t.Fatalf("%q: net/http finds %s=%s, we %q", lines, c.Name, value, got)
			}
		}
		if again, err := sessionCookies(nil, [][]byte{got}); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%q gives %q, and that %q, %v", lines, got, again, err)
		}
	})
}
