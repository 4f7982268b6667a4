package pip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
)

// Explanation tells where a user's context came from and what ends it.
type Explanation struct {
	// Source is process (kept here), redis, api (just asked, and not kept), claims
	// (all there is), refusal (the API said so lately), request or none.
	Source  string     `json:"source"`
	User    string     `json:"user,omitempty"`
	Fetched *time.Time `json:"fetched,omitempty"` // when it was read from the API
	Age     *int64     `json:"age_ms,omitempty"`  // since then
	Ends    []End      `json:"ends,omitempty"`
	Note    string     `json:"note,omitempty"`
	Error   string     `json:"error,omitempty"`
}

// End is something that ends what is known.
type End struct {
	What string     `json:"what"`
	At   *time.Time `json:"at,omitempty"` // if that is known
}

// Explain is Subject for whoever asks why: it tells the same, and how it is known,
// and leaves nothing behind. It looks where Subject looks and asks the API where
// Subject would; but it claims no place in Redis, and stores no answer. So it may
// be a call more for the API, and the next request is none the faster for it.
func (s *Source) Explain(ctx context.Context, p *authz.Principal) (*authz.Subject, Explanation, error) {
	switch p.Method {
	case authz.None:
		return authz.AnonymousSubject, Explanation{Source: "none", Note: "no credential, so nothing is looked up"}, nil
	case authz.Asserted, authz.Test:
		return authz.NewSubject(p, *p.User, time.Time{}), Explanation{Source: "request", Note: "described by the request itself"}, nil
	}
	if e, ok := s.known.Get(p.Alias); ok && s.stands(e, s.now()) {
		return authz.NewSubject(p, e.user, e.asOf), s.explain(e), nil
	}
	switch s.cfg.ProfileURL {
	case NoProfile:
		if p.Method != authz.JWT {
			subject, err := refusal{err: errNotAUser}.subject(p)
			return subject, Explanation{Source: "none", Note: "only tokens are accepted where USER_CONTEXT_URL is none"}, err
		}
		return authz.NewSubject(p, byClaims(p), time.Time{}), claimsAlone(), nil
	case RedisProfile:
		if p.Method != authz.JWT {
			subject, err := refusal{err: errNotAUser}.subject(p)
			return subject, Explanation{Source: "none", Note: "only tokens are accepted where USER_CONTEXT_URL is redis"}, err
		}
		user := byClaims(p)
		x, err := s.peekWritten(ctx, &user)
		if err != nil {
			return nil, x, err
		}
		return authz.NewSubject(p, user, time.Time{}), x, nil
	}
	if r, ok := s.refused.Get(credentialOf(p)); ok {
		return explainRefusal(p, r, "refusal")
	}
	r, x, err := s.peek(ctx, p)
	if err == nil && r == nil {
		x.Source, x.Note = "api", joined(x.Note, "not known here, so the API was asked now; the answer is not kept")
		r, err = s.meet(ctx, p)
	}
	switch {
	case errors.Is(err, errNotAUser), errors.Is(err, errNoRights):
		return explainRefusal(p, refusal{err, time.Now()}, "api")
	case err != nil:
		x.Error = err.Error()
		return nil, x, unavailable(err)
	}
	s.about(&x, r)
	return authz.NewSubject(p, r.user(), r.Fetched), x, nil
}

// ErrNoUser is that nobody knows a user of that name.
var ErrNoUser = errNoUser

// ExplainUser is Explain for a user who is named and shows no credential: as if
// they came with a token. What only the token says is missing.
func (s *Source) ExplainUser(ctx context.Context, name string) (*authz.Principal, *authz.Subject, Explanation, error) {
	token := &record{}
	switch s.cfg.ProfileURL {
	case NoProfile, RedisProfile:
		p, user := principalOf(token), authz.User{ID: name, Username: name}
		x, err := claimsAlone(), error(nil)
		if s.cfg.ProfileURL == RedisProfile {
			x, err = s.peekWritten(ctx, &user)
		}
		if err != nil {
			return nil, nil, x, err
		}
		x.Note = joined(x.Note, "the name is taken for the token's subject")
		return p, authz.NewSubject(p, user, time.Time{}), x, nil
	}
	r, x, err := s.peekContext(ctx, name, nil)
	if err == nil && r == nil {
		if !s.calls.canLookUp() {
			return nil, nil, x, fmt.Errorf("%w: %q has no context now, and without the service key the API cannot be asked", ErrNoUser, name)
		}
		x.Source, x.Note = "api", joined(x.Note, "not known here, so the API was asked now with the service key; the answer is not kept")
		r, err = s.calls.byName(ctx, name)
	}
	if errors.Is(err, errNoUser) {
		return nil, nil, x, fmt.Errorf("%w: %q", ErrNoUser, name)
	}
	if err != nil {
		return nil, nil, x, unavailable(err)
	}
	s.about(&x, r)
	p := principalOf(r)
	return p, authz.NewSubject(p, r.user(), r.Fetched), x, nil
}

func claimsAlone() Explanation {
	return Explanation{Source: "claims", Note: "the verified claims are all there is: USER_CONTEXT_URL is none"}
}

func joined(note, more string) string {
	if note == "" {
		return more
	}
	return note + "; " + more
}

func explainRefusal(p *authz.Principal, r refusal, source string) (*authz.Subject, Explanation, error) {
	age := time.Since(r.fetched).Milliseconds()
	ends := r.fetched.Add(refusalLife)
	x := Explanation{Source: source, Fetched: &r.fetched, Age: &age, Error: r.err.Error()}
	if source == "refusal" {
		x.Ends = []End{{"the API is asked again", &ends}}
	}
	subject, err := r.subject(p)
	if err == nil && !subject.Authenticated {
		x.Note = "a session that the API does not know counts as no credential"
	}
	return subject, x, err
}

// peek looks for p's context in Redis or, without one, in this process, and
// touches nothing. Without an error and a record, it is not known.
func (s *Source) peek(ctx context.Context, p *authz.Principal) (*record, Explanation, error) {
	name, at := "", time.Time{}
	if a, ok := s.names.Get(p.Alias); ok {
		name, at = a.name, time.Now().Add(a.ends-s.now())
	}
	if s.redis != nil && !p.Guessable {
		v, err := s.redis.Get(ctx, aliasKey(p))
		switch {
		case errors.Is(err, cache.ErrAway): // what this process learned since may help
		case err != nil:
			return nil, Explanation{}, err
		default:
			if name = v[0].Text; isClaim(name) {
				return nil, Explanation{Note: "another request is just finding out who this is"}, nil
			}
			at = time.Now().Add(v[0].Left)
		}
	}
	if name == "" {
		return nil, Explanation{}, nil
	}
	r, x, err := s.peekContext(ctx, name, p)
	if r != nil && stranger(p) {
		x.Ends = append(x.Ends, End{"the API is asked again whose credential it is", &at})
	}
	return r, x, err
}

// peekContext looks for the context of a user. With a principal, it must be one
// that counts for it; else for the user, whatever the case of the name.
func (s *Source) peekContext(ctx context.Context, name string, p *authz.Principal) (*record, Explanation, error) {
	if s.redis != nil {
		key := contextPrefix + lower(name)
		v, err := s.redis.Get(ctx, key)
		if err == nil {
			return s.peekShared(ctx, key, v[0], name, p)
		}
		if !errors.Is(err, cache.ErrAway) {
			return nil, Explanation{}, err
		}
	}
	key, outage := digest(lower(name)), uint64(0)
	if s.redis != nil {
		outage = s.redis.Outages()
	}
	r := s.own.context(key, outage)
	if r == nil || p != nil && (r.Username != name || !r.of(p)) {
		return nil, Explanation{}, nil
	}
	x := Explanation{Source: "process", Ends: s.ends(r.Username)}
	life := s.cfg.Life
	if s.redis != nil {
		life = min(life, awayLife)
		x.Note = "Redis is away, so only what this process itself read from the API counts"
	}
	x.Ends = append(x.Ends, lifeOf(r, life))
	return r, x, nil
}

func (s *Source) peekShared(ctx context.Context, key string, v cache.Value, name string, p *authz.Principal) (*record, Explanation, error) {
	switch {
	case v.Text == "":
		return nil, Explanation{}, nil
	case isClaim(v.Text):
		return nil, Explanation{Note: "another request is just reading it from the API"}, nil
	}
	runID, err := s.redis.RunID(ctx, key)
	if err != nil {
		return nil, Explanation{}, err
	}
	if p == nil {
		name, p = spelt(name, v.Text), &anybody
	}
	r := s.read(v.Text, name, runID, p)
	if r == nil {
		return nil, Explanation{Note: "what Redis has is unusable: of another version, process or principal, or too old"}, nil
	}
	x := Explanation{Source: "redis", Ends: append(s.ends(r.Username), lifeOf(r, s.cfg.Life))}
	return r, x, nil
}

// anybody may have any context.
var anybody authz.Principal

// spelt is the name as the record has it, if only the case differs.
func spelt(name, text string) string {
	var r record
	if json.Unmarshal([]byte(text), &r) == nil && lower(r.Username) == lower(name) {
		return r.Username
	}
	return name
}

// explain tells of an entry that stands.
func (s *Source) explain(e *entry) Explanation {
	if e.claims {
		return claimsAlone()
	}
	x := Explanation{Source: "process", Ends: s.ends(e.name)}
	wall := func(at time.Duration) *time.Time {
		t := time.Now().Add(at - s.now())
		return &t
	}
	if e.record == nil { // an operator wrote it
		x.User, x.Ends = e.user.Username, []End{
			{fmt.Sprintf("a change of %s%s in Redis", contextPrefix, e.user.ID), nil}, {"it is read from Redis again", wall(e.ends)},
		}
		return x
	}
	s.about(&x, e.record)
	switch {
	case e.here:
		x.Note = "read from the API by this process"
		if s.redis != nil {
			x.Note += " while Redis is away"
			x.Ends = append(x.Ends, End{"Redis is back", nil})
		}
	case s.redis.Tracking():
		x.Note = "read from Redis, which tells of every change"
	default:
		x.Note = "read from Redis, which does not tell of changes"
		x.Ends = append(x.Ends, End{"it is read from Redis again", wall(e.checked + untrackedLife)})
	}
	x.Ends = append(x.Ends, lifeOf(e.record, s.cfg.Life))
	if e.aliasEnds < never {
		x.Ends = append(x.Ends, End{"the API is asked again whose credential it is", wall(e.aliasEnds)})
	}
	if due := time.Duration(e.refresh.Load()); due < e.ends {
		x.Ends = append(x.Ends, End{"the first request after is served, and has it read again in the background", wall(due)})
	}
	return x
}

// about fills in what the record says of itself.
func (s *Source) about(x *Explanation, r *record) {
	fetched, age := r.Fetched, time.Since(r.Fetched).Milliseconds()
	x.User, x.Fetched, x.Age = r.Username, &fetched, &age
}

// ends are what ends a context at any time.
func (s *Source) ends(user string) []End {
	ends := []End{{fmt.Sprintf("proxy invalidate --user %q", user), nil}}
	if s.redis != nil {
		ends = append(ends, End{"deleting " + contextPrefix + lower(user) + " in Redis", nil})
	}
	return ends
}

func lifeOf(r *record, life time.Duration) End {
	at := r.Fetched.Add(life)
	return End{fmt.Sprintf("it is %v old", life), &at}
}

// peekWritten reads what an operator wrote about a user.
func (s *Source) peekWritten(ctx context.Context, user *authz.User) (Explanation, error) {
	key := contextPrefix + user.ID
	x := Explanation{Source: "redis", User: user.Username, Ends: []End{{"a change of " + key, nil}}}
	v, err := s.redis.Get(ctx, key)
	if err == nil && v[0].Text == "" {
		x.Note = key + " is not there, so the user has no attributes"
	} else if err == nil {
		user.Attributes, err = compact(v[0].Text)
	}
	if err != nil {
		x.Error = err.Error()
		return x, unavailable(err)
	}
	return x, nil
}
