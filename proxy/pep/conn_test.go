package pep

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// reset ends a connection without the client having read anything.
func reset(t *testing.T, c *client) {
	t.Helper()
	tcp := c.Conn.(*net.TCPConn)
	if err := errors.Join(tcp.SetLinger(0), tcp.Close()); err != nil {
		t.Fatal(err)
	}
}

// half ends the sending side of a connection.
func half(t *testing.T, c *client) {
	t.Helper()
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// pair is a connection and its other end.
func pair(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := Listen(l).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
	return near.(*conn), far
}

// Within a body the deadline moves on with every read; the next header has one of
// its own again.
func TestReadDeadlines(t *testing.T) {
	c, far := pair(t)
	past := time.Unix(1, 0)
	if err := c.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1)
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in a header: %v", err)
	}
	c.inBody.Store(true)
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); err != nil {
		t.Errorf("in a body: %v", err)
	}
	if err := c.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in the next header: %v", err)
	}
}

// A write always has a deadline: also after somebody took it away.
func TestWriteDeadlines(t *testing.T) {
	c, _ := pair(t)
	for _, step := range []struct {
		name string
		set  time.Time
	}{{"at first", time.Time{}}, {"after it was taken away", time.Time{}}} {
		if err := c.SetWriteDeadline(step.set); err != nil {
			t.Fatal(err)
		}
		if c.written.Load() != 0 {
			t.Errorf("%s: the next write would not set one", step.name)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if c.written.Load() == 0 {
			t.Errorf("%s: a write set none", step.name)
		}
	}
	// One that was set on purpose stays.
	if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a deadline that has passed: %v", err)
	}
}

// A kept connection does not linger: a stop would wait for it.
func TestKeptConnectionsDoNotLinger(t *testing.T) {
	f := serve(t, deciding(deny()))
	c := f.dial(t)
	c.send(request("POST", "/api/files", "abc", bearer))
	c.read("POST")
	c.send(get("/api/items", bearer))
	c.read("GET")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.server.Shutdown()
	}()
	if !c.closed() {
		t.Error("the connection stays open")
	}
	<-done
}
