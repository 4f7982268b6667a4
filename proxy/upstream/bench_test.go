package upstream

import (
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/valyala/fasthttp"
)

// stub serves an answer of 1.6 KB like the API's.
func stub(b *testing.B) string {
	body := []byte(strings.Repeat("0123456789abcdef", 100))
	return listen(b, &fasthttp.Server{Handler: func(rc *fasthttp.RequestCtx) {
		h := &rc.Response.Header
		h.SetContentType("application/json;version=2")
		h.Set("Cache-Control", "max-age=300")
		h.Set("ETag", `"0123456789"`)
		h.Set("X-Content-Type-Options", "nosniff")
		rc.Response.SetBodyRaw(body)
	}})
}

func listen(b *testing.B, s *fasthttp.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Shutdown() })
	return l.Addr().String()
}

// hammer sends b.N requests over 16 connections.
func hammer(b *testing.B, addr string) {
	c := &fasthttp.HostClient{Addr: addr, MaxConns: 16, ReadBufferSize: 16 << 10}
	defer c.CloseIdleConnections()
	get := func(n int) {
		req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(req)
		defer fasthttp.ReleaseResponse(res)
		req.SetRequestURI("http://" + addr + "/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT")
		req.Header.Set("Accept", "application/json;version=2")
		req.Header.Set("Accept-Encoding", "gzip, deflate")
		req.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 900))
		for range n {
			if err := c.Do(req, res); err != nil || res.StatusCode() != 200 || len(res.Body()) != 1600 {
				b.Errorf("status %d, %d bytes, %v", res.StatusCode(), len(res.Body()), err)
				return
			}
		}
	}
	get(1)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	var wg sync.WaitGroup
	const conns = 16
	for i := range conns {
		n := b.N / conns
		if i < b.N%conns {
			n++
		}
		wg.Go(func() { get(n) })
	}
	wg.Wait()
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
}

// cpu is the processor time of this process so far, in nanoseconds: on a busy
// machine it tells more than the clock.
func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkForward is client, proxy and API in one process; what Bare and
// Direct cost is to be taken off.
func BenchmarkForward(b *testing.B) {
	f, err := New(config(stub(b)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(f.Close)
	g := grant()
	hammer(b, listen(b, publicServer(func(rc *fasthttp.RequestCtx) {
		if err := f.Forward(rc, g); err != nil {
			b.Error(err)
		}
	})))
}

// BenchmarkBare is the same hop by fasthttp.HostClient, headers as they come.
func BenchmarkBare(b *testing.B) {
	api := &fasthttp.HostClient{
		Addr: stub(b), MaxConns: 512, ReadBufferSize: 16 << 10, NoDefaultUserAgentHeader: true,
		DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}
	s := publicServer(func(rc *fasthttp.RequestCtx) {
		rc.Request.Header.Del("Connection")
		if err := api.Do(&rc.Request, &rc.Response); err != nil {
			b.Error(err)
		}
		rc.Response.Header.Del("Connection")
	})
	s.DisableHeaderNamesNormalizing = true
	hammer(b, listen(b, s))
}

// BenchmarkDirect is no hop at all.
func BenchmarkDirect(b *testing.B) { hammer(b, stub(b)) }
