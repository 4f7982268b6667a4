package measure

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"headgate/bench/load"
	"headgate/bench/report"
)

// fresh starts a proxy of its own for a ladder: what it holds in memory is of
// nothing else.
func (b *bench) fresh(ctx context.Context, name string, env map[string]string) (*subject, func(), error) {
	p, err := b.st.AddProxy(ctx, name, env)
	if err != nil {
		return nil, nil, err
	}
	s, err := proxySubject(ctx, "headgate", p.URL, p.Admin, p.Child)
	return s, func() { _ = p.Stop() }, err
}

// patient is for a proxy whose caches are filled by tens of thousands of questions.
// On a busy machine that shall take longer, and neither be void because OPA was
// waited for in vain nor end the first decisions before the last are there.
var patient = map[string]string{"OPA_TIMEOUT": "10000", "CACHE_TTL_SECONDS": "3600"}

// step is a rung of a ladder: after its new calls were each sent once, all calls
// are sent in turn.
type step struct {
	x     int
	calls func(context.Context) ([]*load.Call, error)
}

// rung is what was measured at a step.
type rung struct {
	x                                     int
	throughput, cost, p99, hits, resident report.Value
	slices                                []slice
	requests                              float64
	during                                metrics // what the slices added
}

// ladder measures one step after the other on one subject, with so many
// connections that always have a request on its way. With keep, each step
// goes on sending the calls of those before.
func (b *bench) ladder(ctx context.Context, s *subject, connections int, keep bool, steps []step) ([]rung, error) {
	var rungs []rung
	var calls []*load.Call
	for _, st := range steps {
		b.say("        %s", report.Count.Format(report.Of(float64(st.x))))
		fresh, err := st.calls(ctx)
		if err != nil {
			return nil, err
		}
		if keep {
			calls = append(calls, fresh...)
		} else {
			calls = fresh
		}
		if len(fresh) > 0 {
			if len(fresh) >= 10_000 {
				b.say("          asking the %s new ones once", counted(len(fresh)))
			}
			if _, err := b.slice(ctx, s, load.Options{Connections: 16, Requests: int64(len(fresh))}, cycle(fresh), nil); err != nil {
				return nil, err
			}
		}
		r := rung{x: st.x}
		before, err := lookAt(ctx, s)
		if err != nil {
			return nil, err
		}
		at := int64(0) // slices go on where the last one ended, so that all calls get their turn
		for range b.size.Rounds {
			got, err := b.slice(ctx, s, load.Options{Connections: connections, Duration: b.size.Rung}, func(n int64) *load.Call { return calls[(at+n)%int64(len(calls))] }, nil)
			if err != nil {
				return nil, err
			}
			at += got.Total.Requests
			r.slices = append(r.slices, got)
		}
		after, err := lookAt(ctx, s)
		if err != nil {
			return nil, err
		}
		r.throughput = overSlices(r.slices, func(s slice) float64 { return s.Rate() })
		r.cost = overSlices(r.slices, slice.cost)
		r.p99 = latency(r.slices, "", quantile(.99))
		r.resident = report.Of(memoryOf(pidOf(s.process)))
		r.during, r.requests = after.since(before), float64(merged(r.slices, "").Requests)
		r.hits = r.each("authorizer_proxy_opa_cache_hits_total")
		rungs = append(rungs, r)
	}
	return rungs, nil
}

// each is how often something was counted for each request.
func (r rung) each(name string) report.Value { return report.Of(r.during.sum(name) / r.requests) }

func lookAt(ctx context.Context, s *subject) (metrics, error) {
	if s.admin == "" {
		return metrics{}, nil
	}
	return s.metrics(ctx)
}

// ladderTable writes rungs down, with the cost and the memory as charts.
func ladderTable(id, first, about string, rungs []rung, name func(int) string, x report.Axis) report.Table {
	t := report.Table{
		ID: id, First: first, About: about,
		Columns: []report.Column{
			{Name: "CPU per request", Unit: report.Seconds, Better: report.Less}, {Name: "throughput", Unit: report.Rate, Better: report.More},
			{Name: "p99", Unit: report.Seconds, Better: report.Less}, {Name: "decision hits", Unit: report.Share, Better: report.More},
			{Name: "resident", Unit: report.Bytes, Better: report.Less},
		},
	}
	cost, memory := report.Line{Name: "headgate", Ours: true}, report.Line{Name: "headgate", Ours: true}
	for _, r := range rungs {
		t.Rows = append(t.Rows, report.Row{Name: name(r.x), Values: []report.Value{r.cost, r.throughput, r.p99, r.hits, r.resident}})
		cost.Points = append(cost.Points, [2]float64{float64(r.x), r.cost.Number})
		memory.Points = append(memory.Points, [2]float64{float64(r.x), r.resident.Number})
	}
	t.Charts = []report.Chart{
		{Title: "CPU per request", X: x, Y: report.Axis{Label: "CPU per request", Unit: report.Seconds}, Lines: []report.Line{cost}},
		{Title: "Memory", X: x, Y: report.Axis{Label: "resident", Unit: report.Bytes}, Lines: []report.Line{memory}},
	}
	return t
}

// fromTo tells how a number went from the first rung to the last.
func fromTo(rungs []rung, of func(rung) report.Value, unit report.Unit) string {
	return fmt.Sprintf("from %s to %s", unit.Format(of(rungs[0])), unit.Format(of(rungs[len(rungs)-1])))
}

func costOf(r rung) report.Value     { return r.cost }
func residentOf(r rung) report.Value { return r.resident }

func counted(x int) string { return report.Count.Format(report.Of(float64(x))) }

// coresPart gives the proxy more and more cores, interleaved.
func (b *bench) coresPart(ctx context.Context) ([]report.Table, error) {
	var subjects []*subject
	cores := slices.DeleteFunc(slices.Clone(b.size.Cores), func(n int) bool { return n > runtime.NumCPU() })
	for _, n := range cores {
		s, stop, err := b.fresh(ctx, fmt.Sprintf("cores%d", n), map[string]string{"GOMAXPROCS": fmt.Sprint(n)})
		if err != nil {
			return nil, err
		}
		defer stop()
		if _, err := b.slice(ctx, s, load.Options{Connections: saturated, Requests: 500}, same(b.read(s.url)), nil); err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	got := make([][]slice, len(subjects))
	for range b.size.Rounds {
		for i, s := range subjects {
			one, err := b.slice(ctx, s, load.Options{Connections: saturated, Duration: b.size.Slice}, same(b.read(s.url)), nil)
			if err != nil {
				return nil, err
			}
			got[i] = append(got[i], one)
		}
	}
	t := report.Table{
		ID: "scale-cores", First: "GOMAXPROCS",
		About: fmt.Sprintf("The request and the load of “side by side”, with the proxy held to so many cores. The machine has %d, which load generator and API share.", runtime.NumCPU()),
		Columns: []report.Column{
			{Name: "throughput", Unit: report.Rate, Better: report.More}, {Name: "of one core's", Unit: report.Ratio, Better: report.More},
			{Name: "CPU per request", Unit: report.Seconds, Better: report.Less}, {Name: "p99", Unit: report.Seconds, Better: report.Less},
			{Name: "cores used", Unit: report.Cores}, {Name: "resident", Unit: report.Bytes, Better: report.Less},
		},
	}
	line := report.Line{Name: "headgate", Ours: true}
	for i, s := range subjects {
		var ratio []float64
		for k := range got[i] {
			ratio = append(ratio, got[i][k].Rate()/got[0][k].Rate())
		}
		throughput := overSlices(got[i], func(s slice) float64 { return s.Rate() })
		t.Rows = append(t.Rows, report.Row{Name: fmt.Sprint(cores[i]), Values: []report.Value{
			throughput, report.Median(ratio), overSlices(got[i], slice.cost), latency(got[i], "", quantile(.99)),
			overSlices(got[i], func(s slice) float64 { return s.used / s.Elapsed.Seconds() }), report.Of(memoryOf(pidOf(s.process))),
		}})
		line.Points = append(line.Points, [2]float64{float64(cores[i]), throughput.Number})
	}
	first, last := t.Rows[0], t.Rows[len(t.Rows)-1]
	t.Charts = []report.Chart{{
		Title: "Throughput by cores", X: report.Axis{Label: "GOMAXPROCS", Unit: report.Count}, Y: report.Axis{Label: "throughput", Unit: report.Rate}, Lines: []report.Line{line},
		Says: fmt.Sprintf("With %s cores the throughput is %s that with one, while the proxy used %s cores instead of %s: what is missing to a straight line is what the load generator and the API take of the same cores. CPU per request (%s, %s) shows what sharing costs the proxy itself. Memory hardly differs (%s, %s): what is kept for each core is small.",
			last.Name, report.Ratio.Format(last.Values[1]), report.Cores.Format(last.Values[4]), report.Cores.Format(first.Values[4]), report.Seconds.Format(first.Values[2]), report.Seconds.Format(last.Values[2]),
			report.Bytes.Format(first.Values[5]), report.Bytes.Format(last.Values[5])),
	}}
	return []report.Table{t}, nil
}

// rolesPart gives one user more and more roles.
func (b *bench) rolesPart(ctx context.Context) ([]report.Table, error) {
	s, stop, err := b.fresh(ctx, "roles", nil)
	if err != nil {
		return nil, err
	}
	defer stop()
	var steps []step
	for _, n := range b.size.Roles {
		steps = append(steps, step{n, func(ctx context.Context) ([]*load.Call, error) {
			user := fmt.Sprintf("ROLES%d", n)
			var roles []string
			for i := range n {
				roles = append(roles, fmt.Sprintf("TS Group %03d", i))
			}
			if err := b.putUsers(ctx, []string{user}, roles); err != nil {
				return nil, err
			}
			tokens, err := b.mint(ctx, []string{user})
			if err != nil {
				return nil, err
			}
			return []*load.Call{b.readOf(s.url, office, tokens[0], "Elev")}, nil
		}})
	}
	rungs, err := b.ladder(ctx, s, 8, false, steps)
	if err != nil {
		return nil, err
	}
	t := ladderTable("scale-roles", "roles", "One user with so many roles of 12 letters at one office, beside the three that every user has. Roles are part of the question, so a request's question grows with them. Eight connections, since OPA may have to be asked.",
		rungs, counted, report.Axis{Label: "roles of the user", Unit: report.Count})
	says := "All of its questions are answered from the cache."
	for _, r := range rungs {
		if r.hits.Number < 0.5 {
			says = fmt.Sprintf("At %s roles the question is larger than the 8 KiB up to which decisions are cached: then every request asks OPA, and that is the step.", counted(r.x))
			break
		}
	}
	t.Charts[0].Says = fmt.Sprintf("The cost of a request goes %s: the question that is written and hashed grows with every role. %s", fromTo(rungs, costOf, report.Seconds), says)
	t.Charts[1].Says = fmt.Sprintf("Memory goes %s: it is one user after the other, each with one context.", fromTo(rungs, residentOf, report.Bytes))
	return []report.Table{t}, nil
}

// headerPart sends larger and larger headers, to the proxy and to the bare hop.
func (b *bench) headerPart(ctx context.Context) ([]report.Table, error) {
	started, missing, stopPeers, err := b.startPeers(ctx, peers[:1])
	if err != nil {
		return nil, err
	}
	defer stopPeers()
	s, stop, err := b.fresh(ctx, "header", nil)
	if err != nil {
		return nil, err
	}
	defer stop()
	of := func(at string) (steps []step) {
		for _, n := range b.size.Header {
			steps = append(steps, step{n, func(context.Context) ([]*load.Call, error) {
				c := b.read(at)
				c.Header = append(c.Header, [2]string{"X-Filler", strings.Repeat("x", n)})
				return []*load.Call{c}, nil
			}})
		}
		return steps
	}
	rungs, err := b.ladder(ctx, s, saturated, false, of(s.url))
	if err != nil {
		return nil, err
	}
	size := func(x int) string { return report.Bytes.Format(report.Of(float64(x))) }
	t := ladderTable("scale-header", "header", "The request of “side by side” with one more header field of this size, which is passed on to the API. The most that is accepted is 16 KiB for all fields together.",
		rungs, size, report.Axis{Label: "additional header", Unit: report.Bytes})
	t.Notes = missing
	t.Charts[1].Says = fmt.Sprintf("Memory goes %s: the buffers that headers are read into and written from grow to the largest they met, and are used again.", fromTo(rungs, residentOf, report.Bytes))
	says := fmt.Sprintf("The cost of a request goes %s", fromTo(rungs, costOf, report.Seconds))
	for _, peer := range started {
		bare, err := b.ladder(ctx, peer, saturated, false, of(peer.url))
		if err != nil {
			return nil, err
		}
		line := report.Line{Name: peer.name}
		for _, r := range bare {
			line.Points = append(line.Points, [2]float64{float64(r.x), r.cost.Number})
		}
		t.Charts[0].Lines = append(t.Charts[0].Lines, line)
		t.Columns = append(t.Columns, report.Column{Name: "CPU of the bare hop", Unit: report.Seconds, Better: report.Less})
		for i := range t.Rows {
			t.Rows[i].Values = append(t.Rows[i].Values, bare[i].cost)
		}
		says += fmt.Sprintf(", that of the bare hop %s", fromTo(bare, costOf, report.Seconds))
	}
	t.Charts[0].Says = says + ": the bytes must be read, looked through and written again, by either."
	return []report.Table{t}, nil
}

// crowd is a growing number of users with their tokens.
type crowd struct {
	b      *bench
	prefix string
	tokens []string
}

// grow makes the users up to n known to the API, and returns the calls of the new
// ones.
func (c *crowd) grow(ctx context.Context, n int, at string) ([]*load.Call, error) {
	var names []string
	for i := len(c.tokens); i < n; i++ {
		names = append(names, fmt.Sprintf("%s%06d", c.prefix, i))
	}
	if len(names) >= 10_000 {
		c.b.say("          making %s users and signing their tokens", counted(len(names)))
	}
	if err := c.b.putUsers(ctx, names, nil); err != nil {
		return nil, err
	}
	tokens, err := c.b.mint(ctx, names)
	if err != nil {
		return nil, err
	}
	c.tokens = append(c.tokens, tokens...)
	calls := make([]*load.Call, len(tokens))
	for i, token := range tokens {
		calls[i] = c.b.readOf(at, office, token, "Elev")
	}
	return calls, nil
}

// usersPart lets more and more users take turns.
func (b *bench) usersPart(ctx context.Context) ([]report.Table, error) {
	s, stop, err := b.fresh(ctx, "users", patient)
	if err != nil {
		return nil, err
	}
	defer stop()
	c := &crowd{b: b, prefix: "SCALE"}
	var steps []step
	for _, n := range b.size.Users {
		steps = append(steps, step{n, func(ctx context.Context) ([]*load.Call, error) { return c.grow(ctx, n, s.url) }})
	}
	rungs, err := b.ladder(ctx, s, saturated, true, steps)
	if err != nil {
		return nil, err
	}
	t := ladderTable("scale-users", "users", "So many users take turns, each with a token of its own and in strict rotation, the worst case for any cache. All were seen once before; decisions live for an hour here, so that none ends by its age. "+
		"With the most users the slices are over before everyone had another turn: each request is still that of the user who was seen longest ago.",
		rungs, counted, report.Axis{Label: "users", Unit: report.Count, Log: true})
	t.Columns = append(t.Columns, report.Column{Name: "tokens known", Unit: report.Share}, report.Column{Name: "calls of Redis, per request", Unit: report.Count})
	for i, r := range rungs {
		t.Rows[i].Values = append(t.Rows[i].Values, r.each("authorizer_proxy_token_cache_hits_total"), r.each("authorizer_proxy_cache_operation_duration_seconds_count"))
	}
	last := rungs[len(rungs)-1]
	says := "All of them fit the caches of this process."
	if last.x > maxTokens {
		says = fmt.Sprintf("Up to %s tokens, %s users and %s decisions are kept in this process, since whoever can make tokens and users shall not fill its memory. With more in rotation than fit, what a request needs has been evicted just before: "+
			"with %s users, %s of the tokens were known, and the signatures of all others were verified anew; for their contexts 100 requests went to Redis %s times. Of the decisions %s were in the cache, for which policy need not be asked again.",
			counted(maxTokens), counted(maxUsers), counted(maxDecisions), counted(last.x), report.Share.Format(last.each("authorizer_proxy_token_cache_hits_total")),
			report.Count.Format(report.Of(100*last.each("authorizer_proxy_cache_operation_duration_seconds_count").Number)), report.Share.Format(last.hits))
	}
	t.Charts[0].Says = fmt.Sprintf("The cost of a request goes %s. %s", fromTo(rungs, costOf, report.Seconds), says)
	t.Charts[1].Says = fmt.Sprintf("Memory goes %s: it grows with each user's token, context and decision, up to their limits.", fromTo(rungs, residentOf, report.Bytes))
	return []report.Table{t}, nil
}

// What the proxy keeps of each in its process; the sentence of the users tells of it.
const (
	maxTokens    = 8192
	maxUsers     = 10_000
	maxDecisions = 100_000 // CACHE_MAX_SIZE
)

// decisionsPart fills the decision cache.
func (b *bench) decisionsPart(ctx context.Context) ([]report.Table, error) {
	s, stop, err := b.fresh(ctx, "decisions", patient)
	if err != nil {
		return nil, err
	}
	defer stop()
	c := &crowd{b: b, prefix: "ASKER"}
	if _, err := c.grow(ctx, b.size.Of, s.url); err != nil {
		return nil, err
	}
	asked := 0
	var steps []step
	for _, n := range b.size.Decisions {
		steps = append(steps, step{n, func(context.Context) (calls []*load.Call, err error) {
			for ; asked < n; asked++ {
				calls = append(calls, b.readOf(s.url, office, c.tokens[asked%b.size.Of], fmt.Sprintf("P%d", asked/b.size.Of)))
			}
			return calls, nil
		}})
	}
	rungs, err := b.ladder(ctx, s, saturated, true, steps)
	if err != nil {
		return nil, err
	}
	for _, r := range rungs {
		if r.x == 100_000 && b.size.Of == 1000 {
			b.found["memory"] = r.resident.Number
		}
	}
	t := ladderTable("scale-decisions", "decisions", fmt.Sprintf("So many different questions of %s users take turns, each asked once before; decisions live for an hour here, so that none ends by its age.", counted(b.size.Of)),
		rungs, counted, report.Axis{Label: "cached decisions", Unit: report.Count, Log: true})
	t.Charts[0].Says = fmt.Sprintf("The cost of a request goes %s: finding an entry takes the same however many there are, but they no longer fit the processor's own caches.", fromTo(rungs, costOf, report.Seconds))
	t.Charts[1].Says = fmt.Sprintf("Memory goes %s: a decision is kept under the hash of its question, without the question itself.", fromTo(rungs, residentOf, report.Bytes))
	return []report.Table{t}, nil
}
