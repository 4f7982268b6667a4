package pdp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/proxy/authz"
)

// TestActivation flips one rule between allow and deny in a real OPA, under load,
// and holds every answer against what OPA ran. HEADGATE_LONG=1 flips 200 times.
func TestActivation(t *testing.T) {
	flips, saturated := 12, 5
	if os.Getenv("HEADGATE_LONG") != "" {
		flips, saturated = 200, 50
	}
	for _, c := range []struct {
		name    string
		unix    bool // socket instead of TCP
		push    bool // OPA's status push arrives
		workers int  // that ask without a pause, instead of 300 questions per second
	}{
		{"push", false, true, 0},
		{"push, Unix socket", true, true, 0},
		{"every push lost", false, false, 0},
		{"every push lost, Unix socket", true, false, 0},
		{"push, at saturation", false, true, 50},
		{"every push lost, at saturation", true, false, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := flips
			if c.workers > 0 {
				n = saturated
			}
			activation(t, n, c.unix, c.push, c.workers)
		})
	}
}

// record is what was observed of OPA and of the Decider. Revisions are numbered
// from 1; even ones allow.
type record struct {
	lease time.Duration
	start time.Time

	mu     sync.Mutex
	seen   map[int]observation // by revision
	cached int                 // answers from the cache since one was not
	fault  string              // first wrong answer
}

// observation is when OPA itself, and when the Decider, first answered by a
// revision; nanoseconds since the start.
type observation struct {
	earliest, latest time.Duration // it was asked when it still gave the old answer, and gave the new one
	decider          time.Duration
}

// answered checks the answer to a question that began at the given time.
func (r *record) answered(began time.Duration, d authz.Decision, err error) {
	now := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	n, convErr := strconv.Atoi(d.Revision)
	next, left := r.seen[n+1]
	switch {
	case r.fault != "":
		return
	case err != nil:
		r.fault = err.Error()
	case convErr != nil || d.Allow != (n%2 == 0):
		r.fault = fmt.Sprintf("revision %q says %v", d.Revision, d.Allow)
	case left && next.latest > 0 && began > next.latest+r.lease:
		r.fault = fmt.Sprintf("revision %d served from %s for a question that began %v after OPA had left it", n, d.Source, began-next.latest)
	}
	r.cached++
	if d.Source != authz.FromCache {
		r.cached = 0
	}
	if o := r.seen[n]; o.decider == 0 {
		o.decider = now
		r.seen[n] = o
	}
}

func activation(t *testing.T, flips int, unix, push bool, workers int) {
	var d atomic.Pointer[Decider]
	status := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if push {
			d.Load().Recheck()
		}
	}))
	defer status.Close()
	bundles := newBundleServer(t)
	built := [2][]byte{bundle(t, allowRule, "0", "cwms"), bundle(t, denyRule, "0", "cwms")}
	bundles.publish(renamed(t, built[1], "1"))

	r := &record{lease: time.Second, start: time.Now(), seen: map[int]observation{}}
	// The status receiver needs a Decider before OPA has an address.
	d.Store(newDecider(t, "http://127.0.0.1:1"))
	opa := startOPA(t, options{bundles: bundles, status: status.URL, unix: unix})
	d.Store(running(t, opa.address, func(c *Config) { c.Lease, c.MaxEntries = r.lease, 10_000 }))
	until(t, "it is ready", func() bool { return d.Load().Ready() == nil })

	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	// A prober asks OPA itself, to learn when it began to run which revision.
	client := opa.client(t)
	all.Go(func() {
		var last string
		var before time.Duration
		for tick := time.NewTicker(2 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			sent := time.Since(r.start)
			revision, err := opa.asked(ctx, client)
			if err != nil {
				continue
			}
			if revision != last {
				n, _ := strconv.Atoi(revision)
				r.mu.Lock()
				o := r.seen[n]
				o.earliest, o.latest = before, time.Since(r.start)
				r.seen[n] = o
				r.mu.Unlock()
				last = revision
			}
			before = sent
		}
	})
	asked := atomic.Int64{}
	ask := func(n int) {
		began := time.Since(r.start)
		decision, err := d.Load().Decide(context.Background(), question(n))
		r.answered(began, decision, err)
		asked.Add(1)
	}
	if workers == 0 {
		all.Go(func() {
			for tick := time.NewTicker(time.Second / 300); ctx.Err() == nil; <-tick.C {
				all.Go(func() { ask(rand.IntN(20)) })
			}
		})
	}
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				ask(rand.IntN(500))
			}
		})
	}

	for n := 2; n <= flips+1; n++ {
		bundles.publish(renamed(t, built[n%2], strconv.Itoa(n)))
		until(t, "the Decider answers by the new bundle, from the cache", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			o := r.seen[n]
			return r.fault != "" || o.decider > 0 && o.latest > 0 && r.cached > 40
		})
	}
	// Whatever is served now was asked under the last bundle, or within a lease.
	end := time.Since(r.start) + r.lease + 100*time.Millisecond
	until(t, "the last lease has run out", func() bool { return time.Since(r.start) > end })
	stop()
	all.Wait()
	if r.fault != "" {
		t.Fatal(r.fault)
	}
	t.Logf("%d activations, %d answers; the Decider's first new answer came", flips, asked.Load())
	for what, since := range map[string]func(observation) time.Duration{
		"after OPA's last old answer": func(o observation) time.Duration { return o.decider - o.earliest },
		"after OPA's first new one":   func(o observation) time.Duration { return max(0, o.decider-o.latest) },
	} {
		var took []time.Duration
		for n := 2; n <= flips+1; n++ {
			took = append(took, since(r.seen[n]))
		}
		slices.Sort(took)
		at := func(p int) time.Duration { return took[(len(took)-1)*p/100].Round(100 * time.Microsecond) }
		t.Logf("%s: p50 %v, p99 %v, max %v", what, at(50), at(99), at(100))
	}
}
