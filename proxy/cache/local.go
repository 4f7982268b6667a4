package cache

import (
	"time"

	"github.com/maypok86/otter/v2"
)

// LocalOptions describe a Local.
type LocalOptions struct {
	// MaxEntries is the most entries kept, at least 1. Beyond it the entries
	// least likely to be read again are evicted.
	MaxEntries int
	// Now is the clock; nil means time.Now. Any goroutine may call it. With
	// time.Now a lifetime is measured by the monotonic clock, so a step of the
	// wall clock cannot lengthen it.
	Now func() time.Time
}

// Local is the in-process tier: a bounded map from a digest to a value that
// lives for a while. A hit allocates nothing and takes no lock. It owns no
// goroutine that outlives a call for long, so there is nothing to close.
//
// Keys are digests, never what a client sent: equal digests are equal things.
// Values are shared between all readers and must not be changed once stored.
type Local[V any] struct {
	entries *otter.Cache[[32]byte, local[V]]
}

type local[V any] struct {
	value V
	life  time.Duration
}

// NewLocal makes an empty Local.
func NewLocal[V any](o LocalOptions) *Local[V] {
	if o.MaxEntries < 1 {
		panic("BUG: a cache needs room for one entry at least")
	}
	start := time.Now()
	age := func() time.Duration { return time.Since(start) } // half the cost of time.Now
	if o.Now != nil {
		start = o.Now()
		age = func() time.Duration { return o.Now().Sub(start) }
	}
	return &Local[V]{entries: otter.Must(&otter.Options[[32]byte, local[V]]{
		MaximumSize: o.MaxEntries,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[[32]byte, local[V]]) time.Duration {
			return e.Value.life
		}),
		Clock: clock{age},
	})}
}

// Get returns the value stored under key, unless its life has ended.
func (c *Local[V]) Get(key [32]byte) (V, bool) {
	e, ok := c.entries.GetIfPresent(key)
	return e.value, ok
}

// Set stores v under key for the given life, in place of what was there. A life
// of zero or less stores nothing and leaves what was there.
func (c *Local[V]) Set(key [32]byte, v V, life time.Duration) {
	if life > 0 {
		c.entries.Set(key, local[V]{v, life})
	}
}

// Delete removes what is stored under key.
func (c *Local[V]) Delete(key [32]byte) { c.entries.Invalidate(key) }

// Clear removes every entry that was stored before the call.
func (c *Local[V]) Clear() { c.entries.InvalidateAll() }

// Len is the number of entries held, dead ones included that no write has swept
// out yet.
func (c *Local[V]) Len() int { return c.entries.EstimatedSize() }

// clock gives otter the age of the cache. It does not tick: a ticking clock would
// cost a goroutine for each cache, only to free dead entries of an idle cache
// somewhat earlier.
type clock struct{ age func() time.Duration }

func (c clock) NowNano() int64 { return int64(c.age()) }

func (clock) Tick(time.Duration) <-chan time.Time { return nil }
