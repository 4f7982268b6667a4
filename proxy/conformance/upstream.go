package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Upstream is an API that takes requests byte for byte, by a reader that forgives
// nothing, and answers 200 to each.
type Upstream struct {
	l net.Listener

	mu     sync.Mutex
	seen   []Request
	silent map[string]string
	open   map[net.Conn]bool
	wg     sync.WaitGroup
}

// Request is a request as the API has seen it.
type Request struct {
	Method, Target string
	Head           string      // all of its header
	Lines          [][2]string // names in lower case, and values
	Body           string
	fault          error
}

// Listen starts an Upstream, which ends with the test.
func Listen(t testing.TB) *Upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &Upstream{l: l, silent: map[string]string{}, open: map[net.Conn]bool{}}
	u.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.mu.Lock()
			u.open[c] = true
			u.mu.Unlock()
			u.wg.Go(func() { u.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		u.mu.Lock()
		for c := range u.open {
			_ = c.Close()
		}
		u.mu.Unlock()
		u.wg.Wait()
	})
	return u
}

// Addr is its host and port.
func (u *Upstream) Addr() string { return u.l.Addr().String() }

// Silently answers a target with JSON and does not count it among the requests
// seen: what a proxy asks for itself.
func (u *Upstream) Silently(target, json string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.silent[target] = json
}

// Seen are the whole requests since the last Reset.
func (u *Upstream) Seen() []Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]Request(nil), u.seen...)
}

// Reset forgets what was seen.
func (u *Upstream) Reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen = nil
}

func (u *Upstream) serve(c net.Conn) {
	defer func() {
		u.mu.Lock()
		delete(u.open, c)
		u.mu.Unlock()
		_ = c.Close()
	}()
	br := bufio.NewReader(c)
	for {
		r, err := read(br)
		if err != nil {
			return // it was cut: whoever cut it did not want it to be served
		}
		u.mu.Lock()
		body, silent := u.silent[r.Target]
		if !silent {
			body = "ok"
			u.seen = append(u.seen, r)
		}
		u.mu.Unlock()
		if r.fault != nil {
			return
		}
		reply := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
		if r.Method != "HEAD" {
			reply += body
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// read reads a request. An error says that it is not whole, fault that it is not
// well-formed.
func read(br *bufio.Reader) (r Request, err error) {
	line, err := r.line(br)
	if err != nil {
		return r, err
	}
	parts := strings.Split(line, " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" || !strings.HasPrefix(parts[1], "/") {
		r.fault = fmt.Errorf("has the request line %q", line)
		return r, nil
	}
	r.Method, r.Target = parts[0], parts[1]
	for {
		if line, err = r.line(br); err != nil {
			return r, err
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || strings.ContainsFunc(value, isControl) {
			r.fault = fmt.Errorf("has the line %q", line)
			return r, nil
		}
		r.Lines = append(r.Lines, [2]string{strings.ToLower(name), strings.Trim(value, " \t")})
	}
	length, coding := r.values("content-length"), r.values("transfer-encoding")
	switch {
	case len(length)+len(coding) > 1 || len(coding) == 1 && coding[0] != "chunked":
		r.fault = fmt.Errorf("is framed by %q and %q", length, coding)
	case len(length) == 1:
		n, err := strconv.ParseUint(length[0], 10, 63)
		if err != nil {
			r.fault = fmt.Errorf("has the length %q", length[0])
			return r, nil
		}
		return r, r.take(br, int64(n))
	case len(coding) == 1:
		return r, r.chunks(br)
	}
	return r, nil
}

func (r *Request) line(br *bufio.Reader) (string, error) {
	line, err := br.ReadString('\n')
	if err != nil {
		return "", err
	}
	r.Head += line
	line, ok := strings.CutSuffix(line, "\r\n")
	if !ok || strings.ContainsRune(line, '\r') {
		return "", errors.New("a line that does not end in CRLF")
	}
	return line, nil
}

func (r *Request) take(br *bufio.Reader, n int64) error {
	b := make([]byte, n)
	_, err := io.ReadFull(br, b)
	r.Body += string(b)
	return err
}

func (r *Request) chunks(br *bufio.Reader) error {
	for {
		size, err := br.ReadString('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(size, "\r\n"), 16, 31)
		if err != nil {
			r.fault = fmt.Errorf("has the chunk size %q", size)
			return nil
		}
		if err := r.take(br, int64(n)); err != nil {
			return err
		}
		var end [2]byte
		if _, err := io.ReadFull(br, end[:]); err != nil {
			return err
		}
		if string(end[:]) != "\r\n" {
			r.fault = fmt.Errorf("has %q behind a chunk", end)
			return nil
		}
		if n == 0 {
			return nil
		}
	}
}

func (r *Request) values(name string) (values []string) {
	for _, line := range r.Lines {
		if line[0] == name {
			values = append(values, line[1])
		}
	}
	return values
}

// faults says what no request may have that reaches the API, whatever the client
// has sent.
func (r *Request) faults() (faults []string) {
	if r.fault != nil {
		faults = append(faults, r.fault.Error())
	}
	for _, name := range []string{"host", "x-cwms-auth-context", "x-request-id", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"} {
		if n := len(r.values(name)); n != 1 {
			faults = append(faults, fmt.Sprintf("has %d of %s", n, name))
		}
	}
	if values := r.values("x-cwms-auth-context"); len(values) == 1 && !strings.HasPrefix(values[0], `{"policy":{"allow":true,`) {
		faults = append(faults, "has a context that we did not write")
	}
	for _, line := range r.Lines {
		name := fold(line[0])
		switch {
		case gone[name], strings.HasPrefix(name, "proxy-"), strings.HasPrefix(name, "x-original-"), strings.HasPrefix(name, "x-rewrite-"):
			faults = append(faults, "has "+line[0])
		case name != line[0] && (once[name] || strings.HasPrefix(name, "x-forwarded-")):
			faults = append(faults, "has the look-alike "+line[0])
		case strings.HasPrefix(name, "x-forwarded-") && !once[name]:
			faults = append(faults, "has "+line[0])
		}
	}
	return faults
}

// once are headers that we write, gone those that do not pass.
var (
	once = map[string]bool{"host": true, "x-cwms-auth-context": true, "x-request-id": true, "content-length": true, "transfer-encoding": true,
		"x-forwarded-for": true, "x-forwarded-proto": true, "x-forwarded-host": true}
	gone = map[string]bool{"connection": true, "keep-alive": true, "te": true, "trailer": true, "upgrade": true, "http2-settings": true, "expect": true,
		"forwarded": true, "x-real-ip": true, "x-http-method-override": true, "x-method-override": true, "x-http-method": true,
		"x-test-user": true, "x-authorize-secret": true}
)

// fold is the name as the most forgiving server reads it.
func fold(name string) string {
	name = strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
	for strings.Contains(name, "--") {
		name = strings.ReplaceAll(name, "--", "-")
	}
	return name
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
