package redistest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP proxy in front of a server, whose faults are those of a network.
type Link struct {
	Addr string

	to    string
	mu    sync.Mutex
	cut   chan struct{} // closed while the link works
	delay time.Duration
	conns []net.Conn
}

// Connect makes a link to a server. It ends with the test.
func Connect(t testing.TB, to *Server) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	whole := make(chan struct{})
	close(whole)
	l := &Link{Addr: listener.Addr().String(), to: to.Addr, cut: whole}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", l.to)
			if err != nil {
				client.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, client, server)
			l.mu.Unlock()
			work.Go(func() { l.carry(server, client, 0) })
			work.Go(func() { l.carry(client, server, 1) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		l.Mend()
		l.mu.Lock()
		for _, c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		work.Wait()
	})
	return l
}

// carry copies what comes, as the link allows; replies (back) are delayed.
func (l *Link) carry(to, from net.Conn, back time.Duration) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		l.mu.Lock()
		whole, delay := l.cut, l.delay
		l.mu.Unlock()
		<-whole
		if back*delay > 0 {
			time.Sleep(delay)
		}
		if _, err := to.Write(b[:n]); err != nil && err != io.EOF {
			return
		}
	}
}

// Cut lets nothing through any more, and tells nobody.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = make(chan struct{})
}

// Mend ends Cut. What was sent meanwhile arrives.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.cut:
	default:
		close(l.cut)
	}
}

// Delay lets every reply arrive later.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}
