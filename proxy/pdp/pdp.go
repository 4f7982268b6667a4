// Package pdp is the side of the policy decision point that lives in the proxy:
// it puts questions to OPA and reuses an answer only while everything that made
// it is unchanged.
//
// A question is the exact bytes sent to OPA, and its SHA-256 is the cache key, so
// whatever policy can see is in the key. The policy's side is the epoch and the
// lease (policy.go), which one serial poller maintains. The lifetime that policy
// gives a decision counts from when the question was sent and can only shorten
// the operator's. Errors are never stored.
//
// Equal questions in flight are asked once. The asking runs on its own and under
// its own deadline, so a client that leaves fails nobody else. The number of
// questions in flight is bounded, that of anonymous callers to half: a flood of
// strangers leaves the other half to everybody else.
//
// A Decider is safe for concurrent use. Run must be running for decisions to be
// cached; without it every request asks OPA.
package pdp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"
	"unique"
	"unsafe"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/singleflight"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
	"headgate/proxy/latency"
)

// maxCachedInput is the largest question that is cached, in bytes. What a client
// can blow up shall not fill the cache.
const maxCachedInput = 8 << 10

// Config says where OPA is and how long its answers count.
type Config struct {
	URL     *url.URL      // http, https or unix; one OPA process
	Path    string        // "/v1/data/cwms/authz/decision"
	Timeout time.Duration // of one question, the wait for a slot included

	Poll  time.Duration // interval of the poller
	Lease time.Duration // how long a confirmation of the policy counts

	AllowTTL   time.Duration // longest life of an allow; 0 caches none
	DenyTTL    time.Duration // longest life of a deny; 0 caches none
	MaxEntries int

	MaxInFlight int // questions in flight to OPA; as many again may wait. 0: 64

	Now func() time.Time // nil: time.Now
	Log zerolog.Logger
}

// Decider answers questions. Make one with New.
type Decider struct {
	cfg     Config
	opa     *opa
	policy  *policy
	entries *cache.Local[*entry]
	flights singleflight.Group
	slots   slots
	poller  poller
	now     func() time.Time
}

// entry is a cached decision. It is immutable.
type entry struct {
	decision authz.Decision
	epoch    *epoch
	ends     time.Time
}

// New makes a Decider; it asks nothing yet.
func New(cfg Config) (*Decider, error) {
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = 64
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Beside the questions the poller needs a connection of its own.
	o, err := newOPA(cfg.URL, cfg.Path, cfg.Timeout, cfg.MaxInFlight+2)
	if err != nil {
		return nil, err
	}
	return &Decider{
		cfg:     cfg,
		opa:     o,
		policy:  newPolicy(cfg.Lease, cfg.Now()),
		entries: cache.NewLocal[*entry](cache.LocalOptions{MaxEntries: cfg.MaxEntries, Now: cfg.Now}),
		slots:   newSlots(cfg.MaxInFlight),
		poller:  newPoller(),
		now:     cfg.Now,
	}, nil
}

// Decide returns policy's answer to the question, or an error of kind
// authz.ErrNoDecision or authz.ErrUnavailable. It keeps none of the question's
// bytes.
func (d *Decider) Decide(ctx context.Context, q authz.Question) (authz.Decision, error) {
	if len(q.Body) > maxCachedInput {
		bypassOversize.Inc()
		a := d.ask(q, d.policy.live.Load())
		return a.decision, a.err
	}
	key := sha256.Sum256(q.Body)
	now := d.now()
	if e, ok := d.entries.Get(key); ok {
		if d.usable(ctx, e, now) {
			hits.Inc()
			decision := e.decision
			decision.Source = authz.FromCache
			return decision, nil
		}
	} else {
		misses.Inc()
	}
	return d.coalesce(ctx, key, q)
}

// usable reports whether the entry may be served now. When it is only the
// confirmation that is missing, it waits for a poll, which all such callers share.
func (d *Decider) usable(ctx context.Context, e *entry, now time.Time) bool {
	switch {
	case !now.Before(e.ends):
		misses.Inc()
		return false
	case d.policy.confirmed(e.epoch, now):
		return true
	case e.epoch != d.policy.live.Load():
		bypassEpoch.Inc()
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	d.poller.wait(ctx)
	now = d.now()
	if now.Before(e.ends) && d.policy.confirmed(e.epoch, now) {
		return true
	}
	bypassLease.Inc()
	return false
}

// answer is what came of asking.
type answer struct {
	decision authz.Decision
	life     time.Duration // how long it may be reused; 0 not at all, not even by an equal question in flight
	epoch    *epoch        // the epoch it belongs to; nil if it belongs to none
	err      error
}

// coalesce asks OPA, or waits for an equal question that is in flight.
func (d *Decider) coalesce(ctx context.Context, key [32]byte, q authz.Question) (authz.Decision, error) {
	// The copy outlives this call: the flight goes on when its client has left.
	q = authz.Question{Body: slices.Clone(q.Body), Offices: slices.Clone(q.Offices), Anonymous: q.Anonymous}
	began := time.Now()
	a, led, err := d.fly(ctx, key, q)
	if led || err != nil {
		return a.decision, errors.Join(err, a.err)
	}
	coalesced.Inc()
	switch {
	case a.err == nil && (a.life <= 0 || a.epoch == nil || a.epoch != d.policy.live.Load()):
		// The answer is its leader's alone, or the policy has moved on since.
		a = d.ask(q, d.policy.live.Load())
	case timedOut(a.err) && time.Since(began) < d.cfg.Timeout:
		// It was the leader's deadline that passed, not this caller's.
		a, _, err = d.fly(ctx, key, q)
	default:
		a.decision.Source = authz.Coalesced
	}
	return a.decision, errors.Join(err, a.err)
}

func timedOut(err error) bool {
	return errors.Is(err, fasthttp.ErrTimeout) || errors.Is(err, errNoSlot)
}

// fly joins the flight of the question in the live epoch, or starts one, and
// reports whether this caller led it. Questions of different epochs never share
// a flight.
func (d *Decider) fly(ctx context.Context, key [32]byte, q authz.Question) (a answer, led bool, err error) {
	asked := d.policy.live.Load()
	flight := key[:]
	if asked != nil {
		flight = binary.BigEndian.AppendUint64(flight, asked.number)
	}
	done := d.flights.DoChan(string(flight), func() (any, error) {
		led = true
		a := d.ask(q, asked)
		d.store(key, a)
		return a, nil
	})
	select {
	case <-ctx.Done():
		return answer{}, false, authz.Refuse(authz.ErrNoDecision, "the request ended before a decision").Because(ctx.Err())
	case r := <-done:
		return r.Val.(answer), led, nil
	}
}

// ask puts the question to OPA within the bounds of time and number.
func (d *Decider) ask(q authz.Question, asked *epoch) answer {
	deadline := time.Now().Add(d.cfg.Timeout)
	leave, err := d.slots.enter(q.Anonymous, deadline)
	if err != nil {
		shed.Inc()
		return answer{err: authz.Refuse(authz.ErrUnavailable, "too many decisions are pending").Because(err)}
	}
	defer leave()
	sent, began := d.now(), time.Now()
	r, err := d.opa.question(q.Body, deadline)
	if err != nil {
		latency.Since(failedSeconds, began)
		if errors.Is(err, errMalformed) {
			evaluationsMalformed.Inc()
		} else {
			evaluationsFailed.Inc()
		}
		return answer{err: authz.Refuse(authz.ErrNoDecision, "the policy service gave no decision").Because(err)}
	}

	a := answer{decision: authz.Decision{
		Allow: r.allow, Reason: intern(r.reason), Constraints: constraints(r.constraints, q.Offices),
		ID: r.id, OPAID: r.id, Revision: intern(r.revision), Asked: sent, Source: authz.FromOPA,
	}}
	if a.decision.ID == "" {
		a.decision.ID = rand.Text()
	}
	if r.allow {
		latency.Since(allowSeconds, began)
		evaluationsAllow.Inc()
		a.life = d.cfg.AllowTTL
	} else {
		latency.Since(denySeconds, began)
		evaluationsDeny.Inc()
		a.life = d.cfg.DenyTTL
	}
	if r.life >= 0 {
		a.life = min(a.life, r.life)
	}
	if d.policy.agrees(asked, r.revision, d.now()) {
		a.epoch = asked
	} else {
		d.Recheck()
	}
	return a
}

// store keeps an answer for equal questions of its epoch.
func (d *Decider) store(key [32]byte, a answer) {
	switch {
	case a.err != nil:
	case a.life <= 0:
		bypassTTL.Inc()
	case a.epoch == nil:
		bypassMoved.Inc()
	case a.epoch.uncached != "":
		bypassRevision.Inc()
	default:
		ends := a.decision.Asked.Add(a.life)
		d.entries.Set(key, &entry{decision: a.decision, epoch: a.epoch, ends: ends}, ends.Sub(d.now()))
	}
}

// constraints are those of policy or, if policy gave none, the offices that the
// question names: a consumer that meets no constraint at all shows everything.
func constraints(given json.RawMessage, offices []string) json.RawMessage {
	var b []byte
	if given != nil {
		var compact bytes.Buffer
		if err := json.Compact(&compact, given); err != nil {
			panic("BUG: constraints were parsed and are no JSON: " + err.Error())
		}
		b = authz.AppendASCII(nil, compact.Bytes())
	} else {
		b = append(authz.AppendStrings([]byte(`{"allowed_offices":`), offices), '}')
	}
	// Thousands of decisions share a few sets of constraints.
	shared := intern(string(b))
	return unsafe.Slice(unsafe.StringData(shared), len(shared))
}

// intern makes equal strings of many entries share their bytes.
func intern(s string) string { return unique.Make(s).Value() }

// Ready reports why this replica cannot decide now; nil if it can.
func (d *Decider) Ready() error {
	e := d.policy.live.Load()
	age, ok := d.policy.age(d.now())
	switch {
	case !ok:
		return errors.New("OPA has not answered yet")
	case age > max(d.cfg.Lease, 2*d.cfg.Poll):
		return fmt.Errorf("OPA has not answered for %v", age.Round(time.Millisecond))
	case !e.loaded:
		return errors.New("OPA has no policy yet")
	}
	return nil
}

// Status is the state of the policy, for gauges and explanations.
type Status struct {
	Epoch     uint64
	Revision  string
	Revisions map[string]string // by bundle
	Uncached  string            // why decisions are not cached; empty if they are
	Age       time.Duration     // of the last confirmation; negative if there was none
	Entries   int
	InFlight  int
}

// Status returns the state of the policy.
func (d *Decider) Status() Status {
	s := Status{Age: -1, Entries: d.entries.Len(), InFlight: d.slots.inFlight()}
	if e := d.policy.live.Load(); e != nil {
		s.Epoch, s.Revision, s.Revisions, s.Uncached = e.number, e.revision, e.revisions, e.uncached
		s.Age, _ = d.policy.age(d.now())
	}
	return s
}
