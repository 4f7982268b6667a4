package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// conn is one connection to the API.
type conn struct {
	net.Conn
	br      *bufio.Reader
	pool    *pool
	raw     syscall.RawConn
	readBy  time.Time // the read deadline that is set; zero if unknown
	writeBy time.Time // the write deadline
	born    time.Time
	idle    time.Time // when it was put back
	reused  bool
	user    string        // whom it served last; empty if anonymous
	share   *atomic.Int32 // whose share it counts in while it is in use

	client net.Conn     // who waits for the answer
	until  atomic.Int64 // until when an answer is waited for, Unix nanoseconds; zero while that is left to the read deadline

	pending bool             // what peek found
	peek    func(fd uintptr) // bound once, so that a look costs no allocation

	// A request that the next Read sends before it waits: see ask.
	out    []byte
	in     []byte
	got    int
	failed error
	step   func(fd uintptr) bool // bound once; nil below TLS
}

// arm sets the deadlines of the next exchange.
func (c *conn) arm(now time.Time, timeout time.Duration) error {
	c.until.Store(now.Add(timeout).UnixNano())
	if moved(&c.writeBy, now, timeout) {
		if err := c.SetWriteDeadline(c.writeBy); err != nil {
			return err
		}
	}
	if moved(&c.readBy, now, min(timeout, c.pool.look)) {
		return c.SetReadDeadline(c.readBy)
	}
	return nil
}

// moved makes a deadline fit and reports whether it had to. Setting one is not
// free, so one that is less than a sixteenth too late stays.
func moved(deadline *time.Time, now time.Time, timeout time.Duration) bool {
	if left := deadline.Sub(now); left >= timeout && left <= timeout+timeout/16 {
		return false
	}
	*deadline = now.Add(timeout + timeout/16)
	return true
}

// disarm says that whoever reads and writes from here on sets the deadlines.
func (c *conn) disarm() {
	c.readBy, c.writeBy = time.Time{}, time.Time{}
	c.until.Store(0)
}

var errGone = errors.New("the client is gone")

// later leaves it to the next Read to send a request that may be sent again, if
// such a Read can. The connection is armed.
func (c *conn) later(request []byte) bool {
	if c.step == nil {
		return false
	}
	c.out = request
	return true
}

// Read reads what the API sent. An answer may take minutes, so every now and then
// it looks whether somebody still waits for it.
func (c *conn) Read(p []byte) (int, error) {
	if c.out != nil {
		if n, err := c.ask(p); n > 0 || err != nil {
			return n, err
		}
	}
	for {
		n, err := c.Conn.Read(p)
		if err == nil || n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		until, now := c.until.Load(), time.Now()
		left := time.Duration(until - now.UnixNano())
		switch {
		case until == 0 || left <= 0:
			return 0, err
		case hungUp(c.client):
			return 0, errGone
		}
		c.readBy = now.Add(min(left, c.pool.look))
		if err := c.SetReadDeadline(c.readBy); err != nil {
			return 0, err
		}
	}
}

// hungUp reports whether the other end of a connection was closed. That a client
// closes its direction alone and waits for an answer on the other is not told
// apart from that, as with most servers.
func hungUp(nc net.Conn) bool {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS
		nc = t.NetConn()
	}
	s, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	_ = raw.Control(func(fd uintptr) { closed = readHungUp(fd) })
	return closed
}

// ask sends a request and waits for its answer. A plain Read would first try to
// read, in vain, since no API has answered yet: a system call for nothing, and
// those are the most of what a request costs. So the wait is made ready, the
// request is sent, and only what comes is read.
//
// What came before the wait was made ready wakes nobody. It can only be the end
// of a connection that the API closed while it was idle, and a closed socket
// answers the request with a reset, which does. One that the API only half
// closed would stay silent; but this wait ends at the next look, and after it a
// plain Read finds what is there. Nothing and no error says that it should try.
func (c *conn) ask(p []byte) (int, error) {
	c.in, c.got, c.failed = p, 0, nil
	err := c.raw.Read(c.step)
	out := c.out
	c.in, c.out = nil, nil
	switch {
	case c.got > 0 || c.failed != nil:
		return c.got, c.failed
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case len(out) > 0: // there was no room for all of it
		_, err = c.Conn.Write(out)
		return 0, err
	}
	return 0, nil
}

// exchange is a step of ask. It is true when there is nothing to wait for.
func (c *conn) exchange(fd uintptr) bool {
	if len(c.out) > 0 {
		n, err := syscall.Write(int(fd), c.out)
		if err != nil && err != syscall.EAGAIN && err != syscall.EINTR {
			c.failed = os.NewSyscallError("write", err)
			return true
		}
		c.out = c.out[max(n, 0):]
		return len(c.out) > 0
	}
	n, err := syscall.Read(int(fd), c.in)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return false
	case err != nil:
		c.failed = os.NewSyscallError("read", err)
	case n == 0:
		c.failed = io.EOF
	}
	c.got = max(n, 0)
	return true
}

// usable reports whether an idle connection is open and silent. Bytes that came
// while nobody asked would be taken for the answer to the next request. The look
// is a system call, a twentieth of what a whole request costs, so under load it is
// left out for the user whom the connection served last: nobody else's answer can
// be there. user is empty for a request that must be sure, since it is anonymous
// or cannot be repeated.
func (c *conn) usable(now time.Time, user string) bool {
	if user != "" && user == c.user && now.Sub(c.idle) < unseen {
		return true
	}
	c.pending = true
	// Control and not Read, which would heed a deadline long past.
	return c.raw.Control(c.peek) == nil && !c.pending
}

func (c *conn) look(fd uintptr) {
	var b [1]byte
	_, err := syscall.Read(int(fd), b[:])
	// The socket does not block. Anything but "nothing there" ends its use, so
	// it does not matter that a byte is taken off it.
	c.pending = err != syscall.EAGAIN
}

// pool holds the idle connections, newest first, so that a lull lets the oldest
// go. It is divided by client connection: cores meet at a lock only when one
// part has run dry.
type pool struct {
	dialer  fasthttp.TCPDialer
	addr    string
	tls     *tlsSource // nil for http
	max     int32
	timeout time.Duration // of a dial
	look    time.Duration // how often a wait looks for the client
	open    atomic.Int32
	waiting atomic.Int32
	freed   chan struct{} // a token says: look again
	shards  []shard
	stop    chan struct{}
	done    chan struct{}
	closed  atomic.Bool

	// Connections in use for anonymous callers, and for subjects. These are
	// counted by a hash that nobody outside can foretell: exact enough to be fair,
	// and without a map that everybody would have to lock.
	strangers atomic.Int32
	subjects  [1 << 10]atomic.Int32
	seed      maphash.Seed
}

type shard struct {
	mu   sync.Mutex
	idle []*conn
	_    [32]byte // a cache line of its own
}

func newPool(addr string, tls *tlsSource, max int, timeout time.Duration) *pool {
	p := &pool{
		addr:    addr,
		tls:     tls,
		max:     int32(max),
		timeout: timeout,
		look:    lookEvery,
		freed:   make(chan struct{}, 1),
		shards:  make([]shard, min(runtime.GOMAXPROCS(0), 16)),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		seed:    maphash.MakeSeed(),
	}
	p.dialer.DNSCacheDuration = dnsCache
	go p.tidy()
	return p
}

// take is get, or fresh, for a caller. One subject may have half of the
// connections, and so may anonymous callers together: whoever fills that, the
// other half is left to everybody else.
func (p *pool) take(s *authz.Subject, get func() (*conn, error)) (*conn, error) {
	share, user := &p.strangers, ""
	if s.Authenticated {
		share, user = p.shareOf(s.ID), s.ID
	}
	if share.Add(1) > max(1, p.max/2) {
		share.Add(-1)
		failedShare.Inc()
		return nil, authz.Refuse(authz.ErrUnavailable, "too many requests of one caller are under way")
	}
	c, err := get()
	if err != nil {
		share.Add(-1)
		return nil, err
	}
	c.share, c.user = share, user
	return c, nil
}

func (p *pool) shareOf(user string) *atomic.Int32 {
	return &p.subjects[maphash.String(p.seed, user)%uint64(len(p.subjects))]
}

// returned ends the use of a connection.
func (p *pool) returned(c *conn) {
	c.client = nil
	if c.share != nil {
		c.share.Add(-1)
		c.share = nil
	}
}

// get returns an idle connection or a new one. An idle one has been looked at,
// except for a user whom it served just now.
func (p *pool) get(key uint64, now time.Time, user string) (*conn, error) {
	if c := p.pop(key, now, user); c != nil {
		return c, nil
	}
	if p.open.Add(1) <= p.max {
		return p.dial()
	}
	p.open.Add(-1)
	return p.wait(key, user)
}

// fresh returns a new connection, whatever is idle.
func (p *pool) fresh() (*conn, error) {
	if p.open.Add(1) > p.max {
		p.open.Add(-1)
		return nil, busy()
	}
	return p.dial()
}

func (p *pool) wait(key uint64, user string) (*conn, error) {
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	timer := time.NewTimer(busyTimeout)
	defer timer.Stop()
	for {
		if c := p.pop(key, time.Now(), user); c != nil {
			p.wake() // whoever waits beside us
			return c, nil
		}
		if p.open.Add(1) <= p.max {
			p.wake()
			return p.dial()
		}
		p.open.Add(-1)
		select {
		case <-p.freed:
		case <-timer.C:
			return nil, busy()
		}
	}
}

func busy() error {
	failedBusy.Inc()
	return authz.Refuse(authz.ErrUnavailable, "too many requests are under way")
}

// wake lets one waiting request look again. A token that nobody needs costs one
// look.
func (p *pool) wake() {
	if p.waiting.Load() > 0 {
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}
}

func (p *pool) pop(key uint64, now time.Time, user string) *conn {
	n := uint64(len(p.shards))
	for i := range n {
		s := &p.shards[(key+i)%n]
		for {
			c := s.pop()
			if c == nil {
				break
			}
			if c.usable(now, user) {
				c.reused = true
				return c
			}
			p.discard(c)
		}
	}
	return nil
}

func (s *shard) pop() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle) - 1
	if n < 0 {
		return nil
	}
	c := s.idle[n]
	s.idle[n] = nil
	s.idle = s.idle[:n]
	return c
}

// put takes a connection back whose exchange is complete.
func (p *pool) put(key uint64, c *conn) {
	now := time.Now()
	p.returned(c)
	if now.Sub(c.born) >= connLife || c.br.Buffered() > 0 || p.closed.Load() {
		p.discard(c)
		return
	}
	c.idle = now
	s := &p.shards[key%uint64(len(p.shards))]
	s.mu.Lock()
	s.idle = append(s.idle, c)
	s.mu.Unlock()
	if p.closed.Load() {
		p.drop(0)
	}
	p.wake()
}

// discard closes a connection that must not be used again.
func (p *pool) discard(c *conn) {
	p.returned(c)
	_ = c.Close()
	p.open.Add(-1)
	p.wake()
}

// dial makes a connection; the caller has counted it.
func (p *pool) dial() (*conn, error) {
	dials.Inc()
	nc, err := p.connect(time.Now().Add(p.timeout))
	if err != nil {
		p.open.Add(-1)
		p.wake()
		failedDial.Inc()
		if errors.Is(err, fasthttp.ErrDialTimeout) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, authz.Refuse(authz.ErrUpstreamTimeout, "the API does not accept connections").Because(err)
		}
		return nil, authz.Refuse(authz.ErrUpstream, "the API cannot be reached").Because(err)
	}
	c := &conn{Conn: nc, pool: p, born: time.Now()}
	c.br = bufio.NewReaderSize(c, readBuffer)
	c.peek = c.look
	tcp := nc
	if t, ok := nc.(*tls.Conn); ok {
		tcp = t.NetConn()
	} else {
		c.step = c.exchange
	}
	if c.raw, err = tcp.(syscall.Conn).SyscallConn(); err != nil {
		p.discard(c)
		return nil, authz.Refuse(authz.ErrUpstream, "the API cannot be reached").Because(err)
	}
	return c, nil
}

func (p *pool) connect(deadline time.Time) (net.Conn, error) {
	nc, err := p.dialer.DialDualStackTimeout(p.addr, time.Until(deadline))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %q: %w", p.addr, err)
	}
	if p.tls == nil {
		return nc, nil
	}
	cfg, err := p.tls.config()
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	tc := tls.Client(nc, cfg)
	_ = tc.SetDeadline(deadline)
	if err := tc.Handshake(); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("cannot agree on TLS with %q: %w", p.addr, err)
	}
	return tc, tc.SetDeadline(time.Time{})
}

// tidy closes what has been idle for too long.
func (p *pool) tidy() {
	defer close(p.done)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.drop(idleConn)
		case <-p.stop:
			return
		}
	}
}

// drop closes the connections that have been idle for so long.
func (p *pool) drop(after time.Duration) {
	now := time.Now()
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		n := 0
		for n < len(s.idle) && now.Sub(s.idle[n].idle) >= after {
			n++
		}
		old := slices.Clone(s.idle[:n])
		s.idle = slices.Delete(s.idle, 0, n)
		s.mu.Unlock()
		for _, c := range old {
			p.discard(c)
		}
	}
}

func (p *pool) close() {
	if p.closed.Swap(true) {
		return
	}
	close(p.stop)
	<-p.done
	p.drop(0)
}

// DialTLS makes the connections of other calls to the API, as an http.Transport
// wants them: certificates must lead to one in the PEM file, which is read again
// when it has changed.
// said is told, each time, that the file cannot be read; the last good one stays.
func DialTLS(file string, said func(message string)) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	source := &tlsSource{file: file, said: said}
	if _, err := source.config(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		cfg, err := source.config()
		if err != nil {
			return nil, err
		}
		// The dialer takes the server's name from the address.
		return (&tls.Dialer{Config: cfg}).DialContext(ctx, network, addr)
	}, nil
}

// tlsSource makes the TLS configuration and reads the CA file again when it has
// changed. A file that cannot be read leaves the last good one in use.
type tlsSource struct {
	host string
	file string
	said func(message string)

	mu    sync.Mutex
	last  *tls.Config
	mtime time.Time
	size  int64
}

func (t *tlsSource) config() (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" {
		if t.last == nil {
			t.last = t.with(nil)
		}
		return t.last, nil
	}
	info, err := os.Stat(t.file)
	if err == nil && t.last != nil && info.ModTime().Equal(t.mtime) && info.Size() == t.size {
		return t.last, nil
	}
	var roots *x509.CertPool
	if err == nil {
		roots, err = readCA(t.file)
	}
	if err == nil {
		t.last, t.mtime, t.size = t.with(roots), info.ModTime(), info.Size()
	}
	if t.last == nil {
		return nil, err
	}
	if err != nil {
		failedReload.Inc()
		t.said("UPSTREAM_CA is not read again, what it held before stays in use: " + err.Error())
	}
	return t.last, nil
}

func (t *tlsSource) with(roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		ServerName:         t.host,
		RootCAs:            roots,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(0),
	}
}

func readCA(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read CA file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %q holds no PEM certificate", file)
	}
	return roots, nil
}
