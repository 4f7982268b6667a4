package pdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/proxy/authz"
)

func TestDecide(t *testing.T) {
	clock := &hand{}
	const decision = `{"decision_id":"d1","provenance":{"bundles":{"authz":{"revision":"r1"}}},
		"result":{"allow":true,"reason":"office: yours","constraints":{"allowed_offices": ["SWT"], "é": 1}}}`
	f := newFakeOPA(t, says(decision))
	d := polled(t, f.URL, func(c *Config) { c.Now = clock.now })
	clock.advance(time.Millisecond)

	want := authz.Decision{
		Allow: true, Reason: "office: yours", Constraints: json.RawMessage(`{"allowed_offices":["SWT"],"\u00e9":1}`),
		ID: "d1", OPAID: "d1", Revision: "r1", Asked: clock.now(), Source: authz.FromOPA,
	}
	if got := decide(t, d, question(1)); !reflect.DeepEqual(got, want) {
		t.Errorf("asked\n got %+v\nwant %+v", got, want)
	}
	clock.advance(time.Millisecond)
	want.Source = authz.FromCache
	if got := decide(t, d, question(1)); !reflect.DeepEqual(got, want) {
		t.Errorf("cached\n got %+v\nwant %+v", got, want)
	}

	// A bare boolean: the constraints are the offices of the question, the id is ours.
	f.answers(says(`{"provenance":{"bundles":{"authz":{"revision":"r1"}}},"result":true}`))
	got := decide(t, d, question(2))
	want = authz.Decision{
		Allow: true, Constraints: json.RawMessage(`{"allowed_offices":["SWT"]}`),
		ID: got.ID, Revision: "r1", Asked: clock.now(), Source: authz.FromOPA,
	}
	if !reflect.DeepEqual(got, want) || len(got.ID) < 20 {
		t.Errorf("boolean\n got %+v\nwant %+v", got, want)
	}
	want.Source = authz.FromCache
	if got := decide(t, d, question(2)); !reflect.DeepEqual(got, want) {
		t.Errorf("boolean, cached\n got %+v\nwant %+v", got, want)
	}
}

// Where the life of a decision ends, by what policy says and who is asked.
func TestLife(t *testing.T) {
	f := func(name, result string, want time.Duration) {
		t.Helper()
		clock := &hand{}
		var took atomic.Int64
		opa := newFakeOPA(t, func(w http.ResponseWriter, _ *http.Request) {
			clock.advance(time.Duration(took.Load()))
			fmt.Fprintf(w, `{"provenance":{"bundles":{"authz":{"revision":"r1"}}},"result":%s}`, result)
		})
		d := polled(t, opa.URL, func(c *Config) {
			c.Now, c.AllowTTL, c.DenyTTL = clock.now, 300*time.Second, 30*time.Second
		})
		took.Store(int64(time.Second)) // the life counts from the question, not from the reply
		decide(t, d, question(1))
		if want > time.Second {
			clock.advance(want - time.Second - 1)
			if got := decide(t, d, question(1)); got.Source != authz.FromCache {
				t.Errorf("%s: not cached for %v", name, want)
			}
			clock.advance(1)
		}
		if got := decide(t, d, question(1)); got.Source != authz.FromOPA {
			t.Errorf("%s: cached for more than %v", name, want)
		}
	}
	f("an allow", `true`, 300*time.Second)
	f("a deny", `false`, 30*time.Second)
	f("an allow with a shorter life", `{"allow":true,"cache":{"ttl_ms":5000}}`, 5*time.Second)
	f("an allow with a longer life", `{"allow":true,"cache":{"ttl_ms":400000}}`, 300*time.Second)
	f("a deny with a longer life", `{"allow":false,"cache":{"ttl_ms":40000}}`, 30*time.Second)
	f("a life shorter than the way to OPA", `{"allow":true,"cache":{"ttl_ms":900}}`, 0)
	f("no life", `{"allow":true,"cache":{"ttl_ms":0}}`, 0)
}

// What ends or suspends the reuse of an entry, as the policy moves on.
func TestReuse(t *testing.T) {
	clock := &hand{}
	f := newFakeOPA(t, says(allowR1))
	d := polled(t, f.URL, func(c *Config) { c.Now, c.Lease, c.AllowTTL = clock.now, time.Second, time.Hour })
	is := func(name string, n int, want authz.Source) {
		t.Helper()
		if got := decide(t, d, question(n)); got.Source != want {
			t.Errorf("%s: from %s, want %s", name, got.Source, want)
		}
	}
	is("first", 1, authz.FromOPA)
	clock.advance(time.Second)
	is("on the last instant of the lease", 1, authz.FromCache)
	d.poll()
	clock.advance(time.Second)
	is("confirmed, the lease starts again", 1, authz.FromCache)

	f.answers(says(allowR2))
	d.poll()
	is("OPA has changed, which no poll has seen", 1, authz.FromCache)
	is("another question meets the new policy", 2, authz.FromOPA)
	is("it does not belong to the epoch", 2, authz.FromOPA)
	f.answers(says(allowR1))
	clock.advance(1)
	d.poll()
	is("a poll has dispelled the doubt", 1, authz.FromCache)

	f.answers(says(allowR2))
	f.runs(says(listR2))
	d.poll()
	is("a poll has seen the new policy", 1, authz.FromOPA)
	is("which is cached in its turn", 1, authz.FromCache)

	f.answers(says(allowR1))
	f.runs(says(listR1))
	d.poll()
	is("rolled back: the old entries stay dead", 1, authz.FromOPA)
	is("and are made again", 1, authz.FromCache)

	f.runs(says(strings.Replace(listR1, `"etag":"1"`, `"etag":"3"`, 1)))
	d.poll()
	is("the same revision with other content", 1, authz.FromOPA)
	is("and again", 1, authz.FromCache)

	f.runs(says(`{}`))
	d.poll()
	is("OPA has no bundle", 1, authz.FromOPA)
	is("nothing is cached", 1, authz.FromOPA)
}

// A hit whose lease has run out waits for a poll; many share it. With the poller
// slower than the lease, that is how every poll comes about.
func TestHitsWaitForOnePoll(t *testing.T) {
	clock := &hand{}
	polls, gate := atomic.Int32{}, make(chan struct{})
	f := newFakeOPA(t, says(allowR1))
	d := running(t, f.URL, func(c *Config) { c.Now, c.Lease, c.Poll, c.AllowTTL = clock.now, time.Second, time.Hour, time.Hour })
	until(t, "the first poll is answered", func() bool { return d.Ready() == nil })
	decide(t, d, question(1))
	f.runs(func(w http.ResponseWriter, _ *http.Request) {
		polls.Add(1)
		<-gate
		fmt.Fprint(w, listR1)
	})
	for range 3 {
		clock.advance(2 * time.Second)
		polls.Store(0)
		var hits sync.WaitGroup
		for range 100 {
			hits.Go(func() {
				if got := decide(t, d, question(1)); got.Source != authz.FromCache {
					t.Errorf("from %s", got.Source)
				}
			})
		}
		until(t, "a poll has begun", func() bool { return polls.Load() > 0 })
		gate <- struct{}{}
		ended := make(chan struct{})
		go func() { hits.Wait(); close(ended) }()
	drain: // those that came after the poll had begun wait for the next
		for {
			select {
			case gate <- struct{}{}:
			case <-ended:
				break drain
			}
		}
		if n := polls.Load(); n > 3 {
			t.Errorf("%d polls", n)
		}
	}
	close(gate)
	if n := f.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Without an answer to the poll, the entry is not served and OPA is asked; when
// it does not answer either, that is no decision.
func TestPollFails(t *testing.T) {
	clock := &hand{}
	f := newFakeOPA(t, says(allowR1))
	d := running(t, f.URL, func(c *Config) { c.Now, c.Lease, c.AllowTTL = clock.now, time.Second, time.Hour })
	until(t, "the first poll is answered", func() bool { return d.Ready() == nil })
	decide(t, d, question(1))
	f.runs(http.NotFound)
	clock.advance(2 * time.Second)
	for range 2 {
		if got := decide(t, d, question(1)); got.Source != authz.FromOPA {
			t.Errorf("from %s", got.Source)
		}
	}
	if err := d.Ready(); err == nil || err.Error() != "OPA has not answered for 2s" {
		t.Errorf("ready: %v", err)
	}
	f.answers(http.NotFound)
	if got, err := d.Decide(context.Background(), question(1)); !errors.Is(err, authz.ErrNoDecision) {
		t.Errorf("got %+v, %v", got, err)
	}
	f.runs(says(listR1))
	until(t, "it is ready again", func() bool { return d.Ready() == nil })
	if got := decide(t, d, question(1)); got.Source != authz.FromCache {
		t.Errorf("from %s", got.Source)
	}
}

// What a client can blow up is decided, but not kept.
func TestOversize(t *testing.T) {
	f := newFakeOPA(t, says(allowR1))
	d := polled(t, f.URL)
	q := func(n int) authz.Question {
		return authz.Question{Body: []byte(`{"input":"` + strings.Repeat("x", n-len(`{"input":""}`)) + `"}`)}
	}
	for n, want := range map[int]authz.Source{maxCachedInput: authz.FromCache, maxCachedInput + 1: authz.FromOPA} {
		decide(t, d, q(n))
		if got := decide(t, d, q(n)); got.Source != want {
			t.Errorf("%d bytes: from %s, want %s", n, got.Source, want)
		}
	}
}

// Decide keeps nothing of the question: its buffer is the caller's again.
func TestQuestionIsNotKept(t *testing.T) {
	f := newFakeOPA(t, says(`{"provenance":{"bundles":{"authz":{"revision":"r1"}}},"result":true}`))
	d := polled(t, f.URL)
	office := []byte("SWT")
	q := authz.Question{Body: []byte(`{"input":{"n":1}}`), Offices: []string{alias(office)}}
	if _, err := d.Decide(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	copy(q.Body, `{"other":{"n":2}}`)
	copy(office, "HQX")
	q.Offices[0] = "LRL"
	if got := decide(t, d, question(1)); got.Source != authz.FromCache || string(got.Constraints) != `{"allowed_offices":["SWT"]}` {
		t.Errorf("got %+v", got)
	}
}

func TestReadyAndStatus(t *testing.T) {
	clock := &hand{}
	f := newFakeOPA(t, says(allowR1))
	d := newDecider(t, f.URL, func(c *Config) { c.Now, c.Lease = clock.now, time.Second })
	f1 := func(name, wantReady string, want Status) {
		t.Helper()
		ready := ""
		if err := d.Ready(); err != nil {
			ready = err.Error()
		}
		want.Limit = d.cfg.MaxInFlight
		if got := d.Status(); ready != wantReady || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %q, %+v\nwant %q, %+v", name, ready, got, wantReady, want)
		}
	}
	r1 := Status{Epoch: 1, Revision: "r1", Revisions: map[string]string{"authz": "r1"}}

	f1("at start", "OPA has not answered yet", Status{Age: -1})
	d.poll()
	f1("polled", "", r1)
	decide(t, d, question(1))
	clock.advance(time.Second)
	r1.Entries, r1.Age = 1, time.Second
	f1("one lease later", "", r1)
	clock.advance(1)
	r1.Age++
	f1("and a bit", "OPA has not answered for 1s", r1)
	f.runs(says(strings.Replace(listR1, "cwms", "other", 1)))
	d.poll()
	f1("its bundle is about other things, and OPA says it is healthy: the rule came some other way", "", Status{
		Epoch: 2, Revision: "r1", Revisions: map[string]string{"authz": "r1"}, Entries: 1,
		Uncached: `no bundle has "cwms/authz/decision" under its roots, so the rule can change without a revision`,
	})
	f.Close()
	d.poll()
	f1("OPA is gone, for a moment only", "", d.Status())
	clock.advance(2 * time.Second)
	f1("OPA is gone", "OPA has not answered for 2s", d.Status())
}
