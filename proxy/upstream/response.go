package upstream

import (
	"bytes"
	"sync"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// answer is the work on the head of one answer; pooled for its buffers.
type answer struct {
	gone    [][]byte // names of headers that do not pass
	caching []byte   // all Cache-Control lines as one
	varying []byte   // all Vary lines as one
	out     []byte
}

var answers = sync.Pool{New: func() any { return &answer{} }}

var (
	cacheControl = []byte(fasthttp.HeaderCacheControl)
	vary         = []byte(fasthttp.HeaderVary)
	byCaller     = []byte("Authorization, Cookie")
)

// clean makes the head of an answer ours to send: without what belonged to the
// hop behind us or is for us to say, and with the caching rules of an answer
// that depends on who asked. fasthttp has made the names canonical.
func (f *Forwarder) clean(h *fasthttp.ResponseHeader, q *request, g *authz.Grant) {
	a := answers.Get().(*answer)
	defer answers.Put(a)
	a.gone, a.caching, a.varying = a.gone[:0], a.caching[:0], a.varying[:0]
	for name, value := range h.All() {
		switch string(name) {
		case fasthttp.HeaderCacheControl:
			a.caching = appendList(a.caching, value)
		case fasthttp.HeaderVary:
			a.varying = appendList(a.varying, value)
		case fasthttp.HeaderConnection:
			a.gone = append(a.gone, name)
			for token := range bytes.SplitSeq(value, []byte(",")) {
				token = trim(token)
				if len(token) > 0 && !plain(token, "close") && !plain(token, "content-length") && !plain(token, "transfer-encoding") {
					a.gone = append(a.gone, token)
				}
			}
		default:
			if !f.reaches(name) {
				a.gone = append(a.gone, name)
			}
		}
	}
	for _, name := range a.gone {
		h.DelBytes(name)
	}
	clear(a.gone)
	h.ResetConnectionClose()
	h.SetProtocol(nil) // the next hop has its own
	if q.session {
		h.DelCookie("JSESSIONID")
		h.DelCookie("JSESSIONIDSSO")
	}
	// Who asked decides the answer, also when it was nobody in particular: a
	// cache must not give a guest's answer to a user.
	if !varies(a.varying) {
		h.SetCanonical(vary, appendList(a.varying, byCaller))
	}
	if g.Subject.Authenticated {
		a.out = appendPrivate(a.out[:0], a.caching)
		h.SetCanonical(cacheControl, a.out)
	}
}

// reaches reports whether a header of the answer reaches the client.
func (f *Forwarder) reaches(name []byte) bool {
	switch string(name) {
	case "Keep-Alive", "Te", "Trailer", "Upgrade", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Connection",
		"X-Request-Id", "X-Decision", "X-Cwms-Auth-Context":
		return false
	}
	switch name[0] {
	case 'A':
		return !bytes.HasPrefix(name, []byte("Access-Control-")) // package pep says these
	case 'X':
		// A web server before us would act on X-Accel-Redirect.
		return !bytes.HasPrefix(name, []byte("X-Accel-")) && !bytes.EqualFold(name, f.contextName)
	}
	return true
}

// appendList appends a further line of a list header.
func appendList(list, value []byte) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	return append(list, value...)
}

// varies reports whether a Vary value names both of what tells callers apart.
func varies(value []byte) bool {
	var authorization, cookie bool
	for token := range bytes.SplitSeq(value, []byte(",")) {
		switch token = trim(token); {
		case plain(token, "*"):
			return true
		case plain(token, "authorization"):
			authorization = true
		case plain(token, "cookie"):
			cookie = true
		}
	}
	return authorization && cookie
}

// appendPrivate appends a Cache-Control value with private in it and nothing
// that lets a shared cache keep the answer. What forbids more stays.
func appendPrivate(b, value []byte) []byte {
	b = append(b, "private"...)
	for len(value) > 0 {
		var directive []byte
		directive, value = cutDirective(value)
		name, _, _ := bytes.Cut(directive, []byte("="))
		// private with a list of fields is less than private alone.
		if len(directive) == 0 || plain(name, "public") || plain(name, "s-maxage") || plain(name, "private") {
			continue
		}
		b = append(append(b, ", "...), directive...)
	}
	return b
}

// cutDirective cuts the first directive from a list in which quoted strings may
// hold commas.
func cutDirective(list []byte) (directive, rest []byte) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return trim(list[:i]), list[i+1:]
		}
	}
	return trim(list), nil
}
