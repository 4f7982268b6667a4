package conformance

import (
	"fmt"
	"strings"
)

const (
	target = "/cwms-data/conformance"
	seen   = "GET " + target
	posted = "POST " + target
	host   = "Host: h\r\n{auth}"
)

// with is a GET with further header lines, which end in CRLF.
func with(lines string) string { return at(target, lines) }

// at is a GET of a target.
func at(target, lines string) string {
	return "GET " + target + " HTTP/1.1\r\n" + host + lines + "\r\n"
}

// start is a GET with another request line, without the CRLF.
func start(line string) string { return line + "\r\n" + host + "\r\n" }

// post is a POST with a body, framed by the lines alone.
func post(lines, body string) string {
	return "POST " + target + " HTTP/1.1\r\n" + host + lines + "\r\n" + body
}

// chunked is a POST in chunks as they stand.
func chunked(chunks string) string { return post("Transfer-Encoding: chunked\r\n", chunks) }

// Cases is the table.
var Cases = table(
	requestLines, targets, headers, hosts, framings, chunks, trailers, expectations, hops, forgeries, pipelines, bodies,
)

func table(sections ...[]Case) (all []Case) {
	for _, s := range sections {
		all = append(all, s...)
	}
	return all
}

// RFC 9112, 2.2 and 3; RFC 9110, 9.1.
var requestLines = []Case{
	{Name: "request line/GET", Send: with(""), Want: "200", Seen: []string{seen}},
	{Name: "request line/HEAD", Send: start("HEAD " + target + " HTTP/1.1"), Want: "200", Seen: []string{"HEAD " + target}},
	{Name: "request line/OPTIONS", Send: start("OPTIONS " + target + " HTTP/1.1"), Want: "200", Seen: []string{"OPTIONS " + target}},
	{Name: "request line/DELETE", Send: start("DELETE " + target + " HTTP/1.1"), Want: "200", Seen: []string{"DELETE " + target}},
	{Name: "request line/no credential", Send: "GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n", Want: "403"},
	{Name: "request line/lower case method", Send: start("get " + target + " HTTP/1.1"), Want: "405 close"},
	{Name: "request line/unknown method", Send: start("PROPFIND " + target + " HTTP/1.1"), Want: "405 close"},
	{Name: "request line/long method", Send: start(strings.Repeat("A", 5000) + " " + target + " HTTP/1.1"), Want: "405 close"},
	{Name: "request line/TRACE", Send: start("TRACE " + target + " HTTP/1.1"), Want: "405 close"},
	{Name: "request line/CONNECT of a path", Send: start("CONNECT " + target + " HTTP/1.1"), Want: "405 close"},
	{Name: "request line/CONNECT of an authority", Send: start("CONNECT api:7000 HTTP/1.1"), Want: "405 close"},
	{Name: "request line/NUL in the method", Send: start("GE\x00T " + target + " HTTP/1.1"), Want: "400 close"},
	{Name: "request line/colon in the method", Send: start("GE:T " + target + " HTTP/1.1"), Want: "400 close"},
	{Name: "request line/method beyond ASCII", Send: start("G\xc3\x8bT " + target + " HTTP/1.1"), Want: "400 close"},
	{Name: "request line/no method", Send: start(" " + target + " HTTP/1.1"), Want: "400 close"},
	{Name: "request line/space before it", Send: " " + with(""), Want: "400 close"},
	{Name: "request line/two spaces before the target", Send: start("GET  " + target + " HTTP/1.1"), Want: "400 close"},
	{Name: "request line/two spaces before the version", Send: start("GET " + target + "  HTTP/1.1"), Want: "400 close"},
	{Name: "request line/space behind it", Send: start("GET " + target + " HTTP/1.1 "), Want: "400 close"},
	{Name: "request line/tabs", Send: start("GET\t" + target + "\tHTTP/1.1"), Want: "400 close"},
	{Name: "request line/tab before the version", Send: start("GET " + target + "\tHTTP/1.1"), Want: "400 close"},
	{Name: "request line/space in the target", Send: start("GET " + target + " x HTTP/1.1"), Want: "400 close"},
	{Name: "request line/no version", Send: start("GET " + target), Want: "400 close"},
	{Name: "request line/simple request of HTTP 0.9", Send: "GET " + target + "\r\n", Want: "400 close"},
	{Name: "request line/only a method", Send: start("GET"), Want: "400 close"},
	{Name: "request line/empty target", Send: start("GET  HTTP/1.1"), Want: "400 close"},
	{Name: "request line/HTTP 1.0", Send: start("GET " + target + " HTTP/1.0"), Want: "200 close", Seen: []string{seen}},
	{Name: "request line/HTTP 1.0 without Host", Send: "GET " + target + " HTTP/1.0\r\n{auth}\r\n", Want: "200 close", Seen: []string{seen}},
	{Name: "request line/HTTP 1.0 kept alive", Send: "GET " + target + " HTTP/1.0\r\n" + host + "Connection: keep-alive\r\n\r\n", Want: "200", Seen: []string{seen}},
	{Name: "request line/HTTP 1.2", Send: start("GET " + target + " HTTP/1.2"), Want: "400 close"},
	{Name: "request line/HTTP 1.9", Send: start("GET " + target + " HTTP/1.9"), Want: "400 close"},
	{Name: "request line/HTTP 0.9", Send: start("GET " + target + " HTTP/0.9"), Want: "400 close"},
	{Name: "request line/HTTP 2.0", Send: start("GET " + target + " HTTP/2.0"), Want: "400 close"},
	{Name: "request line/HTTP 11", Send: start("GET " + target + " HTTP/11"), Want: "400 close"},
	{Name: "request line/HTTP 1.1.1", Send: start("GET " + target + " HTTP/1.1.1"), Want: "400 close"},
	{Name: "request line/HTTP 1.10", Send: start("GET " + target + " HTTP/1.10"), Want: "400 close"},
	{Name: "request line/HTTP +1.1", Send: start("GET " + target + " HTTP/+1.1"), Want: "400 close"},
	{Name: "request line/lower case version", Send: start("GET " + target + " http/1.1"), Want: "400 close"},
	{Name: "request line/another protocol", Send: start("GET " + target + " ICY/1.1"), Want: "400 close"},
	{Name: "request line/an empty line before it", Send: "\r\n" + with(""), Want: "200", Seen: []string{seen}},
	{Name: "request line/empty lines before it", Send: "\r\n\r\n\r\n" + with(""), Want: "200", Seen: []string{seen}},
	{Name: "request line/LF before it", Send: "\n" + with(""), Want: "400 close"},
	{Name: "request line/CR before it", Send: "\r" + with(""), Want: "400 close"},
	{Name: "request line/ends in LF", Send: "GET " + target + " HTTP/1.1\n" + host + "\r\n", Want: "400 close"},
	{Name: "request line/ends in CR", Send: "GET " + target + " HTTP/1.1\r" + host + "\r\n", Want: "400 close"},
	{Name: "request line/ends in CR CR LF", Send: "GET " + target + " HTTP/1.1\r\r\n" + host + "\r\n", Want: "400 close"},
	{Name: "request line/preface of HTTP 2", Send: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Want: "400 close"},
	{Name: "request line/hello of TLS", Send: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", Want: "400 close"},
	{Name: "request line/a SOCKS greeting", Send: "\x05\x01\x00\r\n\r\n", Want: "400 close"},
	{Name: "request line/an answer", Send: start("HTTP/1.1 200 OK"), Want: "400 close"},
	{Name: "request line/cut", Send: "GET " + target, Want: "400 close", End: true},
	{Name: "request line/PROXY protocol", Send: "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + with(""), Want: "400 close"},
}

// RFC 9112, 3.2; RFC 3986. What passes is seen as it was sent.
var targets = func() (cases []Case) {
	for name, t := range map[string]string{
		"brackets and bars":             target + "?a=[b]|c{d}^`e",
		"UTF-8 in the query":            target + "?name=\xc3\xa9",
		"encoded slash in the query":    target + "?name=a%2Fb%2f",
		"encoded NUL in the query":      target + "?name=%00",
		"empty query":                   target + "?",
		"empty pairs":                   target + "?&&a&=b&",
		"two question marks":            target + "?a?b",
		"semicolon in the query":        target + "?a=1;b=2",
		"slashes and dots in the query": target + "?a=//../x",
		"8 KiB query":                   target + "?a=" + strings.Repeat("x", 8<<10),
		"trailing slash":                target + "/",
		"encoded percent":               target + "/a%25b",
		"encoded space":                 target + "/a%20b+c",
		"lower case escapes":            target + "/%c3%a9",
		"three dots":                    target + "/...",
		"dots within a segment":         target + "/a..b/.c/d.",
		"sub-delims":                    target + "/a!$&'()*,=:@b~-_",
		"encoded query mark":            target + "/a%3Fb",
		"encoded hash":                  target + "/a%23b",
		"the prefix itself":             "/cwms-data",
		"encoded slash in an id":        "/cwms-data/ratings/a%2Fb",
		"encoded semicolon in an id":    "/cwms-data/ratings/a%3Bb",
	} {
		cases = append(cases, Case{Name: "target/" + name, Send: at(t, ""), Want: "200", Seen: []string{"GET " + t}})
	}
	for name, t := range map[string]string{
		"absolute":                      "http://h" + target,
		"absolute of the API":           "http://api:7000" + target,
		"absolute https":                "https://h" + target,
		"authority":                     "h:80",
		"asterisk":                      "*",
		"no slash":                      "cwms-data/conformance",
		"two slashes":                   "//cwms-data/conformance",
		"two slashes within":            "/cwms-data//conformance",
		"two slashes at the end":        target + "//",
		"only slashes":                  "//",
		"one dot":                       "/cwms-data/./conformance",
		"two dots":                      "/cwms-data/x/../conformance",
		"two dots at the end":           "/cwms-data/x/..",
		"two dots out of the root":      "/../cwms-data/conformance",
		"encoded dot":                   "/cwms-data/%2e/conformance",
		"encoded dots":                  "/cwms-data/x/%2E%2e/conformance",
		"half encoded dots":             "/cwms-data/x/.%2e/conformance",
		"dots with a parameter":         "/cwms-data/docs/..;/conformance",
		"encoded slash, lower case":     "/cwms-data/docs%2fconformance",
		"backslash":                     `/cwms-data\conformance`,
		"dots by backslash":             `/cwms-data/x\..\conformance`,
		"encoded backslash":             "/cwms-data/x%5C..%5cconformance",
		"path parameter":                target + ";a=b",
		"path parameter without a name": "/cwms-data/;/conformance",
		"encoded semicolon":             target + "%3Bx",
		"fragment":                      target + "#x",
		"fragment before the query":     target + "#?office=SWT",
		"fragment in the query":         target + "?a#b",
		"broken escape":                 target + "/%zz",
		"escape cut":                    target + "/%2",
		"percent at the end":            target + "/%",
		"broken escape in the query":    target + "?a=%z",
		"encoded NUL":                   target + "/a%00b",
		"encoded CR LF":                 target + "/a%0d%0ab",
		"encoded DEL":                   target + "/a%7f",
		"not UTF-8":                     target + "/%ff",
		"overlong slash":                target + "/%c0%af",
		"raw UTF-8":                     target + "/\xc3\xa9",
		"NUL":                           target + "\x00",
		"NUL in the query":              target + "?\x00",
		"control byte":                  target + "\x01",
		"DEL":                           target + "\x7f",
		"vertical tab":                  target + "\x0b",
		"another scheme":                "file:///etc/passwd",
		"scheme without an authority":   "http:" + target,
	} {
		cases = append(cases, Case{Name: "target/" + name, Send: at(t, ""), Want: "400 close"})
	}
	return append(cases,
		Case{Name: "target/encoded slash behind the prefix", Send: at("/cwms-data%2Fconformance", ""), Want: "404"},
		Case{Name: "target/OPTIONS of everything", Send: start("OPTIONS * HTTP/1.1"), Want: "400 close"},
		Case{Name: "target/not the API's", Send: at("/elsewhere", ""), Want: "404"},
		Case{Name: "target/prefix of another name", Send: at("/cwms-database", ""), Want: "404"},
		Case{Name: "target/prefix in upper case", Send: at("/CWMS-DATA/conformance", ""), Want: "404"},
		Case{Name: "target/encoded prefix", Send: at("/cwms%2Ddata/conformance", ""), Want: "404"},
		Case{Name: "target/20 KiB", Send: at(target+"?"+strings.Repeat("x", 20<<10), ""), Want: "431 close"},
	)
}()

// RFC 9112, 5; RFC 9110, 5.5 and 5.6.2.
var headers = []Case{
	{Name: "header/order, spelling and repeats are kept", Send: with("x-B: 1\r\nX-a:2\r\nx-B:\t3 \r\n"), Want: "200", Seen: []string{seen}, Has: []string{"x-b: 1\r\nx-a:"}},
	{Name: "header/empty value", Send: with("X-A:\r\n"), Want: "200", Seen: []string{seen}, Has: []string{"x-a:"}},
	{Name: "header/odd but allowed name", Send: with("!#$%&'*+.^`|~: 1\r\n"), Want: "200", Seen: []string{seen}, Has: []string{"!#$%&'*+.^`|~: 1"}},
	{Name: "header/value beyond ASCII", Send: with("X-A: \xc3\xa9\xff\r\n"), Want: "200", Seen: []string{seen}, Has: []string{"x-a: "}},
	{Name: "header/folded", Send: with("X-A: b\r\n c\r\n"), Want: "400 close"},
	{Name: "header/folded by a tab", Send: with("X-A: b\r\n\tc\r\n"), Want: "400 close"},
	{Name: "header/folded into nothing", Send: with("X-A: b\r\n \r\n"), Want: "400 close"},
	{Name: "header/first line begins with a space", Send: "GET " + target + " HTTP/1.1\r\n X: y\r\n" + host + "\r\n", Want: "400 close"},
	{Name: "header/first line begins with a tab", Send: "GET " + target + " HTTP/1.1\r\n\tX: y\r\n" + host + "\r\n", Want: "400 close"},
	{Name: "header/folded framing", Send: post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "header/line ends in LF", Send: with("X-A: b\n"), Want: "400 close"},
	{Name: "header/two lines by LF", Send: with("X-A: b\nX-C: d\r\n"), Want: "400 close"},
	{Name: "header/ends in LF", Send: "GET " + target + " HTTP/1.1\r\n" + host + "\n", Want: "400 close"},
	{Name: "header/every line ends in LF", Send: "GET " + target + " HTTP/1.1\nHost: h\n\n", Want: "400 close"},
	{Name: "header/CR in a value", Send: with("X-A: b\rX-C: d\r\n"), Want: "400 close"},
	{Name: "header/CR before CR LF", Send: with("X-A: b\r\r\n"), Want: "400 close"},
	{Name: "header/NUL in a value", Send: with("X-A: b\x00c\r\n"), Want: "400 close"},
	{Name: "header/control byte in a value", Send: with("X-A: b\x01\r\n"), Want: "400 close"},
	{Name: "header/DEL in a value", Send: with("X-A: b\x7f\r\n"), Want: "400 close"},
	{Name: "header/vertical tab in a value", Send: with("X-A: \x0bb\r\n"), Want: "400 close"},
	{Name: "header/space before the colon", Send: with("X-A : b\r\n"), Want: "400 close"},
	{Name: "header/tab before the colon", Send: with("X-A\t: b\r\n"), Want: "400 close"},
	{Name: "header/space in a name", Send: with("X A: b\r\n"), Want: "400 close"},
	{Name: "header/space before our name", Send: with("x x-cwms-auth-context: forged\r\n"), Want: "400 close"},
	{Name: "header/no name", Send: with(": b\r\n"), Want: "400 close"},
	{Name: "header/no colon", Send: with("X-A\r\n"), Want: "400 close"},
	{Name: "header/NUL in a name", Send: with("X\x00A: b\r\n"), Want: "400 close"},
	{Name: "header/name beyond ASCII", Send: with("X-\xc3\xa9: b\r\n"), Want: "400 close"},
	{Name: "header/separator in a name", Send: with("X(A): b\r\n"), Want: "400 close"},
	{Name: "header/quote in a name", Send: with("\"X\": b\r\n"), Want: "400 close"},
	{Name: "header/many", Send: with(strings.Repeat("X-A: b\r\n", 500)), Want: "200", Seen: []string{seen}},
	{Name: "header/too long", Send: with("X-A: " + strings.Repeat("b", 20<<10) + "\r\n"), Want: "431 close"},
	{Name: "header/too many", Send: with(strings.Repeat("X-A: b\r\n", 5000)), Want: "431 close"},
	{Name: "header/name too long", Send: with(strings.Repeat("A", 20<<10) + ": b\r\n"), Want: "431 close"},
	{Name: "header/two Authorization", Send: with("Authorization: Bearer x\r\n"), Want: "400 close"},
	{Name: "header/two Authorization, spelled otherwise", Send: with("aUTHORIZATION: Bearer x\r\n"), Want: "400 close"},
	{Name: "header/two types", Send: post("Content-Length: 1\r\nContent-Type: a/b\r\nContent-Type: c/d\r\n", "x"), Want: "400 close"},
	{Name: "header/two Cookie lines are two", Send: with("Cookie: a=1\r\nCookie: b=2\r\n"), Want: "200", Seen: []string{seen}, Has: []string{"cookie: a=1\r\ncookie: b=2"}},
	{Name: "header/two sessions", Send: with("Cookie: JSESSIONID=1; JSESSIONID=2\r\n"), Want: "400 close"},
	{Name: "header/a session beside a token", Send: with("Cookie: a=1; JSESSIONID=2\r\n"), Want: "200", Seen: []string{seen}, Has: []string{"cookie: a=1\r\n"}, Not: []string{"jsessionid"}},
	{Name: "header/cut", Send: "GET " + target + " HTTP/1.1\r\nHost:", Want: "400 close", End: true},
}

// RFC 9112, 3.2: exactly one valid Host.
var hosts = []Case{
	{Name: "host/none", Send: "GET " + target + " HTTP/1.1\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/no header at all", Send: "GET " + target + " HTTP/1.1\r\n\r\n", Want: "400 close"},
	{Name: "host/empty", Send: "GET " + target + " HTTP/1.1\r\nHost:\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/two", Send: with("Host: evil\r\n"), Want: "400 close"},
	{Name: "host/the same twice", Send: with("Host: h\r\n"), Want: "400 close"},
	{Name: "host/two in HTTP 1.0", Send: "GET " + target + " HTTP/1.0\r\n" + host + "host: evil\r\n\r\n", Want: "400 close"},
	{Name: "host/two in one line", Send: "GET " + target + " HTTP/1.1\r\nHost: h, evil\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/user information", Send: "GET " + target + " HTTP/1.1\r\nHost: a:b@h\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/path", Send: "GET " + target + " HTTP/1.1\r\nHost: h/x\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/quote", Send: "GET " + target + " HTTP/1.1\r\nHost: h\"\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/angle brackets", Send: "GET " + target + " HTTP/1.1\r\nHost: h<x>\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/beyond ASCII", Send: "GET " + target + " HTTP/1.1\r\nHost: h\xc3\xa9\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/space", Send: "GET " + target + " HTTP/1.1\r\nHost: h evil\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/port", Send: "GET " + target + " HTTP/1.1\r\nHost: h:3001\r\n{auth}\r\n", Want: "200", Seen: []string{seen}, Has: []string{"x-forwarded-host: h:3001\r\n"}},
	{Name: "host/IPv6", Send: "GET " + target + " HTTP/1.1\r\nHost: [::1]:3001\r\n{auth}\r\n", Want: "200", Seen: []string{seen}, Has: []string{"x-forwarded-host: [::1]:3001\r\n"}},
	{Name: "host/port that is none", Send: "GET " + target + " HTTP/1.1\r\nHost: h:x\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/bracket left open", Send: "GET " + target + " HTTP/1.1\r\nHost: [::1\r\n{auth}\r\n", Want: "400 close"},
	{Name: "host/look-alike", Send: with("H_ost: x\r\n"), Want: "200", Seen: []string{seen}},
}

// RFC 9112, 6.
var framings = []Case{
	{Name: "framing/length", Send: post("Content-Length: 5\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello"},
	{Name: "framing/length of nothing", Send: post("Content-Length: 0\r\n", ""), Want: "200", Seen: []string{posted}},
	{Name: "framing/no length", Send: post("", ""), Want: "200", Seen: []string{posted}},
	{Name: "framing/length with zeros", Send: post("Content-Length: 0005\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello", Has: []string{"content-length: 5\r\n"}},
	{Name: "framing/length of a GET", Send: with("Content-Length: 5\r\n") + "hello", Want: "200", Seen: []string{seen}, Body: "hello"},
	{Name: "framing/chunked GET", Send: with("Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\n0\r\n\r\n", Want: "200", Seen: []string{seen}, Body: "hello"},
	{Name: "framing/length of a DELETE", Send: "DELETE " + target + " HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhello", Want: "200", Seen: []string{"DELETE " + target}, Body: "hello"},
	{Name: "framing/length of a HEAD", Send: "HEAD " + target + " HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhello", Want: "200", Seen: []string{"HEAD " + target}, Body: "hello"},
	{Name: "framing/HTTP 1.0 with length", Send: "POST " + target + " HTTP/1.0\r\n" + host + "Content-Length: 5\r\n\r\nhello", Want: "200 close", Seen: []string{posted}, Body: "hello"},
	{Name: "framing/signed length", Send: post("Content-Length: +5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/negative length", Send: post("Content-Length: -5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/hexadecimal length", Send: post("Content-Length: 0x5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/fractional length", Send: post("Content-Length: 5.0\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length with a unit", Send: post("Content-Length: 5b\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length with a blank", Send: post("Content-Length: 5 5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/list of lengths", Send: post("Content-Length: 5,5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/list of lengths that differ", Send: post("Content-Length: 5, 6\r\n", "hello"), Want: "400 close"},
	{Name: "framing/empty length", Send: post("Content-Length:\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length in quotes", Send: post("Content-Length: \"5\"\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length over 63 bits", Send: post("Content-Length: 9223372036854775808\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length over 64 bits", Send: post("Content-Length: 18446744073709551621\r\n", "hello"), Want: "400 close"},
	{Name: "framing/two lengths", Send: post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), Want: "400 close"},
	{Name: "framing/two lengths that differ", Send: post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), Want: "400 close"},
	{Name: "framing/two lengths, spelled otherwise", Send: post("Content-Length: 5\r\ncontent-length: 6\r\n", "hello"), Want: "400 close"},
	{Name: "framing/length and chunks", Send: post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunks and length", Send: post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/length and identity", Send: post("Content-Length: 5\r\nTransfer-Encoding: identity\r\n", "hello"), Want: "400 close"},
	{Name: "framing/chunks in upper case", Send: post("Transfer-Encoding: CHUNKED\r\n", "5\r\nhello\r\n0\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "hello"},
	{Name: "framing/identity", Send: post("Transfer-Encoding: identity\r\n", ""), Want: "400 close"},
	{Name: "framing/empty coding", Send: post("Transfer-Encoding:\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/unknown coding", Send: post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/gzip and chunked", Send: post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked and identity", Send: post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked twice in a line", Send: post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked in two lines", Send: post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked and identity in two lines", Send: post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked with a parameter", Send: post("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked and a comma", Send: post("Transfer-Encoding: chunked,\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked in quotes", Send: post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunked behind a vertical tab", Send: post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/space before the colon", Send: post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "framing/chunks in HTTP 1.0", Send: "POST " + target + " HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Want: "400 close"},
	{Name: "framing/look-alike of the coding", Send: post("Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello"},
	{Name: "framing/look-alike of the length", Send: post("Content_Length: 99\r\nContent-Length: 5\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello"},
	{Name: "framing/body shorter than its length", Send: post("Content-Length: 9\r\n", "hello"), Want: "400 close", End: true},
	{Name: "framing/body much shorter than its length", Send: post("Content-Length: 100000\r\n", "hello"), Want: "400 close", End: true},
}

// RFC 9112, 7.1.
var chunks = []Case{
	{Name: "chunk/several", Send: chunked("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abcde"},
	{Name: "chunk/none", Send: chunked("0\r\n\r\n"), Want: "200", Seen: []string{posted}},
	{Name: "chunk/upper and lower case", Send: chunked("A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "01234567890123456789"},
	{Name: "chunk/zeros before the size", Send: chunked("0003\r\nabc\r\n000\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc"},
	{Name: "chunk/extension", Send: chunked("3;a=b;c\r\nabc\r\n0;d=\"e\"\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc"},
	{Name: "chunk/request within", Send: chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled)), Want: "200", Seen: []string{posted}, Body: smuggled},
	{Name: "chunk/large", Send: chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 200000, strings.Repeat("x", 200000))), Want: "200", Seen: []string{posted}, Body: strings.Repeat("x", 200000)},
	{Name: "chunk/LF in an extension", Send: chunked("3;a\nb\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/CR in an extension", Send: chunked("3;a\rb\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/size ends in LF", Send: chunked("3\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/data ends in LF", Send: chunked("3\r\nabc\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/data ends in nothing", Send: chunked("3\r\nabc0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/data longer than its size", Send: chunked("3\r\nabcdef\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/negative size", Send: chunked("-3\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/signed size", Send: chunked("+3\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/prefixed size", Send: chunked("0x3\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/space before the size", Send: chunked(" 3\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/space before an extension", Send: chunked("3 ;a\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/size that is no number", Send: chunked("zz\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/no size", Send: chunked("\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/extension without a size", Send: chunked(";a\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/size over 63 bits", Send: chunked("8000000000000000\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/size over 64 bits", Send: chunked("10000000000000003\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/size of many digits", Send: chunked(strings.Repeat("f", 100) + "\r\nabc\r\n0\r\n\r\n"), Want: "400 close"},
	{Name: "chunk/no last chunk", Send: chunked("3\r\nabc\r\n"), Want: "400 close", End: true},
	{Name: "chunk/cut in the data", Send: chunked("5\r\nabc"), Want: "400 close", End: true},
	{Name: "chunk/last chunk without an end", Send: chunked("3\r\nabc\r\n0\r\n"), Want: "400 close", End: true},
}

// RFC 9112, 7.1.2; RFC 9110, 6.5. Trailers are dropped.
var trailers = []Case{
	{Name: "trailer/declared", Send: post("Transfer-Encoding: chunked\r\nTrailer: X-T\r\n", "3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc", Not: []string{"x-t"}},
	{Name: "trailer/undeclared", Send: chunked("3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc", Not: []string{"x-t"}},
	{Name: "trailer/our context", Send: chunked("3\r\nabc\r\n0\r\nX-Cwms-Auth-Context: forged\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc", Not: []string{"forged"}},
	{Name: "trailer/test user", Send: chunked("3\r\nabc\r\n0\r\nX-Test-User: {}\r\n\r\n"), Want: "200", Seen: []string{posted}, Body: "abc", Not: []string{"x-test-user"}},
	{Name: "trailer/credential", Send: chunked("3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/length", Send: chunked("3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/coding", Send: chunked("3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/Host", Send: chunked("3\r\nabc\r\n0\r\nHost: evil\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/declared credential", Send: post("Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/no colon", Send: chunked("3\r\nabc\r\n0\r\nX-T\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/line ends in LF", Send: chunked("3\r\nabc\r\n0\r\nX-T: 1\n\r\n"), Want: "400 close", End: true},
	{Name: "trailer/ends in LF", Send: chunked("0\r\n\n"), Want: "200 400 close", Seen: []string{posted}},
	{Name: "trailer/NUL", Send: chunked("3\r\nabc\r\n0\r\nX-T: \x00\r\n\r\n"), Want: "400 close"},
	{Name: "trailer/too long", Send: chunked("3\r\nabc\r\n0\r\nX-T: " + strings.Repeat("x", 40<<10) + "\r\n\r\n"), Want: "400 close"},
}

// RFC 9110, 10.1.1.
var expectations = []Case{
	{Name: "expect/continue", Send: post("Content-Length: 5\r\nExpect: 100-continue\r\n", "hello"), Want: "100 200", Seen: []string{posted}, Body: "hello"},
	{Name: "expect/continue in upper case", Send: post("Content-Length: 5\r\nExpect: 100-CONTINUE\r\n", "hello"), Want: "100 200", Seen: []string{posted}, Body: "hello"},
	{Name: "expect/continue in chunks", Send: post("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", "5\r\nhello\r\n0\r\n\r\n"), Want: "100 200", Seen: []string{posted}, Body: "hello"},
	{Name: "expect/HTTP 1.0", Send: "POST " + target + " HTTP/1.0\r\n" + host + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello", Want: "200 close", Seen: []string{posted}, Body: "hello"},
	{Name: "expect/something else", Send: post("Content-Length: 5\r\nExpect: 200-ok\r\n", "hello"), Want: "400 close"},
	{Name: "expect/two", Send: post("Content-Length: 5\r\nExpect: 100-continue\r\nExpect: 100-continue\r\n", "hello"), Want: "400 close"},
	{Name: "expect/a list", Send: post("Content-Length: 5\r\nExpect: 100-continue, x\r\n", "hello"), Want: "400 close"},
	{Name: "expect/denied", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", Want: "403 close"},
	{Name: "expect/denied, body sent all the same", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + fmt.Sprint(len(smuggled)) + "\r\nExpect: 100-continue\r\n\r\n" + smuggled, Want: "403 close"},
	{Name: "expect/refused target", Send: "POST //x HTTP/1.1\r\n" + host + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", Want: "400 close"},
	{Name: "expect/length and chunks", Send: post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n", "0\r\n\r\n"), Want: "400 close"},
	{Name: "expect/cut after it", Send: post("Content-Length: 5\r\nExpect: 100-continue\r\n", ""), Want: "100 400 close", End: true},
}

// RFC 9110, 7.6.1: what belongs to one hop goes no further, and no header that we
// need is taken for one of those.
var hops = []Case{
	{Name: "hop/close", Send: with("Connection: close\r\n"), Want: "200 close", Seen: []string{seen}},
	{Name: "hop/close among others", Send: with("Connection: X-A, close\r\nX-A: 1\r\n"), Want: "200 close", Seen: []string{seen}, Not: []string{"x-a:"}},
	{Name: "hop/close in upper case", Send: with("CONNECTION: CLOSE\r\n"), Want: "200 close", Seen: []string{seen}},
	{Name: "hop/keep-alive", Send: with("Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n"), Want: "200", Seen: []string{seen}},
	{Name: "hop/a named header", Send: with("X-A: 1\r\nConnection: x-a\r\nX-a: 2\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"x-a:"}},
	{Name: "hop/named in the second line", Send: with("Connection: x-b\r\nConnection: x-a\r\nX-A: 1\r\nX-B: 2\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"x-a:", "x-b:"}},
	{Name: "hop/empty tokens", Send: with("Connection: , ,\r\n"), Want: "200", Seen: []string{seen}},
	{Name: "hop/names our context", Send: with("Connection: X-Cwms-Auth-Context\r\n"), Want: "400 close"},
	{Name: "hop/names a look-alike of it", Send: with("Connection: x_cwms_auth_context\r\n"), Want: "400 close"},
	{Name: "hop/names the credential", Send: with("Connection: close, authorization\r\n"), Want: "400 close"},
	{Name: "hop/names the cookies", Send: with("Connection: cookie\r\n"), Want: "400 close"},
	{Name: "hop/names Host", Send: with("Connection: host\r\n"), Want: "400 close"},
	{Name: "hop/names the length", Send: post("Content-Length: 5\r\nConnection: content-length\r\n", "hello"), Want: "400 close"},
	{Name: "hop/names the type", Send: post("Content-Length: 5\r\nConnection: content-type\r\n", "hello"), Want: "400 close"},
	{Name: "hop/names the client's address", Send: with("Connection: X-Forwarded-For\r\n"), Want: "400 close"},
	{Name: "hop/names what is no name", Send: with("Connection: x y\r\n"), Want: "400 close"},
	{Name: "hop/names Connection", Send: with("Connection: connection\r\n"), Want: "400 close"},
	{Name: "hop/TE", Send: with("TE: trailers, gzip\r\nConnection: TE\r\n"), Want: "200", Seen: []string{seen}},
	{Name: "hop/Proxy-Connection", Send: with("Proxy-Connection: keep-alive\r\n"), Want: "200", Seen: []string{seen}},
	{Name: "hop/Proxy-Authorization", Send: with("Proxy-Authorization: Basic eDp5\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"edp5"}},
	{Name: "hop/upgrade to h2c", Send: with("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"h2c", "aamaaa"}},
	{Name: "hop/upgrade to h2c, not named", Send: with("Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"h2c", "aamaaa"}},
	{Name: "hop/upgrade of a POST", Send: post("Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello"},
	{Name: "hop/WebSocket", Send: with("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"upgrade"}},
}

// Headers that we write, or that would show the API another client, method or path
// than was decided on. The reader of the API knows which; here are the spellings.
var forgeries = func() (cases []Case) {
	for _, line := range []string{
		"X-Cwms-Auth-Context: forged", "x-cwms-auth-context: forged", "X_CWMS_AUTH_CONTEXT: forged", "X-Cwms_Auth-Context: forged",
		"x.cwms.auth.context: forged", "X--Cwms--Auth-Context: forged", "X-Cwms-_.Auth-Context: forged",
		"X-Request-Id: forged", "X_Request_Id: forged", "X-Forwarded-For: 6.6.6.6", "x_forwarded_for: 6.6.6.6", "X-Forwarded-Host: forged", "X-Forwarded-Proto: forged",
		"X-Forwarded-Port: 666", "X-Forwarded-Prefix: /forged", "X-Forwarded-Uri: /forged", "X-Forwarded-Method: DELETE", "X-Forwarded-Server: forged",
		"Forwarded: for=6.6.6.6;host=forged", "X-Real-IP: 6.6.6.6", "X-Original-URL: /forged", "X-Original-Host: forged", "X_Original_Method: DELETE", "X-Rewrite-URL: /forged",
		"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE", "X_HTTP_Method_Override: DELETE",
		"X-Test-User: forged", "X-Authorize-Secret: forged", "X-Decision: forged", "Proxy: forged", "Proxy-Authenticate: forged",
		"Content.Length: 666", "Transfer.Encoding: forged", "H-ost: x",
	} {
		cases = append(cases, Case{
			Name: "forged/" + line, Send: with(line + "\r\n"), Want: "200", Seen: []string{seen},
			Not: []string{"forged", "6.6.6.6", ": 666\r", ": delete"},
		})
	}
	return append(cases,
		Case{Name: "forged/the context twice", Send: with("x-cwms-auth-context: forged\r\nX-Cwms-Auth-Context: forged\r\n"), Want: "200", Seen: []string{seen}, Not: []string{"forged"}},
		Case{Name: "forged/on a POST", Send: post("Content-Length: 5\r\nX-Cwms-Auth-Context: forged\r\n", "hello"), Want: "200", Seen: []string{posted}, Body: "hello", Not: []string{"forged"}},
		Case{Name: "forged/on an OPTIONS", Send: "OPTIONS " + target + " HTTP/1.1\r\n" + host + "X-Cwms-Auth-Context: forged\r\n\r\n", Want: "200", Seen: []string{"OPTIONS " + target}, Not: []string{"forged"}},
	)
}()

const smuggled = "GET /cwms-data/smuggled HTTP/1.1\r\nHost: h\r\n\r\n"

// RFC 9112, 9.3.2: requests in a row are answered in a row, and nothing that was
// not framed as a request is one.
var pipelines = []Case{
	{Name: "pipeline/two", Send: at(target+"?1", "") + at(target+"?2", ""), Want: "200 200", Seen: []string{seen + "?1", seen + "?2"}},
	{Name: "pipeline/ten", Send: strings.Repeat(with(""), 10), Want: strings.Repeat("200 ", 10), Seen: strings.Split(strings.Repeat(","+seen, 10)[1:], ",")},
	{Name: "pipeline/behind a body", Send: post("Content-Length: 5\r\n", "hello") + with(""), Want: "200 200", Seen: []string{posted, seen}, Body: "hello"},
	{Name: "pipeline/behind chunks", Send: chunked("5\r\nhello\r\n0\r\n\r\n") + with(""), Want: "200 200", Seen: []string{posted, seen}, Body: "hello"},
	{Name: "pipeline/behind a trailer", Send: chunked("0\r\nX-T: 1\r\n\r\n") + with(""), Want: "200 200", Seen: []string{posted, seen}},
	{Name: "pipeline/a request as a body", Send: post(fmt.Sprintf("Content-Length: %d\r\n", len(smuggled)), smuggled) + with(""), Want: "200 200", Seen: []string{posted, seen}, Body: smuggled},
	{Name: "pipeline/behind a denied one", Send: "GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n" + with(""), Want: "403 200", Seen: []string{seen}},
	{Name: "pipeline/behind a denied body", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + fmt.Sprint(len(smuggled)) + "\r\n\r\n" + smuggled + with(""), Want: "403 200", Seen: []string{seen}},
	{Name: "pipeline/behind denied chunks", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled) + with(""), Want: "403 200", Seen: []string{seen}},
	{Name: "pipeline/behind denied chunks that are broken", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + smuggled, Want: "403 close"},
	{Name: "pipeline/behind a large denied body", Send: "POST " + target + " HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(smuggled, 1000000/len(smuggled)+1), Want: "403 close"},
	{Name: "pipeline/behind a missing one", Send: at("/elsewhere", "") + with(""), Want: "404 200", Seen: []string{seen}},
	{Name: "pipeline/behind a malformed one", Send: at("//x", "") + with(""), Want: "400 close"},
	{Name: "pipeline/behind a malformed header", Send: with("X A: b\r\n") + with(""), Want: "400 close"},
	{Name: "pipeline/a good one before a malformed one", Send: with("") + with("X A: b\r\n"), Want: "200 400 close", Seen: []string{seen}},
	{Name: "pipeline/behind a body too short", Send: post("Content-Length: 3\r\n", "hello") + with(""), Want: "200 405 close", Seen: []string{posted}, Body: "hel"},
	{Name: "pipeline/behind close", Send: with("Connection: close\r\n") + with(""), Want: "200 close", Seen: []string{seen}},
	{Name: "pipeline/behind HTTP 1.0", Send: start("GET "+target+" HTTP/1.0") + with(""), Want: "200 close", Seen: []string{seen}},
	{Name: "pipeline/empty lines between", Send: with("") + "\r\n\r\n" + with(""), Want: "200 200", Seen: []string{seen, seen}},
	{Name: "pipeline/behind an upgrade", Send: with("Connection: Upgrade\r\nUpgrade: h2c\r\n") + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Want: "200 400 close", Seen: []string{seen}},
	{Name: "pipeline/TE.CL", Send: post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled)), Want: "400 close"},
	{Name: "pipeline/CL.0", Send: with(fmt.Sprintf("Content-Length: %d\r\n", len(smuggled))) + smuggled, Want: "200", Seen: []string{seen}, Body: smuggled},
	{Name: "pipeline/TE.0", Send: with("Transfer-Encoding: chunked\r\n") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled), Want: "200", Seen: []string{seen}, Body: smuggled},
}

// Bodies that must be read for the decision reach the API as they were judged.
var bodies = []Case{
	{Name: "body/judged", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: 33\r\n\r\n" + series, Want: "200", Seen: []string{"POST /cwms-data/timeseries"}, Body: series},
	{Name: "body/judged in chunks", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + series[:16] + "\r\n11\r\n" + series[16:] + "\r\n0\r\nX-T: 1\r\n\r\n",
		Want: "200", Seen: []string{"POST /cwms-data/timeseries"}, Body: series, Has: []string{"content-length: 33\r\n"}, Not: []string{"transfer-encoding"}},
	{Name: "body/judged after 100", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: 33\r\nExpect: 100-continue\r\n\r\n" + series, Want: "100 200", Seen: []string{"POST /cwms-data/timeseries"}, Body: series},
	{Name: "body/a member twice", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: 39\r\n\r\n" + `{"office-id":"SWT", "office-id": "SPK"}`, Want: "400 close"},
	{Name: "body/compressed", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 33\r\n\r\n" + series, Want: "415"},
	{Name: "body/cut", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: 40\r\n\r\n" + series, Want: "400 close", End: true},
	{Name: "body/cut in chunks", Send: "POST /cwms-data/timeseries HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n21\r\n" + series + "\r\n", Want: "400 close", End: true},
	{Name: "body/large", Send: post("Content-Length: 300000\r\n", strings.Repeat("x", 300000)), Want: "200", Seen: []string{posted}, Body: strings.Repeat("x", 300000)},
	{Name: "body/binary", Send: post("Content-Length: 6\r\n", "\x00\r\n\r\n\xff"), Want: "200", Seen: []string{posted}, Body: "\x00\r\n\r\n\xff"},
	{Name: "body/form in parts is not read", Send: post("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 61\r\n", "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n  "),
		Want: "200", Seen: []string{posted}, Body: "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n  "},
}

const series = `{"office-id":"SWT","name":"A.B" }`
