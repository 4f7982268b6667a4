package pep

import (
	"errors"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// retryAfter is what a 503 asks for, in seconds: an outage is noticed and over
// within that, or it is longer anyway.
const retryAfter = "1"

// statusOf is the only place where an error becomes a status. Of a refusal only
// its kind counts: what caused it has no say in what the client is told.
func statusOf(err error) int {
	var refusal *authz.Refusal
	if errors.As(err, &refusal) {
		err = refusal.Kind
	}
	switch {
	case errors.Is(err, errDenied), errors.Is(err, authz.ErrForbidden):
		return fasthttp.StatusForbidden
	case errors.Is(err, authz.ErrUnauthenticated):
		return fasthttp.StatusUnauthorized
	case errors.Is(err, authz.ErrMalformed):
		return fasthttp.StatusBadRequest
	case errors.Is(err, errNotFound):
		return fasthttp.StatusNotFound
	case errors.Is(err, authz.ErrMethodNotAllowed):
		return fasthttp.StatusMethodNotAllowed
	case errors.Is(err, authz.ErrBodyTooLarge), errors.Is(err, fasthttp.ErrBodyTooLarge):
		return fasthttp.StatusRequestEntityTooLarge
	case errors.Is(err, authz.ErrUnsupportedBody):
		return fasthttp.StatusUnsupportedMediaType
	case errors.Is(err, authz.ErrNoDecision), errors.Is(err, authz.ErrUnavailable):
		return fasthttp.StatusServiceUnavailable
	case errors.Is(err, authz.ErrUpstreamTimeout):
		return fasthttp.StatusGatewayTimeout
	case errors.Is(err, authz.ErrUpstream):
		return fasthttp.StatusBadGateway
	case errors.Is(err, authz.ErrSlowClient):
		return fasthttp.StatusRequestTimeout
	case errors.Is(err, authz.ErrHeaderTooLarge):
		return fasthttp.StatusRequestHeaderFieldsTooLarge
	default:
		return fasthttp.StatusInternalServerError
	}
}

var (
	errSlowClient     = authz.Refuse(authz.ErrSlowClient, "the request did not arrive in time")
	errHeaderTooLarge = authz.Refuse(authz.ErrHeaderTooLarge, "the request header is too large")
)

// refuse answers a request that was not forwarded.
func (h *Handler) refuse(x *exchange) {
	status := statusOf(x.err)
	answer := &x.rc.Response
	// What was not understood may not end where we think it does.
	last := status == fasthttp.StatusBadRequest || status == fasthttp.StatusMethodNotAllowed || answer.ConnectionClose()
	x.answer(status)
	if last {
		answer.SetConnectionClose()
	}
	header := &answer.Header
	header.SetContentType("application/json")
	header.Set("Cache-Control", "no-store")
	switch status {
	case fasthttp.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	case fasthttp.StatusServiceUnavailable:
		header.Set("Retry-After", retryAfter)
	case fasthttp.StatusMethodNotAllowed:
		header.Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	}
	answer.SetBodyRaw(appendError(nil, status, messageOf(x.err, &x.decision), x.event.RequestID))
	linger(x.rc)
}

// answer begins an answer of our own. A Reset brings back the Date, which every
// such answer has (RFC 9110, 6.6.1) and which is off for the API's, that have theirs.
func (x *exchange) answer(status int) {
	x.rc.Response.Reset()
	x.rc.SetStatusCode(status)
}

// messageOf is what the client may read of an error: the words of a refusal, the
// code of policy's reason, or nothing but the status.
func messageOf(err error, decision *authz.Decision) string {
	var refusal *authz.Refusal
	switch {
	case errors.Is(err, errDenied):
		if code := decision.Code(); code != "" {
			return code
		}
		return "denied"
	case errors.As(err, &refusal):
		return refusal.Message
	case errors.Is(err, errNotFound):
		return err.Error()
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return "the body is too large"
	default:
		return "internal error"
	}
}

func appendError(b []byte, status int, message, requestID string) []byte {
	b = append(b, `{"error":`...)
	b = authz.AppendString(b, fasthttp.StatusMessage(status))
	b = append(b, `,"message":`...)
	b = authz.AppendString(b, message)
	b = append(b, `,"incidentIdentifier":"`...)
	b = append(b, requestID...)
	return append(b, `"}`...)
}

var requestID = []byte("X-Request-Id")

// decorate sets what every answer carries, whoever gave it.
func (h *Handler) decorate(x *exchange) {
	header := &x.rc.Response.Header
	header.SetCanonical(requestID, x.id[:])
	if h.draining.Load() {
		x.rc.Response.SetConnectionClose()
	}
	if len(x.head.origin) > 0 {
		h.allowOrigin(x)
	}
	if h.DebugHeaders {
		header.SetBytesV("X-Decision", x.debugHeader(nil))
	}
}

// debugHeader tells an operator how the decision came about.
func (x *exchange) debugHeader(b []byte) []byte {
	d := x.event.Decision
	if d == nil {
		return append(b, "none"...)
	}
	verdict := "deny"
	if d.Allow {
		verdict = "allow"
	}
	b = append(b, verdict...)
	b = append(b, "; source="...)
	b = append(b, d.Source...)
	b = append(b, "; age_ms="...)
	b = strconv.AppendInt(b, time.Since(d.Asked).Milliseconds(), 10)
	b = append(b, "; id="...)
	b = append(b, d.ID...)
	b = append(b, "; revision="...)
	return append(b, d.Revision...)
}
