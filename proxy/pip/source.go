// Package pip tells what is known about a principal: its roles, offices and
// privileges, from Redis, else from the API's own profile of the user (in the
// words of XACML it is the policy information point).
//
// The context of a user stands in Redis under user:context:<name>, once, however
// many tokens, keys and sessions the user comes with; each of those has an alias,
// user:alias:<digest>, that gives the name. So one deletion by name revokes them
// all. Redis tells every proxy of it (client-side caching), and what a proxy made
// of a context is used only as long as Redis still stands by the very bytes it was
// made from.
//
// A Source owns its goroutines and ends them with Run. Subjects are immutable and
// shared.
package pip

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
)

// Values of Config.ProfileURL that are no URL.
const (
	NoProfile    = "none"  // what the verified claims say is all
	RedisProfile = "redis" // an operator writes user:context:<sub>
)

// Config says where contexts come from and how long they are good for. The zero
// value of a duration or number is its default.
type Config struct {
	ProfileURL string // URL, NoProfile or RedisProfile
	LookupURL  string // with {name}; empty: no pre-warming and no refresh without the user's credential
	ServiceKey string // API key for LookupURL; never logged

	Life         time.Duration // a context is good for so long after it was read from the API; 30 min
	RefreshAfter time.Duration // age at which it is read again in the background; 5 min
	Timeout      time.Duration // one profile call; 30 s
	MaxCalls     int           // profile calls at once; 32
	MaxUsers     int           // users kept in the process; 10,000

	// DialTLS connects to the API by https; nil is the default of net/http.
	DialTLS func(ctx context.Context, network, addr string) (net.Conn, error)

	Warn func(message string) // told of what an operator should know, never per request; nil says nothing
}

const (
	// keyAliasLife bounds how long the name behind a key or cookie is believed:
	// the API is not asked whether it still stands by it in between.
	keyAliasLife = time.Minute
	// keyAliasRenewal is what is left of it when it is asked in the background.
	keyAliasRenewal = 20 * time.Second
	// refusalLife is how long a refusal of the API is repeated without asking.
	refusalLife = 5 * time.Second
	// awayLife bounds what is used while Redis is away: nobody can tell us then
	// that it is no longer true.
	awayLife = 30 * time.Second
	// untrackedLife does the same for a Redis that does not track keys.
	untrackedLife = 5 * time.Second
	// silence is how long a partition may go unnoticed (package cache).
	silence = 3 * time.Second

	maxRefusals = 10_000
	refreshers  = 8
)

// Source answers who a principal is. Make it with New, start Run, use Subject
// from any number of goroutines.
type Source struct {
	cfg   Config
	calls *calls
	redis *cache.Redis // nil: in the process only
	start time.Time
	warn  func(string)

	known   *cache.Local[*entry]  // by alias: what was made of a context
	names   *cache.Local[alias]   // by alias: names that must not or cannot be in Redis
	own     *own                  // contexts of this process, while or where there is no Redis
	refused *cache.Local[refusal] // by credential
	flights singleflight.Group    // by credential

	refreshing chan struct{}
	base       context.Context // of all that is done in the background
	stop       context.CancelFunc
	work       sync.WaitGroup
	begin      sync.Mutex // work is begun and ended under it
	oldest     atomic.Int64
}

// alias is a name and the end of the time that it may be believed for.
type alias struct {
	name string
	ends time.Duration
}

// never is an end that does not come.
const never = time.Duration(1<<63 - 1)

// New makes a Source. redis may be nil: then contexts are kept in the process
// alone, with the same rules.
func New(cfg Config, redis *cache.Redis) (*Source, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Life, 30*time.Minute)
	def(&cfg.RefreshAfter, 5*time.Minute)
	def(&cfg.Timeout, 30*time.Second)
	if cfg.MaxCalls == 0 {
		cfg.MaxCalls = 32
	}
	if cfg.MaxUsers == 0 {
		cfg.MaxUsers = 10_000
	}
	if cfg.ProfileURL == RedisProfile && redis == nil {
		return nil, errors.New("user contexts that an operator writes to Redis need a Redis")
	}
	if cfg.RefreshAfter > cfg.Life {
		return nil, fmt.Errorf("a context of %v at most is never old enough for a refresh after %v", cfg.Life, cfg.RefreshAfter)
	}
	if cfg.LookupURL != "" && !strings.Contains(cfg.LookupURL, "{name}") {
		return nil, fmt.Errorf("the look-up URL %q does not say where the {name} goes", cfg.LookupURL)
	}
	s := &Source{
		cfg: cfg, calls: newCalls(&cfg), redis: redis, start: time.Now(), warn: cfg.Warn,
		known:      cache.NewLocal[*entry](cache.LocalOptions{MaxEntries: cfg.MaxUsers}),
		names:      cache.NewLocal[alias](cache.LocalOptions{MaxEntries: cfg.MaxUsers}),
		own:        newOwn(cfg.MaxUsers),
		refused:    cache.NewLocal[refusal](cache.LocalOptions{MaxEntries: maxRefusals}),
		refreshing: make(chan struct{}, refreshers),
	}
	if s.warn == nil {
		s.warn = func(string) {}
	}
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Run lives until ctx ends, then ends what still goes on in the background and
// waits for it. After that a Source can do no more than repeat what it knows.
func (s *Source) Run(ctx context.Context) {
	<-ctx.Done()
	s.begin.Lock()
	s.stop()
	s.begin.Unlock()
	s.work.Wait()
	s.calls.client.CloseIdleConnections()
}

// working reports whether background work may begin; the caller then ends it with
// work.Done.
func (s *Source) working() bool {
	s.begin.Lock()
	defer s.begin.Unlock()
	if s.base.Err() != nil {
		return false
	}
	s.work.Add(1)
	return true
}

// Subject tells who p is. Its errors are ErrUnauthenticated when the API does not
// accept the credential, and ErrUnavailable when nobody could be asked.
func (s *Source) Subject(ctx context.Context, p *authz.Principal) (*authz.Subject, error) {
	switch p.Method {
	case authz.None:
		return authz.AnonymousSubject, nil
	case authz.Asserted, authz.Test:
		return authz.NewSubject(p, *p.User, time.Time{}), nil
	}
	if e, ok := s.known.Get(p.Alias); ok {
		if now := s.now(); s.stands(e, now) {
			hits.Inc()
			s.served(e, p, now)
			return e.subject(p), nil
		}
	}
	misses.Inc()
	switch s.cfg.ProfileURL {
	case NoProfile:
		return s.claimed(p)
	case RedisProfile:
		return s.written(p)
	}
	return s.learn(ctx, p)
}

// entry is what was made of a user's context for one alias. It is not changed,
// but for the subjects made of it and the time of the next refresh.
type entry struct {
	name   string
	record *record // nil where an operator wrote the context
	once   bool    // good for the requests that waited for it and no others
	claims bool    // made from verified claims and nothing else

	// What Redis said, and whether it still stands by it. Aliases of guessable
	// keys are not in Redis.
	shared         bool
	alias, context cache.Reading

	// Where the process is asked instead.
	here   bool
	key    authz.Digest // of the name, in own
	outage uint64

	// Times are counted from the start of the Source.
	fetched, checked, ends, aliasEnds time.Duration
	refresh                           atomic.Int64

	user     authz.User
	asOf     time.Time
	subjects atomic.Pointer[[]bound]
}

// bound is a subject and the claims it was made with: two tokens of one user may
// differ in them.
type bound struct {
	claims  []byte
	method  authz.Method
	subject *authz.Subject
}

const maxBound = 4

func (e *entry) subject(p *authz.Principal) *authz.Subject {
	list := e.subjects.Load()
	if list != nil {
		for i := range *list {
			if b := &(*list)[i]; b.method == p.Method && bytes.Equal(b.claims, p.Claims) {
				return b.subject
			}
		}
	}
	b := bound{p.Claims, p.Method, authz.NewSubject(p, e.user, e.asOf)}
	next := []bound{b}
	if list != nil {
		next = append(next, (*list)[:min(len(*list), maxBound-1)]...)
	}
	e.subjects.CompareAndSwap(list, &next)
	return b.subject
}

// now is the time since the start of the Source; steps of the wall clock do not
// touch it.
func (s *Source) now() time.Duration { return time.Since(s.start) }

// stands reports whether e may still be used. This is the warm path: it allocates
// nothing and asks nobody outside the process.
func (s *Source) stands(e *entry, now time.Duration) bool {
	switch {
	case now >= e.ends:
		return false
	case e.here:
		return s.own.stands(e) && (s.redis == nil || s.redis.Outages() == e.outage && s.redis.Away())
	case e.claims:
		return true
	case !s.redis.Tracking():
		return now-e.checked < untrackedLife
	}
	return (!e.shared || e.alias.Stands()) && e.context.Stands()
}

// served keeps count of the age of what was served and starts a refresh when it
// is time.
func (s *Source) served(e *entry, p *authz.Principal, now time.Duration) {
	if e.record == nil {
		return
	}
	if age := int64(now - e.fetched); age > s.oldest.Load() {
		s.oldest.Store(age)
	}
	if due := e.refresh.Load(); int64(now) >= due && e.refresh.CompareAndSwap(due, int64(now+refreshRetry)) {
		s.refreshLater(e, p)
	}
}

// refusal is what the API said instead of a profile.
type refusal struct {
	err     error
	fetched time.Time
}

// subject is the outcome of a refusal for p.
func (r refusal) subject(p *authz.Principal) (*authz.Subject, error) {
	switch {
	case !errors.Is(r.err, errNotAUser):
		name := p.Name
		if name == "" {
			name = p.ID
		}
		id := p.ID
		if id == "" { // a key or cookie: the API does not say whose
			id = string(p.Method) + ":" + hex.EncodeToString(p.Alias[:6])
			name = id
		}
		return authz.NewSubject(p, authz.User{ID: id, Username: name, RolesByOffice: map[string][]string{}}, r.fetched), nil
	case p.Optional:
		return authz.AnonymousSubject, nil
	}
	return nil, authz.Refuse(authz.ErrUnauthenticated, "the credential is not valid").Because(r.err)
}

// claimed is the subject where verified claims are all that is known.
func (s *Source) claimed(p *authz.Principal) (*authz.Subject, error) {
	if p.Method != authz.JWT {
		return refusal{err: errNotAUser}.subject(p)
	}
	e := &entry{claims: true, user: byClaims(p), ends: s.now() + s.cfg.Life}
	s.known.Set(p.Alias, e, s.cfg.Life)
	return e.subject(p), nil
}

// byClaims is the user as the token alone describes them.
func byClaims(p *authz.Principal) authz.User {
	return authz.User{ID: p.ID, Username: cmp.Or(p.Name, p.ID)}
}

// learn finds out who p is: with one flight for all who show the same credential.
// It belongs to none of them, so that one who leaves takes nothing from the others.
func (s *Source) learn(ctx context.Context, p *authz.Principal) (*authz.Subject, error) {
	start, credential := s.now(), credentialOf(p)
	for {
		if r, ok := s.refused.Get(credential); ok {
			return r.subject(p)
		}
		select {
		case <-ctx.Done():
			return nil, authz.Refuse(authz.ErrUnavailable, "the user context took too long").Because(ctx.Err())
		case result := <-s.flight(p, credential):
			if err := result.Err; err != nil {
				return s.failed(p, credential, err)
			}
			// What a flight found that took off after this request came was true since.
			// One that was under way may have seen less: then there is one more, so that
			// no request waits for a third while Redis comes and goes.
			if f := result.Val.(landed); f.began >= start || f.once || s.stands(f.entry, s.now()) {
				return f.subject(p), nil
			}
		}
	}
}

// landed is what a flight found, and when it began.
type landed struct {
	*entry
	began time.Duration
}

// flight is on its way to find out who p is, or takes off.
func (s *Source) flight(p *authz.Principal, credential authz.Digest) <-chan singleflight.Result {
	return s.flights.DoChan(string(credential[:]), func() (_ any, err error) {
		if !s.working() {
			return nil, errStopped
		}
		defer s.work.Done()
		defer survive(&err)
		began := s.now()
		e, err := s.resolve(p)
		return landed{e, began}, err
	})
}

// survive makes an error of a panic: background work has no request that would
// recover from it, and the process must live.
func survive(err *error) {
	if r := recover(); r != nil {
		panics.Inc()
		*err = fmt.Errorf("BUG: %v\n%s", r, debug.Stack())
	}
}

var errStopped = errors.New("the proxy is stopping")

// failed turns what the API said into the outcome for p.
func (s *Source) failed(p *authz.Principal, credential authz.Digest, err error) (*authz.Subject, error) {
	if errors.Is(err, errNotAUser) || errors.Is(err, errNoRights) {
		r := refusal{err, time.Now()}
		s.refused.Set(credential, r, refusalLife)
		return r.subject(p)
	}
	return nil, unavailable(err)
}

// unavailable is the outcome where nobody could say who p is.
func unavailable(err error) error {
	switch {
	case errors.Is(err, errBusy):
		return authz.Refuse(authz.ErrUnavailable, "too many users at once, try again").Because(err)
	case errors.Is(err, errCrowded):
		return authz.Refuse(authz.ErrUnavailable, "too many unknown credentials at once from one address, try again").Because(err)
	}
	return authz.Refuse(authz.ErrUnavailable, "the user context is not available").Because(err)
}

func credentialOf(p *authz.Principal) authz.Digest {
	return digest(p.Credential.Header, p.Credential.Value)
}

func digest(parts ...string) (d authz.Digest) {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Sum(d[:0])
	return d
}

// jitter spreads what many proxies would do at the same moment.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/10+1) }

// since turns a time of the wall clock, perhaps of another machine, into one of
// this Source. The future is now.
func (s *Source) since(t time.Time) time.Duration { return s.now() - max(0, time.Since(t)) }

// stranger is a principal that only the API can vouch for, and has not yet.
func stranger(p *authz.Principal) bool { return p.Method != authz.JWT }

// ask gets p's own profile, and refuses one that is another's.
func (s *Source) ask(ctx context.Context, p *authz.Principal) (*record, error) {
	r, err := s.calls.own(ctx, p.Credential)
	if err == nil && !r.of(p) {
		mismatched.Inc()
		return nil, fmt.Errorf("the profile is that of another principal than the token's")
	}
	return r, err
}

// meet is ask for one who may be a stranger.
func (s *Source) meet(ctx context.Context, p *authz.Principal) (*record, error) {
	leave, err := s.calls.strangers.enter(p)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.ask(ctx, p)
}

// of reports whether the record can be that of p.
func (r *record) of(p *authz.Principal) bool {
	return r.Principal == "" || p.Method != authz.JWT || r.Principal == p.Issuer+"::"+p.ID
}

// Tracking reports whether Redis tells this process of changes, or there is no
// Redis to tell of any.
func (s *Source) Tracking() bool { return s.redis == nil || s.redis.Tracking() && !s.redis.Away() }

// Degraded reports whether Redis is configured and away.
func (s *Source) Degraded() bool { return s.redis != nil && s.redis.Away() }

// RevocationLag is the longest that a revocation can go unseen by this process as
// things are now, if every message about it is lost.
func (s *Source) RevocationLag() time.Duration {
	switch {
	case s.redis == nil:
		return s.cfg.Life // POST /invalidate is seen at once, by this process alone
	case s.redis.Away():
		return awayLife
	case !s.redis.Tracking():
		return untrackedLife
	}
	return silence
}

// OldestServed is the age of the oldest context that was used since the last
// call.
func (s *Source) OldestServed() time.Duration { return time.Duration(s.oldest.Swap(0)) }

// Users is the number of users kept in the process.
func (s *Source) Users() int { return s.known.Len() }
