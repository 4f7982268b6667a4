package cache

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	dialTimeout = 500 * time.Millisecond // TLS and the first commands included

	// A silent partition is noticed by a PING that gets no answer: after two
	// quiet gaps at worst, then the time that the answer may take. Together they
	// must stay under the 3 s that are promised.
	pingGap    = 500 * time.Millisecond
	pingAnswer = time.Second

	// callLimit bounds one command. A reply that takes longer counts as Redis
	// being away: the callers have an API to ask instead.
	callLimit = time.Second

	probeFirst, probeLast = 10 * time.Millisecond, 400 * time.Millisecond

	// trackRetry is how often a server that did not track keys is asked again
	// whether it does: it may be another by now, or permit what it refused.
	trackRetry = 5 * time.Second

	sentinelRefresh = time.Second
	clusterRefresh  = 5 * time.Second

	// cacheBytes bounds the client-side cache: about 10,000 users. What falls out
	// is read again.
	cacheBytes = 16 << 20
)

// ErrAway says that Redis cannot be used at the moment: it is down, too slow,
// or refuses what it is asked.
var ErrAway = errors.New("redis is away")

// RedisConfig says where Redis is.
type RedisConfig struct {
	// URL in a form of rueidis.ParseURL: redis:// or rediss:// with one address,
	// several addresses (?addr=…) of a cluster, or ?master_set=… with the
	// addresses of Sentinels, which then share user and password with Redis if
	// sentinel_auth=1.
	URL string
	// Said is told when Redis goes away, comes back, or cannot track keys; of an
	// outage that comes and goes, at most once a minute. Nil says nothing.
	Said func(message string)
}

// Redis is the shared tier: strings under keys, read through a client-side cache
// that Redis itself keeps true by pushing invalidations (CLIENT TRACKING).
//
// It works from the first moment, with or without a server behind it. While the
// server is away every call fails at once with ErrAway and a probe looks for it;
// in a cluster that holds for each part of the key space by itself. Safe for
// concurrent use; Close ends it.
type Redis struct {
	opt rueidis.ClientOption
	say speaker

	link    atomic.Pointer[link]
	parts   [parts]part
	tracked *tracked
	pushes  atomic.Uint64
	dials   atomic.Uint64
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	linking sync.Mutex
}

// link is a client and what its server can do.
type link struct {
	rueidis.Client
	tracking bool
}

// A part is a range of hash slots. A node of a cluster owns ranges of slots, so
// that a lost node takes whole parts away and leaves the others alone. Without a
// cluster there is one.
const (
	parts    = 64
	slotBits = 14
)

type part struct {
	away    atomic.Bool
	outages atomic.Uint64
}

// OpenRedis connects in the background if it cannot at once: only a URL that
// cannot be understood is an error.
func OpenRedis(cfg RedisConfig) (*Redis, error) {
	opt, err := options(cfg.URL)
	if err != nil {
		return nil, err
	}
	r := &Redis{opt: opt, tracked: newTracked(cacheBytes)}
	r.opt.NewCacheStoreFn = r.tracked.connection
	r.say.to = cfg.Said
	dial := r.opt.DialCtxFn // set for unix:// alone
	r.opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (c net.Conn, err error) {
		switch {
		case dial != nil:
			c, err = dial(ctx, addr, d, t)
		case t != nil:
			c, err = (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", addr)
		default:
			c, err = d.DialContext(ctx, "tcp", addr)
		}
		r.dials.Add(1) // before a reply of the new connection can arrive
		return c, err
	}
	r.opt.OnInvalidations = func([]rueidis.RedisMessage) { r.pushes.Add(1) }
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.connect(); err != nil {
		for i := range r.parts {
			r.parts[i].away.Store(true)
		}
		r.parts[0].outages.Store(1)
		r.say.away(err)
		r.work.Go(r.keepConnecting)
	}
	if opt.Sentinel.MasterSet != "" {
		r.work.Go(r.watch)
	}
	return r, nil
}

// CheckURL is an error if nothing could be opened by the URL.
func CheckURL(raw string) error {
	_, err := options(raw)
	return err
}

// options reads the URL. Its error repeats nothing of what the parser says: where a
// password is not percent-encoded, parts of it are taken for port, path or escape.
func options(raw string) (rueidis.ClientOption, error) {
	opt, err := rueidis.ParseURL(raw)
	if err != nil {
		return opt, errors.New("want a URL such as redis://user:password@host:6379, rediss:// or unix://, with a password that is percent-encoded")
	}
	several := opt.Sentinel.MasterSet != "" || len(opt.InitAddress) > 1
	if opt.TLSConfig != nil && several {
		opt.TLSConfig.ServerName = "" // each node is checked by the name it is dialled by
	}
	opt.Dialer = net.Dialer{Timeout: dialTimeout, KeepAlive: pingGap}
	opt.ConnWriteTimeout = pingAnswer
	opt.AlwaysPipelining = true
	opt.DisableRetry = true
	opt.PipelineMultiplex = -1 // one connection to a node: one cache, one order of replies and pushes
	opt.BlockingPoolSize = 4
	opt.ReadBufferEachConn, opt.WriteBufferEachConn = 64<<10, 64<<10
	opt.ClientName = "authorizer-proxy"
	opt.ClientSetInfo = rueidis.DisableClientSetInfo // one permission less to ask for
	if opt.Sentinel.MasterSet != "" {
		opt.Sentinel.Dialer = opt.Dialer
		opt.Sentinel.TLSConfig = opt.TLSConfig
		opt.Sentinel.ClientName = opt.ClientName
		opt.Sentinel.TopologyRefreshInterval = sentinelRefresh
		if u, err := url.Parse(raw); err == nil && u.Query().Get("sentinel_auth") == "1" {
			opt.Sentinel.Username, opt.Sentinel.Password = opt.Username, opt.Password
		}
	}
	opt.ClusterOption.ShardsRefreshInterval = clusterRefresh
	opt.ClusterOption.MaxMovedRedirections = 3
	return opt, nil
}

// connect makes the client. A client exists only after a first successful
// connection, which says what the server is; from then on rueidis dials again by
// itself.
func (r *Redis) connect() error {
	r.linking.Lock()
	defer r.linking.Unlock()
	client, err := newClient(r.opt)
	if !cannotTrack(err) {
		if err == nil {
			r.use(client, true)
		}
		return err
	}
	opt := r.opt
	opt.DisableCache = true
	if client, err = newClient(opt); err != nil {
		return err
	}
	if r.use(client, false) {
		r.say.tracking(false)
		r.work.Go(r.keepAsking)
	}
	return nil
}

// use puts a client in the place of the one before, and reports whether that one
// could track keys, or there was none. It is called under linking.
func (r *Redis) use(client rueidis.Client, tracking bool) bool {
	old := r.link.Swap(&link{Client: client, tracking: tracking})
	if old == nil {
		return true
	}
	r.work.Go(func() {
		r.sleep(2 * callLimit) // those who use it still finish
		old.Close()
	})
	return old.tracking
}

// keepAsking lives while the server does not track keys, and ends when it does.
func (r *Redis) keepAsking() {
	for r.sleep(trackRetry) {
		r.linking.Lock()
		tracks := r.link.Load().tracking
		if !tracks {
			if client, err := newClient(r.opt); err == nil {
				r.use(client, true)
				tracks = true
			}
		}
		r.linking.Unlock()
		if tracks {
			r.say.tracking(true)
			return
		}
	}
}

// newClient makes a client for one server, for a cluster if that is what the one
// server says it belongs to. (rueidis can find that out too, by asking for
// CLUSTER SLOTS first; then it keeps trying in the background when it fails.)
func newClient(opt rueidis.ClientOption) (rueidis.Client, error) {
	opt.ForceSingleClient = opt.Sentinel.MasterSet == "" && len(opt.InitAddress) == 1
	client, err := rueidis.NewClient(opt)
	if !opt.ForceSingleClient {
		return client, err
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		var info string
		info, err = client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
		if err == nil && !strings.Contains(info, "\nredis_mode:cluster") {
			return client, nil
		}
	}
	client.Close() // with ForceSingleClient there is one beside an error too
	if err != nil {
		return nil, err
	}
	opt.ForceSingleClient = false
	return rueidis.NewClient(opt)
}

// watch asks a primary with replicas every second whether it may still write. One
// that lost them all (min-replicas-to-write) may have been replaced behind a
// partition, and deletions go to another now.
func (r *Redis) watch() {
	for r.sleep(time.Second) {
		if !r.Away() {
			r.Set(r.ctx, "user:probe:watch", "1", callLimit)
		}
	}
}

// cannotTrack tells a server that will never track keys from one that is busy.
func cannotTrack(err error) bool {
	return errors.Is(err, rueidis.ErrNoCache) && !strings.HasPrefix(err.Error(), "BUSY")
}

func (r *Redis) keepConnecting() {
	for pause := probeFirst; r.sleep(pause); pause = min(2*pause, probeLast) {
		if r.connect() == nil {
			for i := range r.parts {
				r.parts[i].away.Store(false)
			}
			r.say.back()
			return
		}
	}
}

// sleep reports false when the tier is closed.
func (r *Redis) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// Close ends all connections and goroutines.
func (r *Redis) Close() {
	r.cancel()
	r.work.Wait()
	if l := r.link.Load(); l != nil {
		l.Close()
	}
}

// Tracking reports whether Redis tells us when a key that we read changes.
func (r *Redis) Tracking() bool {
	l := r.link.Load()
	return l != nil && l.tracking
}

// Away reports whether Redis, or a part of a cluster, is away.
func (r *Redis) Away() bool {
	for i := range r.parts {
		if r.parts[i].away.Load() {
			return true
		}
	}
	return false
}

// Pushes is the number of invalidations received.
func (r *Redis) Pushes() uint64 { return r.pushes.Load() }

// Dials is the number of connections made so far. While it stays the same, all
// that was read and written came from the same server processes.
func (r *Redis) Dials() uint64 { return r.dials.Load() }

// part is the part of the key space that a key is in.
func (l *link) part(key string) int {
	if l.Mode() != rueidis.ClientModeCluster {
		return 0
	}
	cmd := l.B().Get().Key(key).Build()
	return int(cmd.Slot()) >> (slotBits - 6)
}

// Load reads a key, from the client-side cache if it can. What is read stays there
// for life at most; with exact, no longer than Redis keeps it either, whatever
// becomes of the push that tells of its end. A key that does not exist is the empty
// string.
func (r *Redis) Load(key string, life time.Duration, exact bool) (Reading, error) {
	l := r.link.Load()
	if l == nil {
		return Reading{}, ErrAway
	}
	i := l.part(key)
	if r.parts[i].away.Load() {
		return Reading{}, ErrAway
	}
	text, err := r.read(l, key, life, exact)
	if lost(err) { // the connection ended under it: a new one costs less than doing without Redis
		text, err = r.read(l, key, life, exact)
	}
	if err != nil {
		return Reading{}, r.failed(r.ctx, key, i, err)
	}
	return r.tracked.reading(key, text), nil
}

func (r *Redis) read(l *link, key string, life time.Duration, exact bool) (string, error) {
	// The context belongs to no request: rueidis lets all who wait for one key fail
	// when the context of the first ends.
	ctx, cancel := context.WithTimeout(r.ctx, callLimit)
	defer cancel()
	cmd := l.B().Get().Key(key).Cache()
	if !exact {
		cmd = cmd.ToStaticTTL()
	}
	text, err := l.DoCache(ctx, cmd, life).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return text, err
}

// lost tells the end of a connection from an answer and from a time-out.
func lost(err error) bool {
	if err == nil {
		return false
	}
	_, answer := rueidis.IsRedisErr(err)
	return !answer && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// failed takes the part of the key away until a probe succeeds, unless it was the
// caller who gave up.
func (r *Redis) failed(ctx context.Context, key string, i int, err error) error {
	p := &r.parts[i]
	if ctx.Err() == nil && r.ctx.Err() == nil && p.away.CompareAndSwap(false, true) {
		p.outages.Add(1)
		if l := r.link.Load(); l != nil && replaced(err) {
			r.tracked.dropWhere(func(key string) bool { return l.part(key) == i })
		}
		r.say.away(err)
		r.work.Go(func() { r.probe(key, p) })
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// replaced reports whether the server says that it may not be the one to ask any
// more. Then what it told us before does not stand. Any other trouble leaves the
// connection, and with it the promise to tell us of changes.
func replaced(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	code, _, _ := strings.Cut(e.Error(), " ")
	return code == "NOREPLICAS" || code == "READONLY" || code == "MASTERDOWN" || code == "CLUSTERDOWN"
}

// probe waits until a key beside the one that failed can be written and read.
func (r *Redis) probe(key string, p *part) {
	beside := "user:probe:{" + key + "}"
	for pause := probeFirst; r.sleep(pause); pause = min(2*pause, probeLast) {
		ctx, cancel := context.WithTimeout(r.ctx, callLimit)
		l := r.link.Load()
		var err error
		for _, res := range l.DoMulti(ctx,
			l.B().Set().Key(beside).Value("1").Px(callLimit).Build(),
			l.B().Get().Key(beside).Build()) {
			err = errors.Join(err, res.Error())
		}
		cancel()
		if cannotTrack(err) {
			err = r.connect()
		}
		if err == nil {
			p.away.Store(false)
			r.say.back()
			return
		}
	}
}

// Outages is the number of outages so far, that of any part included. What is
// remembered during one must not be used when the number has changed.
func (r *Redis) Outages() (n uint64) {
	for i := range r.parts {
		n += r.parts[i].outages.Load()
	}
	return n
}

// speaker tells what became of Redis.
type speaker struct {
	to   func(string)
	mu   sync.Mutex
	last time.Time
	open bool // an outage was told of, its end not yet
}

const sayEvery = time.Minute

func (s *speaker) away(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil && (s.last.IsZero() || time.Since(s.last) >= sayEvery) {
		s.last, s.open = time.Now(), true
		s.to("redis is away: " + err.Error())
	}
}

func (s *speaker) back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		s.open = false
		s.to("redis is back")
	}
}

func (s *speaker) tracking(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.to == nil:
	case on:
		s.to("redis tracks keys now: user contexts are kept until it tells of a change")
	default:
		s.to("redis does not support CLIENT TRACKING, or refuses it to this user: user contexts are read again every few seconds")
	}
}

// The commands that follow are one round trip each, bounded by callLimit and ctx.

// do sends a command about key.
func (r *Redis) do(ctx context.Context, key string, build func(rueidis.Builder) rueidis.Completed) rueidis.RedisResult {
	results, err := r.doMulti(ctx, key, func(b rueidis.Builder) []rueidis.Completed { return []rueidis.Completed{build(b)} })
	if err != nil {
		return rueidis.NewErrorResult(err)
	}
	return results[0]
}

// doMulti sends commands about one key together. The error is that of the first
// that failed; an absent key is no failure.
func (r *Redis) doMulti(ctx context.Context, key string, build func(rueidis.Builder) []rueidis.Completed) ([]rueidis.RedisResult, error) {
	l := r.link.Load()
	if l == nil {
		return nil, ErrAway
	}
	i := l.part(key)
	if r.parts[i].away.Load() {
		return nil, ErrAway
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	results := l.DoMulti(limited, build(l.B())...)
	for _, res := range results {
		if err := res.Error(); err != nil && !rueidis.IsRedisNil(err) {
			return nil, r.failed(ctx, key, i, err)
		}
	}
	return results, nil
}

// Claim stores value under key if nothing is there, and tells which server
// process answered: its run_id changes with every restart and differs between a
// primary and the replica that takes over.
func (r *Redis) Claim(ctx context.Context, key, value string, life time.Duration) (claimed bool, runID string, err error) {
	results, err := r.doMulti(ctx, key, func(b rueidis.Builder) []rueidis.Completed {
		return []rueidis.Completed{
			b.Set().Key(key).Value(value).Nx().Px(life).Build(),
			b.Info().Section("server").Build().SetSlot(key),
		}
	})
	if err != nil {
		return false, "", err
	}
	runID, err = runIDOf(results[1])
	return results[0].Error() == nil, runID, err
}

// RunID names the server process that holds key now.
func (r *Redis) RunID(ctx context.Context, key string) (string, error) {
	return runIDOf(r.do(ctx, key, func(b rueidis.Builder) rueidis.Completed {
		return b.Info().Section("server").Build().SetSlot(key)
	}))
}

func runIDOf(res rueidis.RedisResult) (string, error) {
	info, err := res.ToString()
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(info, "\nrun_id:")
	id, _, end := strings.Cut(rest, "\r\n")
	if !ok || !end {
		return "", fmt.Errorf("%w: INFO shows no run_id", ErrAway)
	}
	return strings.Clone(id), nil
}

// swap replaces or deletes a value that is still what the caller believes.
var swap = rueidis.NewLuaScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1`)

// Swap puts value in the place of old, if old is what is there; an empty value
// deletes it. It reports whether it did.
func (r *Redis) Swap(ctx context.Context, key, old, value string, life time.Duration) (bool, error) {
	l := r.link.Load()
	if l == nil {
		return false, ErrAway
	}
	i := l.part(key)
	if r.parts[i].away.Load() {
		return false, ErrAway
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	done, err := swap.Exec(limited, l.Client, []string{key}, []string{old, value, fmt.Sprint(max(1, life.Milliseconds()))}).AsBool()
	if err != nil {
		return false, r.failed(ctx, key, i, err)
	}
	return done, nil
}

// Set stores value under key for the given life.
func (r *Redis) Set(ctx context.Context, key, value string, life time.Duration) error {
	return r.do(ctx, key, func(b rueidis.Builder) rueidis.Completed {
		return b.Set().Key(key).Value(value).Px(life).Build()
	}).Error()
}

// Value is what stands under a key, and for how long it still will; an absent key
// is the empty string.
type Value struct {
	Text string
	Left time.Duration
}

// Get reads keys from Redis itself, all at once where they are on one server.
func (r *Redis) Get(ctx context.Context, keys ...string) ([]Value, error) {
	results, err := r.doMulti(ctx, keys[0], func(b rueidis.Builder) []rueidis.Completed {
		list := make([]rueidis.Completed, 0, 2*len(keys))
		for _, key := range keys {
			list = append(list, b.Get().Key(key).Build(), b.Pttl().Key(key).Build())
		}
		return list
	})
	if err != nil {
		return nil, err
	}
	values := make([]Value, len(keys))
	for i := range values {
		text, err := results[2*i].ToString()
		if rueidis.IsRedisNil(err) {
			continue
		}
		left, err := results[2*i+1].AsInt64()
		if err != nil {
			return nil, err
		}
		values[i] = Value{text, time.Duration(left) * time.Millisecond}
	}
	return values, nil
}

// Extend lets a key live for life from now.
func (r *Redis) Extend(ctx context.Context, key string, life time.Duration) error {
	return r.do(ctx, key, func(b rueidis.Builder) rueidis.Completed {
		return b.Pexpire().Key(key).Milliseconds(life.Milliseconds()).Build()
	}).Error()
}

// Delete removes a key and reports whether it was there.
func (r *Redis) Delete(ctx context.Context, key string) (bool, error) {
	return r.do(ctx, key, func(b rueidis.Builder) rueidis.Completed {
		return b.Del().Key(key).Build()
	}).AsBool()
}

// replicaWait is how long a deletion waits for the replicas.
const replicaWait = 500 * time.Millisecond

// Deletion says what became of a deletion: whether the key was there, how many
// replicas its server has, and how many of them have deleted it too.
type Deletion struct {
	Was                    bool
	Replicas, Acknowledged int
}

// DeleteEverywhere deletes a key and waits a moment for the replicas.
func (r *Redis) DeleteEverywhere(ctx context.Context, key string) (d Deletion, err error) {
	info, err := r.do(ctx, key, func(b rueidis.Builder) rueidis.Completed {
		return b.Info().Section("replication").Build().SetSlot(key)
	}).ToString()
	if err != nil {
		return d, err
	}
	_, rest, _ := strings.Cut(info, "\nconnected_slaves:")
	count, _, _ := strings.Cut(rest, "\r\n")
	if d.Replicas, err = strconv.Atoi(count); err != nil {
		return d, fmt.Errorf("%w: INFO shows no connected_slaves", ErrAway)
	}
	if d.Replicas == 0 {
		d.Was, err = r.Delete(ctx, key)
		return d, err
	}
	results, err := r.doMulti(ctx, key, func(b rueidis.Builder) []rueidis.Completed {
		return []rueidis.Completed{
			b.Del().Key(key).Build(),
			b.Wait().Numreplicas(int64(d.Replicas)).Timeout(replicaWait.Milliseconds()).Build().SetSlot(key),
		}
	})
	if err != nil {
		return d, err
	}
	d.Was, _ = results[0].AsBool()
	acknowledged, err := results[1].AsInt64()
	d.Acknowledged = min(int(acknowledged), d.Replicas)
	return d, err
}

// Keys calls found with the keys that begin with prefix, on all servers, in
// batches and in no order; a key may come twice.
func (r *Redis) Keys(ctx context.Context, prefix string, found func(keys []string) error) error {
	l := r.link.Load()
	if l == nil || r.Away() {
		return ErrAway
	}
	for _, node := range l.Nodes() {
		for cursor := uint64(0); ; {
			entry, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(prefix+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				return fmt.Errorf("cannot list the keys of Redis: %w", err)
			}
			if err := found(entry.Elements); err != nil {
				return err
			}
			if cursor = entry.Cursor; cursor == 0 {
				break
			}
		}
	}
	return nil
}
