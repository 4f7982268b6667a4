// Package standin answers as the CWMS Data API and its identity provider do, so
// that the proxy can be run, tested and measured on one machine.
//
// A Server has three listeners: the API under /cwms-data, the token issuer of
// the realm cwms, and a control listener by which a test sees what arrived,
// mints credentials, changes users, rotates keys and injects faults. It is a
// test double: tokens and keys are for the asking, so the control listener
// belongs on a loopback address and the whole on a developer's machine.
//
// The API keeps no data. It answers the routes that clients use with the
// statuses, media types, validators, cookies and error bodies of the real one;
// writes are accepted and forgotten. Two departures: a write needs a user but not
// the role "CWMS Users", because that answer would hide the proxy's own; and the
// name of any series exists unless it begins with "Missing".
//
// All methods are safe for concurrent use.
package standin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"
)

// Options describe a Server. The listeners are closed by Serve.
type Options struct {
	API, Issuer, Control net.Listener

	// IssuerURL is the iss claim and the base that discovery names; it is what
	// clients know the issuer by, which in a container is not where it listens.
	// Empty: the address of the Issuer listener.
	IssuerURL string
	// ProfileDelay is the time that /user/profile and /users/{name} take. The real
	// API was measured at 175 ms.
	ProfileDelay time.Duration
	// TokenLife is the life of a token of the password grant; zero means 8 h.
	TokenLife time.Duration
}

// Server is the stand-in.
type Server struct {
	opts   Options
	keys   *keyring
	people *directory
	faults faults

	requests, profiles, keyCalls recorder
	verified                     tokenCache
	series                       rendered
	api                          *fasthttp.Server
	issuer, control              *http.Server
}

// New makes a Server with the users of the case files and a fresh signing key.
func New(o Options) (*Server, error) {
	if o.IssuerURL == "" {
		o.IssuerURL = "http://" + o.Issuer.Addr().String() + realmPath
	}
	if o.TokenLife == 0 {
		o.TokenLife = 8 * time.Hour
	}
	keys, err := newKeyring()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, keys: keys, people: newDirectory(o.IssuerURL)}
	s.api = &fasthttp.Server{
		Handler:                       s.serveAPI,
		Name:                          "cwms-data-api-standin",
		StreamRequestBody:             true,
		DisablePreParseMultipartForm:  true,
		DisableHeaderNamesNormalizing: true,
		NoDefaultContentType:          true,
		ReadBufferSize:                16 << 10,
		MaxRequestBodySize:            1 << 40,
		CloseOnShutdown:               true,
		Logger:                        silent{},
	}
	s.issuer = &http.Server{Handler: s.issuerRoutes(), ReadHeaderTimeout: time.Minute}
	s.control = &http.Server{Handler: s.controlRoutes(), ReadHeaderTimeout: time.Minute}
	return s, nil
}

// silent drops what fasthttp prints about clients that hang up, which tests do
// on purpose.
type silent struct{}

func (silent) Printf(string, ...any) {}

// Serve answers on all three listeners until ctx ends or one of them fails. The
// error is nil after an orderly end.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 3)
	go func() { failed <- s.api.Serve(s.opts.API) }()
	go func() { failed <- s.issuer.Serve(s.opts.Issuer) }()
	go func() { failed <- s.control.Serve(s.opts.Control) }()

	running := 3
	var first error
	select {
	case <-ctx.Done():
	case first = <-failed:
		running--
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := errors.Join(s.api.ShutdownWithContext(bound), s.issuer.Shutdown(bound), s.control.Shutdown(bound))
	if err != nil { // a stream that does not end by itself
		_ = s.issuer.Close()
		_ = s.control.Close()
	}
	for ; running > 0; running-- {
		<-failed
	}
	if first != nil && !errors.Is(first, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve: %w", first)
	}
	return nil
}
