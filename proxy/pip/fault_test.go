package pip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
	"headgate/proxy/cache/redistest"
)

// A stage is a user of one proxy while something happens to Redis.
type stage struct {
	*testing.T
	*api
	s *Source
	p *authz.Principal
}

func newStage(t *testing.T, url string, change ...func(*Config)) *stage {
	a := newAPI(t)
	st := &stage{t, a, replica(t, a, url, change...), token("u", "t")}
	st.give("old")
	expect(t, "before", roles(st.s, st.p), "old")
	expect(t, "before, warm", roles(st.s, st.p), "old")
	return st
}

func (st *stage) give(role string) { st.set("Bearer t", profileOf("U", "SPK", role)) }

// until asks until the answer is want, and reports how long that took and how
// many answers were neither want nor the one before.
func (st *stage) until(what, before, want string) time.Duration {
	st.Helper()
	start := time.Now()
	var other int
	eventually(st, what, func() bool {
		switch got := roles(st.s, st.p); got {
		case want:
			return true
		case before:
		default:
			if other++; other == 1 {
				st.Errorf("%s: %s", what, got)
			}
		}
		return false
	})
	return time.Since(start)
}

// bounded tells how long something took, and fails when that was far more than what
// was promised: a busy machine is late, a broken promise is broken for good.
func (st *stage) bounded(what string, took, most time.Duration) {
	st.Helper()
	st.Logf("%s: %v", what, took.Round(time.Millisecond))
	if took > 3*most {
		st.Errorf("%s: %v, promised %v", what, took, most)
	}
}

func (st *stage) recovered(start time.Time) {
	st.Helper()
	eventually(st, "Redis is used again", func() bool { return !st.s.Degraded() && roles(st.s, st.p) != "" && !st.s.Degraded() })
	st.bounded("Redis is used again", time.Since(start), 30*time.Second)
}

func TestFaultServerKilled(t *testing.T) {
	server := redistest.Start(t)
	st := newStage(t, server.URL())
	st.give("new")
	server.Kill()
	st.bounded("old context used", st.until("the API is asked", "old", "new"), 10*time.Second)

	// While Redis is away what the API said is used for 30 s, and nobody is asked.
	calls := st.calls.Load()
	for range 100 {
		expect(t, "away", roles(st.s, st.p), "new")
	}
	if n := st.calls.Load() - calls; n != 0 {
		t.Errorf("%d profile calls", n)
	}
	if lag := st.s.RevocationLag(); !st.s.Degraded() || st.s.Tracking() || lag != awayLife {
		t.Errorf("degraded %v, tracking %v, lag %v", st.s.Degraded(), st.s.Tracking(), lag)
	}

	// It comes back empty, and what was kept meanwhile is not used any more.
	st.give("newest")
	start := time.Now()
	server.Start()
	st.recovered(start)
	expect(t, "what was read without Redis is not used with it", roles(st.s, st.p), "newest")
	if lag := st.s.RevocationLag(); st.s.Degraded() || !st.s.Tracking() || lag != silence {
		t.Errorf("degraded %v, tracking %v, lag %v", st.s.Degraded(), st.s.Tracking(), lag)
	}
}

// A server that is restarted from a snapshot must not bring back what was
// deleted after it.
func TestFaultRestartedFromASnapshot(t *testing.T) {
	server := redistest.Start(t)
	st := newStage(t, server.URL())
	server.Do("save")
	st.give("new")
	server.Do("del", "user:context:u")
	server.Kill()
	server.Start()
	if got := server.Do("get", "user:context:u"); !strings.Contains(got, `"old"`) {
		t.Fatalf("the snapshot was not read: %s", got)
	}
	st.bounded("old context used", st.until("the API is asked", "old", "new"), silence)
	for range 100 {
		expect(t, "afterwards", roles(st.s, st.p), "new")
	}
}

func TestFaultFlushKillEvict(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
	st := newStage(t, server.URL())
	st.give("second")
	server.Do("flushall")
	st.bounded("old context used after FLUSHALL", st.until("FLUSHALL costs a re-read", "old", "second"), silence)

	st.give("third")
	server.Do("del", "user:context:u")
	st.until("the deletion is seen", "second", "third")
	for range 10 {
		server.Do("client", "kill", "type", "normal")
		start := time.Now()
		expect(t, "CLIENT KILL costs a re-read", roles(st.s, st.p), "third")
		st.bounded("a request after CLIENT KILL", time.Since(start), silence)
	}

	st.give("fourth")
	ballast, err := cache.OpenRedis(cache.RedisConfig{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	for i := 0; server.Do("exists", "user:context:u") == "1"; i += 100 {
		for j := range 100 {
			if err := ballast.Set(t.Context(), fmt.Sprint("user:ballast:", i+j), strings.Repeat("x", 16<<10), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
	}
	st.bounded("old context used after eviction", st.until("eviction costs a re-read", "third", "fourth"), silence)
	if st.s.Degraded() {
		t.Error("degraded")
	}
}

// Redis has no memory at all: what is stored is forgotten at once.
func TestFaultNoMemory(t *testing.T) {
	server := redistest.Start(t)
	st := newStage(t, server.URL())
	server.Do("config", "set", "maxmemory-policy", "allkeys-lru")
	server.Do("config", "set", "maxmemory", "1")
	eventually(t, "all is evicted", func() bool { server.Try("set", "user:x", "1"); return server.Do("dbsize") == "0" })
	for range 20 {
		expect(t, "without memory", roles(st.s, st.p), "old")
	}
	server.Do("config", "set", "maxmemory", "0")
	st.recovered(time.Now())
	calls := st.calls.Load()
	for range 20 {
		expect(t, "with memory again", roles(st.s, st.p), "old")
	}
	if n := st.calls.Load() - calls; n > 1 {
		t.Errorf("%d profile calls", n)
	}
}

func TestFaultACLRefusal(t *testing.T) {
	server := redistest.Start(t)
	server.Do("acl", "setuser", "app", "on", ">pw", "~user:*", "+@all")
	st := newStage(t, "redis://app:pw@"+server.Addr)
	st.give("new")
	server.Do("acl", "setuser", "app", "-set", "-eval", "-evalsha")
	server.Do("del", "user:context:u")
	st.bounded("old context used", st.until("the API is asked", "old", "new"), silence)
	eventually(t, "the refusal is noticed", func() bool { return st.s.Degraded() })
	calls := st.calls.Load()
	for range 100 {
		expect(t, "refused", roles(st.s, st.p), "new")
	}
	if n := st.calls.Load() - calls; n != 0 {
		t.Errorf("%d profile calls", n)
	}
	start := time.Now()
	server.Do("acl", "setuser", "app", "+@all")
	st.recovered(start)
}

func TestFaultWrongPasswordAtStart(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "right")
	st := newStage(t, "redis://:wrong@"+server.Addr)
	if !st.s.Degraded() {
		t.Error("not degraded")
	}
	start := time.Now()
	server.Do("-a", "right", "config", "set", "requirepass", "wrong")
	st.recovered(start)
}

// A partition without a word: the connection is there, nothing comes through.
func TestFaultPartition(t *testing.T) {
	server := redistest.Start(t)
	link := redistest.Connect(t, server)
	st := newStage(t, "redis://"+link.Addr)
	link.Cut()
	st.give("new")
	server.Do("del", "user:context:u")
	st.bounded("old context used", st.until("the partition is noticed", "old", "new"), silence)
	st.give("newest")
	server.Do("set", "user:context:u", "x") // what was made meanwhile is not used afterwards
	start := time.Now()
	link.Mend()
	st.recovered(start)
	expect(t, "afterwards", roles(st.s, st.p), "newest")
}

func TestFaultSlowRedis(t *testing.T) {
	server := redistest.Start(t)
	link := redistest.Connect(t, server)
	st := newStage(t, "redis://"+link.Addr)
	link.Delay(200 * time.Millisecond)
	for range 100 {
		expect(t, "warm", roles(st.s, st.p), "old")
	}
	st.give("new")
	server.Do("del", "user:context:u")
	st.bounded("old context used", st.until("the deletion is seen", "old", "new"), 10*time.Second)

	st.set("Bearer cold", profileOf("COLD", "SPK", "r"))
	start := time.Now()
	expect(t, "a cold user", roles(st.s, token("cold", "cold")), "r")
	st.bounded("a cold user", time.Since(start), 10*time.Second)
	if st.s.Degraded() {
		t.Error("degraded")
	}
}

func TestFaultNoTracking(t *testing.T) {
	server := redistest.Start(t)
	server.Do("acl", "setuser", "plain", "on", ">pw", "~user:*", "+@all", "-client|tracking")
	st := newStage(t, "redis://plain:pw@"+server.Addr)
	if lag := st.s.RevocationLag(); st.s.Tracking() || st.s.Degraded() || lag != untrackedLife {
		t.Errorf("tracking %v, degraded %v, lag %v", st.s.Tracking(), st.s.Degraded(), lag)
	}
	st.give("new")
	server.Do("del", "user:context:u")
	st.bounded("old context used", st.until("the deletion is seen", "old", "new"), untrackedLife+10*time.Second)

	// The server permits it after all, or another takes its place.
	start := time.Now()
	server.Do("acl", "setuser", "plain", "+client|tracking")
	eventually(t, "keys are tracked", func() bool {
		expect(t, "meanwhile", roles(st.s, st.p), "new")
		return st.s.Tracking()
	})
	st.Logf("keys are tracked: %v", time.Since(start).Round(time.Millisecond))
	if lag := st.s.RevocationLag(); st.s.Degraded() || lag != silence {
		t.Errorf("degraded %v, lag %v", st.s.Degraded(), lag)
	}
	expect(t, "with tracking", roles(st.s, st.p), "new")
	st.give("newest")
	server.Do("del", "user:context:u")
	st.bounded("old context used", st.until("the deletion is seen", "new", "newest"), silence)
}

// sentinel starts a primary and a replica that follows it over a link.
func sentinel(t *testing.T) (url string, primary, standby *redistest.Server, link *redistest.Link) {
	primary = redistest.Start(t)
	link = redistest.Connect(t, primary)
	host, port, _ := strings.Cut(link.Addr, ":")
	standby = redistest.Start(t, "--replicaof", host+" "+port)
	eventually(t, "the replica follows", func() bool { return strings.Contains(standby.Do("info", "replication"), "master_link_status:up") })
	watcher := redistest.Sentinel(t, "contexts", primary)
	eventually(t, "Sentinel knows the replica", func() bool {
		return strings.Contains(watcher.Do("sentinel", "replicas", "contexts"), standby.Port())
	})
	return "redis://" + watcher.Addr + "?master_set=contexts", primary, standby, link
}

// A replica that never heard of a deletion takes over.
func TestFaultFailoverWithALostWrite(t *testing.T) {
	url, primary, standby, link := sentinel(t)
	st := newStage(t, url)
	eventually(t, "the replica has the context", func() bool { return strings.Contains(standby.Do("get", "user:context:u"), `"old"`) })
	expect(t, "one call for a cold user", fmt.Sprint(st.calls.Load()), "1")
	got, err := st.s.Invalidate(t.Context(), "nobody")
	if want := (Revocation{Replicas: 1, Acknowledged: 1}); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}

	link.Cut()
	st.give("new")
	got, err = st.s.Invalidate(t.Context(), "U")
	if want := (Revocation{Contexts: 1, Replicas: 1}); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	primary.Kill()
	start := time.Now()
	eventually(t, "the replica takes over", func() bool { return strings.Contains(standby.Do("role"), "master") })
	if got := standby.Do("get", "user:context:u"); !strings.Contains(got, `"old"`) {
		t.Fatalf("the write was not lost: %s", got)
	}
	for !st.s.Tracking() {
		expect(t, "during the failover", roles(st.s, st.p), "new")
	}
	st.bounded("Redis is used again", time.Since(start), 30*time.Second)
	eventually(t, "the context is that of the new primary", func() bool {
		expect(t, "meanwhile", roles(st.s, st.p), "new")
		return strings.Contains(standby.Do("get", "user:context:u"), `"new"`)
	})
}

// A primary without its replicas may have been replaced where we cannot see it.
func TestFaultPrimaryAlone(t *testing.T) {
	url, primary, _, link := sentinel(t)
	st := newStage(t, url)
	primary.Do("config", "set", "min-replicas-to-write", "1")
	primary.Do("config", "set", "min-replicas-max-lag", "2")
	link.Cut()
	st.give("new")
	st.bounded("old context used", st.until("the API is asked", "old", "new"), 10*time.Second)
	if !st.s.Degraded() {
		t.Error("not degraded")
	}
}

func TestFaultClusterNodeLost(t *testing.T) {
	nodes := redistest.Cluster(t)
	a := newAPI(t)
	s := replica(t, a, nodes[0].URL()) // one address: the node says that it is of a cluster
	var users []*authz.Principal
	for i := range 60 {
		name := fmt.Sprint("U", i)
		a.set("Bearer "+name, profileOf(name, "SPK", "r"))
		users = append(users, token(name, name))
	}
	for _, p := range users {
		expect(t, "cold", roles(s, p), "r")
	}
	calls := a.calls.Load()
	for _, p := range users {
		expect(t, "warm", roles(s, p), "r")
	}
	if n := a.calls.Load() - calls; n != 0 {
		t.Errorf("%d profile calls for warm users", n)
	}

	// A revocation works wherever the key is.
	for _, p := range users {
		a.set(p.Credential.Value, profileOf(p.ID, "SPK", "second"))
	}
	if got, err := s.InvalidateAll(t.Context()); got.Contexts != len(users) || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, p := range users {
		eventually(t, "the revocation is seen", func() bool { return roles(s, p) == "second" })
	}

	nodes[1].Kill()
	start := time.Now()
	var failed atomic.Int64
	for _, p := range users {
		if roles(s, p) != "second" {
			failed.Add(1)
		}
	}
	t.Logf("a node is lost: %d of %d users not served, %v for all", failed.Load(), len(users), time.Since(start).Round(time.Millisecond))
	if failed.Load() > 0 {
		t.Error("users were not served")
	}
	// Each part of the key space that the node held is found to be away when it is
	// first asked for. After that nobody's profile is asked for again.
	eventually(t, "all of them are known", func() bool {
		calls := a.calls.Load()
		for _, p := range users {
			expect(t, "with a node lost", roles(s, p), "second")
		}
		return a.calls.Load() == calls
	})
	start = time.Now()
	nodes[1].Start()
	eventually(t, "the node is used again", func() bool { roles(s, users[0]); return !s.Degraded() })
	t.Logf("the node is used again after %v", time.Since(start).Round(time.Millisecond))
}

func TestDownAtStart(t *testing.T) {
	server := redistest.Stopped(t)
	st := newStage(t, server.URL())
	server.Start()
	st.recovered(time.Now())
	if !strings.Contains(server.Do("keys", "*"), "user:context:u") {
		t.Error("the context is not in Redis")
	}
}

// When the API is gone too, who is known is served and who is not is told to come
// back.
func TestFaultAPIGone(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		st := newStage(t, url)
		st.fail(503)
		expect(t, "known", roles(st.s, st.p), "old")
		if _, err := st.s.Subject(context.Background(), token("v", "v")); !errors.Is(err, authz.ErrUnavailable) {
			t.Errorf("unknown: %v", err)
		}
	})
}
