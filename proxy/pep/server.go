package pep

import (
	"errors"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// Limits of the public listener.
const (
	headerMax     = 16 << 10         // bytes of a request's header; 431 beyond. Keycloak's tokens are large
	headerTimeout = 10 * time.Second // for a request's header to arrive; 408 beyond
	idleTimeout   = 2 * time.Minute  // between requests of a connection
)

// Server is the public listener's server. It wants a listener made by Listen.
func (h *Handler) Server() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:       h.Handle,
		ExpectHandler: h.Expect,
		ErrorHandler:  h.fault,
		ConnState:     follow,

		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true, // it would be parsed and written anew
		// With a streamed body this is no limit of the body but of what is read of it
		// before the handler is called: a deny shall not wait for a slow sender.
		MaxRequestBodySize:    1,
		ReadBufferSize:        headerMax,
		ReadTimeout:           headerTimeout,
		IdleTimeout:           idleTimeout,
		Concurrency:           2 * connectionMax, // the listener keeps the limit
		CloseOnShutdown:       true,
		LazyRequestTime:       true, // an exchange keeps its own
		NoDefaultServerHeader: true,
		NoDefaultDate:         true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,
		Logger:                silent{},
	}
}

// fault answers what never became a request, or broke off as one.
func (h *Handler) fault(rc *fasthttp.RequestCtx, err error) {
	x, judged := continued(rc)
	if !judged {
		x = h.begin(rc)
	}
	defer h.finish(x)
	rc.SetConnectionClose()
	var network net.Error
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		x.err = errHeaderTooLarge
	case errors.As(err, &network) && network.Timeout():
		x.err = errSlowClient
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		x.err = err
	default:
		// The error itself goes no further: it quotes the request, tokens included.
		x.err = authz.Refuse(authz.ErrMalformed, "the request is no HTTP/1.1 that this server accepts")
	}
}

// silent keeps fasthttp from logging what an Event tells already.
type silent struct{}

func (silent) Printf(string, ...any) {}
