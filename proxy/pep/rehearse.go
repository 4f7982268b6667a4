package pep

import (
	"bytes"
	"net"
	"time"
)

// Rehearse serves a request that no client sent, given as the bytes that would be
// on the wire, and returns the bytes of the answer. It goes through the server and
// the stages as any other; what these do is up to whoever made the Handler, which
// is not that of the listener. Bytes after the first request are not looked at.
func (h *Handler) Rehearse(request []byte) (answer []byte) {
	s := h.Server()
	s.MaxRequestsPerConn = 1
	m := &memory{in: bytes.NewReader(request)}
	// Its error says only how the connection ended, which is known.
	_ = s.ServeConn(plain{&conn{Conn: m, leave: func() {}}})
	return m.out.Bytes()
}

// memory is a connection whose client has sent everything and waits.
type memory struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (m *memory) Read(p []byte) (int, error)       { return m.in.Read(p) }
func (m *memory) Write(p []byte) (int, error)      { return m.out.Write(p) }
func (m *memory) Close() error                     { return nil }
func (m *memory) LocalAddr() net.Addr              { return loopback }
func (m *memory) RemoteAddr() net.Addr             { return loopback }
func (m *memory) SetDeadline(time.Time) error      { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }

var loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
