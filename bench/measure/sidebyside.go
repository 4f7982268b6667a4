package measure

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"headgate/bench/k6"
	"headgate/bench/load"
	"headgate/bench/report"
)

// rampPart lets the number of thinking users grow.
func (b *bench) rampPart(ctx context.Context) ([]report.Table, error) {
	next := b.data.Mixed(b.front.url, b.tokens)
	slices := make([][]slice, len(b.size.VUs))
	for round := range b.size.Rounds {
		b.say("        round %d of %d", round+1, b.size.Rounds)
		for i, users := range b.size.VUs {
			s, err := b.slice(ctx, b.front, load.Options{Connections: users, Think: b.think(), Duration: b.size.Think / 3}, next, nil)
			if err != nil {
				return nil, err
			}
			slices[i] = append(slices[i], s)
		}
	}
	reference := map[int]string{5: "50 /s, p95 8 ms", 20: "150 /s, p95 15 ms", 50: "180 /s, p95 45 ms"}
	t := report.Table{
		ID: "load", First: "users",
		About:    "The mix of above, with more and more users who think for 50 ms.",
		Commands: []string{"k6 run bench/k6/stress.js"},
		Columns: []report.Column{
			{Name: "throughput", Unit: report.Rate, Better: report.More}, {Name: "p50", Unit: report.Seconds, Better: report.Less},
			{Name: "p95", Unit: report.Seconds, Better: report.Less}, {Name: "p99", Unit: report.Seconds, Better: report.Less},
			{Name: "errors", Unit: report.Share, Better: report.Less},
		},
		Notes: []string{"One wrong answer, and there would be no numbers here."},
	}
	var throughput, p95 report.Line
	for i, users := range b.size.VUs {
		rate := overSlices(slices[i], func(s slice) float64 { return s.Rate() })
		slow := latency(slices[i], "", quantile(.95))
		ref := reference[users]
		if ref != "" {
			ref += ", no errors"
		}
		t.Rows = append(t.Rows, report.Row{Name: fmt.Sprint(users), Reference: ref, Values: []report.Value{
			rate, latency(slices[i], "", quantile(.5)), slow, latency(slices[i], "", quantile(.99)), report.Of(0),
		}})
		throughput.Points = append(throughput.Points, [2]float64{float64(users), rate.Number})
		p95.Points = append(p95.Points, [2]float64{float64(users), slow.Number})
	}
	throughput.Name, p95.Name, throughput.Ours, p95.Ours = "throughput", "p95", true, true
	last := len(b.size.VUs) - 1
	says := fmt.Sprintf("%d users get %s of the at most %d /s that thinking for 50 ms leaves them: the line is straight as long as answers take next to nothing.",
		b.size.VUs[last], report.Rate.Format(report.Of(throughput.Points[last][1])), b.size.VUs[last]*20)
	users := report.Axis{Label: "users", Unit: report.Count}
	t.Charts = []report.Chart{
		{Title: "Throughput while the users grow", Says: says, X: users, Y: report.Axis{Label: "throughput", Unit: report.Rate}, Lines: []report.Line{throughput}},
		{Title: "p95 latency while the users grow", Says: "What 95 of 100 answers stay below, every kind of call together.", X: users, Y: report.Axis{Label: "p95", Unit: report.Seconds}, Lines: []report.Line{p95}},
	}
	return []report.Table{t}, nil
}

// directRate is slow enough that nothing queues.
const directRate = 300

// directPart asks the API itself, through a hop that only forwards, and through
// the proxy, at the same constant rate.
func (b *bench) directPart(ctx context.Context) ([]report.Table, error) {
	started, missing, stop, err := b.startPeers(ctx, peers[:1])
	if err != nil {
		return nil, err
	}
	defer stop()
	subjects := append(append([]*subject{b.direct()}, started...), b.front)
	paths := []struct{ call, name, reference string }{
		{"/cwms-data/offices", "/cwms-data/offices, public", "8 ms -> 10 ms"},
		{timeseries, timeseries + ", authorized", "10 ms -> 13 ms"},
	}
	t := report.Table{
		ID: "direct", First: "path",
		About: fmt.Sprintf("The same request to the API itself, through the bare hop (a fasthttp proxy of 30 lines that only forwards), and through this proxy: %d requests/s at a constant rate, "+
			"each timed from the moment it was due, in interleaved slices.", directRate),
		Columns: []report.Column{
			{Name: "direct p50", Unit: report.Seconds}, {Name: "bare hop p50", Unit: report.Seconds}, {Name: "proxied p50", Unit: report.Seconds, Better: report.Less},
			{Name: "overhead p50", Unit: report.Seconds, Better: report.Less},
			{Name: "direct p99", Unit: report.Seconds}, {Name: "bare hop p99", Unit: report.Seconds}, {Name: "proxied p99", Unit: report.Seconds, Better: report.Less},
		},
		Notes: append(missing, "The reference's figures are averages of its own API, direct and proxied. Overhead is what the proxy adds to the direct path."),
	}
	for _, path := range paths {
		slices := make([][]slice, len(subjects))
		for range b.size.Rounds {
			for i, s := range subjects {
				call := b.data.Call(s.url, path.call, k6.User{Name: reader, Office: office}, b.tokens)
				got, err := b.slice(ctx, s, load.Options{Connections: 16, Rate: directRate, Duration: b.size.Slice}, same(call), nil)
				if err != nil {
					return nil, err
				}
				slices[i] = append(slices[i], got)
			}
		}
		at := func(i int, q float64) report.Value { return latency(slices[i], "", quantile(q)) }
		direct, bare, ours := 0, 1, len(subjects)-1
		var over []float64
		for i := range slices[direct] {
			over = append(over, slices[ours][i].Total.Quantile(.5).Seconds()-slices[direct][i].Total.Quantile(.5).Seconds())
		}
		t.Rows = append(t.Rows, report.Row{Name: path.name, Reference: path.reference, Values: []report.Value{
			at(direct, .5), at(bare, .5), at(ours, .5), report.Median(over), at(direct, .99), at(bare, .99), at(ours, .99),
		}})
	}
	return []report.Table{t}, nil
}

// saturated is the number of connections that have always one request on its way.
const saturated = 50

// saturationPart drives all peers as fast as they go, one after the other and
// round by round, so that what disturbs the machine disturbs all; and then at one
// rate that all can hold.
func (b *bench) saturationPart(ctx context.Context) ([]report.Table, error) {
	started, missing, stop, err := b.startPeers(ctx, peers)
	if err != nil {
		return nil, err
	}
	defer stop()
	subjects := append([]*subject{b.front}, started...)
	if len(started) == 0 || started[0].name != peers[0].name {
		return nil, fmt.Errorf("%s does not run", peers[0].name)
	}
	const ours, bare = 0, 1
	all := append([]*subject{}, subjects...)
	all = append(all, b.direct())
	for _, s := range all { // connections and caches warm
		if _, err := b.slice(ctx, s, load.Options{Connections: saturated, Requests: 500}, same(b.read(s.url)), nil); err != nil {
			return nil, err
		}
	}
	rounds := max(b.size.Rounds, b.size.Rounds*5/3)
	slices := make([][]slice, len(all))
	for round := range rounds {
		b.say("        round %d of %d", round+1, rounds)
		for i, s := range all {
			got, err := b.slice(ctx, s, load.Options{Connections: saturated, Duration: b.size.Slice}, same(b.read(s.url)), nil)
			if err != nil {
				return nil, err
			}
			slices[i] = append(slices[i], got)
		}
	}
	t := report.Table{
		ID: "saturation", First: "proxy",
		About: fmt.Sprintf("%d connections that send the next request as soon as they have an answer: an authorized read of a time series of 1.6 KB. This proxy verifies the token, looks up the user, decides and "+
			"writes a decision record of every request to a file; the others only forward, except nginx with auth_request, which has the API's word on the credential in its cache. "+
			"%d interleaved slices of %v; ratios are made slice by slice, against the bare hop.", saturated, rounds, b.size.Slice),
		Columns: []report.Column{
			{Name: "throughput", Unit: report.Rate, Better: report.More}, {Name: "throughput, of bare hop's", Unit: report.Ratio, Better: report.More},
			{Name: "CPU per request", Unit: report.Seconds, Better: report.Less}, {Name: "CPU, of bare hop's", Unit: report.Ratio, Better: report.Less},
			{Name: "p50", Unit: report.Seconds, Better: report.Less}, {Name: "p99", Unit: report.Seconds, Better: report.Less},
			{Name: "cores used", Unit: report.Cores}, {Name: "generator", Unit: report.Cores}, {Name: "API", Unit: report.Cores},
		},
		Notes: missing,
	}
	for i, s := range all {
		ratio := func(of func(slice) float64) report.Value {
			var r []float64
			for k := range slices[i] {
				r = append(r, of(slices[i][k])/of(slices[bare][k]))
			}
			return report.Median(r)
		}
		throughput := ratio(func(s slice) float64 { return s.Rate() })
		cost, costRatio := report.None, report.None
		if s.process != nil && slices[bare][0].used > 0 {
			cost, costRatio = overSlices(slices[i], slice.cost), ratio(slice.cost)
		}
		cores := func(of func(slice) float64) report.Value {
			return overSlices(slices[i], func(s slice) float64 { return of(s) / s.Elapsed.Seconds() })
		}
		used := report.None
		if s.process != nil {
			used = cores(func(s slice) float64 { return s.used })
		}
		t.Rows = append(t.Rows, report.Row{Name: s.name, Ours: i == ours, Values: []report.Value{
			overSlices(slices[i], func(s slice) float64 { return s.Rate() }), throughput, cost, costRatio,
			latency(slices[i], "", quantile(.5)), latency(slices[i], "", quantile(.99)),
			used, cores(func(s slice) float64 { return s.generator }), cores(func(s slice) float64 { return s.api }),
		}})
	}
	together := 0.0
	for _, s := range slices[ours] {
		together += (s.used + s.generator + s.api) / s.Elapsed.Seconds() / float64(rounds)
	}
	t.Notes = append(t.Notes, fmt.Sprintf("Generator and API are how many of the %d cores the load generator and the stand-in used meanwhile; with this proxy they used %s together. Where that is all there is, throughput is what the others leave to a proxy: "+
		"CPU per request is the figure that does not depend on them. The direct row is the most that generator and API can do with no proxy between them. What this proxy does more than the bare hop is told by a profile, under “What the processor time goes for”.", runtime.NumCPU(), report.Cores.Format(report.Of(together))))
	if slices[bare][0].used > 0 {
		chart := report.Chart{Title: "CPU per request at saturation", X: report.Axis{Label: "CPU per request of the proxy process", Unit: report.Seconds},
			Says: "Time on a processor, kernel included, of the proxy alone, for an authorized read of 1.6 KB. Only this proxy verifies, decides and records."}
		for i, s := range subjects {
			chart.Bars = append(chart.Bars, report.Bar{Name: s.name, Parts: []float64{overSlices(slices[i], slice.cost).Number}, Other: i != ours})
		}
		t.Charts = []report.Chart{chart}
	}
	rate, err := b.rateTable(ctx, subjects, report.Median(rates(slices[ours])).Number/2)
	if err != nil {
		return nil, err
	}
	return []report.Table{t, rate}, nil
}

func rates(slices []slice) (all []float64) {
	for _, s := range slices {
		all = append(all, s.Rate())
	}
	return all
}

// rateTable is the latency of each subject at one constant rate.
func (b *bench) rateTable(ctx context.Context, subjects []*subject, rate float64) (report.Table, error) {
	slices := make([][]slice, len(subjects))
	b.say("        at %s", report.Rate.Format(report.Of(rate)))
	for range b.size.Rounds {
		for i, s := range subjects {
			got, err := b.slice(ctx, s, load.Options{Connections: saturated, Rate: rate, Duration: b.size.Slice}, same(b.read(s.url)), nil)
			if err != nil {
				return report.Table{}, err
			}
			slices[i] = append(slices[i], got)
		}
	}
	t := report.Table{
		ID: "rate", First: "proxy",
		About: fmt.Sprintf("The same request at a constant rate of %s, half of what this proxy did above. Requests are sent when they are due, whether answers have come or not, and timed from that moment: "+
			"a stall is charged with everything that waits meanwhile.", report.Rate.Format(report.Of(rate))),
		Columns: []report.Column{
			{Name: "p50", Unit: report.Seconds, Better: report.Less}, {Name: "p90", Unit: report.Seconds, Better: report.Less}, {Name: "p99", Unit: report.Seconds, Better: report.Less},
			{Name: "p99.9", Unit: report.Seconds, Better: report.Less}, {Name: "max", Unit: report.Seconds, Better: report.Less},
			{Name: "generator's own p50", Unit: report.Seconds}, {Name: "generator's own p99", Unit: report.Seconds},
		},
		Notes: []string{"The generator's own part is how long after it was due a request was sent by a connection that had nothing else to do; it is in all the latencies."},
	}
	chart := report.Chart{
		Title: "Latency distribution at a constant rate", X: report.Axis{Label: "share of the requests that were at least as fast", Unit: report.Share, Nines: true},
		Y: report.Axis{Label: "latency", Unit: report.Seconds, Log: true},
	}
	for i, s := range subjects {
		late := load.NewStats()
		for _, one := range slices[i] {
			late.Add(one.Late)
		}
		at := func(q float64) report.Value { return latency(slices[i], "", quantile(q)) }
		t.Rows = append(t.Rows, report.Row{Name: s.name, Ours: i == 0, Values: []report.Value{
			at(.5), at(.9), at(.99), at(.999), latency(slices[i], "", func(s *load.Stats) float64 { return s.Max().Seconds() }),
			report.Of(late.Quantile(.5).Seconds()), report.Of(late.Quantile(.99).Seconds()),
		}})
		line := report.Line{Name: s.name, Ours: i == 0}
		total := merged(slices[i], "")
		for _, q := range []float64{0, .1, .2, .3, .4, .5, .6, .7, .75, .8, .85, .9, .925, .95, .97, .98, .99, .993, .996, .998, .999, .9995, .9998, .9999} {
			if float64(total.Requests)*(1-q) >= 1 { // what fewer than one request stands for is not known
				line.Points = append(line.Points, [2]float64{q, total.Quantile(q).Seconds()})
			}
		}
		chart.Lines = append(chart.Lines, line)
	}
	p50, p99, _ := headline(t)
	chart.Says = fmt.Sprintf("Half of the answers of this proxy came within %s, 99 of 100 within %s. To the right each mark is ten times rarer.", p50, p99)
	t.Charts = []report.Chart{chart}
	return t, nil
}

func headline(t report.Table) (p50, p99 string, ok bool) {
	a, unit, ok := t.Value(t.Rows[0].Name, "p50")
	c, _, ok2 := t.Value(t.Rows[0].Name, "p99")
	return unit.Format(a), unit.Format(c), ok && ok2
}

// variedPart asks for many URLs that mean the same to policy.
func (b *bench) variedPart(ctx context.Context) ([]report.Table, error) {
	t := report.Table{
		ID: "varied", First: "one user, one office",
		About: fmt.Sprintf("%s different URLs, each asked for once: series with different begin and end. What policy cannot see is not in the question, so they share their decisions. Four connections.", report.Count.Format(report.Of(float64(b.size.URLs)))),
		Columns: []report.Column{
			{Name: "distinct URLs", Unit: report.Count}, {Name: "decision hit rate", Unit: report.Share, Better: report.More},
			{Name: "OPA calls", Unit: report.Count, Better: report.Less}, {Name: "throughput", Unit: report.Rate, Better: report.More},
		},
	}
	for _, parameters := range []int64{1, 50} {
		before, err := b.look(ctx)
		if err != nil {
			return nil, err
		}
		s, err := b.slice(ctx, b.front, load.Options{Connections: 4, Requests: b.size.URLs}, func(n int64) *load.Call {
			c := b.readOf(b.front.url, office, b.tokens[reader], fmt.Sprintf("Varied%dof%d", n%parameters, parameters))
			c.URL += fmt.Sprintf("&begin=2026-01-01T00%%3A00%%3A00Z&end=2026-%02d-%02dT%02d%%3A%02d%%3A00Z", 1+n/40320%12, 1+n/1440%28, n/60%24, n%60)
			return c
		}, nil)
		if err != nil {
			return nil, err
		}
		after, err := b.look(ctx)
		if err != nil {
			return nil, err
		}
		d := after.since(before)
		hits := d["authorizer_proxy_opa_cache_hits_total"]
		rate := hits / float64(b.size.URLs)
		b.found[fmt.Sprintf("varied %d", parameters)] = rate
		plural := strings.Repeat("s", min(1, int(parameters-1)))
		t.Rows = append(t.Rows, report.Row{Name: fmt.Sprintf("%d parameter%s", parameters, plural), Reference: "0 % (it cached by URL)", Values: []report.Value{
			report.Of(float64(b.size.URLs)), report.Of(rate), report.Of(d.sum("authorizer_proxy_opa_evaluations_total")), report.Of(s.Rate()),
		}})
	}
	t.Notes = []string{"A request that came while its question was on its way to OPA waited for that answer and counts as no hit."}
	return []report.Table{t}, nil
}
