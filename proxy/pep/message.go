package pep

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/valyala/fasthttp"
)

// fasthttp takes a lone LF for the end of a line, and where the header's last line
// ends so it waits for more until the client is told that it is slow. A server in
// front of us may see another line there (RFC 9112, 2.2), so that is refused. The
// header lines of a complete header are looked at again in head.read; this is for
// the request line, which fasthttp does not keep, and for headers without an end.
//
// To find the request line, one must know where a request begins. A client need not
// wait for an answer before it sends the next request, and fasthttp would read the
// two at once. So no read goes beyond the end of a message: what was read beyond is
// held back. That end is known of a header, and of a body with a length. A body in
// chunks ends with an empty line, so a read within it ends at the next one, be it
// part of the data or not.

// message follows what a client sends, one message after the other.
type message struct {
	phase  phase
	begun  bool // a line of the header that is not empty has been seen
	ended  bool // the last line was empty
	last   byte // of the line so far
	length int  // of the line so far
	left   int  // bytes of the body still to come
	early  int  // bytes of it that were read before its framing was known

	held []byte // read, and not yet handed on
	hold *[holdMax]byte
}

type phase uint8

const (
	between phase = iota // the next byte read is a request's first
	within               // in a header
	behind               // behind a header that the handler has not yet seen
	counted              // in a body with a length
	chunked
	broken // it is not known any more where a request begins: none is served
)

var (
	errLoneLF = errors.New("a line ends in a lone LF")
	errBeyond = errors.New("BUG: a read beyond the end of a body")
)

// follow is told of the states of connections by the server.
func follow(c net.Conn, state fasthttp.ConnState) {
	own := below(c)
	if own == nil {
		return
	}
	switch {
	case state == fasthttp.StateIdle:
		own.next()
	case state == fasthttp.StateActive && own.message.phase == between:
		own.message.phase = broken // it begins with bytes of the message before
	}
}

// next is called between two messages.
func (m *message) next() {
	whole := false
	switch m.phase {
	case behind:
		whole = m.early == 0
	case counted:
		whole = m.left == 0
	case chunked:
		whole = m.ended
	}
	*m = message{held: m.held, hold: m.hold}
	if !whole {
		m.phase = broken
	}
}

// body is told how the body is framed: by its length, -1 for chunks, or -2 for none.
func (m *message) body(length int) {
	if m.phase != behind {
		return
	}
	switch {
	case length > 0:
		m.phase, m.left = counted, length-m.early
	case length == -1:
		m.phase = chunked
	}
}

// holdMax is the most that is read at once where some of it may be held back: a
// header, or as much as package upstream asks for of a body.
const holdMax = 32 << 10

var holds = sync.Pool{New: func() any { return new([holdMax]byte) }}

// read reads from the connection, but not beyond the end of a message.
func (m *message) read(from io.Reader, p []byte) (n int, err error) {
	switch m.phase {
	case behind:
		p = p[:1] // a body that is read has as much
		if m.hold == nil {
			m.hold = holds.Get().(*[holdMax]byte)
			n, err = from.Read(m.hold[:])
			m.held = m.hold[:n]
		}
	case counted:
		if m.left <= 0 {
			return 0, errBeyond
		}
		p = p[:min(len(p), m.left)]
	default:
		p = p[:min(len(p), holdMax)] // what is held back must have room
	}
	came := m.held[:min(len(p), len(m.held))]
	if m.hold == nil {
		n, err = from.Read(p)
		came = p[:n]
	}
	n, bad := m.take(came)
	switch {
	case m.hold != nil:
		m.held = m.held[copy(p, came[:n]):]
	case n < len(came):
		m.hold = holds.Get().(*[holdMax]byte)
		m.held = m.hold[:copy(m.hold[:], came[n:])]
	}
	switch {
	case bad != nil:
		err = bad
	case len(m.held) > 0:
		err = nil // it will be met again
	case m.hold != nil:
		holds.Put(m.hold)
		m.held, m.hold = nil, nil
	}
	return n, err
}

// take takes in what comes next, and returns how much of it belongs to the message.
func (m *message) take(p []byte) (n int, err error) {
	switch m.phase {
	case between, within:
		return m.header(p)
	case counted:
		m.left -= len(p)
	case behind, chunked:
		n = m.chunks(p)
		m.early += n
		return n, nil
	}
	return len(p), nil
}

// header takes in bytes up to the end of a header.
func (m *message) header(p []byte) (n int, err error) {
	if len(p) > 0 {
		m.phase = within
	}
	for n < len(p) {
		size, end := m.line(p[n:])
		n += size
		switch {
		case end == bare && !m.begun:
			// With an error the server would take it for the end of the connection, and
			// not answer.
			m.phase = broken
			return len(p), nil
		case end == lone, end == bare:
			m.phase = broken
			return len(p), errLoneLF
		case end == empty && m.begun:
			m.phase = behind
			return n, nil
		case end == full:
			m.begun = true
		}
	}
	return n, nil
}

// chunks takes in bytes up to an empty line.
func (m *message) chunks(p []byte) (n int) {
	for n < len(p) {
		size, end := m.line(p[n:])
		n += size
		if m.ended = end == empty; m.ended {
			break
		}
	}
	return n
}

// ending is how a line ends.
type ending uint8

const (
	open ending = iota
	full
	empty // and there is nothing in it
	lone  // in an LF without CR
	bare  // in an LF, and there is nothing in it
)

// line takes in bytes up to the end of a line.
func (m *message) line(p []byte) (n int, end ending) {
	n = bytes.IndexByte(p, '\n')
	if n < 0 {
		m.length += len(p)
		m.last = p[len(p)-1]
		return len(p), open
	}
	if n > 0 {
		m.last = p[n-1]
	}
	length := m.length + n
	m.length = 0
	switch {
	case length == 0:
		end = bare
	case m.last != '\r':
		end = lone
	case length == 1:
		end = empty
	default:
		end = full
	}
	return n + 1, end
}
