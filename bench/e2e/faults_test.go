package e2e

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// tally counts statuses of answers while something is done to the stack.
type tally struct {
	mu     sync.Mutex
	status map[int]int
	slow   time.Duration
}

func (s *tally) add(a load.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[a.Status]++
	s.slow = max(s.slow, a.End.Sub(a.Start))
}

// during sends a mix of warm, new and anonymous questions while f runs, and
// returns what was answered.
func during(t *testing.T, st *stack.Stack, f func()) *tally {
	t.Helper()
	counts := &tally{status: map[int]int{}}
	calls := []*load.Call{
		{URL: st.Proxy + reading, Header: [][2]string{{"Authorization", "Bearer " + st.Tokens["M5HECTEST"]}}},
		{URL: st.Proxy + "/cwms-data/offices"},
		{URL: st.Proxy + "/cwms-data/levels?office=SPK", Header: [][2]string{{"Authorization", "Bearer " + st.Tokens["DAMOP001"]}}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		_, err := load.Run(ctx, load.Options{Connections: 8, Rate: 100, Duration: time.Minute, Timeout: deadline, Observe: counts.add},
			func(n int64) *load.Call { return calls[n%int64(len(calls))] })
		if err != nil {
			t.Error(err)
		}
	})
	f()
	cancel()
	work.Wait()
	return counts
}

func statusOf(st *stack.Stack, r request) int {
	answer, err := try(st.Proxy, r)
	if err != nil {
		return 0
	}
	return answer.status
}

// Each dependency is killed under load and comes back: what is answered meanwhile
// is what the failure table says, nothing hangs, and the proxy recovers without a
// restart.
func TestDependenciesComeAndGo(t *testing.T) {
	st := stack.New(t, stack.Options{Env: map[string]string{"OPA_TIMEOUT": "500", "CWMS_API_TIMEOUT": "1000"}})
	asked := get(reading, bearer(st.Tokens["M5HECTEST"]))
	ok := func() bool { return statusOf(st, asked) == http.StatusOK }
	await(t, "a first answer", ok)

	only := func(what string, got *tally, allowed ...int) {
		t.Helper()
		t.Logf("%s: %v, slowest %v", what, got.status, got.slow)
		for status, n := range got.status {
			good := status == http.StatusOK || status == 0 // cut off by the end of the load itself
			for _, a := range allowed {
				good = good || status == a
			}
			if !good {
				t.Errorf("%s: %d answers of status %d, want 200 or %v", what, n, status, allowed)
			}
		}
		if got.slow > 15*time.Second { // nothing hangs, however busy the machine
			t.Errorf("%s: an answer took %v", what, got.slow)
		}
	}
	ready := func() (int, string) {
		a, err := try(st.Proxy, get("/ready"))
		if err != nil {
			return 0, ""
		}
		status, _ := object(t, a.body)["status"].(string)
		return a.status, status
	}
	readyIs := func(status int, word string) func() bool {
		return func() bool { s, w := ready(); return s == status && w == word }
	}

	// Redis: normal service, degraded.
	got := during(t, st, func() {
		kill(t, st.RedisServer)
		await(t, "degraded", readyIs(200, "degraded"))
		if !ok() {
			t.Error("without Redis a known user is refused")
		}
		restart(t, st.RedisServer)
		await(t, "ready again", readyIs(200, "ready"))
	})
	only("Redis killed", got)

	// OPA: hits until the lease ends, then 503 and not ready.
	got = during(t, st, func() {
		kill(t, st.OPAServer)
		await(t, "not ready", readyIs(503, "not-ready"))
		await(t, "503", func() bool { return statusOf(st, asked) == http.StatusServiceUnavailable })
		restart(t, st.OPAServer)
		await(t, "ready again", readyIs(200, "ready"))
		await(t, "an answer", ok)
	})
	only("OPA killed", got, 503)

	// OPA frozen: the same, by time-out.
	got = during(t, st, func() {
		if err := st.OPAServer.Pause(); err != nil {
			t.Fatal(err)
		}
		await(t, "503", func() bool { return statusOf(st, asked) == http.StatusServiceUnavailable })
		if err := st.OPAServer.Resume(); err != nil {
			t.Fatal(err)
		}
		await(t, "an answer", ok)
	})
	only("OPA frozen", got, 503)

	// The API, and the issuer with it: 502, and 503 for a user who is not known yet.
	got = during(t, st, func() {
		kill(t, st.StandIn)
		await(t, "502", func() bool { return statusOf(st, asked) == http.StatusBadGateway })
		stranger := get("/cwms-data/timeseries?office=SPK", bearer(st.Tokens["L2HECTEST"]))
		if s := statusOf(st, stranger); s != http.StatusServiceUnavailable {
			t.Errorf("an unknown user while the API is away: %d, want 503", s)
		}
		await(t, "degraded", readyIs(200, "degraded"))
		restart(t, st.StandIn)
		await(t, "an answer", func() bool {
			s := statusOf(st, asked)
			// The stand-in starts with new keys, so tokens of old are refused once
			// the new set has been fetched.
			return s == http.StatusOK || s == http.StatusUnauthorized
		})
	})
	only("the API killed", got, 502, 503, 401)
}

// The profile call answers what it answers; only 200 with a user makes one.
func TestWhatTheProfileSays(t *testing.T) {
	st := stack.New(t, stack.Options{Env: map[string]string{"CWMS_API_TIMEOUT": "500"}})
	fault := func(f map[string]any) {
		f["target"] = "profile"
		if err := st.Do(t.Context(), http.MethodPut, "/fault", f, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		user   string
		fault  map[string]any
		status int
	}{
		{"DAMOP001", map[string]any{"status": 500}, 503},
		{"DATAMGR001", map[string]any{"status": 401}, 401},
		{"L1HECTEST", map[string]any{"status": 403}, 403}, // a user without roles, whom policy denies
		{"L2HECTEST", map[string]any{"drop": true}, 503},
		{"EXTPARTNER", map[string]any{"delay_ms": 2000}, 503},
	} {
		fault(c.fault)
		if a := send(t, st.Proxy, get(reading, bearer(st.Tokens[c.user]))); a.status != c.status {
			t.Errorf("%v: %d %s, want %d", c.fault, a.status, a.body, c.status)
		}
	}
}

func kill(t *testing.T, c *stack.Child) {
	t.Helper()
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
}

func restart(t *testing.T, c *stack.Child) {
	t.Helper()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// SIGTERM under load: the replica says that it is unready, its balancer sends no
// more, and every request that was sent is answered.
func TestStopUnderLoad(t *testing.T) {
	st := stack.New(t, stack.Options{Env: map[string]string{"SHUTDOWN_DELAY": "4s"}})
	call := &load.Call{URL: st.Proxy + reading, Header: [][2]string{{"Authorization", "Bearer " + st.Tokens["M5HECTEST"]}}}
	answered := make(chan struct{}, 1<<16)
	balancer, leave := context.WithCancel(t.Context())
	var result *load.Result
	var err error
	var work sync.WaitGroup
	work.Go(func() {
		result, err = load.Run(balancer, load.Options{
			Connections: 16, Rate: 200, Duration: 30 * time.Second, Timeout: deadline,
			Observe: func(load.Answer) { answered <- struct{}{} },
		}, func(int64) *load.Call { return call })
	})
	for range 100 {
		<-answered
	}
	stopped := make(chan error)
	go func() { stopped <- st.Replicas[0].Stop(deadline) }()
	await(t, "unready", func() bool { return statusOf(st, get("/ready")) == http.StatusServiceUnavailable })
	for range 20 { // it serves on while it is unready
		<-answered
	}
	leave()
	work.Wait()
	if err != nil || result.Err() != nil {
		t.Errorf("%v, %v; want no failed request", err, result.Err())
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, %d failed", result.Total.Requests, result.Total.Failed)
}

// What is in flight when the signal comes is finished, however long the API takes.
func TestStopFinishesWhatIsInFlight(t *testing.T) {
	st := stack.New(t, stack.Options{})
	if a := send(t, st.Proxy, get(reading, bearer(st.Tokens["M5HECTEST"]))); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if err := st.Do(t.Context(), http.MethodPut, "/fault", map[string]any{"target": "api", "delay_ms": 1500}, nil); err != nil {
		t.Fatal(err)
	}
	before, err := st.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const clients = 20
	answers := make(chan reply, clients)
	for range clients {
		go func() {
			a, err := try(st.Proxy, get(reading, bearer(st.Tokens["M5HECTEST"])))
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	await(t, "the requests are at the API", func() bool {
		now, err := st.Stats(t.Context())
		return err == nil && now.Requests >= before.Requests+clients
	})
	if err := st.Replicas[0].Stop(deadline); err != nil {
		t.Error(err)
	}
	for range clients {
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("%d %s, want 200", a.status, a.body)
		}
	}
}
