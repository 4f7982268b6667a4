// Package pep is the policy enforcement point: the request path. A request is
// read, identified, given context, decided and forwarded, in that order, and
// leaves one Event behind.
//
// The stages are fields of Handler, so the program plugs in methods and tests
// plug in closures. This package alone turns errors into statuses.
//
// A Handler is safe for concurrent use once its fields are set. What belongs to
// one request is an exchange, which one goroutine owns from the first byte of the
// header to the Event. Views of fasthttp's buffers never leave it.
package pep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// Handler is the request path.
type Handler struct {
	Routes *route.Table

	// The stages, in the order a request meets them.
	Identify func(context.Context, authz.Credentials) (*authz.Principal, error)
	Subject  func(context.Context, *authz.Principal) (*authz.Subject, error)
	Decide   func(context.Context, authz.Question) (authz.Decision, error)
	Forward  func(*fasthttp.RequestCtx, *authz.Grant) error
	Record   func(*Event)

	// Client is whom a proxy in front speaks for, by the last of its X-Forwarded-For
	// lines; nil is always the peer.
	Client func(rc *fasthttp.RequestCtx, forwardedFor []byte) netip.Addr

	// For gateways that ask and forward themselves.
	Trusts func(*fasthttp.RequestCtx) bool                // is the peer one of ours
	Vouch  func(*fasthttp.RequestCtx, *authz.Grant) error // what Forward would tell the API, as an answer

	// For POST /authorize.
	Token           func(ctx context.Context, token string) (*authz.Principal, error)
	AssertedUser    func(user json.RawMessage) (*authz.Principal, error)
	AuthorizeSecret string // empty: nobody may assert a user

	Ready func() Readiness

	OwnPrefix    string     // "" or "/-": where this proxy's own endpoints live
	Origins      []string   // CORS_ORIGINS; "*" is not among them
	Report       bool       // ENFORCE=report
	DebugHeaders bool       // X-Decision on every answer
	Bodies       *BodyLimit // memory for bodies that must be read before the decision
	BodyMax      int64      // largest body, bytes; 0: no limit

	// Base ends when the program gives up on requests still in flight.
	Base context.Context

	draining atomic.Bool
	inFlight atomic.Int64
}

// InFlight is the number of requests that have been read and not been answered.
func (h *Handler) InFlight() int64 { return h.inFlight.Load() }

// Drain makes every further answer close its connection, so that clients come
// back to another replica.
func (h *Handler) Drain() { h.draining.Store(true) }

// Handle serves one request.
func (h *Handler) Handle(rc *fasthttp.RequestCtx) {
	x, judged := continued(rc)
	if !judged {
		x = h.begin(rc)
	}
	defer h.finish(x)
	if !judged {
		x.err = h.judge(x)
	}
	if x.err == nil && x.then != nil {
		x.err = x.then(h, x)
	}
}

// Expect answers "Expect: 100-continue" before a body is sent: with 100 only if
// there is something left to do for which the body is needed. The exchange then
// waits in the connection, until Handle or fault goes on with it.
func (h *Handler) Expect(rc *fasthttp.RequestCtx) (status int) {
	x := h.begin(rc)
	if h.guarded(x, h.judge); x.err == nil && x.then != nil {
		h.wait(x)
		return fasthttp.StatusContinue
	}
	h.finish(x)
	return rc.Response.StatusCode()
}

// judge takes a request as far as it can be taken by its header, and leaves in
// x.then what is to be done with its body; nil means that it is answered.
func (h *Handler) judge(x *exchange) error {
	if err := x.read(); err != nil {
		return err
	}
	if len(x.head.forwardedFor) > 0 && h.Client != nil {
		x.credentials.From = network(h.Client(x.rc, x.head.forwardedFor))
	}
	if path, own := h.own(x.target.Path); own {
		return h.endpoint(x, path)
	}
	if !h.Routes.InPrefix(x.target.Path) {
		return errNotFound
	}
	if x.preflight() {
		return h.preflight(x)
	}
	if err := h.understand(x, x.rc.Method()); err != nil {
		return err
	}
	if err := h.fits(x.rc.Request.Header.ContentLength()); err != nil {
		return err
	}
	if h.crossSite(x, x.rc.Request.Header.Host()) {
		return errCrossSite
	}
	if x.match.NeedsBody {
		x.then = (*Handler).inspect
		return h.worthInspecting(x)
	}
	x.then = (*Handler).forwardFresh
	return h.decide(x)
}

// understand finds out what the request is about, and who sent it.
func (h *Handler) understand(x *exchange, method []byte) error {
	if err := h.Routes.Match(x.match, method, x.target); err != nil {
		return err
	}
	x.event.Match = x.match
	x.event.Route, x.event.Resource, x.event.Action = x.match.Context.Route, x.match.Resource, x.match.Action
	return h.identify(x)
}

// identify finds out who sent the request and what is known about them.
func (h *Handler) identify(x *exchange) (err error) {
	x.principal, err = h.Identify(h.Base, x.credentials)
	x.lap(&x.event.Identify)
	if err != nil {
		return err
	}
	if c := ours(x.rc); c != nil {
		c.last = x.principal
	}
	return h.describe(x)
}

func (h *Handler) describe(x *exchange) (err error) {
	x.subject, err = h.Subject(h.Base, x.principal)
	x.lap(&x.event.Context)
	if err != nil {
		return err
	}
	x.event.Subject, x.event.AuthMethod, x.event.Fetched = x.subject.ID, x.subject.Method, x.subject.Fetched
	return nil
}

// decide asks policy about the request as it is known by now. A deny is the end
// of it, except while policy is only reported on.
func (h *Handler) decide(x *exchange) error {
	err := h.ask(x, &authz.Input{Subject: x.subject, Resource: x.match.Resource, Action: x.match.Action, Context: x.match.Context})
	x.event.Reported = false
	if err != nil || x.decision.Allow {
		return err
	}
	if !h.Report {
		return errDenied
	}
	x.event.Reported = true
	return nil
}

func (h *Handler) ask(x *exchange, in *authz.Input) (err error) {
	x.question = in.Question(x.question.Body)
	x.event.Offices, x.event.Input = in.Context.Offices, x.question.Input()
	x.event.Decision = nil // of before the body came: it does not count any more
	x.decision, err = h.Decide(h.Base, x.question)
	x.lap(&x.event.Decide)
	if err == nil {
		x.event.Decision = &x.decision
	}
	return err
}

// worthInspecting asks about an anonymous caller before its body is read, when the
// scope is still unknown: what a stranger sends shall not cost memory if policy
// refuses strangers anyway.
func (h *Handler) worthInspecting(x *exchange) error {
	if x.subject.Authenticated {
		return nil
	}
	return h.decide(x)
}

// inspect decides a request whose body says what it is about.
func (h *Handler) inspect(x *exchange) error {
	body, done, err := h.Bodies.read(x.rc, x.subject.ID)
	if err != nil {
		return err
	}
	defer done()
	if err := h.fits(len(body)); err != nil {
		return err
	}
	if _, err := h.again(x); err != nil {
		return err
	}
	header := &x.rc.Request.Header
	if err := h.Routes.Body(x.match, header.ContentType(), header.ContentEncoding(), body); err != nil {
		return err
	}
	if err := h.decide(x); err != nil {
		return err
	}
	x.rc.Request.SetBodyRaw(body)
	return h.forward(x)
}

// soon is how long what was found out about a caller is good for within a request.
const soon = 10 * time.Millisecond

// again identifies the caller anew if that was some time ago, and reports whether
// it did: a right may have been taken away while the body came.
func (h *Handler) again(x *exchange) (bool, error) {
	if time.Since(x.event.Start)-x.mark < soon {
		return false, nil
	}
	return true, h.identify(x)
}

// smallBody is the largest body that is taken in before the API is called, so that
// no connection to it waits for a slow client.
const smallBody = 64 << 10

// gather takes in a body that is small, or has no business to be large.
func (h *Handler) gather(x *exchange) error {
	stream, size := x.rc.RequestBodyStream(), x.rc.Request.Header.ContentLength()
	safe := x.event.Method == fasthttp.MethodGet || x.event.Method == fasthttp.MethodHead || x.event.Method == fasthttp.MethodOptions
	if stream == nil || !safe && (size < 0 || size > smallBody) {
		return nil
	}
	body, err := readAll(x.rc, smallBody, func(int64) error { return nil })
	if err == nil {
		x.rc.Request.SetBodyRaw(body)
	}
	return err
}

// forwardFresh forwards what was decided by its header, and decides again if the
// body was long in coming.
func (h *Handler) forwardFresh(x *exchange) error {
	if err := h.gather(x); err != nil {
		return err
	}
	if waited, err := h.again(x); err != nil {
		return err
	} else if waited {
		if err := h.decide(x); err != nil {
			return err
		}
	}
	return h.forward(x)
}

func (h *Handler) forward(x *exchange) error {
	x.allow()
	var body *limited
	if stream := x.rc.RequestBodyStream(); stream != nil {
		patience(x.rc, 0)
		if h.BodyMax > 0 && x.rc.Request.Header.ContentLength() < 0 {
			body = &limited{stream, h.BodyMax}
			x.rc.Request.SetBodyStream(body, -1)
		}
	}
	err := h.Forward(x.rc, &x.grant)
	x.lap(&x.event.Forward)
	switch {
	case err != nil && body != nil && body.left < 0:
		return tooLarge(h.BodyMax)
	case err == nil && x.rc.Response.ConnectionClose():
		linger(x.rc) // the API answered before it had the whole body
	}
	return err
}

// allow turns the decision into what the API is told.
func (x *exchange) allow() {
	x.grant = authz.Grant{
		Subject: x.subject, Decision: &x.decision, Context: x.question.Context, RequestID: x.event.RequestID,
		DropAuthorization: x.principal.Method != authz.JWT && x.principal.Method != authz.APIKey,
		DropCookies:       x.principal.Method != authz.Session || !x.subject.Authenticated,
	}
}

// fits refuses a body of more than BODY_MAX bytes.
func (h *Handler) fits(size int) error {
	if h.BodyMax > 0 && int64(size) > h.BodyMax {
		return tooLarge(h.BodyMax)
	}
	return nil
}

// guarded runs a step and turns its panic into an error: a bug costs the request
// it appears in, not the process.
func (h *Handler) guarded(x *exchange, step func(*exchange) error) {
	defer func() {
		if r := recover(); r != nil {
			x.panicked(r)
		}
	}()
	x.err = step(x)
}

func (x *exchange) panicked(r any) {
	panics.Inc()
	x.rc.Response.Reset()
	x.err = fmt.Errorf("BUG: panic: %v\n%s", r, debug.Stack())
}

// finish writes the answer where no stage did, and the Event.
func (h *Handler) finish(x *exchange) {
	if r := recover(); r != nil {
		x.panicked(r)
	}
	defer h.end(x)
	if x.err != nil {
		h.refuse(x)
	}
	h.decorate(x)
	x.event.Err, x.event.Status = x.err, x.rc.Response.StatusCode()
	x.event.Duration = time.Since(x.event.Start)
	h.Record(&x.event)
}

// end lets go of the exchange. What could not be recorded is not answered.
func (h *Handler) end(x *exchange) {
	if r := recover(); r != nil {
		x.panicked(r)
		x.rc.SetStatusCode(fasthttp.StatusInternalServerError)
	}
	h.inFlight.Add(-1)
	x.release()
}

// The outcomes that only this package knows.
var (
	errNotFound  = errors.New("no such endpoint")
	errDenied    = errors.New("denied by policy")
	errCrossSite = authz.Refuse(authz.ErrForbidden, "a request with a session cookie came from another site")
)
