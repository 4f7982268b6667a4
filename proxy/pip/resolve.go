package pip

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
	"headgate/proxy/latency"
)

// How a fetch and a revocation meet in Redis.
//
// Whoever fetches a context first puts a claim, a value of its own, where the
// result will stand, and at the end swaps claim for result. All others see the
// claim and wait. Whoever revokes deletes the key: the claim goes with it, the
// swap fails, and the fetch begins again. A refresh swaps old context for new in
// the same way. So nothing that was read from the API before a revocation can be
// stored after it.
//
// That needs the name, which a credential that is seen for the first time does
// not give: its claim stands under the alias. Its fetch asks for three things
// once it knows the name and has claimed the context: that no context of the user
// has been there lately (user:known:<name>, written before every context), else
// one may have been deleted during the fetch; that nobody was revoked during it
// (user:revoked:<name>, written before every revocation); and that Redis is the
// same process still. If one is not so, it asks the API again, under the claim.
const (
	aliasPrefix   = "user:alias:"
	contextPrefix = "user:context:"
	knownPrefix   = "user:known:"
	revokedPrefix = "user:revoked:"
	refreshPrefix = "user:refresh:"

	everyone = "*" // as a name: all users are revoked

	claimMark = "!"
	// claimLife is how long others wait for a proxy that died while it fetched.
	claimLife = 3 * time.Second

	// markLife is how long a revocation is remembered: longer than any fetch.
	markLife = 2 * time.Minute
	// markSlack covers that time passes between a mark and the reading of its age.
	markSlack = time.Second

	// readLife bounds how long what was read from Redis is believed even if no push
	// says otherwise.
	readLife = 5 * time.Minute

	// glance is how often one who waits for a claim looks again: into the
	// client-side cache, which costs no round trip until the claim is gone.
	glance = 2 * time.Millisecond
)

func aliasKey(p *authz.Principal) string { return aliasPrefix + hex.EncodeToString(p.Alias[:]) }

func lower(name string) string { return strings.ToLower(name) }

func newClaim() string { return claimMark + rand.Text() }

func isClaim(value string) bool { return strings.HasPrefix(value, claimMark) }

// What a look at Redis can end with, beside an entry or a failure.
var (
	errAgain = errors.New("something changed, look again")
	errWait  = errors.New("another fetches it, look again in a while")
)

// maxFetches bounds how often one flight reads the same profile: a Redis without
// memory forgets at once what it is given.
const maxFetches = 2

// resolve makes the entry of p: from Redis, else from the API. It is one flight
// for many requests and bounded by itself.
func (s *Source) resolve(p *authz.Principal) (*entry, error) {
	ctx, cancel := context.WithTimeout(s.base, 2*s.cfg.Timeout+claimLife)
	defer cancel()
	for fetches := 0; ; {
		e, stored, err := s.look(ctx, p)
		if stored != nil {
			fetches++
		}
		switch {
		case e != nil:
			s.known.Set(p.Alias, e, e.ends-s.now())
			return e, nil
		case stored != nil && fetches == maxFetches:
			return s.entry(&entry{once: true, aliasEnds: never}, stored.Username, stored), nil
		case errors.Is(err, errWait):
			err = sleep(ctx, glance)
		case err == nil, errors.Is(err, errAgain):
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// look makes the entry of p, or else the step that is missing for it: then it
// gives the context that it stored in Redis, if any.
func (s *Source) look(ctx context.Context, p *authz.Principal) (*entry, *record, error) {
	if s.redis != nil {
		e, stored, err := s.shared(ctx, p)
		if !errors.Is(err, cache.ErrAway) {
			return e, stored, err
		}
	}
	e, err := s.alone(ctx, p)
	return e, nil, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shared is look in Redis.
func (s *Source) shared(ctx context.Context, p *authz.Principal) (*entry, *record, error) {
	start := time.Now()
	e := &entry{aliasEnds: never}
	name, err := s.name(e, p)
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		stored, err := s.introduce(ctx, p)
		return nil, stored, err
	}
	key := contextPrefix + lower(name)
	if e.context, err = s.redis.Load(key, readLife, false); err != nil {
		return nil, nil, err
	}
	text := e.context.Text
	if isClaim(text) {
		return nil, nil, errWait
	}
	if text != "" {
		// The process is asked after the value was read: if the connection moved to
		// another in between, the two differ and the value is not used.
		runID, err := s.redis.RunID(ctx, key)
		if err != nil {
			return nil, nil, err
		}
		if r := s.read(text, name, runID, p); r != nil {
			latency.Since(readSeconds, start)
			return s.entry(e, name, r), nil, nil
		}
		unusable.Inc()
	}
	stored, err := s.fill(ctx, p, name, text)
	return nil, stored, err
}

// name is the user behind p, empty if it is not known, and what e needs to see
// that it still is the user.
func (s *Source) name(e *entry, p *authz.Principal) (string, error) {
	if p.Guessable {
		a, _ := s.names.Get(p.Alias)
		if a.name != "" {
			e.aliasEnds = a.ends
		}
		return a.name, nil
	}
	var err error
	if e.alias, err = s.redis.Load(aliasKey(p), readLife, stranger(p)); err != nil {
		return "", err
	}
	e.shared = true
	name := e.alias.Text
	if isClaim(name) {
		return "", errWait
	}
	if name != "" && stranger(p) {
		e.aliasEnds = s.now() + keyAliasLife
		if s.redis.Tracking() {
			e.aliasEnds = s.now() + time.Until(e.alias.Until)
		}
	}
	return name, nil
}

// read decodes a context, unless it is not one for p: then it is nil.
func (s *Source) read(value, name, runID string, p *authz.Principal) *record {
	var r record
	if json.Unmarshal([]byte(value), &r) != nil || r.Version != version || r.Username != name || r.RunID != runID ||
		!r.of(p) || time.Since(r.Fetched) >= s.cfg.Life {
		return nil
	}
	return &r
}

// entry completes e with what the record says.
func (s *Source) entry(e *entry, name string, r *record) *entry {
	e.name, e.record, e.user, e.asOf = name, r, r.user(), r.Fetched
	e.checked, e.fetched = s.now(), s.since(r.Fetched)
	e.ends = min(e.fetched+s.cfg.Life, e.aliasEnds)
	if !e.here {
		e.ends = min(e.ends, e.checked+readLife)
	}
	due := e.fetched + jitter(s.cfg.RefreshAfter)
	if e.aliasEnds < never {
		due = min(due, e.aliasEnds-keyAliasRenewal)
	}
	e.refresh.Store(int64(due))
	return e
}

// alias stores the name behind p.
func (s *Source) alias(ctx context.Context, p *authz.Principal, name string) error {
	switch {
	case p.Guessable:
		s.names.Set(p.Alias, alias{name, s.now() + keyAliasLife}, keyAliasLife)
		return nil
	case stranger(p):
		return s.redis.Set(ctx, aliasKey(p), name, keyAliasLife)
	}
	return s.redis.Set(ctx, aliasKey(p), name, s.cfg.Life)
}

// fetch is a profile call under a claim.
type fetch struct {
	*record
	began time.Time
	dials uint64
}

// under asks the API for p's profile while it keeps the claim under key alive.
// Without a key there is no claim.
func (s *Source) under(ctx context.Context, key string, p *authz.Principal) (fetch, error) {
	f := fetch{began: time.Now(), dials: s.redis.Dials()}
	var keeper sync.WaitGroup
	if key != "" {
		holding, release := context.WithCancel(ctx)
		keeper.Go(func() {
			for sleep(holding, claimLife/3) == nil {
				// If the claim here is another's by now, that one lives a little longer.
				s.redis.Extend(holding, key, claimLife)
			}
		})
		defer keeper.Wait()
		defer release()
	}
	var err error
	f.record, err = s.ask(ctx, p)
	return f, err
}

// introduce finds out the name of a principal that Redis does not know.
func (s *Source) introduce(ctx context.Context, p *authz.Principal) (stored *record, err error) {
	leave, err := s.calls.strangers.enter(p)
	if err != nil {
		return nil, err
	}
	defer leave()
	key, token := "", newClaim()
	if !p.Guessable {
		key = aliasKey(p)
		claimed, _, err := s.redis.Claim(ctx, key, token, claimLife)
		if err != nil {
			return nil, err
		}
		if !claimed {
			return nil, errWait
		}
	}
	f, err := s.under(ctx, key, p)
	if err == nil {
		stored, err = s.settle(ctx, p, f)
	}
	if err == nil {
		err = s.alias(ctx, p, f.Username)
	}
	if err != nil && key != "" {
		s.release(ctx, key, token)
	}
	return stored, err
}

// settle sees to it that the context of a user whose name was just learned is in
// Redis, or is being fetched by someone.
func (s *Source) settle(ctx context.Context, p *authz.Principal, f fetch) (stored *record, err error) {
	name := f.Username
	key := contextPrefix + lower(name)
	there, err := s.redis.Get(ctx, key)
	if err != nil || isClaim(there[0].Text) {
		return nil, err
	}
	old := there[0].Text
	token, runID, err := s.claim(ctx, key, old, func(runID string) bool { return s.read(old, name, runID, p) != nil })
	if err != nil || token == "" {
		return nil, err
	}
	fresh := old == ""
	if fresh {
		fresh, err = s.undisturbed(ctx, lower(name), f)
	}
	if err == nil && !fresh {
		overtaken.Inc()
		f, err = s.under(ctx, key, p)
		if err == nil && f.Username != name {
			err = errAgain
		}
	}
	if err == nil {
		return s.store(ctx, key, token, f.record, runID)
	}
	s.release(ctx, key, token)
	return nil, err
}

// claim puts a claim in the place of old. Without an error and a claim, there is
// no need of one: what is there is good, or another has claimed it.
func (s *Source) claim(ctx context.Context, key, old string, good func(runID string) bool) (token, runID string, err error) {
	token = newClaim()
	if old == "" {
		claimed, runID, err := s.redis.Claim(ctx, key, token, claimLife)
		if err != nil || !claimed {
			return "", "", err
		}
		return token, runID, nil
	}
	if runID, err = s.redis.RunID(ctx, key); err != nil || good != nil && good(runID) {
		return "", "", err
	}
	swapped, err := s.redis.Swap(ctx, key, old, token, claimLife)
	if err != nil || !swapped {
		return "", "", err
	}
	return token, runID, nil
}

// undisturbed reports whether nothing can have been revoked that the fetch does
// not know of. The context is claimed by the caller.
func (s *Source) undisturbed(ctx context.Context, user string, f fetch) (bool, error) {
	v, err := s.redis.Get(ctx, knownPrefix+user, revokedPrefix+user, revokedPrefix+everyone)
	if err != nil || v[0].Text != "" {
		return false, err
	}
	for _, mark := range v[1:] {
		if mark.Text != "" && markLife-mark.Left <= time.Since(f.began)+markSlack {
			return false, nil
		}
	}
	return s.redis.Dials() == f.dials, nil
}

// store puts the record in the place of old, which is a claim or an older record.
// If old is no longer there the user was revoked: then it stores nothing, and the
// record must not be used.
func (s *Source) store(ctx context.Context, key, old string, r *record, runID string) (stored *record, err error) {
	defer latency.Since(storeSeconds, time.Now())
	r.RunID = runID
	done := false
	if err = s.redis.Set(ctx, knownPrefix+strings.TrimPrefix(key, contextPrefix), "1", s.cfg.Life+markLife); err == nil {
		done, err = s.redis.Swap(ctx, key, old, r.encode(), s.cfg.Life)
	}
	if err != nil {
		if isClaim(old) {
			s.release(ctx, key, old)
		}
		return nil, err
	}
	if !done {
		overtaken.Inc()
		return nil, nil
	}
	return r, nil
}

// release withdraws a claim, so that nobody waits for it to end: if Redis is away, when
// it is back.
func (s *Source) release(ctx context.Context, key, token string) {
	if _, err := s.redis.Swap(ctx, key, token, "", 0); err == nil || !s.working() {
		return
	}
	go func() {
		defer s.work.Done()
		ctx, cancel := context.WithTimeout(s.base, claimLife)
		defer cancel()
		for sleep(ctx, claimLife/100) == nil {
			if _, err := s.redis.Swap(ctx, key, token, "", 0); err == nil {
				return
			}
		}
	}()
}

// fill fetches the context of a principal whose name is known. In its place
// stands old, which is empty or of no use.
func (s *Source) fill(ctx context.Context, p *authz.Principal, name, old string) (stored *record, err error) {
	key := contextPrefix + lower(name)
	token, runID, err := s.claim(ctx, key, old, nil)
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, errWait
	}
	f, err := s.under(ctx, key, p)
	switch {
	case err != nil:
		s.release(ctx, key, token)
		if errors.Is(err, errNotAUser) {
			s.disown(ctx, p)
		}
		return nil, err
	case lower(f.Username) == lower(name):
		stored, err = s.store(ctx, key, token, f.record, runID)
	default: // the user has another name now
		s.release(ctx, key, token)
		stored, err = s.settle(ctx, p, f)
	}
	if err == nil && f.Username != name {
		err = s.alias(ctx, p, f.Username)
	}
	return stored, err
}

// disown forgets whose credential p is: the API no longer accepts it.
func (s *Source) disown(ctx context.Context, p *authz.Principal) {
	s.names.Delete(p.Alias)
	if s.redis != nil && !p.Guessable {
		s.redis.Delete(ctx, aliasKey(p))
	}
}

// alone is look without Redis: with what this process read from the API itself.
func (s *Source) alone(ctx context.Context, p *authz.Principal) (*entry, error) {
	began, outage := s.own.revocations(), uint64(0)
	life, aliasLife := s.cfg.Life, s.cfg.Life
	if s.redis != nil {
		outage = s.redis.Outages()
		life = min(life, awayLife)
		aliasLife = life
	}
	if stranger(p) {
		aliasLife = min(aliasLife, keyAliasLife)
	}
	if a, ok := s.names.Get(p.Alias); ok {
		key := digest(lower(a.name))
		if r := s.own.context(key, outage); r != nil && r.Username == a.name && r.of(p) {
			return s.here(a, r, life, key, outage), nil
		}
	}
	r, err := s.meet(ctx, p)
	if err != nil {
		return nil, err
	}
	key := digest(lower(r.Username))
	if !s.own.keep(key, &held{r, outage}, life, began) {
		overtaken.Inc()
		return nil, errAgain
	}
	a := alias{r.Username, s.now() + aliasLife}
	s.names.Set(p.Alias, a, aliasLife)
	return s.here(a, r, life, key, outage), nil
}

func (s *Source) here(a alias, r *record, life time.Duration, key authz.Digest, outage uint64) *entry {
	e := s.entry(&entry{here: true, key: key, outage: outage, aliasEnds: a.ends}, a.name, r)
	e.ends = min(e.ends, e.fetched+life)
	return e
}
