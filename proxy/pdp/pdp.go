package pdp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
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
	URL  *url.URL // http, https or unix; one OPA process
	Path string   // "/v1/data/orders/decision"

	// Timeout of one question, the wait for a slot included. A hit whose lease
	// has run out may first wait as long again for a poll.
	Timeout time.Duration

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
	tracer  *opa // the same OPA, for explanations: with more time, and no body too large
	policy  *policy
	entries *cache.Local[*entry]
	flights singleflight.Group
	slots   slots
	poller  poller

	start time.Time
	now   func() time.Duration // since start, monotonic
}

// New makes a Decider; it asks nothing yet.
func New(cfg Config) (*Decider, error) {
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = 64
	}
	// Beside the questions the poller needs a connection of its own.
	o, err := newOPA(cfg.URL, cfg.Path, cfg.Timeout, cfg.MaxInFlight+2)
	if err != nil {
		return nil, err
	}
	tracer, err := newOPA(cfg.URL, cfg.Path, traceTime, cfg.MaxInFlight)
	if err != nil {
		return nil, err
	}
	d := &Decider{
		cfg:     cfg,
		opa:     o,
		tracer:  tracer,
		policy:  newPolicy(cfg.Lease),
		entries: cache.NewLocal[*entry](cache.LocalOptions{MaxEntries: cfg.MaxEntries, Now: cfg.Now}),
		slots:   newSlots(cfg.MaxInFlight),
		poller:  newPoller(),
		start:   time.Now(),
	}
	d.now = func() time.Duration { return time.Since(d.start) } // half the cost of time.Now
	if cfg.Now != nil {
		d.start = cfg.Now()
		d.now = func() time.Duration { return cfg.Now().Sub(d.start) }
	}
	return d, nil
}

// Decide returns policy's answer to the question, or an error of kind
// authz.ErrNoDecision or authz.ErrUnavailable. It keeps none of the question's
// bytes.
func (d *Decider) Decide(ctx context.Context, q authz.Question) (authz.Decision, error) {
	if len(q.Body) > maxCachedInput {
		bypassOversize.Inc()
		a := d.ask(q, nil, time.Now().Add(d.cfg.Timeout))
		return a.decision, a.err
	}
	key := q.Key()
	if e, ok := d.entries.Get(key); !ok {
		misses.Inc()
	} else {
		switch d.state(ctx, e.term) {
		case fresh:
			hits.Inc()
			return e.decision(d.start), nil
		case expired:
			misses.Inc()
		case moved:
			bypassEpoch.Inc()
		case unconfirmed:
			bypassLease.Inc()
		}
	}
	return d.coalesce(ctx, key, q)
}

// state says whether an answer may be reused now. When it is only the
// confirmation that is missing, it waits for a poll, which all such callers share.
func (d *Decider) state(ctx context.Context, t term) state {
	s := d.policy.state(t, d.now())
	if s == unconfirmed {
		d.poller.wait(ctx, d.cfg.Timeout)
		s = d.policy.state(t, d.now())
	}
	return s
}

// answer is what came of asking. It is immutable.
type answer struct {
	decision authz.Decision
	err      error
	term
}

// coalesce asks OPA, or waits for an equal question that is in flight.
func (d *Decider) coalesce(ctx context.Context, key [32]byte, q authz.Question) (authz.Decision, error) {
	deadline := time.Now().Add(d.cfg.Timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()

	for round := 1; ; round++ {
		a, led := d.fly(key, q, deadline)
		switch {
		case led || a.err != nil && (!timedOut(a.err) || ctx.Err() != nil):
			return a.decision, a.err
		case a.err != nil:
			continue // the leader's time is up, not this caller's
		}
		// A follower came later than its leader asked, so to it the answer is a
		// reused one.
		switch s := d.state(ctx, a.term); {
		case s == fresh:
			coalesced.Inc()
			a.decision.Source = authz.Coalesced
			return a.decision, nil
		case s == expired || round > 1:
			// It is its leader's alone, or policy will not come to rest.
			a = d.ask(q, nil, deadline)
			return a.decision, a.err
		case a.epoch == nil && d.policy.live.Load() != nil:
			// OPA is ahead of what polls know. Once they know, equal questions can
			// share an answer again.
			d.poller.wait(ctx, d.cfg.Timeout)
		}
	}
}

func timedOut(err error) bool {
	return errors.Is(err, fasthttp.ErrTimeout) || errors.Is(err, errNoSlot)
}

// fly joins the flight of the question in the live epoch, or starts one, and
// reports whether this caller led it. Questions of different epochs never share
// a flight. It ends by the deadline of whoever leads, who came first. A panic ends
// the request of each that waits.
//
// The leader asks on its own goroutine: a new one would have to grow its stack first,
// which takes longer than all else that is done here.
func (d *Decider) fly(key [32]byte, q authz.Question, deadline time.Time) (answer, bool) {
	asked := d.policy.live.Load()
	flight := key[:]
	if asked != nil {
		flight = binary.BigEndian.AppendUint64(flight, asked.number)
	}
	led := false
	result, _, _ := d.flights.Do(string(flight), func() (any, error) {
		led = true
		// Whoever comes just as a flight ends finds what it left.
		if e, ok := d.entries.Get(key); ok && d.policy.state(e.term, d.now()) == fresh {
			return answer{decision: e.decision(d.start), term: e.term}, nil
		}
		a := d.ask(q, asked, deadline)
		d.store(key, a)
		return a, nil
	})
	return result.(answer), led
}

// ask puts the question to OPA within the bounds of time and number.
func (d *Decider) ask(q authz.Question, asked *epoch, deadline time.Time) answer {
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
		Allow: r.allow, Reason: r.reason, Constraints: constraints(r.constraints, q.Offices),
		ID: r.id, OPAID: r.id, Revision: r.revision, Asked: d.start.Add(sent), Source: authz.FromOPA,
	}}
	if a.decision.ID == "" {
		a.decision.ID = rand.Text()
	}
	operator := d.cfg.DenyTTL
	if r.allow {
		latency.Since(allowSeconds, began)
		evaluationsAllow.Inc()
		operator = d.cfg.AllowTTL
	} else {
		latency.Since(denySeconds, began)
		evaluationsDeny.Inc()
	}
	a.asked, a.ends = sent, sent+life(operator, r.life)
	doubt := false
	if a.epoch, doubt = d.policy.replied(asked, r.revision, d.now()); doubt {
		d.Recheck()
	}
	return a
}

// constraints are those of policy or, if policy gave none, the offices that the
// question names: a consumer that meets no constraint at all shows everything.
func constraints(given json.RawMessage, offices []string) json.RawMessage {
	if given == nil {
		return append(authz.AppendStrings([]byte(`{"allowed_offices":`), offices), '}')
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, given); err != nil {
		panic("BUG: constraints were parsed and are no JSON: " + err.Error())
	}
	return authz.AppendASCII(nil, compact.Bytes())
}

// entry is a cached decision, small because there are many: what thousands of
// decisions have in common is held once. It is immutable.
type entry struct {
	verdict unique.Handle[verdict]
	id      string
	term    // its epoch has the revision
}

// verdict is what decisions have in common.
type verdict struct {
	allow       bool
	byOPA       bool // the id is OPA's own
	reason      string
	constraints string
}

// store keeps an answer for equal questions of its epoch.
func (d *Decider) store(key [32]byte, a answer) {
	if a.err != nil {
		return
	}
	now := d.now()
	switch d.policy.state(a.term, now) {
	case expired:
		bypassTTL.Inc()
		return
	case moved:
		bypassMoved.Inc()
		return
	}
	if a.epoch.uncached != "" {
		bypassRevision.Inc()
		return
	}
	d.entries.Set(key, &entry{
		verdict: unique.Make(verdict{
			allow: a.decision.Allow, byOPA: a.decision.OPAID != "",
			reason: a.decision.Reason, constraints: string(a.decision.Constraints),
		}),
		id:   a.decision.ID,
		term: a.term,
	}, a.ends-now)
}

// decision is the entry as it was answered, start being the Decider's.
func (e *entry) decision(start time.Time) authz.Decision {
	v := e.verdict.Value()
	decision := authz.Decision{
		Allow: v.allow, Reason: v.reason, Constraints: unsafe.Slice(unsafe.StringData(v.constraints), len(v.constraints)),
		ID: e.id, Revision: e.epoch.revision, Asked: start.Add(e.asked), Source: authz.FromCache,
	}
	if v.byOPA {
		decision.OPAID = e.id
	}
	return decision
}

// Ready reports why this replica cannot decide now; nil if it can.
func (d *Decider) Ready() error {
	e := d.policy.live.Load()
	if e == nil {
		return errors.New("OPA has not answered yet")
	}
	if age := d.age(e); age > max(d.cfg.Lease, 2*d.cfg.Poll) {
		return fmt.Errorf("OPA has not answered for %v", age.Round(time.Millisecond))
	}
	if !e.loaded {
		return errors.New("OPA has no policy yet")
	}
	return nil
}

// age is how long ago the poll was sent that last confirmed the epoch.
func (d *Decider) age(e *epoch) time.Duration { return d.now() - time.Duration(e.confirmed.Load()) }

// Status is the state of the policy, for gauges and explanations.
type Status struct {
	Epoch     uint64
	Revision  string
	Revisions map[string]string // by bundle
	Uncached  string            // why decisions are not cached; empty if they are
	Age       time.Duration     // of the last confirmation; negative if there was none
	Entries   int
	InFlight  int // questions that OPA is asked
	Waiting   int // questions that wait for one of them to end
	Limit     int // most InFlight; as many again may wait
}

// Status returns the state of the policy.
func (d *Decider) Status() Status {
	s := Status{Age: -1, Entries: d.entries.Len(), InFlight: d.slots.inFlight(), Waiting: d.slots.waiting(), Limit: d.cfg.MaxInFlight}
	if e := d.policy.live.Load(); e != nil {
		s.Epoch, s.Revision, s.Revisions, s.Uncached = e.number, e.revision, e.revisions, e.uncached
		s.Age = d.age(e)
	}
	return s
}
