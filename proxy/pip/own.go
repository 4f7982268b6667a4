package pip

import (
	"sync"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
)

// own holds the contexts that this process itself read from the API, for use
// without Redis. They are kept by name, as in Redis, so that one deletion ends
// what was made of them for every alias.
type own struct {
	contexts *cache.Local[*held] // by digest of the lower-case name
	mu       sync.Mutex
	revoked  uint64 // revocations so far
}

// held is a context and the outage of Redis that it was read in: what was read in
// one is not used in another, since Redis may have been told of a revocation
// between them.
type held struct {
	record *record
	outage uint64
}

func newOwn(users int) *own {
	return &own{contexts: cache.NewLocal[*held](cache.LocalOptions{MaxEntries: users})}
}

// stands reports whether e was made from what is held now.
func (o *own) stands(e *entry) bool {
	h, ok := o.contexts.Get(e.key)
	return ok && h.record == e.record
}

// context is what is held of a user since the given outage began.
func (o *own) context(key authz.Digest, outage uint64) *record {
	if h, ok := o.contexts.Get(key); ok && h.outage == outage {
		return h.record
	}
	return nil
}

// revocations counts them; a fetch that begins takes the number with it.
func (o *own) revocations() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.revoked
}

// keep stores what a fetch brought, unless someone was revoked since it began.
func (o *own) keep(key authz.Digest, h *held, life time.Duration, began uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.revoked != began {
		return false
	}
	o.contexts.Set(key, h, life)
	return true
}

// revoke forgets a user and reports whether there was anything to forget.
func (o *own) revoke(key authz.Digest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked++
	_, ok := o.contexts.Get(key)
	o.contexts.Delete(key)
	return ok
}

// revokeAll forgets all users and reports how many that were.
func (o *own) revokeAll() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked++
	n := o.contexts.Len()
	o.contexts.Clear()
	return n
}
