package pdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"headgate/proxy/authz"
)

// alias makes a string of bytes that are somebody else's.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// outcome is what one of many callers got.
type outcome struct {
	authz.Decision
	err error
}

// crowd asks the same question n times at once, and has all of them waiting for
// a flight when it returns, beside the others that do already.
func crowd(t *testing.T, d *Decider, n, others int) (ended func() map[string]int) {
	t.Helper()
	var all sync.WaitGroup
	outcomes := make([]outcome, n)
	for i := range n {
		all.Go(func() { outcomes[i].Decision, outcomes[i].err = d.Decide(context.Background(), question(1)) })
	}
	until(t, "all are waiting", func() bool { return inFlight() == others+n })
	return func() map[string]int {
		all.Wait()
		counts := map[string]int{}
		for _, o := range outcomes {
			switch {
			case o.err != nil:
				counts[o.err.Error()]++
			default:
				counts[string(o.Source)]++
			}
		}
		return counts
	}
}

// inFlight is the number of calls of Decide that wait for a flight, or lead one.
func inFlight() (n int) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		waits := bytes.Contains(stack, []byte("[sync.WaitGroup.Wait")) || bytes.Contains(stack, []byte("(*Decider).ask("))
		if waits && bytes.Contains(stack, []byte("(*Decider).fly(")) {
			n++
		}
	}
	return n
}

// gated answers each question when the test lets it.
type gated struct {
	*fakeOPA
	gate chan string // what is sent here is answered
}

func newGated(t *testing.T) *gated {
	g := &gated{gate: make(chan string)}
	g.fakeOPA = newFakeOPA(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case text := <-g.gate:
			fmt.Fprint(w, text)
		case <-r.Context().Done():
		}
	})
	return g
}

// asks waits until OPA has been asked n times in all.
func (g *gated) asks(t *testing.T, n int32) {
	t.Helper()
	until(t, fmt.Sprintf("OPA is asked %d times", n), func() bool { return g.asked.Load() == n })
}

func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL)
	ended := crowd(t, d, 1000, 0)
	g.gate <- allowR1
	if got := ended(); g.asked.Load() != 1 || got["opa"] != 1 || got["coalesced"]+got["cache"] != 999 {
		t.Errorf("asked %d times, got %v", g.asked.Load(), got)
	}
}

// The leader is told to give up; the question goes on and answers everybody.
func TestLeaderGivesUp(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL)
	ctx, cancel := context.WithCancel(context.Background())
	led := make(chan error)
	go func() { _, err := d.Decide(ctx, question(1)); led <- err }()
	g.asks(t, 1)
	ended := crowd(t, d, 100, 1)
	cancel()
	g.gate <- allowR1
	if err := <-led; err != nil {
		t.Error(err)
	}
	if got := ended(); g.asked.Load() != 1 || got["coalesced"]+got["cache"] != 100 {
		t.Errorf("asked %d times, got %v", g.asked.Load(), got)
	}
}

// The leader's time is up; those that came later ask anew, once.
func TestLeaderTimesOut(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL)
	q := question(1)
	late := make(chan answer)
	go func() {
		a, _ := d.fly(q.Key(), q, time.Now().Add(time.Second))
		late <- a
	}()
	g.asks(t, 1)
	ended := crowd(t, d, 100, 0)
	if a := <-late; !errors.Is(a.err, authz.ErrNoDecision) {
		t.Error(a.err)
	}
	g.asks(t, 2)
	g.gate <- allowR1
	if got := ended(); g.asked.Load() != 2 || got["opa"] != 1 || got["coalesced"]+got["cache"] != 99 {
		t.Errorf("asked %d times, got %v", g.asked.Load(), got)
	}
}

// An answer that policy gives for once is its leader's alone.
func TestFollowersOfAnAnswerForOnce(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL)
	ended := crowd(t, d, 50, 0)
	once := strings.Replace(allowR1, `"allow":true`, `"allow":true,"cache":{"ttl_ms":0}`, 1)
	for range 50 {
		g.gate <- once
	}
	if got := ended(); g.asked.Load() != 50 || got["opa"] != 50 {
		t.Errorf("asked %d times, got %v", g.asked.Load(), got)
	}
}

// The policy changes while a question is in flight: its answer is not kept, and
// who joined it shares the answer of the new policy.
func TestPolicyChangesInFlight(t *testing.T) {
	for name, answer := range map[string]string{"evaluated before": allowR1, "evaluated after": allowR2} {
		t.Run(name, func(t *testing.T) {
			g := newGated(t)
			d := running(t, g.URL)
			until(t, "the first poll is answered", func() bool { return d.Status().Epoch == 1 })
			ended := crowd(t, d, 100, 0)
			g.asks(t, 1)
			g.runs(says(listR2))
			d.Recheck()
			until(t, "the change is seen", func() bool { return d.Status().Epoch == 2 })
			g.gate <- answer
			g.asks(t, 2)
			g.gate <- allowR2
			got := ended()
			if g.asked.Load() != 2 || got["opa"] != 2 || got["coalesced"]+got["cache"] != 98 {
				t.Errorf("asked %d times, got %v", g.asked.Load(), got)
			}
			if e := decide(t, d, question(1)); e.Source != authz.FromCache || e.Revision != "r2" {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// OPA is ahead of the polls: the leader has a new answer, the others wait for a
// poll and share one.
func TestOPAIsAheadOfPolls(t *testing.T) {
	g := newGated(t)
	d := running(t, g.URL, func(c *Config) { c.Poll = time.Hour })
	until(t, "the first poll is answered", func() bool { return d.Status().Epoch == 1 })
	ended := crowd(t, d, 100, 0)
	g.asks(t, 1)
	g.runs(says(listR2))
	g.gate <- allowR2
	g.asks(t, 2)
	g.gate <- allowR2
	if got := ended(); g.asked.Load() != 2 || got["opa"] != 2 || got["coalesced"]+got["cache"] != 98 {
		t.Errorf("asked %d times, got %v", g.asked.Load(), got)
	}
}

// A panic in a flight reaches those who wait for it, and the process lives.
func TestPanicInFlight(t *testing.T) {
	f := newFakeOPA(t, says(allowR1))
	d := polled(t, f.URL)
	d.now = func() time.Duration { panic("BUG: a test") }
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, "BUG: a test") {
			t.Errorf("recovered %q", p)
		}
	}()
	d.fly([32]byte{}, question(1), time.Now().Add(time.Second))
	t.Error("no panic")
}

// 10,000 different questions to a slow OPA: as many as allowed are in flight, as
// many wait, the rest is turned away at once; and it recovers.
func TestOverload(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL, func(c *Config) { c.MaxInFlight, c.MaxEntries = 16, 100_000 })
	const n = 10_000
	var turned, answered, failed atomic.Int32
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, err := d.Decide(context.Background(), question(i))
			switch {
			case err == nil:
				answered.Add(1)
			case errors.Is(err, authz.ErrUnavailable) && errors.Is(err, errQueueFull):
				turned.Add(1)
			default:
				failed.Add(1)
			}
		})
	}
	until(t, "all others are turned away, before OPA has answered any", func() bool { return turned.Load() == n-32 })
	if got, asked := d.Status().InFlight, g.asked.Load(); got != 16 || asked != 16 {
		t.Errorf("%d in flight, %d asked, want 16", got, asked)
	}
	go func() {
		for range 32 {
			g.gate <- allowR1
		}
	}()
	all.Wait()
	if answered.Load() != 32 || failed.Load() != 0 {
		t.Errorf("%d answered, %d failed", answered.Load(), failed.Load())
	}
	g.answers(says(allowR1))
	for i := range 100 {
		decide(t, d, question(n+i))
	}
	if got := d.Status().InFlight; got != 0 {
		t.Errorf("%d in flight at the end", got)
	}
}

// A flood of strangers takes half of the slots and half of the queue.
func TestAnonymousFlood(t *testing.T) {
	g := newGated(t)
	d := polled(t, g.URL, func(c *Config) { c.MaxInFlight = 16 })
	var all sync.WaitGroup
	var turned, answered atomic.Int32
	for i := range 1000 {
		q := question(i)
		q.Anonymous = true
		all.Go(func() {
			if _, err := d.Decide(context.Background(), q); err == nil {
				answered.Add(1)
			} else if errors.Is(err, authz.ErrUnavailable) {
				turned.Add(1)
			}
		})
	}
	until(t, "the strangers have their half", func() bool { return turned.Load() == 1000-16 && g.asked.Load() == 8 })
	for i := range 8 {
		all.Go(func() { decide(t, d, question(1000+i)) })
	}
	until(t, "the others have theirs", func() bool { return g.asked.Load() == 16 })
	if got := d.Status().InFlight; got != 16 {
		t.Errorf("%d in flight", got)
	}
	for range 24 {
		g.gate <- allowR1
	}
	all.Wait()
	if answered.Load() != 16 {
		t.Errorf("%d strangers answered", answered.Load())
	}
}

// Whoever finds no slot in time is told that there is none.
func TestNoSlotInTime(t *testing.T) {
	s := newSlots(1)
	leave, err := s.enter(false, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.enter(false, time.Now().Add(time.Millisecond)); err != errNoSlot {
		t.Errorf("got %v", err)
	}
	if _, err := s.enter(true, time.Now().Add(time.Millisecond)); err != errNoSlot {
		t.Errorf("anonymous: got %v", err)
	}
	leave()
	leave, err = s.enter(true, time.Now())
	if err != nil {
		t.Errorf("after it came free: %v", err)
	}
	leave()
	if n := len(s.all.slots) + len(s.all.places) + len(s.anonymous.slots) + len(s.anonymous.places); n != 0 {
		t.Errorf("%d slots and places are still taken", n)
	}
}
