package pep

import (
	"bytes"
	"slices"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// preflight reports whether the request is a true CORS preflight; any other
// OPTIONS is decided like everything else. https://fetch.spec.whatwg.org/#cors-preflight-fetch
func (x *exchange) preflight() bool {
	return x.event.Method == fasthttp.MethodOptions && len(x.head.origin) > 0 && len(x.head.requestMethod) > 0
}

// preflight answers in the upstream's place: it shall not see a request whose
// credentials the browser has yet to be allowed to send.
func (h *Handler) preflight(x *exchange) error {
	if !h.knownOrigin(x.head.origin) {
		return authz.Refuse(authz.ErrForbidden, "this origin may not use the API from a browser")
	}
	x.answer(fasthttp.StatusNoContent)
	header := &x.rc.Response.Header
	header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
	if wanted := x.rc.Request.Header.Peek("Access-Control-Request-Headers"); len(wanted) > 0 {
		header.SetBytesV("Access-Control-Allow-Headers", wanted)
	}
	header.Set("Access-Control-Max-Age", "600")
	header.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	return nil
}

// allowOrigin lets the browser of a known origin read the answer, a refusal too:
// else its user would see a network error in place of the reason.
func (h *Handler) allowOrigin(x *exchange) {
	header := &x.rc.Response.Header
	header.Add("Vary", "Origin")
	if !h.knownOrigin(x.head.origin) {
		return
	}
	header.SetBytesV("Access-Control-Allow-Origin", x.head.origin)
	header.Set("Access-Control-Allow-Credentials", "true")
	header.Set("Access-Control-Expose-Headers", "X-Request-Id, ETag, Link, Retry-After, WWW-Authenticate")
}

func (h *Handler) knownOrigin(origin []byte) bool {
	return slices.Contains(h.Origins, view(origin))
}

// crossSite reports whether a request that changes something is authenticated by
// a cookie, which a browser sends by itself, and comes from a page of another host
// than the one it was sent to.
func (h *Handler) crossSite(x *exchange, host []byte) bool {
	if x.principal.Method != authz.Session || !x.subject.Authenticated {
		return false
	}
	if m := x.event.Method; m == fasthttp.MethodGet || m == fasthttp.MethodHead {
		return false
	}
	if origin := x.head.origin; len(origin) > 0 {
		return !h.knownOrigin(origin) && !sameHost(origin, host)
	}
	return string(x.head.fetchSite) == "cross-site"
}

// sameHost reports whether the origin is the host that the request was sent to.
func sameHost(origin, host []byte) bool {
	_, authority, ok := bytes.Cut(origin, []byte("://"))
	return ok && bytes.EqualFold(authority, host)
}
