package pep

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// exchange is one request on its way. Its scratch is reused by later requests.
type exchange struct {
	rc          *fasthttp.RequestCtx
	target      route.Target
	head        head
	credentials authz.Credentials
	principal   *authz.Principal
	match       *route.Match // one for life: it keeps its memory
	subject     *authz.Subject
	question    authz.Question
	decision    authz.Decision
	grant       authz.Grant
	err         error

	then func(*Handler, *exchange) error // what is left to do once the body may come

	event   Event
	mark    time.Duration // end of the stage before, since the start
	id      [idLength]byte
	cookies []byte
}

var exchanges = sync.Pool{New: func() any { return &exchange{match: new(route.Match)} }}

func (h *Handler) begin(rc *fasthttp.RequestCtx) *exchange {
	h.inFlight.Add(1)
	x := exchanges.Get().(*exchange)
	x.rc = rc
	x.event.Start = time.Now()
	newID(&x.id)
	x.event.RequestID = unsafe.String(&x.id[0], len(x.id))
	x.event.Method = view(rc.Method())
	if c := ours(rc); c != nil {
		c.message.body(rc.Request.Header.ContentLength())
	}
	return x
}

const idLength = 32

// newID makes a request id. It is not a secret and no key, so the runtime's fast
// generator will do.
func newID(id *[idLength]byte) {
	var raw [idLength / 2]byte
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	hex.Encode(id[:], raw[:])
}

// lap gives the time since the stage before to a stage. Counting from the start
// takes half as long as asking what time it is.
func (x *exchange) lap(d *time.Duration) {
	now := time.Since(x.event.Start)
	*d += now - x.mark
	x.mark = now
}

// release gives the exchange back; nothing of it may be used afterwards.
func (x *exchange) release() {
	body, lines := x.question.Body, x.head.cookies
	*x = exchange{match: x.match, cookies: x.cookies[:0]}
	x.question.Body, x.head.cookies = body, lines[:0]
	exchanges.Put(x)
}

// read takes in the header: framing, credentials, target. It refuses what could
// mean one thing to policy and another to the upstream.
func (x *exchange) read() (err error) {
	header := &x.rc.Request.Header
	// fasthttp takes any two digits for a version.
	if v := header.Protocol(); string(v) != "HTTP/1.1" && string(v) != "HTTP/1.0" {
		return authz.Refuse(authz.ErrMalformed, "the version must be HTTP/1.1 or HTTP/1.0")
	}
	if c := ours(x.rc); c != nil {
		if c.message.phase == broken {
			return authz.Refuse(authz.ErrMalformed, "a line of this request, or of the one before, does not end in CRLF")
		}
		x.credentials.From, x.credentials.Last = c.from, c.last
	}
	if err = x.head.read(header.RawHeaders()); err != nil {
		return err
	}
	if method := x.event.Method; method == fasthttp.MethodConnect || method == fasthttp.MethodTrace {
		return authz.Refuse(authz.ErrMethodNotAllowed, "%s is not served", method)
	}
	if x.target, err = route.ParseTarget(header.RequestURI()); err != nil {
		return err
	}
	x.credentials.Authorization = x.head.authorization
	x.credentials.TestUser = x.head.testUser
	x.cookies, err = sessionCookies(x.cookies[:0], x.head.cookies)
	if len(x.cookies) > 0 {
		x.credentials.Cookie = x.cookies
	}
	return err
}

// view is the bytes as a string without a copy: it lives as long as they do.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
