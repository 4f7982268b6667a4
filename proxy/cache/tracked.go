package cache

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// tracked is the client-side cache of all connections together: what was read
// from Redis and not called back since. rueidis fills it and empties it as Redis
// says (rueidis.CacheStore).
//
// Beside the value of a key it gives a Reading, by which whoever made something of
// the value can see whether it still stands without looking it up again: one
// atomic load. That is why it is ours and not the store that rueidis brings.
type tracked struct {
	mu    sync.Mutex
	slots map[string]*slot
	order list.List // of slots; the front goes first
	size  int
	most  int
}

// slot is a value, or one that is being read. Fields are written before done is
// closed and not after, but for the flags.
type slot struct {
	key   string
	on    *connection
	done  chan struct{}
	value rueidis.RedisMessage
	text  string
	err   error
	ends  time.Time

	stands, used atomic.Bool
	place        *list.Element
}

// slotSize is about what a slot costs beside its key and text.
const slotSize = 400

func newTracked(most int) *tracked {
	return &tracked{slots: map[string]*slot{}, most: most}
}

// Reading is what stood under a key when it was read; Text is empty if nothing
// did.
type Reading struct {
	Text  string
	Until time.Time // when it is read again at the latest; zero without tracking
	slot  *slot
}

// Stands reports whether the key has not changed since, as far as Redis has told.
// It is false when the connection is lost, and without tracking.
func (r *Reading) Stands() bool {
	s := r.slot
	if s == nil || !s.stands.Load() {
		return false
	}
	if !s.used.Load() {
		s.used.Store(true)
	}
	return true
}

// reading finds the slot with text under key. Without one, the text has been
// called back already.
func (t *tracked) reading(key, text string) Reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[key]; s != nil && s.text == text {
		return Reading{Text: text, Until: s.ends, slot: s}
	}
	return Reading{Text: text}
}

// connection is the part of tracked that one connection answers for.
type connection struct {
	*tracked
	pending map[string]*slot // nil when the connection is lost
}

func (t *tracked) connection(rueidis.CacheStoreOption) rueidis.CacheStore {
	return &connection{tracked: t, pending: map[string]*slot{}}
}

// Flight is called before a read: it gives the value, or a slot to wait for, or
// neither, and then the caller reads.
func (c *connection) Flight(key, _ string, ttl time.Duration, now time.Time) (rueidis.RedisMessage, rueidis.CacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slots[key]; s != nil && s.on == c {
		if now.Before(s.ends) {
			s.used.Store(true)
			return s.value, nil
		}
		c.drop(s)
	}
	if s := c.pending[key]; s != nil {
		return rueidis.RedisMessage{}, s
	}
	if c.pending != nil {
		c.pending[key] = &slot{key: key, on: c, done: make(chan struct{}), ends: now.Add(ttl)}
	}
	return rueidis.RedisMessage{}, nil
}

// Update is called with the answer to a read, in the order in which answers and
// call-backs arrive: a call-back of this value comes after it.
func (c *connection) Update(key, _ string, value rueidis.RedisMessage) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.pending[key]
	if s == nil {
		return 0
	}
	delete(c.pending, key)
	defer close(s.done)
	s.value = value
	text, err := value.ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return 0 // an error is for those who wait, not for later
	}
	s.text = text
	if at := value.CachePXAT(); at >= 0 && at < s.ends.UnixMilli() {
		s.ends = time.UnixMilli(at)
	}
	if old := c.slots[key]; old != nil {
		c.drop(old)
	}
	c.size += s.bytes()
	c.evict()
	s.stands.Store(true)
	c.slots[key] = s
	s.place = c.order.PushBack(s)
	return s.ends.UnixMilli()
}

// Cancel is called when a read failed.
func (c *connection) Cancel(key, _ string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.pending[key]; s != nil {
		delete(c.pending, key)
		s.err = err
		close(s.done)
	}
}

// Delete is called when Redis calls keys back, or all if there are none.
func (c *connection) Delete(keys []rueidis.RedisMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if keys == nil {
		c.dropAll()
	}
	for i := range keys {
		key, _ := keys[i].ToString()
		if s := c.slots[key]; s != nil {
			c.drop(s)
		}
	}
}

// Close is called when the connection is lost.
func (c *connection) Close(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropAll()
	for _, s := range c.pending {
		s.err = err
		close(s.done)
	}
	c.pending = nil
}

func (c *connection) dropAll() {
	for _, s := range c.slots {
		if s.on == c {
			c.drop(s)
		}
	}
}

// dropWhere drops the keys that which picks.
func (t *tracked) dropWhere(which func(key string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.slots {
		if which(key) {
			t.drop(s)
		}
	}
}

func (t *tracked) drop(s *slot) {
	s.stands.Store(false)
	delete(t.slots, s.key)
	t.order.Remove(s.place)
	t.size -= s.bytes()
}

// evict makes room. What was used since it last came to the front gets a second
// chance.
func (t *tracked) evict() {
	for chances := t.order.Len(); t.size > t.most && t.order.Len() > 0; chances-- {
		s := t.order.Front().Value.(*slot)
		if chances > 0 && s.used.Swap(false) {
			t.order.MoveToBack(s.place)
			continue
		}
		t.drop(s)
	}
}

func (s *slot) bytes() int { return slotSize + 2*len(s.key) + len(s.text) }

// Wait is called by those who came while a read was on its way.
func (s *slot) Wait(ctx context.Context) (rueidis.RedisMessage, error) {
	select {
	case <-s.done:
		return s.value, s.err
	case <-ctx.Done():
		return rueidis.RedisMessage{}, ctx.Err()
	}
}
