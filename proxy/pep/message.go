package pep

import (
	"bytes"
	"errors"
	"net"

	"github.com/valyala/fasthttp"
)

// fasthttp takes a lone LF for the end of a line, and where the header's last line
// ends so it waits for more until the client is told that it is slow. A server in
// front of us may see another line there (RFC 9112, 2.2), so that is refused. The
// header lines of a complete header are looked at again in head.read; this is for
// the request line, which fasthttp does not keep, and for headers without an end.

// lines follows the line ends of a header as it comes. It can do so only where a
// read begins with a request: not for what was read together with the request
// before, and not below TLS.
type lines struct {
	phase  phase
	length int  // bytes of the line so far
	last   byte // of them
	begun  bool // a line that is not empty has been seen
	lone   bool // so has a lone LF
}

type phase uint8

const (
	elsewhere phase = iota // in a body, or in what was read before
	between                // the next byte read is a request's first
	within                 // in a header
)

var errLoneLF = errors.New("a line ends in a lone LF")

// follow is told of the states of connections by the server.
func follow(c net.Conn, state fasthttp.ConnState) {
	own := below(c)
	if own == nil {
		return
	}
	if state == fasthttp.StateIdle {
		own.next()
	}
	if c != net.Conn(own) {
		return // what is read below TLS is no header
	}
	switch l := &own.lines; {
	case state == fasthttp.StateNew, state == fasthttp.StateIdle:
		*l = lines{phase: between}
	case state == fasthttp.StateActive && l.phase == between:
		l.phase = elsewhere // the request was there already
	}
}

// read takes in what was read from the connection.
func (l *lines) read(p []byte) error {
	if l.phase == elsewhere {
		return nil
	}
	l.phase = within
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			l.length += len(p)
			if len(p) > 0 {
				l.last = p[len(p)-1]
			}
			return nil
		}
		if end > 0 {
			l.last = p[end-1]
		}
		if l.length+end == 0 || l.last != '\r' {
			l.phase, l.lone = elsewhere, true
			return errLoneLF
		}
		empty := l.length+end == 1
		if empty && l.begun {
			l.phase = elsewhere // what follows is a body
			return nil
		}
		l.begun = l.begun || !empty
		l.length, p = 0, p[end+1:]
	}
}
