package upstream

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// The API half closes a connection behind its answer and still reads what comes:
// nothing wakes the request that was sent there, and yet it is answered soon.
func TestHalfClosedBehindTheAnswer(t *testing.T) {
	closed := make(chan struct{})
	a := accepting(t, func(a *api, nc net.Conn) {
		br := bufio.NewReader(nc)
		if _, err := readRequest(br); err != nil {
			return
		}
		io.WriteString(nc, okAnswer)
		if a.connections() == 1 {
			nc.(*net.TCPConn).CloseWrite()
			close(closed)
			io.Copy(io.Discard, br)
		}
	})
	cfg := config(a.Addr().String())
	cfg.FirstByteTimeout = time.Hour
	p := front(t, cfg, nil)
	for range 2 {
		if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Fatalf("got %q", got)
		}
		<-closed
	}
}

// An answer may begin after a look at the client, and stop there within its head
// or body.
func TestAnswerAfterALook(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 10, len(okAnswer) - 1} {
		t.Run(okAnswer[:at], func(t *testing.T) {
			t.Parallel()
			const look = 200 * time.Millisecond
			a := serving(t, func(nc net.Conn, n int) bool {
				io.WriteString(nc, okAnswer[:at])
				if n == 1 {
					time.Sleep(look + look/2) // the fault
				}
				io.WriteString(nc, okAnswer[at:])
				return true
			})
			p := front(t, config(a.Addr().String()), nil)
			p.f.pool.look = look
			for range 2 {
				if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "\r\n\r\nok") {
					t.Fatalf("got %q", got)
				}
			}
			if n := len(a.requests()); n != 2 {
				t.Errorf("the API saw %d requests, want 2", n)
			}
		})
	}
}

// BenchmarkAsk is what the first Read that waits saves: cpu-ns/op of a request
// that is sent by it, and of one that is written and then waited for.
func BenchmarkAsk(b *testing.B) {
	for _, way := range []struct {
		name  string
		later bool
	}{{"write and read", false}, {"ask", true}} {
		b.Run(way.name, func(b *testing.B) {
			addr := listen(b, &fasthttp.Server{Handler: func(rc *fasthttp.RequestCtx) { rc.SetBodyString("ok") }})
			p := newPool(addr, nil, 4, time.Second)
			b.Cleanup(p.close)
			c, err := p.fresh()
			if err != nil {
				b.Fatal(err)
			}
			defer p.discard(c)
			request := []byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			answer := make([]byte, 4<<10)
			before := cpu()
			for b.Loop() {
				if err := c.arm(time.Now(), time.Hour); err != nil {
					b.Fatal(err)
				}
				if !way.later || !c.later(request) {
					_, _ = c.Write(request)
				}
				if _, err := c.Read(answer); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}
