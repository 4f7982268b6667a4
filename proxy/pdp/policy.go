package pdp

import (
	"sync/atomic"
	"time"
)

// The rules by which a cached decision is tied to the policy that made it:
//
//  1. An answer belongs to the epoch in which its question was asked. A change of
//     what OPA runs starts a new epoch, and older answers are dead at once.
//  2. Only polls move the epoch, and polls are serial: an answer that arrives
//     late can never bring an older policy back.
//  3. An epoch counts only while its last confirmation is younger than the lease.
//     A confirmation is dated by when the poll was sent, not when it was answered:
//     OPA still ran that policy at some moment after it.
//  4. A decision that names another revision than the epoch's casts doubt: no
//     answer is reused until a poll sent after the doubt has spoken.
//  5. A reply belongs to an epoch only if it names the epoch's revision and the
//     epoch in which it was asked is still the live one.
//  6. The life that policy gives a decision counts from when the question was
//     sent, and can only shorten the operator's.
//
//  7. Where polls cannot tell that the policy changed, answers are not stored, and
//     an equal question in flight shares one for a lease after it was asked.
//
// So no answer of a policy is reused later than one lease after OPA left that
// policy, whatever messages are lost, late or doubled. One thing is taken on
// trust: that a revision which is left for other content of the same name is not
// come back to between two polls, since a reply names the revision alone.
// Revisions that hold a hash of the content cannot do that.
//
// All times are monotonic, counted from the start of the Decider.

// bundles is what one poll learned about the policy that OPA runs.
type bundles struct {
	revision  string // what decisions name in their provenance
	tag       string // revision and content tags: differs whenever the policy may
	loaded    bool   // OPA has what it needs to decide
	uncached  string // why decisions must not be cached; empty if they may
	revisions map[string]string
}

// epoch is a stretch of time in which, as far as polls tell, OPA ran one policy.
type epoch struct {
	bundles
	number    uint64
	confirmed atomic.Int64 // when the last poll that saw it was sent; written by the poller alone
}

// policy is the state that polls and replies move. Readers are lock free; polled
// is called by the one poller only.
type policy struct {
	lease time.Duration
	live  atomic.Pointer[epoch]
	doubt atomic.Int64 // latest moment at which a reply contradicted the live epoch
}

func newPolicy(lease time.Duration) *policy {
	p := &policy{lease: lease}
	p.doubt.Store(-1)
	return p
}

// polled takes the answer to a poll that was sent at the given time, and reports
// whether it started a new epoch.
func (p *policy) polled(b bundles, sent time.Duration) bool {
	e := p.live.Load()
	if e != nil && e.tag == b.tag && e.loaded == b.loaded && e.uncached == b.uncached {
		e.confirmed.Store(int64(sent))
		return false
	}
	next := &epoch{bundles: b, number: 1}
	if e != nil {
		next.number = e.number + 1
	}
	next.confirmed.Store(int64(sent))
	p.live.Store(next)
	return true
}

// replied takes the revision that a reply names, and returns the epoch to which
// the reply belongs, nil if to none. A reply that contradicts the live epoch
// casts doubt on it from now on; where nothing is cached there is nothing to
// doubt.
func (p *policy) replied(asked *epoch, revision string, now time.Duration) (belongs *epoch, doubt bool) {
	live := p.live.Load()
	switch {
	case live == nil:
		return nil, false
	case live.revision == revision && live == asked:
		return live, false
	case live.revision == revision || live.uncached != "":
		return nil, false
	}
	for old := p.doubt.Load(); old < int64(now) && !p.doubt.CompareAndSwap(old, int64(now)); old = p.doubt.Load() {
	}
	return nil, true
}

// term is what ends the reuse of an answer.
type term struct {
	epoch *epoch        // the epoch it belongs to; nil if to none
	asked time.Duration // when the question was sent
	ends  time.Duration // when its life ends
}

// state says whether an answer may be reused, or why it may not.
type state int

const (
	fresh       state = iota
	expired           // its life has ended
	moved             // it does not belong to the live epoch
	unconfirmed       // the live epoch is doubtful, or its lease has run out
)

// state of an answer now.
func (p *policy) state(t term, now time.Duration) state {
	switch {
	case now >= t.ends:
		return expired
	case t.epoch == nil || t.epoch != p.live.Load():
		return moved
	}
	if t.epoch.uncached != "" && now-t.asked > p.lease {
		return moved // for all that polls can tell
	}
	confirmed := t.epoch.confirmed.Load()
	if confirmed <= p.doubt.Load() || int64(now)-confirmed > int64(p.lease) {
		return unconfirmed
	}
	return fresh
}

// life is how long a decision may be reused: what the operator allows, or less if
// policy says less. A negative time is that policy says nothing.
func life(operator, policy time.Duration) time.Duration {
	if policy < 0 {
		return operator
	}
	return min(operator, policy)
}
