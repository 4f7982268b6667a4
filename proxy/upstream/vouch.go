package upstream

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// Vouch writes into the answer to a gateway what Forward would tell the API: the
// context header and, of the client's credentials, what was decided on, as
// Authorization and Cookie. The gateway puts these in the place of the client's
// own, and removes what is not in the answer.
//
// What a gateway that does so would still let through, and Forward would not, is
// refused with ErrMalformed: a header that some servers take for the context
// header, and one that names another method or path than was decided. On an error
// nothing of use is in the answer.
func (f *Forwarder) Vouch(rc *fasthttp.RequestCtx, g *authz.Grant) error {
	header := &rc.Response.Header
	var folded [maxName]byte
	var cookies []byte
	authorized := !g.DropAuthorization && len(rc.Request.Header.Peek(fasthttp.HeaderAuthorization)) > 0
	for line := range bytes.Lines(rc.Request.Header.RawHeaders()) {
		spelled, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			break // the empty line
		}
		name, ok := fold(&folded, spelled)
		if !ok {
			return authz.Refuse(authz.ErrMalformed, "a header name holds a character that none may have")
		}
		value = trim(value)
		switch {
		case string(name) == defaultContext && !plain(spelled, defaultContext),
			bytes.Equal(name, f.contextName) && !plain(spelled, f.contextHeader):
			return authz.Refuse(authz.ErrMalformed, "the header %s may be taken for one of ours", spelled)
		case overrides(name):
			return authz.Refuse(authz.ErrMalformed, "the header %s may name another method or path than is decided on", spelled)
		case string(name) == "authorization" && authorized:
			header.SetBytesV(fasthttp.HeaderAuthorization, value)
		case string(name) == "cookie":
			if authorized || g.DropCookies {
				value = trim(bytes.TrimPrefix(appendCookies(nil, nil, value), []byte(" ")))
			}
			if len(cookies) > 0 && len(value) > 0 {
				cookies = append(cookies, "; "...)
			}
			cookies = append(cookies, value...)
		}
	}
	if len(cookies) > 0 {
		header.SetBytesV(fasthttp.HeaderCookie, cookies)
	}
	if f.contextLine == nil {
		return nil
	}
	value, _, err := g.AppendHeader(nil, f.headMax, time.Now())
	if err == nil {
		header.SetBytesV(f.contextHeader, value)
	}
	return err
}

// overrides reports whether a folded name is of a header by which some servers let
// a client change method or path. X-Original-* is not among them: gateways set it
// when they ask, and their settings remove the client's own.
func overrides(name []byte) bool {
	switch string(name) {
	case "x-http-method-override", "x-http-method", "x-method-override":
		return true
	}
	return bytes.HasPrefix(name, []byte("x-rewrite-"))
}
