package pip

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache/redistest"
)

// Three servers and three Sentinels with the shipped files, three proxies: while
// the primary is lost, another takes over and the old one comes back as a replica,
// every request is answered, and by what is true.
func TestFaultFailoverUnderTraffic(t *testing.T) {
	for _, f := range []struct {
		what     string
		do, undo func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Start},
		{"frozen", (*redistest.Server).Freeze, (*redistest.Server).Thaw},
	} {
		t.Run(f.what, func(t *testing.T) {
			first, one, url := redistest.HighAvailability(t)

			a := newAPI(t)
			var replicas []*Source
			for range 3 {
				replicas = append(replicas, replica(t, a, url))
			}
			users := []*authz.Principal{token("u", "u"), token("v", "v"), token("w", "w")}
			for _, p := range users {
				a.set("Bearer "+p.ID, profileOf(strings.ToUpper(p.ID), "SPK", "role"))
			}
			used := func(s *Source) bool { return s.Tracking() && roles(s, users[0]) == "role" && s.Tracking() }
			for _, s := range replicas {
				eventually(t, "Redis is used", func() bool { return used(s) })
			}

			var slowest, count atomic.Int64
			var work sync.WaitGroup
			stop := make(chan struct{})
			for i := range 24 {
				work.Go(func() {
					for n := i; ; n++ {
						select {
						case <-stop:
							return
						case <-time.After(10 * time.Millisecond):
						}
						start := time.Now()
						got := roles(replicas[i%3], users[n%3])
						took := int64(time.Since(start))
						if count.Add(1); got != "role" {
							t.Errorf("a request was answered with %s after %v", got, time.Duration(took))
							return
						}
						for old := slowest.Load(); took > old && !slowest.CompareAndSwap(old, took); old = slowest.Load() {
						}
					}
				})
			}
			defer work.Wait()
			defer close(stop)
			before := one.Do("sentinel", "get-master-addr-by-name", "contexts")
			start := time.Now()
			f.do(first)
			eventually(t, "another primary", func() bool { return one.Do("sentinel", "get-master-addr-by-name", "contexts") != before })
			elected := time.Since(start)
			for _, s := range replicas {
				eventually(t, "it is used", func() bool { return used(s) })
			}
			t.Logf("another primary after %v, used after %v", elected.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			f.undo(first)
			eventually(t, "the old primary follows", func() bool {
				// Sentinel cuts off its clients when it makes it a replica.
				role, err := first.Try("--no-auth-warning", "--user", "operator", "--pass", "operator", "info", "replication")
				return err == nil && strings.Contains(role, "role:slave")
			})
			took := time.Duration(slowest.Load())
			t.Logf("%d requests, the slowest took %v", count.Load(), took.Round(time.Millisecond))
			if took >= elected {
				t.Errorf("a request took %v: it waited for the failover", took)
			}
		})
	}
}

// Redis is back while the API is asked in its place: what the API says is used for
// the request that asked, which does not begin again with Redis.
func TestRedisBackDuringAProfileCall(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	a.set("Bearer t", profileOf("U", "SPK", "role"))
	a.set("Bearer v", profileOf("V", "SPK", "other"))
	s := replica(t, a, server.URL())
	eventually(t, "Redis is used", s.Tracking)
	server.Kill()
	eventually(t, "Redis is missed", func() bool { return roles(s, token("v", "v")) == "other" && s.Degraded() })
	before := a.calls.Load()

	calling, resume := a.pause()
	answer := make(chan string)
	go func() { answer <- roles(s, token("u", "t")) }()
	calling()
	server.Start()
	eventually(t, "Redis is back", s.Tracking)
	resume()
	expect(t, "the request", <-answer, "role")
	expect(t, "profile calls", fmt.Sprint(a.calls.Load()-before), "1")

	// The next one is answered with Redis.
	expect(t, "the next", roles(s, token("u", "t")), "role")
	expect(t, "the context", fmt.Sprint(strings.Contains(server.Do("get", "user:context:u"), `"role"`)), "true")
}

// A claim whose fetch could not be stored is withdrawn when Redis is back: nobody
// waits until it ends by itself.
func TestClaimIsReleasedAfterAnOutage(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	a.set("Bearer t", profileOf("U", "SPK", "role"))
	s := replica(t, a, server.URL())
	expect(t, "cold", roles(s, token("u", "t")), "role")
	server.Do("del", "user:context:u")

	calling, resume := a.pause()
	answer := make(chan string)
	go func() { answer <- roles(s, token("u", "t")) }()
	calling()
	server.Do("persist", "user:context:u") // it would not end by itself
	server.Do("config", "set", "min-replicas-to-write", "1")
	resume()
	expect(t, "without writes", <-answer, "role")
	if claim := server.Do("get", "user:context:u"); !isClaim(claim) {
		t.Fatalf("there is no claim: %q", claim)
	}
	server.Do("config", "set", "min-replicas-to-write", "0")
	eventually(t, "the claim is withdrawn", func() bool { return !isClaim(server.Do("get", "user:context:u")) })
	expect(t, "with writes", roles(s, token("u", "t")), "role")
}
