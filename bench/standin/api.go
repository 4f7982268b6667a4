package standin

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/valyala/fasthttp"
)

const (
	prefix      = "/cwms-data"
	contextName = "x-cwms-auth-context"
)

// call is one API request while it is answered.
type call struct {
	*fasthttp.RequestCtx
	srv    *Server
	method string
	path   string   // decoded, below the prefix, without slashes at the ends
	parts  []string // the segments of path, split before decoding
	query  []byte

	authorization, accept, ifNoneMatch, byteRange []byte
	sso, servlet                                  []byte // session cookies
	decided                                       bool   // came with a context header

	user *person // nil for a guest
	kind credentialKind
}

func (s *Server) serveAPI(ctx *fasthttp.RequestCtx) {
	c := call{RequestCtx: ctx, srv: s, method: string(ctx.Method())}
	target := ctx.Request.Header.RequestURI()
	rawPath, query, _ := bytes.Cut(target, []byte("?"))
	c.query = query
	c.readHeaders(ctx.Request.Header.RawHeaders())

	length, sum := c.readBody()
	known := c.split(string(rawPath))
	// What the proxy asks for itself is told from what it forwards by the context
	// header, which every forwarded request carries.
	profile := known && !c.decided && c.isProfile()
	if profile {
		s.profiles.add(c.method, target, ctx.Request.Header.RawHeaders(), length, sum)
	} else {
		s.requests.add(c.method, target, ctx.Request.Header.RawHeaders(), length, sum)
	}
	point := &s.faults.api
	if known && c.isProfile() {
		point = &s.faults.profile
	}
	if f := point.next(); f != nil {
		if f.Drop {
			ctx.HijackSetNoResponse(true)
			ctx.Hijack(func(conn net.Conn) { _ = conn.Close() })
			return
		}
		if f.Status != 0 {
			c.answer(f.Status, "application/json", f.body())
			return
		}
	}
	if !known {
		c.fail(fasthttp.StatusNotFound, "Not Found")
		return
	}
	if !c.authenticate() {
		c.fail(fasthttp.StatusUnauthorized, "Invalid User")
		return
	}
	c.route()
}

// readHeaders takes what matters from the header block, in one pass.
func (c *call) readHeaders(raw []byte) {
	for len(raw) > 0 {
		var line []byte
		line, raw, _ = bytes.Cut(raw, []byte("\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		value = bytes.TrimSpace(value)
		switch {
		case fold(name, "authorization"):
			c.authorization = value
		case fold(name, "cookie"):
			c.readCookies(value)
		case fold(name, "accept"):
			c.accept = value
		case fold(name, "if-none-match"):
			c.ifNoneMatch = value
		case fold(name, "range"):
			c.byteRange = value
		case fold(name, contextName):
			c.decided = true
		}
	}
}

func (c *call) readCookies(value []byte) {
	for pair := range bytes.SplitSeq(value, []byte(";")) {
		name, v, _ := bytes.Cut(bytes.TrimSpace(pair), []byte("="))
		switch string(name) {
		case "JSESSIONID":
			c.servlet = v
		case "JSESSIONIDSSO":
			c.sso = v
		}
	}
}

func (c *call) readBody() (int64, [sha256.Size]byte) {
	stream := c.RequestBodyStream()
	if stream == nil {
		body := c.Request.Body()
		if len(body) == 0 {
			return 0, emptySum
		}
		return int64(len(body)), sha256.Sum256(body)
	}
	hash := sha256.New()
	n, _ := io.Copy(hash, stream) // a body cut short is recorded as far as it came
	return n, [sha256.Size]byte(hash.Sum(nil))
}

// split reads the path as the API's router does: exact case, doubled slashes
// kept, one slash at the end ignored, segments decoded after splitting.
func (c *call) split(raw string) bool {
	rest, ok := strings.CutPrefix(raw, prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return false
	}
	rest = strings.TrimPrefix(strings.TrimSuffix(rest, "/"), "/")
	if rest == "" {
		return true
	}
	c.parts = strings.Split(rest, "/")
	for i, part := range c.parts {
		if part == "" {
			return false
		}
		if strings.IndexByte(part, '%') < 0 {
			continue
		}
		decoded, err := url.PathUnescape(part)
		if err != nil {
			return false
		}
		c.parts[i] = decoded
	}
	c.path = strings.Join(c.parts, "/")
	return true
}

func (c *call) isProfile() bool {
	return c.path == "user/profile" || len(c.parts) == 2 && c.parts[0] == "users"
}

// authenticate finds the user of the first credential that the API knows the
// form of. It reports false for a credential that is bad; without one, or with a
// scheme that the API does not know, the caller is a guest.
func (c *call) authenticate() bool {
	scheme, value, _ := bytes.Cut(c.authorization, []byte(" "))
	value = bytes.TrimSpace(value)
	people := c.srv.people
	switch {
	case fold(scheme, "bearer"):
		subject, ok := c.srv.verify(value)
		if !ok {
			return false
		}
		c.user, c.kind = people.bySubject(subject), bearer
	case fold(scheme, "apikey"):
		c.user, c.kind = people.holderOf(people.keys, value)
	case c.sso != nil:
		c.user, c.kind = people.holderOf(people.sso, c.sso)
	default:
		if c.servlet != nil {
			c.user, c.kind = people.holderOf(people.sessions, c.servlet)
		}
		return true
	}
	if c.user == nil {
		return false
	}
	c.openSession()
	return true
}

// openSession leaves the user in a servlet session, as the API does.
func (c *call) openSession() {
	people := c.srv.people
	if c.servlet != nil {
		if owner, _ := people.holderOf(people.sessions, c.servlet); owner != nil {
			people.adopt(c.servlet, c.user, c.kind)
			return
		}
	}
	c.Response.Header.Add("Set-Cookie", "JSESSIONID="+people.sessionFor(c.user, c.kind)+"; Path="+prefix+"; HttpOnly")
}

// param returns the first value of a query parameter.
func (c *call) param(name string) string {
	for pair := range bytes.SplitSeq(c.query, []byte("&")) {
		n, value, _ := bytes.Cut(pair, []byte("="))
		if string(n) != name && unescape(n) != name {
			continue
		}
		return unescape(value)
	}
	return ""
}

func unescape(b []byte) string {
	if bytes.IndexByte(b, '%') < 0 && bytes.IndexByte(b, '+') < 0 {
		return string(b)
	}
	s, err := url.QueryUnescape(string(b))
	if err != nil {
		return string(b)
	}
	return s
}

// fold compares a name with a lower-case ASCII constant, whatever its case.
func fold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := range b {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func (c *call) answer(status int, mediaType string, body []byte) {
	c.Response.SetStatusCode(status)
	if mediaType != "" {
		c.Response.Header.SetContentType(mediaType)
	}
	c.Response.SetBodyRaw(body)
}

// fail answers an error as the API words it; the API never sends
// WWW-Authenticate.
func (c *call) fail(status int, message string) {
	c.Response.Header.Del("Cache-Control")
	c.answer(status, "application/json", errorBody(message))
}

func errorBody(message string) []byte {
	return []byte(`{"message":` + quote(message) + `,"incidentIdentifier":"` + newUUID() + `","source":"Unknown","details":{}}`)
}
