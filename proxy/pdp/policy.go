package pdp

import (
	"sync/atomic"
	"time"
)

// The rules by which a cached decision is tied to the policy that made it:
//
//  1. An entry belongs to the epoch in which its question was asked. A change of
//     what OPA runs starts a new epoch, and older entries are dead at once.
//  2. Only polls move the epoch, and polls are serial: an answer that arrives
//     late can never bring an older policy back.
//  3. An epoch counts only while its last confirmation is younger than the lease.
//     A confirmation is dated by when the poll was sent, not when it was answered:
//     OPA still ran that policy at some moment after it.
//  4. A decision that names another revision than the epoch's casts doubt: no
//     entry is served until a poll sent after the doubt has spoken.
//  5. A reply is stored only if it names the epoch's revision and the epoch in
//     which it was asked is still the live one.
//
// So no answer of a policy is served later than one lease after OPA left that
// policy, whatever messages are lost, late or doubled. Clocks are monotonic.

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
	confirmed atomic.Int64 // nanoseconds since the policy's start; written by the poller alone
}

// policy is the state that polls and replies move. Readers are lock free; polled
// is called by the one poller only.
type policy struct {
	lease time.Duration
	start time.Time // what the nanoseconds below count from

	live  atomic.Pointer[epoch]
	doubt atomic.Int64 // latest moment at which a reply contradicted the live epoch
}

func newPolicy(lease time.Duration, now time.Time) *policy {
	p := &policy{lease: lease, start: now}
	p.doubt.Store(-1)
	return p
}

// polled takes the answer to a poll that was sent at the given time, and reports
// whether it started a new epoch.
func (p *policy) polled(b bundles, sent time.Time) bool {
	at := int64(sent.Sub(p.start))
	e := p.live.Load()
	if e != nil && e.tag == b.tag && e.loaded == b.loaded {
		e.confirmed.Store(at)
		return false
	}
	next := &epoch{bundles: b, number: 1}
	if e != nil {
		next.number = e.number + 1
	}
	next.confirmed.Store(at)
	p.live.Store(next)
	return true
}

// confirmed reports whether the epoch is the live one and may be relied on now.
func (p *policy) confirmed(e *epoch, now time.Time) bool {
	if e == nil || e != p.live.Load() {
		return false
	}
	at := e.confirmed.Load()
	return at > p.doubt.Load() && int64(now.Sub(p.start))-at <= int64(p.lease)
}

// agrees takes the revision that a reply named, and reports whether it is that
// of the epoch in which the question was asked and that epoch is still live.
// A reply that contradicts the live epoch casts doubt on it, from now on.
func (p *policy) agrees(asked *epoch, revision string, now time.Time) bool {
	live := p.live.Load()
	if live != nil && live.revision != revision {
		at := int64(now.Sub(p.start))
		for old := p.doubt.Load(); old < at && !p.doubt.CompareAndSwap(old, at); old = p.doubt.Load() {
		}
		return false
	}
	return live != nil && asked == live
}

// age is how long ago the live epoch was last confirmed, and false if there is
// none.
func (p *policy) age(now time.Time) (time.Duration, bool) {
	e := p.live.Load()
	if e == nil {
		return 0, false
	}
	return now.Sub(p.start) - time.Duration(e.confirmed.Load()), true
}
