package upstream

import (
	"regexp"
	"strings"
	"testing"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"

var oursWritten = regexp.MustCompile(`(?s)x-cwms-auth-context: \{.*?\}\r\nX-Request-Id: r1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: (\S+)\r\n`)

// onWire sends raw to a proxy and returns what the API saw, with our own
// headers, which end the head, as "[ours host]" and its own address as "api".
func onWire(t *testing.T, raw string) string {
	t.Helper()
	a := answering(t, okAnswer)
	p := front(t, config(a.Addr().String()), nil)
	p.send(t, raw)
	seen := strings.Join(a.requests(), "\n-- next --\n")
	seen = strings.ReplaceAll(seen, a.Addr().String(), "api")
	return oursWritten.ReplaceAllString(seen, "[ours $1]\r\n")
}

// Requests as the client sends them and as the API sees them. What Forward
// leaves alone is byte for byte the same.
func TestRequestOnTheWire(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"target, order and spelling are the client's",
			"GET /cwms-data/x?a=[b]|c%2f&d HTTP/1.1\r\nHost: h\r\nx-B: 1\r\nX-a: 2\r\nx-B: 3\r\nConnection: close\r\n\r\n",
			"GET /cwms-data/x?a=[b]|c%2f&d HTTP/1.1\r\nHost: api\r\nx-B: 1\r\nX-a: 2\r\nx-B: 3\r\n[ours h]\r\n\r\n"},
		{"a body of known length",
			"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
			"POST /x HTTP/1.1\r\nHost: api\r\nContent-Length: 5\r\n[ours h]\r\n\r\nhello"},
		{"a chunked body loses its trailer",
			"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
			"POST /x HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n[ours h]\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := onWire(t, c.in); got != c.want {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}
