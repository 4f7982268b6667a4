package pep

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// sent is a message and how its body is framed.
type sent struct {
	header, body string
	length       int // as message.body is told
}

// No read goes beyond the end of a message, however the bytes come: so every one is
// handed on whole, and nothing else with it.
func TestMessages(t *testing.T) {
	chunks := "3\r\na\n\r\r\n10;x=y\r\n\r\n\r\n\n\n\r\n\r\nGET / \r\n0\r\nX: 1\r\n\r\n"
	messages := []sent{
		{"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n", "", -2},
		{"\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n", "", -2},
		{"POST /3 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "a\n\nb\n", 5},
		{"GET /4 HTTP/1.1\r\nA: b\rc\r\n\r\n", "", 0},
		{"POST /5 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, -1},
		{"POST /6 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n", -1},
		{"POST /7 HTTP/1.1\r\nContent-Length: 40000\r\n\r\n", strings.Repeat("x\r\n\r\n", 8000), 40000},
		{"GET /8 HTTP/1.1\r\n\r\n", "", -2},
	}
	all := ""
	for _, s := range messages {
		all += s.header + s.body
	}
	for name, from := range map[string]func(io.Reader) io.Reader{
		"at once":              func(r io.Reader) io.Reader { return r },
		"byte by byte":         iotest.OneByteReader,
		"in halves":            iotest.HalfReader,
		"with the end at once": iotest.DataErrReader,
	} {
		for _, size := range []int{1, 7, headerMax, 2 * holdMax} {
			for early := range 3 {
				t.Run(fmt.Sprintf("%s, reads of %d, %d early", name, size, early), func(t *testing.T) {
					var m message
					source := from(strings.NewReader(all))
					next := func(want string) {
						t.Helper()
						p := make([]byte, size)
						for got := 0; got < len(want); {
							n, err := m.read(source, p)
							if err != nil && (err != io.EOF || n == 0) {
								t.Fatalf("%.60q: %v", want[got:], err)
							}
							if n > len(want)-got || string(p[:n]) != want[got:got+n] {
								t.Fatalf("got %.60q, want %.60q", p[:n], want[got:])
							}
							got += n
						}
					}
					for _, s := range messages {
						next(s.header)
						cut := min(early, len(s.body))
						next(s.body[:cut]) // the server does before the handler is called
						m.body(s.length)
						next(s.body[cut:])
						m.next()
						if m.phase != between {
							t.Fatalf("phase %d behind %q", m.phase, s.header)
						}
					}
					if n, err := m.read(source, make([]byte, size)); n != 0 || err != io.EOF || m.hold != nil {
						t.Errorf("at the end: %d bytes, %v", n, err)
					}
				})
			}
		}
	}
}

func TestHeaderLines(t *testing.T) {
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
			for name, source := range map[string]io.Reader{
				"whole": strings.NewReader(c.raw), "bytes": iotest.OneByteReader(strings.NewReader(c.raw)),
			} {
				var m message
				var err error
				for p := make([]byte, headerMax); err == nil && m.phase <= within; {
					_, err = m.read(source, p)
				}
				if errors.Is(err, errLoneLF) && !c.lone || (m.phase == broken) != c.lone {
					t.Errorf("%s: %v, phase %d", name, err, m.phase)
				}
			}
		})
	}
}

// What is not known to begin with a request's first byte is not served.
func TestBrokenMessages(t *testing.T) {
	for name, m := range map[string]message{
		"a body of no request": {phase: behind, early: 1},
		"a body cut short":     {phase: counted, left: 1},
		"chunks without end":   {phase: chunked},
		"a header cut short":   {phase: within},
		"one that was broken":  {phase: broken},
	} {
		if m.next(); m.phase != broken {
			t.Errorf("%s: phase %d", name, m.phase)
		}
	}
	m := message{phase: counted}
	if n, err := m.read(strings.NewReader("x"), make([]byte, 1)); n != 0 || !errors.Is(err, errBeyond) {
		t.Errorf("behind a body: %d, %v", n, err)
	}
}

// A lone LF is answered at once: wherever it stands, with TLS or without, whatever
// came before it on the connection, and whether or not that was answered. A body
// may have as many as it likes.
func TestLoneLF(t *testing.T) {
	chunked := func(body string) string {
		return fmt.Sprintf("POST /api/files HTTP/1.1\r\nHost: h\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n", bearer, len(body), body)
	}
	before := map[string][]string{
		"nothing":                  nil,
		"a GET":                    {get("/health")},
		"a body":                   {request("POST", "/api/files", "a\nb\n\n", bearer)},
		"a body that is inspected": {request("POST", "/api/items", `{"office":"SWT"}`+"\n", bearer, "Content-Type: application/json")},
		"chunks":                   {chunked("a\nb\n\r\n\n") + "\r\n"},
		"a trailer":                {chunked("a\r\n\r\n") + "X-T: 1\r\n\r\n"},
		"all of them": {
			get("/health"), chunked("\n") + "\r\n", request("POST", "/api/files", "\n", bearer), get("/health"), request("POST", "/api/files", strings.Repeat("\n", 40000), bearer),
		},
	}
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": certified(t).TLS} {
		for what, before := range before {
			for _, pipelined := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/behind %s/pipelined %v", name, what, pipelined), func(t *testing.T) {
					for _, raw := range []string{
						"GET /health HTTP/1.1\nHost: h\r\n\r\n",
						"GET /health HTTP/1.1\r\nHost: h\n\r\n",
						"GET /health HTTP/1.1\r\nHost: h\r\n\n",
						"GET /health HTTP/1.1\nHost: h\n\n",
						"\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n",
						"GET /health HTTP/1.1\n",
					} {
						f := serveTLS(t, config, nil)
						c := f.dial(t)
						if pipelined {
							c.send(strings.Join(before, "") + raw)
						}
						for _, b := range before {
							if !pipelined {
								c.send(b)
							}
							if a := c.read("POST"); a.status != 200 {
								t.Fatalf("%.20q: %v", b, a)
							}
						}
						if !pipelined { // in two pieces, which TLS keeps apart
							c.send(raw[:1])
							c.send(raw[1:])
						}
						if a := c.read("GET"); a.status != 400 || !c.closed() {
							t.Errorf("%q: %v", raw, a)
						}
						f.recorded(t, len(before)+1)
					}
				})
			}
		}
	}
}

// A trailer whose end is a lone LF ends the connection: what is behind it could be
// part of it to somebody else.
func TestLoneLFInTrailer(t *testing.T) {
	for _, end := range []string{"\n", "X-T: 1\n\n", "X-T: 1\r\n\n"} {
		for _, pipelined := range []bool{false, true} {
			f := serve(t, nil)
			c := f.dial(t)
			raw := "POST /api/files HTTP/1.1\r\nHost: h\r\n" + bearer + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + end
			if pipelined {
				c.send(raw + get("/health"))
			} else {
				c.send(raw)
				c.send(get("/health"))
			}
			a := c.read("POST")
			if a.status == 200 {
				a = c.read("GET")
			}
			if a.status != 400 || !c.closed() {
				t.Errorf("%q, pipelined %v: %v", end, pipelined, a)
			}
		}
	}
}

// A body of lines that are empty costs no more for being copied again and again.
func TestHeldBytesAreCopiedOnce(t *testing.T) {
	all := bytes.Repeat([]byte("\r\n"), holdMax/2)
	m := message{phase: chunked}
	source := bytes.NewReader(all)
	p := make([]byte, holdMax)
	for n := 0; n < len(all); n += 2 {
		p[2] = 'x'
		if got, err := m.read(source, p); got != 2 || err != nil || n > 0 && p[2] != 'x' {
			t.Fatalf("%d bytes, %v, %q", got, err, p[:4])
		}
	}
}

// FuzzMessage: however bytes come and are asked for, the messages in them are the
// same, each is handed on whole, and nothing is lost between them.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nA: b\r\n\r\nGET / HTTP/1.1\r\n\r\n"), uint8(7), int8(-2))
	f.Add([]byte("\r\nPOST / HTTP/1.1\r\n\r\nab\nPOST / HTTP/1.1\r\n\r\nxyz"), uint8(200), int8(3))
	f.Add([]byte("GET / HTTP/1.1\nA: b\r\n\r\n"), uint8(1), int8(0))
	f.Add([]byte("GET / HTTP/1.1\r\n\n"), uint8(3), int8(-2))
	f.Fuzz(func(t *testing.T, raw []byte, size uint8, length int8) {
		whole := messagesIn(bytes.NewReader(raw), int(size)+1, int(length))
		bytewise := messagesIn(iotest.OneByteReader(bytes.NewReader(raw)), 1, int(length))
		if !slices.Equal(whole, bytewise) {
			t.Errorf("%q\nat once        %q\nbyte for byte  %q", raw, whole, bytewise)
		}
		if !bytes.HasPrefix(raw, []byte(strings.Join(whole, ""))) {
			t.Errorf("%q is not what came: %q", whole, raw)
		}
		for _, one := range whole {
			header := one[:len(one)-max(0, int(length))]
			for line := range strings.SplitAfterSeq(strings.TrimSuffix(header, "\r\n"), "\n") {
				if line != "" && !strings.HasSuffix(line, "\r\n") {
					t.Errorf("a line of %q does not end in CRLF", header)
				}
			}
		}
	})
}

// messagesIn returns the whole messages that are read, with bodies of one length.
func messagesIn(from io.Reader, size, length int) (all []string) {
	var m message
	p := make([]byte, size)
	for {
		var one []byte
		for m.phase <= within || m.phase == counted && m.left > 0 {
			n, err := m.read(from, p)
			if one = append(one, p[:n]...); err != nil && n == 0 || errors.Is(err, errLoneLF) {
				return all
			}
			if m.phase == behind {
				m.body(length)
			}
		}
		if m.phase == broken {
			return all
		}
		m.next()
		all = append(all, string(one))
	}
}
