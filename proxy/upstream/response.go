package upstream

import (
	"bytes"
	"sync"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// answer is the work on the head of one answer; pooled for its buffers.
type answer struct {
	folded  [maxName]byte
	gone    [][]byte // names of headers that do not pass
	caching []byte   // all Cache-Control lines as one
	varying []byte   // all Vary lines as one
	tokens  []byte   // all Connection lines as one
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
// that depends on who asked. Names are spelled as the API spelled them.
func (f *Forwarder) clean(h *fasthttp.ResponseHeader, q *request, g *authz.Grant) {
	a := answers.Get().(*answer)
	defer answers.Put(a)
	a.gone, a.caching, a.varying, a.tokens = a.gone[:0], a.caching[:0], a.varying[:0], a.tokens[:0]
	private := g.Subject.Authenticated
	for name, value := range h.All() {
		lower, ok := fold(&a.folded, name)
		if !ok {
			a.gone = append(a.gone, name)
			continue
		}
		switch string(lower) {
		case "connection":
			a.tokens = appendList(a.tokens, value)
			a.gone = append(a.gone, name)
		case "vary":
			a.varying = appendList(a.varying, value)
			a.gone = append(a.gone, name)
		case "cache-control":
			if private {
				a.caching = appendList(a.caching, value)
				a.gone = append(a.gone, name)
			}
		default:
			if !f.reaches(lower) {
				a.gone = append(a.gone, name)
			}
		}
	}
	if len(a.tokens) > 0 {
		a.name(h)
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
		a.varying = appendList(a.varying, byCaller)
	}
	h.SetCanonical(vary, a.varying)
	if private {
		a.out = appendPrivate(a.out[:0], a.caching)
		h.SetCanonical(cacheControl, a.out)
	}
}

// name adds to gone what the Connection lines name.
func (a *answer) name(h *fasthttp.ResponseHeader) {
	for token := range bytes.SplitSeq(a.tokens, []byte(",")) {
		token = trim(token)
		// The framing of the body is not the API's to take back.
		if len(token) == 0 || plain(token, "close") || plain(token, "content-length") || plain(token, "transfer-encoding") {
			continue
		}
		for name := range h.All() {
			if bytes.EqualFold(name, token) {
				a.gone = append(a.gone, name)
			}
		}
	}
}

// reaches reports whether a header of the answer, by its folded name, reaches
// the client.
func (f *Forwarder) reaches(name []byte) bool {
	switch string(name) {
	case "keep-alive", "te", "trailer", "upgrade", "x-request-id", "x-decision", defaultContext:
		return false
	}
	switch name[0] {
	case 'a':
		return !bytes.HasPrefix(name, []byte("access-control-")) // package pep says these
	case 'p':
		return !bytes.HasPrefix(name, []byte("proxy-"))
	case 'x':
		// A web server in front of us would act on X-Accel-Redirect.
		if bytes.HasPrefix(name, []byte("x-accel-")) {
			return false
		}
	}
	return !bytes.Equal(name, f.contextName)
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
