package pep

import (
	"testing"
)

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		lone      bool
	}{
		{"a request", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", false},
		{"empty lines before it", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", false},
		{"a body is not looked at", "POST / HTTP/1.1\r\nHost: h\r\n\r\na\nb\n", false},
		{"half a header", "GET / HTTP/1.1\r\nHost:", false},
		{"a CR within a line", "GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", false},
		{"a request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", true},
		{"a header line", "GET / HTTP/1.1\r\nHost: h\n\r\n", true},
		{"the last line", "GET / HTTP/1.1\r\nHost: h\r\n\n", true},
		{"an empty line before it", "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
		{"every line", "GET / HTTP/1.1\nHost: h\n\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			// At once, and byte by byte.
			for name, cut := range map[string]int{"whole": len(c.raw), "bytes": 1} {
				l := lines{phase: between}
				lone := false
				for raw := c.raw; raw != ""; raw = raw[min(cut, len(raw)):] {
					lone = l.read([]byte(raw[:min(cut, len(raw))])) != nil || lone
				}
				if lone != c.lone || l.lone != c.lone {
					t.Errorf("%s: %v", name, lone)
				}
			}
		})
	}
}

// A lone LF is answered at once, wherever it stands and however many requests came
// before; a body may have as many as it likes.
func TestLoneLF(t *testing.T) {
	for _, raw := range []string{
		"GET /health HTTP/1.1\nHost: h\r\n\r\n",
		"GET /health HTTP/1.1\r\nHost: h\n\r\n",
		"GET /health HTTP/1.1\r\nHost: h\r\n\n",
		"GET /health HTTP/1.1\nHost: h\n\n",
		"\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		f := serve(t, nil)
		c := f.dial(t)
		for range 3 {
			c.send(request("POST", "/api/files", "a\nb\n\n", bearer))
			if a := c.read("POST"); a.status != 200 {
				t.Fatalf("got %v", a)
			}
		}
		c.send(raw)
		if a := c.read("GET"); a.status != 400 || !c.closed() {
			t.Errorf("%q: %v", raw, a)
		}
		f.recorded(t, 4)
	}
}
