package measure

import (
	"context"
	"sync"
	"time"

	"headgate/bench/load"
	"headgate/bench/report"
)

// think is the pause of k6's users after each call.
func (b *bench) think() time.Duration { return time.Duration(b.data.PauseMS) * time.Millisecond }

// tenUsersPart is the run that the reference's page begins with: ten users who
// think, and a mix of three calls. The caches are empty at its start.
func (b *bench) tenUsersPart(ctx context.Context) ([]report.Table, error) {
	next := b.data.Mixed(b.front.url, b.tokens)
	o := load.Options{Connections: b.data.Quick.VUs, Think: b.think(), Duration: b.size.Think}
	looked, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	warmUp := o
	warmUp.Duration = b.size.Think / 8
	if _, err := b.slice(ctx, b.front, warmUp, next, nil); err != nil {
		return nil, err
	}
	warm, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	busy := b.cpus()
	peak, stopWatching := b.watchConnections(ctx)
	var slices []slice
	for range b.size.Rounds {
		s, err := b.slice(ctx, b.front, o, next, nil)
		if err != nil {
			stopWatching()
			return nil, err
		}
		slices = append(slices, s)
	}
	stopWatching()
	tables := []report.Table{b.latencyTable(slices)}
	if b.st == nil {
		return tables, nil
	}
	end, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	return append(tables, cacheTable(end.since(looked), end.since(warm)), b.resourcesTable(slices, end.since(warm), end, busy, peak())), nil
}

// look reads the metrics of a proxy of ours.
func (b *bench) look(ctx context.Context) (metrics, error) {
	if b.front.admin == "" {
		return nil, nil
	}
	return b.front.metrics(ctx)
}

func (b *bench) latencyTable(slices []slice) report.Table {
	t := report.Table{
		ID: "latency", First: "endpoint",
		About: "Ten users each send a request, wait for the answer, think for 50 ms and send the next: 20 % /health, 40 % a time series through the proxy, " +
			"40 % decisions for another service. This is the run of the reference's page.",
		Commands: []string{"k6 run bench/k6/quick.js"},
		Columns: []report.Column{
			{Name: "requests", Unit: report.Count}, {Name: "average", Unit: report.Seconds, Better: report.Less},
			{Name: "p95", Unit: report.Seconds, Better: report.Less}, {Name: "p99", Unit: report.Seconds, Better: report.Less},
			{Name: "throughput", Unit: report.Rate, Better: report.More},
		},
		Notes: []string{"With 50 ms of thinking ten users cannot send more than 200 requests/s, however fast the answers are: throughput says little here. The tables below load the proxy in earnest."},
	}
	for _, row := range []struct{ name, call, reference string }{
		{"/health", "/health", "1.2 ms average, 2 ms p95"},
		{"/authorize", "/authorize", "2.2 ms average, 3 ms p95"},
		{timeseries, timeseries, "12 ms average, 15 ms p95"},
		{"overall", "", "5.7 ms average, 12.4 ms p95, 177 /s"},
	} {
		stats := func(s slice) *load.Stats {
			if row.call == "" {
				return s.Total
			}
			return s.Calls[row.call]
		}
		t.Rows = append(t.Rows, report.Row{Name: row.name, Reference: row.reference, Values: []report.Value{
			report.Of(float64(merged(slices, row.call).Requests)),
			latency(slices, row.call, mean), latency(slices, row.call, quantile(.95)), latency(slices, row.call, quantile(.99)),
			overSlices(slices, func(s slice) float64 { return float64(stats(s).Requests) / s.Elapsed.Seconds() }),
		}})
	}
	return t
}

func cacheTable(all, warm metrics) report.Table {
	lookup := func(stage string) report.Value {
		return report.Of(warm.mean("authorizer_proxy_stage_duration_seconds", `{stage="`+stage+`"}`))
	}
	row := func(name, reference string, hits, misses float64, took report.Value) report.Row {
		return report.Row{Name: name, Reference: reference, Values: []report.Value{report.Of(hits), report.Of(misses), report.Of(hits / (hits + misses)), took}}
	}
	return report.Table{
		ID: "cache", First: "cache",
		About: "The same run, counted from its first request, when the caches were empty. A lookup is the whole stage: for the user context from Redis' client-side cache, " +
			"for the decision with the writing and hashing of the question.",
		Columns: []report.Column{
			{Name: "hits", Unit: report.Count}, {Name: "misses", Unit: report.Count},
			{Name: "hit rate", Unit: report.Share, Better: report.More}, {Name: "average lookup", Unit: report.Seconds, Better: report.Less},
		},
		Rows: []report.Row{
			row("user context", "99.76 %, 0.23 ms", all[`authorizer_proxy_cache_hits_total{cache="user_context"}`], all[`authorizer_proxy_cache_misses_total{cache="user_context"}`], lookup("context")),
			row("decisions", "99.84 %, < 0.1 ms", all["authorizer_proxy_opa_cache_hits_total"],
				all["authorizer_proxy_opa_cache_misses_total"]+all["authorizer_proxy_opa_coalesced_total"], lookup("decide")),
		},
		Notes: []string{"The misses are those of the start: one for each user and question, and the requests that waited for the same answer. The reference cached decisions by URL and for five minutes whatever happened; here a cached decision ends with the policy, the user's context or the credential that it was made from."},
	}
}

// cpus is the processor time that each server has used so far.
func (b *bench) cpus() map[string]float64 {
	used := map[string]float64{}
	if b.st != nil {
		for _, c := range b.st.Children() {
			used[c.Name] = cpuOf(c.PID())
		}
	}
	return used
}

func (b *bench) resourcesTable(slices []slice, warm, end metrics, before map[string]float64, connections float64) report.Table {
	elapsed := 0.0
	generator := 0.0
	for _, s := range slices {
		elapsed += s.Elapsed.Seconds()
		generator += s.generator
	}
	per30 := func(n float64) report.Value { return report.Of(n / elapsed * 30) }
	cost := overSlices(slices, slice.cost)
	headgate := overSlices(slices, func(s slice) float64 { return s.used / s.Elapsed.Seconds() * 30 })
	t := report.Table{
		ID: "resources", First: "process",
		About: "The same run: what the proxy used, and what the processes around it did.",
		Columns: []report.Column{
			{Name: "CPU in 30 s", Unit: report.CPU, Better: report.Less}, {Name: "CPU per request", Unit: report.Seconds, Better: report.Less},
			{Name: "resident", Unit: report.Bytes, Better: report.Less}, {Name: "heap in use", Unit: report.Bytes, Better: report.Less},
			{Name: "collections in 30 s", Unit: report.Count, Better: report.Less}, {Name: "longest pause", Unit: report.Seconds, Better: report.Less},
			{Name: "peak connections", Unit: report.Count},
		},
		Rows: []report.Row{{Name: "headgate", Ours: true, Reference: "7.6 s, heap 175 MB, 24 + 6 collections, 13 connections", Values: []report.Value{
			headgate, cost, report.Of(memoryOf(b.front.process.PID())), report.Of(end["authorizer_proxy_go_memstats_heap_inuse_bytes"]),
			per30(warm["authorizer_proxy_go_gc_duration_seconds_count"]), report.Of(end[`authorizer_proxy_go_gc_duration_seconds{quantile="1"}`]), report.Of(connections),
		}}},
	}
	for _, c := range b.st.Children() {
		if c.PID() != b.front.process.PID() {
			t.Rows = append(t.Rows, report.Row{Name: c.Name, Values: []report.Value{per30(cpuOf(c.PID()) - before[c.Name]), report.None, report.Of(memoryOf(c.PID()))}})
		}
	}
	t.Rows = append(t.Rows, report.Row{Name: "load generator", Values: []report.Value{per30(generator)}})
	t.Notes = []string{"Of every 30 s the machine has " + report.CPU.Format(report.Of(30*float64(machine().Cores))) + " of processor time: at ten users neither the load generator nor the API is a bottleneck. The pause is the longest since the proxy started."}
	return t
}

// watchConnections looks at the number of open connections now and then.
func (b *bench) watchConnections(ctx context.Context) (peak func() float64, stop func()) {
	if b.front.admin == "" {
		return func() float64 { return 0 }, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var most float64
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(b.size.Think / 8)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if m, err := b.front.metrics(ctx); err == nil {
					most = max(most, m["authorizer_proxy_active_connections"]+m["authorizer_proxy_upstream_connections"])
				}
			}
		}
	})
	return func() float64 { return most }, func() { cancel(); work.Wait() }
}
