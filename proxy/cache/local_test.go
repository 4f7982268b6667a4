package cache

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hand is a clock that is moved by hand.
type hand struct{ nanos atomic.Int64 }

func (h *hand) now() time.Time          { return time.Unix(1_800_000_000, h.nanos.Load()) }
func (h *hand) advance(d time.Duration) { h.nanos.Add(int64(d)) }

func digest(n int) (d [32]byte) {
	binary.LittleEndian.PutUint64(d[:], uint64(n)*0x9e3779b97f4a7c15)
	return d
}

func TestLocalLife(t *testing.T) {
	var h hand
	c := NewLocal[string](LocalOptions{MaxEntries: 10, Now: h.now})
	is := func(name, want string) {
		t.Helper()
		if got, ok := c.Get(digest(1)); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", name, got, ok, want)
		}
	}

	is("nothing stored", "")
	c.Set(digest(1), "a", time.Second)
	is("stored", "a")
	h.advance(time.Second - 1)
	is("one nanosecond before its end", "a")
	h.advance(1)
	is("at its end", "")
	h.advance(-time.Hour)
	c.Set(digest(1), "b", time.Second)
	is("stored after the clock went back", "b")
	c.Set(digest(1), "c", time.Hour)
	h.advance(time.Minute)
	is("a new value has its own life, longer", "c")
	c.Set(digest(1), "d", time.Second)
	h.advance(time.Second)
	is("or shorter", "")

	c.Set(digest(1), "e", time.Second)
	c.Set(digest(1), "f", 0)
	c.Set(digest(1), "f", -1)
	is("no life stores nothing", "e")
	c.Delete(digest(1))
	is("deleted", "")

	c.Set(digest(1), "g", 1<<62)
	c.Set(digest(2), "h", time.Second)
	c.Clear()
	is("cleared", "")
	if n := c.Len(); n != 0 {
		t.Errorf("%d entries after Clear", n)
	}
}

func TestLocalIsBounded(t *testing.T) {
	c := NewLocal[int](LocalOptions{MaxEntries: 100})
	for i := range 10_000 {
		c.Set(digest(i), i, time.Hour)
	}
	c.entries.CleanUp() // eviction follows a write on another goroutine
	if n := c.Len(); n > 100 {
		t.Errorf("%d entries in a cache of 100", n)
	}
}

// An entry never comes back under another key or after its deletion, whatever
// is done at the same time.
func TestLocalConcurrently(t *testing.T) {
	c := NewLocal[int](LocalOptions{MaxEntries: 64})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20_000 {
				k := i % 128
				switch (i + g) % 4 {
				case 0:
					c.Set(digest(k), k, time.Hour)
				case 1:
					c.Delete(digest(k))
				default:
					if v, ok := c.Get(digest(k)); ok && v != k {
						t.Errorf("key %d holds %d", k, v)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestLocalHitAllocatesNothing(t *testing.T) {
	c := NewLocal[*int](LocalOptions{MaxEntries: 10})
	c.Set(digest(1), new(int), time.Hour)
	if n := testing.AllocsPerRun(1000, func() { c.Get(digest(1)) }); n != 0 {
		t.Errorf("%v allocations for a hit", n)
	}
}

const benchEntries = 10_000

func filled() *Local[*int] {
	c := NewLocal[*int](LocalOptions{MaxEntries: 2 * benchEntries})
	for i := range benchEntries {
		c.Set(digest(i), new(int), time.Hour)
	}
	c.entries.CleanUp()
	return c
}

func BenchmarkLocalHit(b *testing.B) {
	c := filled()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := c.Get(digest(i % benchEntries)); !ok {
			b.Fatal("miss")
		}
	}
}

// One hot key is the worst case for caches that write to an entry on a read.
func BenchmarkLocalHitOneKeyParallel(b *testing.B) {
	c := filled()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Get(digest(1))
		}
	})
}

func BenchmarkLocalHitParallel(b *testing.B) {
	c := filled()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			c.Get(digest(i % benchEntries))
		}
	})
}

func BenchmarkLocalMiss(b *testing.B) {
	c := filled()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Get(digest(benchEntries + i))
	}
}

func BenchmarkLocalSet(b *testing.B) {
	c := filled()
	v := new(int)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Set(digest(i%benchEntries), v, time.Hour)
	}
}

// BenchmarkLocalMemory reports the bytes of heap for one entry, key included,
// without what the value points to.
func BenchmarkLocalMemory(b *testing.B) {
	const entries = 100_000
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		before := heap()
		c := NewLocal[*int](LocalOptions{MaxEntries: entries})
		for i := range entries {
			c.Set(digest(i), nil, time.Hour)
		}
		c.entries.CleanUp()
		b.ReportMetric((heap()-before)/entries, "B/entry")
		runtime.KeepAlive(c)
	}
}
