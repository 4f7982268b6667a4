package standin

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// The stand-in must not be what a measurement measures: parsing, answering and
// recording one warm read of a user.
func BenchmarkTimeseries(b *testing.B) {
	var o Options
	for _, l := range []*net.Listener{&o.API, &o.Issuer, &o.Control} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			b.Fatal(err)
		}
		defer (*l).Close()
	}
	s, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	token, err := s.mint(TokenRequest{User: "M5HECTEST"})
	if err != nil {
		b.Fatal(err)
	}
	raw := "GET /cwms-data/timeseries?office=SWT&name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev HTTP/1.1\r\nHost: h\r\n" +
		"Accept: application/json;version=2\r\nx-cwms-auth-context: {}\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	text := strings.NewReader(raw)
	r := bufio.NewReaderSize(text, 16<<10)
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.DisableNormalizing()
	b.ReportAllocs()
	for b.Loop() {
		text.Reset(raw)
		r.Reset(text)
		if err := ctx.Request.Read(r); err != nil {
			b.Fatal(err)
		}
		ctx.Response.Reset()
		s.serveAPI(&ctx)
		if ctx.Response.StatusCode() != 200 {
			b.Fatalf("%d %s", ctx.Response.StatusCode(), ctx.Response.Body())
		}
	}
}
