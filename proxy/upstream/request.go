package upstream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// request is what goes to the API: the bytes of the head, with a small body
// behind them, and what is left of the body as a stream.
type request struct {
	buf    []byte
	body   []byte   // a body in memory that is too large to be copied behind the head
	tokens [][]byte // what Connection lines name beyond the usual
	xff    []byte   // X-Forwarded-For of a trusted peer

	stream  io.Reader // the body, if it is not in buf
	length  int64     // its length; -1 without
	head    bool      // HEAD: the answer has no body
	safe    bool      // may be sent again: GET, HEAD or OPTIONS without a body
	session bool      // session cookies were taken out beside an Authorization
	partial bool      // only a part could be written

	headSize int // bytes of the head
}

var requests = sync.Pool{New: func() any { return &request{buf: make([]byte, 0, 4096)} }}

func (q *request) release() {
	q.stream, q.body = nil, nil
	clear(q.tokens)
	if cap(q.buf) <= 2*smallBody {
		requests.Put(q)
	}
}

// build writes the request for the API. The client's lines are taken from the
// bytes received, which later changes of rc.Request.Header do not touch.
func (q *request) build(f *Forwarder, rc *fasthttp.RequestCtx, g *authz.Grant, now time.Time) error {
	h := &rc.Request.Header
	method, target := h.Method(), h.RequestURI()
	if len(target) == 0 || target[0] != '/' {
		return authz.Refuse(authz.ErrMalformed, "the request target must begin with /")
	}
	trusted := f.Trusts(rc)
	authorized := !g.DropAuthorization && len(h.Peek(fasthttp.HeaderAuthorization)) > 0

	q.tokens = q.tokens[:0]
	q.xff = q.xff[:0]
	var proto, host []byte
	for pass := 0; ; pass++ {
		b := append(q.buf[:0], method...)
		b = append(b, ' ')
		b = append(b, target...)
		b = append(b, f.startLine...)
		var err error
		b, proto, host, err = q.copyHeaders(b, f, h.RawHeaders(), g, authorized, trusted, pass > 0)
		q.buf = b
		if err != nil {
			return err
		}
		if pass > 0 || len(q.tokens) == 0 {
			break
		}
		// Some header belongs to the last hop only; which, a line further
		// down may have said. This is rare enough to begin again.
		q.xff = q.xff[:0]
	}
	q.session = authorized
	q.frame(rc)
	return q.sign(f, rc, g, proto, host, now)
}

// copyHeaders appends the client's header lines that pass. Once more with again,
// but those that q.tokens names.
func (q *request) copyHeaders(b []byte, f *Forwarder, raw []byte, g *authz.Grant, authorized, trusted, again bool) (_, proto, host []byte, err error) {
	var folded [maxName]byte
	for len(raw) > 2 {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return b, nil, nil, authz.Refuse(authz.ErrMalformed, "a header line does not end with CRLF")
		}
		line := raw[:end+1]
		raw = raw[end+1:]
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return b, nil, nil, authz.Refuse(authz.ErrMalformed, "a header line has no name")
		}
		// A folded line begins with a space and so has no valid name either.
		name, ok := fold(&folded, line[:colon])
		if !ok {
			return b, nil, nil, authz.Refuse(authz.ErrMalformed, "a header name holds a character that none may have")
		}
		value := trim(line[colon+1:])
		switch classify(name, f.contextName) {
		case drop:
			continue
		case connection:
			if !again {
				if err := q.addTokens(value, f); err != nil {
					return b, nil, nil, err
				}
			}
			continue
		case authorization:
			if g.DropAuthorization {
				continue
			}
		case cookie:
			if authorized || g.DropCookies {
				b = appendCookies(b, line[:colon+1], value)
				continue
			}
		case forwardedFor:
			if trusted && len(value) > 0 && plain(line[:colon], fasthttp.HeaderXForwardedFor) {
				q.xff = append(append(q.xff, value...), ", "...)
			}
			continue
		case forwardedProto:
			if trusted && plain(line[:colon], fasthttp.HeaderXForwardedProto) {
				proto = value
			}
			continue
		case forwardedHost:
			if trusted && plain(line[:colon], fasthttp.HeaderXForwardedHost) {
				host = value
			}
			continue
		}
		if again && marked(line[:colon], q.tokens) {
			continue
		}
		b = append(b, line...)
	}
	return b, proto, host, nil
}

// plain reports whether a name is spelled as it should, upper and lower case
// aside.
func plain(name []byte, want string) bool {
	return len(name) == len(want) && bytes.EqualFold(name, []byte(want))
}

// addTokens notes what one Connection line names. A client that names a header
// which we need would have us remove it: that is refused.
func (q *request) addTokens(value []byte, f *Forwarder) error {
	var folded [maxName]byte
	for len(value) > 0 {
		var token []byte
		token, value, _ = bytes.Cut(value, []byte(","))
		if token = trim(token); len(token) == 0 {
			continue
		}
		name, ok := fold(&folded, token)
		if !ok {
			return authz.Refuse(authz.ErrMalformed, "Connection holds a name that no header may have")
		}
		switch string(name) {
		case "close", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "proxy-connection":
			continue // removed in any case
		case "content-type", "content-encoding":
			return authz.Refuse(authz.ErrMalformed, "Connection names a header that describes the body")
		}
		if classify(name, f.contextName) != pass {
			return authz.Refuse(authz.ErrMalformed, "Connection names a protected header")
		}
		q.tokens = append(q.tokens, token)
	}
	return nil
}

// frame decides how the body travels and appends the header that says so. A
// body already in memory is sent as it is.
func (q *request) frame(rc *fasthttp.RequestCtx) {
	h := &rc.Request.Header
	q.head = h.IsHead()
	q.stream = nil
	q.length = int64(h.ContentLength())
	if rc.Request.IsBodyStream() {
		q.stream = rc.RequestBodyStream()
	} else if n := len(rc.Request.Body()); n > 0 || q.length == -1 {
		q.length = int64(n)
	}
	switch {
	case q.length >= 0:
		q.buf = append(q.buf, "Content-Length: "...)
		q.buf = strconv.AppendInt(q.buf, q.length, 10)
		q.buf = append(q.buf, "\r\n"...)
	case q.stream != nil:
		q.buf = append(q.buf, "Transfer-Encoding: chunked\r\n"...)
	}
	if q.length == 0 {
		q.stream = nil
	}
	q.safe = q.length <= 0 && q.stream == nil && (h.IsGet() || q.head || h.IsOptions())
}

// sign appends what we say ourselves, and the end of the head, the context last:
// it is what gives way where all of it would be more than the API takes.
func (q *request) sign(f *Forwarder, rc *fasthttp.RequestCtx, g *authz.Grant, proto, host []byte, now time.Time) error {
	theirs := len(q.buf) - len(f.startLine)
	b := append(q.buf, "X-Request-Id: "...)
	b = append(b, g.RequestID...)
	b = append(b, "\r\nX-Forwarded-For: "...)
	b = append(b, q.xff...)
	b = peer(rc).AppendTo(b)
	b = append(b, "\r\nX-Forwarded-Proto: "...)
	switch {
	case plain(proto, "http"), plain(proto, "https"):
		b = append(b, proto...)
	case f.secure:
		b = append(b, "https"...)
	default:
		b = append(b, "http"...)
	}
	b = append(b, "\r\nX-Forwarded-Host: "...)
	if len(host) == 0 {
		host = rc.Request.Header.Host()
	}
	b = append(append(b, host...), "\r\n"...)
	if f.contextLine != nil {
		b = append(b, f.contextLine...)
		room := f.headMax - len(b) - len("\r\n\r\n")
		signed, reduced, err := g.AppendHeader(b, room, now)
		if err != nil {
			q.buf = b
			if _, _, err := g.AppendHeader(b, room+theirs, now); err != nil {
				return err // it would not fit if the client had sent nothing
			}
			return tooLong(f, f.headMax-room)
		}
		if reduced {
			contextReduced.Inc()
		}
		b = append(signed, "\r\n"...)
	}
	q.buf = append(b, "\r\n"...)
	if len(q.buf) > f.headMax {
		return tooLong(f, len(q.buf))
	}
	q.headSize = len(q.buf)
	return nil
}

// tooLong refuses a request of whose head the API would not take all. The API's
// own refusal would not say that what is added here counts too.
func tooLong(f *Forwarder, size int) error {
	return authz.Refuse(authz.ErrHeaderTooLarge, "the API takes %d bytes of request line and headers; with what this proxy adds they are %d or more", f.headMax, size)
}

// write sends the head and what of the body is in memory.
func (q *request) write(c *conn) (int64, error) {
	if q.body == nil {
		n, err := c.Write(q.buf)
		return int64(n), err
	}
	both := net.Buffers{q.buf, q.body}
	return both.WriteTo(c.Conn)
}

// load puts a small body behind the head. One that is in memory already is not
// copied unless it is small: its memory has been accounted for once.
func (q *request) load(rc *fasthttp.RequestCtx, idle time.Duration) error {
	if q.length <= 0 || q.stream != nil && q.length > smallBody {
		return nil
	}
	if q.stream == nil {
		if body := rc.Request.Body(); len(body) > smallBody {
			q.body = body
		} else {
			q.buf = append(q.buf, body...)
		}
		return nil
	}
	// The server has read so much before it called us.
	if q.length > 8<<10 {
		_ = rc.SetReadDeadline(time.Now().Add(idle))
	}
	n := len(q.buf)
	q.buf = append(q.buf, make([]byte, q.length)...)
	if _, err := io.ReadFull(q.stream, q.buf[n:]); err != nil {
		return broken(err)
	}
	q.stream = nil
	return nil
}

// broken is what a client's body that cannot be read comes to. A reader that
// package pep put before the body says itself what is wrong. The error goes no
// further: it may quote a trailer.
func broken(err error) error {
	var refusal *authz.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, errPanic):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return authz.Refuse(authz.ErrSlowClient, "the request body did not arrive in time")
	}
	clientGone.Inc()
	return authz.Refuse(authz.ErrMalformed, "the request body broke off")
}

// peer is the address of the client's end of the connection.
func peer(rc *fasthttp.RequestCtx) netip.Addr {
	tcp, ok := rc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.IPv4Unspecified()
	}
	// Most are IPv4, which has no zone to be taken off.
	if ip := tcp.IP.To4(); ip != nil {
		return netip.AddrFrom4([4]byte(ip))
	}
	return tcp.AddrPort().Addr().WithZone("")
}

// appendCookies appends a Cookie line without the session cookies, whose names
// are compared in any case. A comma counts as a separator too: servers that
// know RFC 2109 take it for one. What is left stays as it was; if nothing is
// left there is no line.
func appendCookies(b, name, value []byte) []byte {
	start := len(b)
	b = append(append(b, name...), ' ')
	empty := len(b)
	for len(value) > 0 {
		n := bytes.IndexAny(value, ";,")
		pair := value
		if n >= 0 {
			pair = value[:n+1]
		}
		value = value[len(pair):]
		if !isSession(pair) {
			b = append(b, pair...)
		}
	}
	rest := bytes.TrimRight(b[empty:], "; \t,")
	rest = bytes.TrimLeft(rest, " \t")
	if len(rest) == 0 {
		return b[:start]
	}
	b = append(b[:empty], rest...)
	return append(b, "\r\n"...)
}

// isSession reports whether a cookie pair, or a Set-Cookie value, is of a
// session cookie of the API.
func isSession(pair []byte) bool {
	if n := bytes.IndexAny(pair, "=;,"); n >= 0 {
		pair = pair[:n]
	}
	pair = trim(pair)
	return plain(pair, "JSESSIONID") || plain(pair, "JSESSIONIDSSO")
}

// trim removes blanks, and the CRLF of a line, from both ends.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t' || b[len(b)-1] == '\r' || b[len(b)-1] == '\n') {
		b = b[:len(b)-1]
	}
	return b
}
