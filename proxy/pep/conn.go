package pep

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

const (
	// stall is the longest time that a client may leave an answer unread.
	stall = 60 * time.Second
	// patienceMax is the longest that a body is waited for without a byte, and
	// slowest the rate, in bytes a second, at which waiting is paid back.
	patienceMax = 30 * time.Second
	slowest     = 1 << 10
	// A client that is refused while it still sends gets this much time, and may
	// send this much more, to come to read the answer. Closing at once would reset
	// the connection, and with it the answer.
	lingerFor   = 2 * time.Second
	lingerBytes = 64 << 20
)

// conn is a client's connection. fasthttp sets one deadline for a whole request,
// which a body of gigabytes could not keep; so within a body the deadline moves
// on with every read, and with writes always.
type conn struct {
	net.Conn
	from    netip.Addr // see origin
	leave   func()     // tells the listener
	inBody  atomic.Bool
	credit  atomic.Int64 // how long the body may still be waited for, nanoseconds
	bodyEnd atomic.Int64 // when it must be there in any case, Unix nanoseconds; zero: whenever
	lingers atomic.Bool
	written atomic.Int64 // when the write deadline was last moved, Unix nanoseconds

	// These belong to the goroutine that serves the connection.
	wanted  time.Time // the deadline of reads between and within headers
	set     time.Time // the one that is set; zero if unknown
	kept    bool      // a request was answered
	message message
	waiting *exchange        // judged, its body has yet to come
	last    *authz.Principal // of the request before
	abandon func(*exchange)
}

// plain is a connection without TLS as the server sees it.
type plain struct{ *conn }

func (c plain) Read(p []byte) (int, error) { return c.message.read(c.conn, p) }

// secure is one with TLS.
type secure struct {
	*tls.Conn
	own *conn
}

func (c *secure) Read(p []byte) (int, error) { return c.own.message.read(c.Conn, p) }

// Read waits for bytes of a body as long as the client has credit. Waiting uses it
// up and bytes renew it, so a client that sends a byte now and then does not hold
// what its request holds for ever. What counts is only the time waited for the
// client, not that in which nobody read.
func (c *conn) Read(p []byte) (int, error) {
	if !c.inBody.Load() {
		if err := c.arm(); err != nil {
			return 0, err
		}
		return c.Conn.Read(p)
	}
	start := time.Now()
	wait := c.credit.Load()
	if end := c.bodyEnd.Load(); end != 0 {
		wait = min(wait, end-start.UnixNano())
	}
	if err := c.Conn.SetReadDeadline(start.Add(time.Duration(wait))); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	left := c.credit.Load() - int64(time.Since(start)) + int64(n)*int64(time.Second)/slowest
	c.credit.Store(min(max(left, 0), int64(patienceMax)))
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	// Moving a deadline costs more than a small write; once a second will do.
	if now := time.Now(); now.UnixNano()-c.written.Load() > int64(time.Second) {
		if err := c.Conn.SetWriteDeadline(now.Add(stall)); err != nil {
			return 0, err
		}
		c.written.Store(now.UnixNano())
	}
	n, err := c.Conn.Write(p)
	if err != nil && c.waiting != nil {
		// It was the 100 Continue, and nobody else will come back to the exchange.
		x := c.waiting
		c.waiting = nil
		c.abandon(x)
	}
	return n, err
}

// next forgets what was true of the request before.
func (c *conn) next() {
	c.kept = true
	c.message.next()
	if c.inBody.Swap(false) {
		c.set = time.Time{}
	}
	c.lingers.Store(false)
}

// lateIdle is how much later than wanted an idle connection may end.
const lateIdle = idleTimeout / 8

// SetReadDeadline sets the deadline of reads. The server asks for two in each
// request, one to wait for it and one for its header to be complete, which it
// mostly is by then: so they are set by the read that needs them. In a body it is
// set at once, for another goroutine may be reading.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.inBody.Load() {
		return c.Conn.SetReadDeadline(t)
	}
	c.wanted = t
	return nil
}

// arm sets the deadline that is wanted, unless the connection is idle and the one
// that is set is hardly later: moving it is not free.
func (c *conn) arm() error {
	idle := c.kept && c.message.phase == between
	if late := c.set.Sub(c.wanted); late == 0 && !c.set.IsZero() || idle && late >= 0 && late <= lateIdle && !c.wanted.IsZero() {
		return nil
	}
	c.set = c.wanted
	if idle && !c.wanted.IsZero() {
		c.set = c.wanted.Add(lateIdle)
	}
	return c.Conn.SetReadDeadline(c.set)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	moved := int64(0) // without a deadline the next write sets one
	if !t.IsZero() {
		moved = time.Now().UnixNano()
	}
	c.written.Store(moved)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SyscallConn lets package upstream look whether the client is still there.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func (c *conn) Close() error {
	defer c.leave()
	if c.lingers.Load() {
		return lingeringClose(c.Conn)
	}
	return c.Conn.Close()
}

// lingeringClose lets the client read what was sent: it is closed when the client
// has closed, or after the time or the bytes.
func lingeringClose(nc net.Conn) error {
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		if nc.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
			_, _ = io.CopyN(io.Discard, nc, lingerBytes)
		}
	}
	return nc.Close()
}

// ours finds the connection of a request; nil for a listener that is not ours.
func ours(rc *fasthttp.RequestCtx) *conn { return below(rc.Conn()) }

func below(c net.Conn) *conn {
	switch c := c.(type) {
	case plain:
		return c.conn
	case *secure:
		return c.own
	}
	return nil
}

// patience lets the body take as long as it keeps coming, but no longer than most;
// zero sets no such end.
func patience(rc *fasthttp.RequestCtx, most time.Duration) {
	if c := ours(rc); c != nil {
		c.credit.Store(int64(patienceMax))
		c.bodyEnd.Store(0)
		if most > 0 {
			c.bodyEnd.Store(time.Now().Add(most).UnixNano())
		}
		c.inBody.Store(true)
	}
}

// linger gives a client that may still be sending time to read the answer.
func linger(rc *fasthttp.RequestCtx) {
	length := rc.Request.Header.ContentLength() // -1: chunked, -2: no body
	if c := ours(rc); c != nil && (length > 0 || length == -1 || rc.Response.ConnectionClose()) {
		c.lingers.Store(true)
	}
}

// wait keeps an exchange until its body comes.
func (h *Handler) wait(x *exchange) {
	c := ours(x.rc)
	c.waiting = x
	c.abandon = func(x *exchange) {
		x.err = authz.Refuse(authz.ErrMalformed, "the client is gone")
		h.finish(x)
	}
}

// continued returns the exchange that waited for the body which comes now.
func continued(rc *fasthttp.RequestCtx) (x *exchange, ok bool) {
	if c := ours(rc); c != nil && c.waiting != nil {
		x, c.waiting = c.waiting, nil
	}
	return x, x != nil
}
