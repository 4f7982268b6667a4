package pep

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// Forward-auth: a gateway that keeps its place in front of the API asks here about
// each request, and forwards it itself if the answer is 2xx. The rules:
//
//   - Only a peer that TRUSTED_PROXIES names may ask: whoever is believed about
//     method and path decides what is judged.
//   - Method and URI are always what the gateway states. The method of the asking
//     request is never taken for that of the request asked about: most gateways ask
//     with GET, and a forgotten setting would turn every write into a read.
//   - The body is not here, so what only a body tells is unknown to policy.
//   - The answer names everything that the API may learn of the caller: see
//     upstream.Forwarder.Vouch.

// stated is what a gateway says of the request it asks about; the slices are views
// of the header.
type stated struct{ method, uri, host []byte }

// forwardAuth decides on a request that somebody else forwards.
func (h *Handler) forwardAuth(x *exchange) error {
	x.event.Asked = true
	if !h.Trusts(x.rc) {
		return authz.Refuse(authz.ErrForbidden, "TRUSTED_PROXIES does not name the address that asks")
	}
	about, err := readStated(x.rc.Request.Header.RawHeaders())
	if err != nil {
		return err
	}
	if x.target, err = route.ParseTarget(about.uri); err != nil {
		return err
	}
	if !h.Routes.InPrefix(x.target.Path) {
		return errNotFound
	}
	x.event.Endpoint, x.event.Method = "", view(about.method)
	if err := h.understand(x, about.method); err != nil {
		return err
	}
	if h.crossSite(x, about.host) {
		return errCrossSite
	}
	if err := h.decide(x); err != nil {
		return err
	}
	x.allow()
	x.answer(fasthttp.StatusOK)
	x.rc.Response.Header.Set("Cache-Control", "no-store")
	if err := h.Vouch(x.rc, &x.grant); err != nil {
		return err
	}
	if length := x.rc.Request.Header.ContentLength(); length > 0 || length == -1 {
		x.rc.SetConnectionClose() // nobody reads the body that came along
		linger(x.rc)
	}
	return nil
}

// readStated finds what a gateway states in the lines of a header, which head.read
// has looked at.
func readStated(raw []byte) (s stated, err error) {
	for line := range bytes.Lines(raw) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		var into *[]byte
		switch {
		case strings.EqualFold(view(name), fasthttp.HeaderXForwardedHost):
			into = &s.host
		case strings.EqualFold(view(name), "X-Forwarded-Method"):
			into = &s.method
		case strings.EqualFold(view(name), "X-Forwarded-Uri"):
			into = &s.uri
		default:
			continue
		}
		if *into != nil {
			// The gateway added its own to what the client sent.
			return s, authz.Refuse(authz.ErrMalformed, "the header %s is given twice", name)
		}
		if *into = bytes.Trim(value, " \t\r\n"); *into == nil {
			*into = value[:0] // given, if empty
		}
	}
	switch {
	case len(s.method) == 0:
		return s, authz.Refuse(authz.ErrMalformed, "X-Forwarded-Method is missing: want the method of the request that is asked about")
	case len(s.uri) == 0:
		return s, authz.Refuse(authz.ErrMalformed, "X-Forwarded-Uri is missing: want the path and query of the request that is asked about")
	}
	return s, nil
}
