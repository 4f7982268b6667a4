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

// An answer may begin after the glance, and stop there within its head or body.
func TestAnswerAfterTheGlance(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 10, len(okAnswer) - 1} {
		t.Run(okAnswer[:at], func(t *testing.T) {
			t.Parallel()
			a := serving(t, func(nc net.Conn, n int) bool {
				io.WriteString(nc, okAnswer[:at])
				if n == 1 {
					time.Sleep(glance + glance/2) // the fault
				}
				io.WriteString(nc, okAnswer[at:])
				return true
			})
			p := front(t, config(a.Addr().String()), nil)
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
				if ok, err := c.later(time.Now(), request, time.Hour); !way.later || !ok || err != nil {
					c.out, c.glancing = nil, false
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
