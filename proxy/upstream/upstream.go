// Package upstream carries decided requests to the API and its answers back.
//
// What the API receives is written here, not edited: a fresh request line with
// the target bytes as they came, the client's header lines one by one from the
// bytes received (so order, spelling and repeats survive), without those that
// belong to one hop or to us, and then our own. The answer streams back the
// same way. Nothing is decided here; by the time Forward is called the request
// is allowed.
//
// The connections are our own and not a fasthttp.HostClient. HostClient repeats
// PUT and anything that timed out, cannot tell a connection that died unused
// from one that died with the request on it, reports the answer only after the
// whole request body is written (an early 413 is lost), and keeps a connection
// after 101. What remains of it for our use is a list of idle connections, and
// writing the header block once from the bytes received is also cheaper. Heads
// of answers are parsed by fasthttp, names are resolved by fasthttp.TCPDialer;
// chunks are read here, since a reader that waits for a whole chunk holds back
// the part of it that came.
//
// A Forwarder may be used by any number of goroutines. A connection belongs to
// one exchange at a time: to Forward until it returns, then to the response
// body stream until the server closes that.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"

	"headgate/proxy/authz"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"
)

// Config says where the API is and how long to wait for it.
type Config struct {
	// URL is the API's address: http or https, host, optional port. Its path is
	// not used here: clients use the same one.
	URL *url.URL

	// FirstByteTimeout bounds the wait for the first byte of an answer once the
	// request has been sent.
	FirstByteTimeout time.Duration

	// IdleTimeout is the longest silence, of either side, while a body is under
	// way. Zero means FirstByteTimeout.
	IdleTimeout time.Duration

	// CA is a file of PEM certificates that the API's certificate must lead to;
	// it is read again when it changes. Empty means those of the system.
	CA string

	// Said is told what an operator should know, each time; nil tells nobody.
	Said func(message string)

	// ContextHeader is the name of the context header; empty sends none.
	ContextHeader string

	// HeaderMax is the most bytes of request line and headers together that the
	// API takes; zero means 32 KiB.
	HeaderMax int

	// TrustedProxies are the peers whose X-Forwarded-For, -Proto and -Host are
	// believed.
	TrustedProxies []netip.Prefix

	// Secure says that clients reach us by TLS.
	Secure bool

	// MaxConns bounds the connections to the API; zero means 512.
	MaxConns int
}

const (
	defaultMaxConns  = 512
	defaultHeaderMax = 32 << 10
	// What servers take if nobody tells them otherwise: Tomcat, nginx and others.
	usualHeaderMax = 8 << 10
	dialTimeout    = 5 * time.Second // or FirstByteTimeout, where that is shorter
	// A request waits this long for one of MaxConns to come free.
	busyTimeout = 200 * time.Millisecond
	// Tomcat closes an idle connection after 20 s; we must be first.
	idleConn = 15 * time.Second
	// So long after its last use a connection is taken without a look at it, by
	// the same user and for a request that could be repeated.
	unseen = 50 * time.Millisecond
	// So often a wait for an answer looks whether the client is still there.
	lookEvery = 2 * time.Second
	// A connection is given up at this age, so that a changed DNS record is
	// followed under constant load too.
	connLife = time.Minute
	dnsCache = 10 * time.Second

	// A body up to this size is read before a connection is taken, so that a
	// slow client holds none, and is sent in one piece with the head.
	smallBody = 64 << 10
	// Room for the head of an answer; Tomcat's own limit is 8 KiB.
	readBuffer = 16 << 10
	maxInterim = 16
	// How long an upload that was answered early may still take to finish.
	earlyGrace = 20 * time.Millisecond
	// The same once the client has sent everything.
	endingGrace = time.Second
)

var (
	dials      = metrics.NewCounter("authorizer_proxy_upstream_dials_total")
	retries    = metrics.NewCounter("authorizer_proxy_upstream_retries_total")
	clientGone = metrics.NewCounter("authorizer_proxy_upstream_client_gone_total")
	// The context header went without ts_privileges, or without roles too.
	contextReduced = metrics.NewCounter("authorizer_proxy_context_header_reduced_total")
	// The API refused a request whose head is over what servers usually take.
	headerRefused = metrics.NewCounter("authorizer_proxy_upstream_large_header_refused_total")

	failedDial     = failures("dial")
	failedAnswer   = failures("answer") // the connection ended before an answer came
	failedTimeout  = failures("timeout")
	failedProtocol = failures("protocol")
	failedBusy     = failures("busy")
	failedShare    = failures("share") // one caller has half of the connections
	failedBody     = failures("body")  // the answer broke off

	failedReload = metrics.NewCounter(`authorizer_proxy_tls_reload_failures_total{file="upstream_ca"}`)
)

func failures(kind string) *metrics.Counter {
	return metrics.NewCounter(`authorizer_proxy_upstream_failures_total{kind="` + kind + `"}`)
}

// Forwarder forwards to one API. See New.
type Forwarder struct {
	pool          *pool
	startLine     string // what follows the target: version and Host
	contextHeader string // its name as configured; empty without
	contextName   []byte // folded; nil without
	contextLine   []byte // "name: "; nil without
	headMax       int
	trusted       []netip.Prefix
	firstByte     time.Duration
	idle          time.Duration
	secure        bool
}

// New checks cfg, reads the CA file and starts the pool of connections; none is
// opened yet. Close ends it.
func New(cfg Config) (*Forwarder, error) {
	f := &Forwarder{
		startLine: " HTTP/1.1\r\nHost: " + cfg.URL.Host + "\r\n",
		headMax:   cmp.Or(cfg.HeaderMax, defaultHeaderMax),
		trusted:   cfg.TrustedProxies,
		firstByte: cfg.FirstByteTimeout,
		idle:      cfg.IdleTimeout,
		secure:    cfg.Secure,
	}
	if cfg.Said == nil {
		cfg.Said = func(string) {}
	}
	if f.firstByte <= 0 {
		return nil, fmt.Errorf("time-out of the upstream must be positive, not %v", f.firstByte)
	}
	if f.idle == 0 {
		f.idle = f.firstByte
	}
	if cfg.ContextHeader != "" {
		var folded [maxName]byte
		name, ok := fold(&folded, []byte(cfg.ContextHeader))
		if !ok || len(name) == maxName {
			return nil, fmt.Errorf("context header %q is not a header name of less than %d characters", cfg.ContextHeader, maxName)
		}
		f.contextName = bytes.Clone(name)
		f.contextHeader, f.contextLine = cfg.ContextHeader, []byte(cfg.ContextHeader+": ")
	}
	port := cfg.URL.Port()
	var secure *tlsSource
	switch cfg.URL.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
		secure = &tlsSource{host: cfg.URL.Hostname(), file: cfg.CA, said: cfg.Said}
		if _, err := secure.config(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("scheme of upstream %q is neither http nor https", cfg.URL.Redacted())
	}
	if cfg.URL.Hostname() == "" {
		return nil, fmt.Errorf("upstream %q names no host", cfg.URL.Redacted())
	}
	f.pool = newPool(net.JoinHostPort(cfg.URL.Hostname(), port), secure, cmp.Or(cfg.MaxConns, defaultMaxConns), min(dialTimeout, f.firstByte))
	return f, nil
}

// Close closes the idle connections; those in use are closed by their exchange.
func (f *Forwarder) Close() { f.pool.close() }

// Open is the number of connections to the API, in use or idle.
func (f *Forwarder) Open() int { return int(f.pool.open.Load()) }

// Ping reports whether the API accepts a connection. It sends no request: what
// the API sees are requests that were decided, and nothing else.
func (f *Forwarder) Ping(ctx context.Context) error {
	deadline := time.Now().Add(dialTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	nc, err := f.pool.connect(deadline)
	if err != nil {
		return err
	}
	return nc.Close()
}

// Trusts reports whether the peer is among TrustedProxies.
func (f *Forwarder) Trusts(rc *fasthttp.RequestCtx) bool {
	if len(f.trusted) == 0 {
		return false
	}
	return f.trusts(peer(rc))
}

func (f *Forwarder) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(f.trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Client is the address that a request comes from as far as it can be believed: the
// peer or, as long as that is a trusted proxy, the one before it in X-Forwarded-For.
func (f *Forwarder) Client(rc *fasthttp.RequestCtx, forwardedFor []byte) netip.Addr {
	addr := peer(rc)
	for len(forwardedFor) > 0 && f.trusts(addr) {
		last := forwardedFor[bytes.LastIndexByte(forwardedFor, ',')+1:]
		forwardedFor = bytes.TrimSuffix(forwardedFor[:len(forwardedFor)-len(last)], []byte(","))
		before, err := netip.ParseAddr(string(bytes.TrimSpace(last)))
		if err != nil {
			break
		}
		addr = before.Unmap().WithZone("")
	}
	return addr
}

// Forward sends the request to the API and writes its answer into rc: status,
// headers and a body that is there or streams. What the client is told beyond
// that (request id, CORS) is to be set afterwards; Connection: close, where
// Forward set it, must stay.
//
// On an error nothing of an answer is in rc. The kinds are ErrUpstream,
// ErrUpstreamTimeout, ErrUnavailable (all connections are in use),
// ErrObligation (the context header does not fit), ErrHeaderTooLarge (the client's
// header and ours together do not), ErrMalformed (the request
// cannot be passed on, or its body broke off) and ErrSlowClient (its body did not
// come).
//
// A request is sent once. It is sent again, on a new connection, only when a
// kept connection turned out dead: nothing could be written, or a GET, HEAD or
// OPTIONS without a body got not one byte of an answer.
func (f *Forwarder) Forward(rc *fasthttp.RequestCtx, g *authz.Grant) error {
	q := requests.Get().(*request)
	defer q.release()
	now := time.Now()
	if err := q.build(f, rc, g, now); err != nil {
		return err
	}
	if q.length > 0 {
		if err := q.load(rc, f.idle); err != nil {
			return err
		}
		now = time.Now()
	}
	user := ""
	if q.safe && g.Subject.Authenticated {
		user = g.Subject.ID
	}
	c, err := f.pool.take(g.Subject, func() (*conn, error) { return f.pool.get(rc.ConnID(), now, user) })
	if err != nil {
		return err
	}
	again, err := f.exchange(c, rc, g, q, now)
	if again {
		retries.Inc()
		if c, err = f.pool.take(g.Subject, f.pool.fresh); err == nil {
			_, err = f.exchange(c, rc, g, q, time.Now())
		}
	}
	return err
}

// exchange sends the request on c and takes the answer. c is the exchange's to
// put back or to close. On an error, again says that the request may be sent
// once more.
func (f *Forwarder) exchange(c *conn, rc *fasthttp.RequestCtx, g *authz.Grant, q *request, now time.Time) (again bool, err error) {
	c.client = rc.Conn()
	n, err := int64(0), c.arm(now, f.firstByte)
	if err == nil && !(q.safe && c.later(q.buf)) {
		n, err = q.write(c)
	}
	if err != nil && (n == 0 || q.stream != nil) {
		f.pool.discard(c)
		return n == 0 && c.reused && !errors.Is(err, os.ErrDeadlineExceeded), lost(err)
	}
	// The API may have said why it took no more than a part.
	q.partial = err != nil
	var up *upload
	if q.stream != nil {
		up = c.start(rc, q, f)
	}
	if _, err := c.br.Peek(1); err != nil {
		if up != nil {
			failed := up.finished() && up.readErr != nil
			up.abort()
			if failed {
				f.pool.discard(c)
				return false, broken(up.readErr)
			}
		}
		f.pool.discard(c)
		return q.safe && c.reused && err != errGone && !errors.Is(err, os.ErrDeadlineExceeded), lost(err)
	}
	if err := f.take(c, rc, g, q, up); err != nil {
		if up != nil {
			up.abort()
		}
		f.pool.discard(c)
		rc.Response.Reset()
		return false, err
	}
	return false, nil
}

// take reads the answer whose first byte is there. On an error c is still the
// caller's.
func (f *Forwarder) take(c *conn, rc *fasthttp.RequestCtx, g *authz.Grant, q *request, up *upload) error {
	h := &rc.Response.Header
	var reusable bool
	for interim := 0; ; interim++ {
		var err error
		if reusable, err = f.readHead(c, h, q, g); err != nil {
			return unreadable(err)
		}
		status := h.StatusCode()
		if status >= 200 {
			break
		}
		// We ask for no other protocol, so nobody can switch to one.
		if status < 100 || status == fasthttp.StatusSwitchingProtocols || interim == maxInterim {
			failedProtocol.Inc()
			return authz.Refuse(authz.ErrUpstream, "the API answered with status %d", status)
		}
	}
	if q.headSize > usualHeaderMax {
		switch h.StatusCode() {
		case fasthttp.StatusBadRequest, fasthttp.StatusRequestEntityTooLarge, fasthttp.StatusRequestURITooLong, fasthttp.StatusRequestHeaderFieldsTooLarge:
			headerRefused.Inc()
		}
	}
	length := int64(h.ContentLength())
	early := up != nil && !up.finished()
	if early || up != nil && (up.readErr != nil || up.sendErr != nil) {
		// What the client still sends has no reader; its connection ends with
		// this answer. The server must see this before it looks at the request
		// body, which the upload may still be reading.
		h.SetConnectionClose()
		reusable = false
	}
	reusable = reusable && !q.partial

	switch {
	case q.head, h.StatusCode() == fasthttp.StatusNoContent, h.StatusCode() == fasthttp.StatusNotModified, length == 0:
	case length > 0 && length <= smallBody:
		if int64(c.br.Buffered()) < length {
			c.disarm()
			_ = c.SetReadDeadline(time.Now().Add(f.idle))
		}
		if err := rc.Response.ReadBody(c.br, smallBody); err != nil {
			failedBody.Inc()
			return ended(err)
		}
	default:
		c.disarm()
		d := &download{c: c, rc: rc, f: f, key: rc.ConnID(), left: -1, reusable: reusable}
		if early {
			d.up = up
		}
		if length >= 0 {
			d.left = length
		} else if length == -1 {
			d.chunked = true
		}
		if length < 0 && !rc.Request.Header.IsHTTP11() {
			d.untilClosed()
			return nil
		}
		rc.Response.SetBodyStream(d, max(int(length), -1))
		return nil
	}
	if early {
		up.abort()
	}
	if reusable {
		f.pool.put(rc.ConnID(), c)
	} else {
		f.pool.discard(c)
	}
	return nil
}

// lost is the error of a connection that ended before an answer, or of a wait for
// one that nobody shares any more.
func lost(err error) error {
	if err == errGone {
		clientGone.Inc()
		return authz.Refuse(authz.ErrMalformed, "the client is gone")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		failedTimeout.Inc()
		return authz.Refuse(authz.ErrUpstreamTimeout, "the API did not answer in time").Because(err)
	}
	failedAnswer.Inc()
	return authz.Refuse(authz.ErrUpstream, "the API did not answer").Because(err)
}

// ended is the error of an answer that broke off in its body.
func ended(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return authz.Refuse(authz.ErrUpstreamTimeout, "the API did not complete its answer in time").Because(err)
	}
	return authz.Refuse(authz.ErrUpstream, "the API did not complete its answer").Because(err)
}
