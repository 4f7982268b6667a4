package pep

import (
	"net"
	"testing"
	"time"
)

// moved notes the deadlines that reach a connection.
type moved struct {
	net.Conn
	to []time.Time
}

func (m *moved) SetReadDeadline(t time.Time) error {
	m.to = append(m.to, t)
	return m.Conn.SetReadDeadline(t)
}

// A deadline is set by the read that needs it. That of an idle connection may be
// late and stays; all others are exact, and none of a body is taken for one of a
// header.
func TestReadDeadlinesAreSetByReads(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	m := &moved{Conn: near}
	c := &conn{Conn: m, leave: func() {}}
	base := time.Now()
	want := func(what string, wanted, latest time.Duration, moves int) {
		t.Helper()
		m.to = nil
		if err := c.SetReadDeadline(base.Add(wanted)); err != nil {
			t.Fatal(err)
		}
		if err := c.arm(); err != nil {
			t.Fatal(err)
		}
		if len(m.to) != moves {
			t.Errorf("%s: %d moves, want %d", what, len(m.to), moves)
		}
		if at := c.set.Sub(base); at < wanted || at > latest {
			t.Errorf("%s: the deadline is %v, want %v to %v", what, at, wanted, latest)
		}
	}
	exact := func(what string, wanted time.Duration, moves int) { t.Helper(); want(what, wanted, wanted, moves) }

	c.message.phase = between
	exact("first byte of a connection", headerTimeout, 1)
	exact("the same", headerTimeout, 0)
	next := func() {
		c.message.phase = behind // a header, and no body
		c.next()
	}
	next()
	want("idle", idleTimeout, idleTimeout+lateIdle, 1)
	if err := c.SetReadDeadline(base.Add(headerTimeout)); err != nil || len(m.to) != 1 {
		t.Errorf("a header that is complete: %d moves, %v", len(m.to), err)
	}
	want("idle again", idleTimeout+lateIdle/2, idleTimeout+lateIdle, 0)
	want("idle for long", idleTimeout+2*lateIdle, idleTimeout+3*lateIdle, 1)
	c.message.phase = within
	exact("rest of a header", headerTimeout, 1)
	c.message.phase = between
	want("idle after it", idleTimeout, idleTimeout+lateIdle, 1)

	c.inBody.Store(true)
	m.to = nil
	if err := c.SetReadDeadline(time.Time{}); err != nil || len(m.to) != 1 || !m.to[0].IsZero() {
		t.Errorf("in a body: %v, %v", m.to, err)
	}
	next()
	want("idle after a body", idleTimeout, idleTimeout+lateIdle, 1)
}
