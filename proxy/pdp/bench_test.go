package pdp

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"
)

// sized is a question of 500 bytes, as those of the API are.
func sized(n int) authz.Question {
	q := question(n)
	q.Body = append(q.Body[:len(q.Body)-2], `,"pad":"`...)
	q.Body = append(q.Body, strings.Repeat("x", 500-len(q.Body)-3)...)
	q.Body = append(q.Body, `"}}`...)
	return q
}

// warm is a Decider that has the decisions on n questions. Its decisions live for
// the length of a benchmark.
func warm(b testing.TB, n int) (*Decider, []authz.Question) {
	d := newDecider(b, "http://127.0.0.1:1", func(c *Config) { c.MaxEntries = 2*n + 100 })
	d.policy.polled(bundles{revision: "r1", tag: "r1", loaded: true}, 0)
	questions := make([]authz.Question, n)
	for i := range questions {
		questions[i] = sized(i)
		remember(d, questions[i], i)
	}
	return d, questions
}

// remember stores a decision as it comes from OPA.
func remember(d *Decider, q authz.Question, i int) {
	now := d.now()
	d.store(sum(q), answer{term: term{d.policy.live.Load(), now, now + time.Hour}, decision: authz.Decision{
		Allow: true, Reason: "office: yours", Revision: "r1", Asked: d.start.Add(now),
		Constraints: fmt.Appendf(nil, `{"allowed_offices":["O%d"],"embargo_rules":null,"data_classification":["public"]}`, i%50),
		ID:          fmt.Sprintf("6d5a3c3e-6c4f-4a8e-9a39-%012d", i), OPAID: fmt.Sprintf("6d5a3c3e-6c4f-4a8e-9a39-%012d", i),
	}})
}

func sum(q authz.Question) [32]byte { return q.Key() }

func TestHitAllocatesNothing(t *testing.T) {
	d, questions := warm(t, 1)
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() {
		if decision, err := d.Decide(ctx, questions[0]); err != nil || decision.Source != byCache {
			t.Fatal(decision, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a hit", n)
	}
}

// BenchmarkHit is a hit of a question of 500 bytes, its hash included.
func BenchmarkHit(b *testing.B) {
	d, questions := warm(b, 64)
	ctx := context.Background()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if decision, _ := d.Decide(ctx, questions[i%64]); !decision.Allow {
			b.Fatal("miss")
		}
	}
}

// BenchmarkHash is the part of BenchmarkHit that is SHA-256.
func BenchmarkHash(b *testing.B) {
	q := sized(1)
	var key [32]byte
	for b.Loop() {
		key = sum(q)
	}
	runtime.KeepAlive(key)
}

func BenchmarkHitParallel(b *testing.B) {
	d, questions := warm(b, 64)
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(64); pb.Next(); i++ {
			if decision, _ := d.Decide(ctx, questions[i%64]); !decision.Allow {
				b.Error("miss")
			}
		}
	})
}

// BenchmarkMiss is what a miss costs beside OPA's own time; BenchmarkPlainClient
// is the same question to the same server by a plain client.
func BenchmarkMiss(b *testing.B) {
	f := newFakeOPA(b, says(allowR1))
	d := polled(b, f.URL)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		decide(b, d, sized(i))
	}
}

func BenchmarkPlainClient(b *testing.B) {
	f := newFakeOPA(b, says(allowR1))
	benchmarkPlain(b, f.URL)
}

// The same with a real OPA, over TCP.
func BenchmarkMissRealOPA(b *testing.B) {
	d := polledReal(b)
	for i := 0; b.Loop(); i++ {
		decide(b, d, sized(i))
	}
}

func BenchmarkPlainClientRealOPA(b *testing.B) {
	s := newBundleServer(b)
	s.publish(bundle(b, allowRule, "r1", "cwms"))
	opa := startOPA(b, options{bundles: s})
	d := running(b, opa.address)
	until(b, "it is ready", func() bool { return d.Ready() == nil })
	benchmarkPlain(b, opa.address)
}

func polledReal(b testing.TB) *Decider {
	s := newBundleServer(b)
	s.publish(bundle(b, allowRule, "r1", "cwms"))
	d := running(b, startOPA(b, options{bundles: s}).address)
	until(b, "it is ready", func() bool { return d.Ready() == nil })
	return d
}

func benchmarkPlain(b *testing.B, address string) {
	transport := &http.Transport{}
	b.Cleanup(transport.CloseIdleConnections)
	client := http.Client{Transport: transport}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		resp, err := client.Post(address+rulePath, "application/json", strings.NewReader(string(sized(i).Body)))
		if err != nil {
			b.Fatal(err)
		}
		body(&http.Request{Body: resp.Body})
		resp.Body.Close()
	}
}

// BenchmarkMemory reports the heap for one cached decision, all of it included.
func BenchmarkMemory(b *testing.B) {
	const entries = 100_000
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		before := heap()
		d := newDecider(b, "http://127.0.0.1:1", func(c *Config) { c.MaxEntries = entries })
		d.policy.polled(bundles{revision: "r1", tag: "r1", loaded: true}, 0)
		for i := range entries {
			remember(d, sized(i), i)
		}
		b.ReportMetric((heap()-before)/float64(d.Status().Entries), "B/entry")
		runtime.KeepAlive(d)
	}
}

// BenchmarkZipf reports the hit rate of a load in which a few of 100,000
// questions are asked often and most seldom, against the size of the cache.
func BenchmarkZipf(b *testing.B) {
	const questions = 100_000
	for _, percent := range []int{1, 5, 10, 25, 50, 100} {
		b.Run(fmt.Sprintf("%d%%", percent), func(b *testing.B) {
			d := newDecider(b, "http://127.0.0.1:1", func(c *Config) { c.MaxEntries = questions * percent / 100 })
			d.policy.polled(bundles{revision: "r1", tag: "r1", loaded: true}, 0)
			zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, questions-1)
			for b.Loop() {
				const cold, asked = questions, 3 * questions
				hits := 0
				for i := range cold + asked {
					var key [32]byte
					binary.LittleEndian.PutUint64(key[:], zipf.Uint64()*0x9e3779b97f4a7c15)
					if _, ok := d.entries.Get(key); !ok {
						now := d.now()
						d.store(key, answer{term: term{d.policy.live.Load(), now, now + time.Hour}})
					} else if i >= cold {
						hits++
					}
				}
				b.ReportMetric(100*float64(hits)/asked, "%hits")
			}
		})
	}
}
