// Command bare is the yardstick of the speed budgets: a fasthttp reverse proxy
// that does nothing but pass requests on, with the buffers of the real one.
package main

import (
	"flag"
	"log"

	"github.com/valyala/fasthttp"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:3000", "`address` to serve")
	upstream := flag.String("upstream", "127.0.0.1:7001", "`address` to forward to")
	flag.Parse()
	api := &fasthttp.HostClient{
		Addr: *upstream, MaxConns: 512, ReadBufferSize: 16 << 10, NoDefaultUserAgentHeader: true,
		DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}
	proxy := &fasthttp.Server{
		ReadBufferSize: 16 << 10, NoDefaultServerHeader: true, NoDefaultDate: true, NoDefaultContentType: true,
		DisableHeaderNamesNormalizing: true,
		Handler: func(rc *fasthttp.RequestCtx) {
			rc.Request.Header.Del("Connection")
			if err := api.Do(&rc.Request, &rc.Response); err != nil {
				rc.Error(err.Error(), fasthttp.StatusBadGateway)
			}
			rc.Response.Header.Del("Connection")
		},
	}
	log.Fatal(proxy.ListenAndServe(*listen))
}
