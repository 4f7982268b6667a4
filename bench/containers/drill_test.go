package containers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// tally counts the statuses of answers while something is done to the containers.
type tally struct {
	mu     sync.Mutex
	status map[int]int
	slow   time.Duration
	bad    string // the first answer that was none
}

// during sends a mix of a known user's, another's and anonymous reads while f runs.
func during(t *testing.T, st *stack.Stack, f func()) *tally {
	t.Helper()
	counts := &tally{status: map[int]int{}}
	calls := []*load.Call{
		call(st, "M5HECTEST", reading), call(st, "", "/cwms-data/offices"), call(st, "DAMOP001", "/cwms-data/levels?office=SPK"),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	observe := func(a load.Answer) {
		if ctx.Err() != nil {
			return // cut off by the end of the load itself
		}
		counts.mu.Lock()
		defer counts.mu.Unlock()
		counts.status[a.Status]++
		counts.slow = max(counts.slow, a.End.Sub(a.Start))
		if a.Status == 0 && counts.bad == "" {
			counts.bad = fmt.Sprint(a.Err)
		}
	}
	var work sync.WaitGroup
	work.Go(func() {
		_, err := load.Run(ctx, load.Options{Connections: 8, Rate: 60, Duration: 2 * patience, Timeout: 20 * time.Second, Observe: observe},
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

// only compares what was answered with what may be; 0 is no answer at all.
func only(t *testing.T, what string, got *tally, allowed ...int) {
	t.Helper()
	t.Logf("%s: %v, slowest %v", what, got.status, got.slow.Round(time.Millisecond))
	for _, s := range slices.Sorted(maps.Keys(got.status)) {
		if s != http.StatusOK && !slices.Contains(allowed, s) {
			t.Errorf("%s: %d answers of status %d, want 200 or %v; %s", what, got.status[s], s, allowed, got.bad)
		}
	}
	if got.status[http.StatusOK] == 0 {
		t.Errorf("%s: no request was answered well", what)
	}
}

// fault is something done to a container and undone.
type fault struct {
	what     string
	do, undo func(p *project, service string)
}

func faults(network string) []fault {
	docker := func(args ...string) func(p *project, service string) {
		return func(p *project, service string) { p.docker(append(args, p.container(service))...) }
	}
	return []fault{
		{"paused", docker("pause"), docker("unpause")},
		{"cut off", func(p *project, service string) {
			p.docker("network", "disconnect", p.network(network), p.container(service))
		}, func(p *project, service string) {
			args := []string{"network", "connect", "--alias", service}
			if service == "api" {
				args = append(args, "--alias", "cda")
			}
			p.docker(append(args, p.network(network), p.container(service))...)
		}},
		{"killed", docker("kill"), docker("start")},
	}
}

// long is for what takes minutes.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("HEADGATE_LONG") == "" {
		t.Skip("left out: HEADGATE_LONG=1 runs it")
	}
}

// drill does to each container what happens to containers, with requests under way.
// The expectation is the table of failures in README.md.
func drill(t *testing.T, p *project, st *stack.Stack) {
	long(t)
	const hold = 3 * time.Second // how long a fault lasts beyond its first effect
	warm := func() int { return status(st.Proxy+reading, st.Tokens["M5HECTEST"]) }
	all := func(s string) func() bool { return func() bool { return ready(st.Proxy) == s } }
	answers := func(want ...int) func() bool { return func() bool { return slices.Contains(want, warm()) } }

	for _, c := range []struct {
		service, network string
		effect           map[string]func() bool // when it is felt; nil: never
		allowed          map[string][]int
	}{
		{"bundles", "policy", nil, nil},
		// A partition leaves the replica degraded: users are known from the API.
		{"redis", "data", map[string]func() bool{"killed": all("degraded"), "paused": all("degraded"), "cut off": all("degraded")}, nil},
		// OPA is reached by its socket: cut off from its network it still decides.
		{"opa", "policy", map[string]func() bool{"killed": answers(503), "paused": answers(503)}, map[string][]int{"killed": {503}, "paused": {503}}},
		{"api", "upstream", map[string]func() bool{"killed": answers(502, 504), "paused": answers(504), "cut off": answers(502, 504)},
			map[string][]int{"killed": {401, 502, 503, 504}, "paused": {503, 504}, "cut off": {502, 503, 504}}},
	} {
		for _, f := range faults(c.network) {
			what := c.service + " " + f.what
			var again time.Duration
			got := during(t, st, func() {
				f.do(p, c.service)
				if effect := c.effect[f.what]; effect != nil {
					p.await(what+" is felt", effect)
				}
				time.Sleep(hold) // a fault that nobody feels must be given its time
				f.undo(p, c.service)
				if c.service == "api" && f.what == "killed" {
					p.mintAgain(st)
				}
				again = p.await(what+": all is well again", func() bool { return warm() == 200 && ready(st.Proxy) == "ready" })
			})
			only(t, what, got, c.allowed[f.what]...)
			t.Logf("%s: well again after %v", what, again.Round(10*time.Millisecond))
		}
	}

	// Redis is filled to its last byte, by its own user: in parts, since nothing is
	// evicted while a script runs.
	got := during(t, st, func() {
		p.docker("exec", p.container("redis"), "sh", "-c", `for part in $(seq 75); do
			redis-cli --no-auth-warning --user proxy --pass headgate \
				eval "for i=1,8 do redis.call('SET','user:fill:'..ARGV[1]..':'..i, string.rep('x',1048576)) end return 1" 0 $part || exit
		done`)
		if info := p.docker("exec", p.container("redis"), "redis-cli", "--no-auth-warning", "--user", "operator", "--pass", "operator", "info", "stats"); strings.Contains(info, "evicted_keys:0\r") {
			t.Error("Redis is not full")
		}
		p.await("Redis is used again", func() bool { return warm() == 200 && ready(st.Proxy) == "ready" })
	})
	only(t, "redis full", got)

	// The proxy itself: its clients see it go, and it comes back.
	for _, f := range faults("clients") {
		if f.what == "cut off" {
			continue // from its clients, who alone would see it
		}
		during(t, st, func() {
			f.do(p, "proxy")
			time.Sleep(hold)
			f.undo(p, "proxy")
			again := p.await("the proxy answers", answers(200))
			t.Logf("proxy %s: well again after %v", f.what, again.Round(10*time.Millisecond))
		})
	}
	for _, service := range []string{"proxy", "opa", "redis", "api", "bundles"} {
		p.await(service+" is healthy", func() bool {
			return p.docker("inspect", "-f", "{{.State.Health.Status}}", p.container(service)) == "healthy"
		})
	}
}

// mintAgain is for a stand-in that was started anew, perhaps at another address.
func (p *project) mintAgain(st *stack.Stack) {
	p.await("the stand-in is back", func() bool {
		st.Control = "http://" + p.address("api", "upstream") + ":7002"
		_, err := st.Stats(p.t.Context())
		return err == nil
	})
	p.mint(st)
}

// Three proxies behind the load balancer, Redis with Sentinel: a roll loses
// nothing, and neither does a failover.
func TestHighAvailability(t *testing.T) {
	long(t)
	p := newProject(t, "ha")
	took := p.up("lb")
	t.Logf("up and healthy after %v", took.Round(100*time.Millisecond))
	if running := strings.Fields(p.compose("ps", "--services")); slices.Contains(running, "proxy") || slices.Contains(running, "redis") {
		t.Errorf("what ha replaces runs too: %s", running)
	}
	st := p.attach()
	warm := func() int { return status(st.Proxy+reading, st.Tokens["M5HECTEST"]) }
	p.await("an answer", func() bool { return warm() == 200 })
	proxies := []string{"proxy-1", "proxy-2", "proxy-3"}
	each := func(want string) func() bool {
		return func() bool {
			for _, name := range proxies {
				if ready("http://"+p.address(name, "balanced")+":3001") != want {
					return false
				}
			}
			return true
		}
	}
	p.await("all are ready", each("ready"))
	p.await("the Sentinels know all", func() bool { return strings.Count(p.sentinel("replicas", "contexts"), "runid") == 2 })

	began := time.Now()
	got := during(t, st, func() {
		for _, name := range proxies {
			p.compose("restart", "-t", "60", name)
			p.await(name+" is healthy", func() bool {
				return p.docker("inspect", "-f", "{{.State.Health.Status}}", p.container(name)) == "healthy"
			})
			// The balancer looks twice a second.
			p.await(name+" is ready", func() bool { return ready("http://"+p.address(name, "balanced")+":3001") == "ready" })
			time.Sleep(2 * time.Second)
		}
	})
	only(t, "three proxies rolled, one by one", got)
	p.slowest(began, proxies...)

	// Failover. A user whose roles are gone does not get them back by it.
	revokedRead := func() int { return status(st.Proxy+"/cwms-data/timeseries?name=A&office=SWT", st.Tokens["DATAMGR001"]) }
	if s := revokedRead(); s != 200 {
		t.Fatalf("DATAMGR001 reads: %d", s)
	}
	if err := st.Do(t.Context(), http.MethodPut, "/users/DATAMGR001", map[string]any{"roles": map[string]any{"SWT": []string{"All Users"}}}, nil); err != nil {
		t.Fatal(err)
	}
	p.docker("exec", p.container("proxy-1"), "/headgate", "invalidate", "--user", "DATAMGR001")
	p.await("the revocation", func() bool { return revokedRead() == 403 })
	wrong := 0
	began = time.Now()
	got = during(t, st, func() {
		before := p.sentinel("get-master-addr-by-name", "contexts")
		start := time.Now()
		p.docker("kill", p.container("redis-1"))
		stop := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if revokedRead() == 200 {
					wrong++
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
		p.await("another primary", func() bool { return p.sentinel("get-master-addr-by-name", "contexts") != before })
		elected := time.Since(start)
		p.await("all proxies use it", each("ready"))
		t.Logf("failover: another primary after %v, all proxies use it after %v", elected.Round(10*time.Millisecond), time.Since(start).Round(10*time.Millisecond))
		p.docker("start", p.container("redis-1"))
		p.await("the old primary follows", func() bool {
			return strings.Contains(p.redis("redis-1", "info", "replication"), "role:slave")
		})
		close(stop)
		watch.Wait()
	})
	only(t, "Sentinel failover", got)
	p.slowest(began, proxies...)
	if wrong > 0 {
		t.Errorf("%d answers by roles that are gone", wrong)
	}
	p.await("all are ready", each("ready"))

	// A proxy is killed, one is cut off: the others answer. What was under way in
	// it is lost, and nothing else.
	for _, f := range faults("balanced") {
		got := during(t, st, func() {
			f.do(p, "proxy-2")
			time.Sleep(3 * time.Second)
			f.undo(p, "proxy-2")
			p.await("all are ready", each("ready"))
		})
		only(t, "proxy-2 "+f.what, got, 502, 503, 504, 0)
		if bad := got.status[502] + got.status[503] + got.status[504] + got.status[0]; bad > 40 {
			t.Errorf("proxy-2 %s: %d requests are lost", f.what, bad)
		}
	}
}

// slowest tells where the time of the slowest requests went, by the proxies' own
// records: what the load saw includes its own waiting for a free connection.
func (p *project) slowest(since time.Time, proxies ...string) {
	p.t.Helper()
	type record struct {
		Event, Subject, Source string
		Total                  int64 `json:"total_us"`
		Identify               int64 `json:"identify_us"`
		Context                int64 `json:"context_us"`
		Decide                 int64 `json:"decide_us"`
		Forward                int64 `json:"forward_us"`
	}
	var all []record
	for line := range strings.Lines(p.compose(append([]string{"logs", "--no-log-prefix", "--no-color", "--since", since.Format(time.RFC3339Nano)}, proxies...)...)) {
		var r record
		if json.Unmarshal([]byte(line), &r) == nil && r.Event == "decision" {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b record) int { return cmp.Compare(b.Total, a.Total) })
	p.t.Logf("%d decision records, the slowest:", len(all))
	for _, r := range all[:min(5, len(all))] {
		p.t.Logf("  %d µs: identify %d, context %d, decide %d (%s), forward %d; subject %q", r.Total, r.Identify, r.Context, r.Decide, r.Source, r.Forward, r.Subject)
	}
}

// sentinel asks a Sentinel.
func (p *project) sentinel(args ...string) string {
	p.t.Helper()
	return p.docker(append([]string{"exec", p.container("sentinel-2"), "redis-cli", "-p", "26379", "sentinel"}, args...)...)
}

func (p *project) redis(service string, args ...string) string {
	p.t.Helper()
	return p.docker(append([]string{"exec", p.container(service), "redis-cli", "--no-auth-warning", "--user", "operator", "--pass", "operator"}, args...)...)
}
