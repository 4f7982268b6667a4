package measure

import "headgate/bench/report"

// budget is a promise about a number of the run.
type budget struct {
	claim, limit string
	table        string
	value        func(*report.Report, map[string]float64) (report.Value, report.Unit, bool)
	met          func(float64) bool
}

func atMost(n float64) func(float64) bool  { return func(x float64) bool { return x <= n } }
func atLeast(n float64) func(float64) bool { return func(x float64) bool { return x >= n } }

func of(table, row, column string) func(*report.Report, map[string]float64) (report.Value, report.Unit, bool) {
	return func(r *report.Report, _ map[string]float64) (report.Value, report.Unit, bool) {
		return r.Table(table).Value(row, column)
	}
}

func noted(name string, unit report.Unit) func(*report.Report, map[string]float64) (report.Value, report.Unit, bool) {
	return func(_ *report.Report, found map[string]float64) (report.Value, report.Unit, bool) {
		n, ok := found[name]
		return report.Of(n), unit, ok
	}
}

// overNginx is the throughput as a multiple of that of nginx with a cached answer.
func overNginx(r *report.Report, _ map[string]float64) (report.Value, report.Unit, bool) {
	ours, _, ok := r.Table("saturation").Value("headgate", "throughput")
	nginx, _, ok2 := r.Table("saturation").Value("nginx, auth_request cached", "throughput")
	if !ok || !ok2 {
		return report.Value{}, "", false
	}
	return report.Of(ours.Number / nginx.Number), report.Ratio, true
}

var budgets = []budget{
	{"CPU per request of a warm authorized GET, of the bare hop's", "at most 1.25 ×", "saturation", of("saturation", "headgate", "CPU, of bare hop's"), atMost(1.25)},
	{"its throughput, of the bare hop's", "at least 0.85 ×", "saturation", of("saturation", "headgate", "throughput, of bare hop's"), atLeast(0.85)},
	{"its throughput, of nginx's with a cached auth_request", "more than 1 ×", "saturation", overNginx, atLeast(1)},
	{"10,000 URLs of one parameter: decisions from the cache", "at least 99.9 %", "varied", noted("varied 1", report.Share), atLeast(.999)},
	{"10,000 URLs of 50 parameters: decisions from the cache", "at least 99.4 %", "varied", noted("varied 50", report.Share), atLeast(.994)},
	{"a decision that is not cached, of a plain client asking OPA (p50)", "at most 1.2 ×", "opa", noted("miss", report.Ratio), atMost(1.2)},
	{"the same over a Unix socket", "at most 1.2 ×", "opa", noted("miss by socket", report.Ratio), atMost(1.2)},
	{"profile calls of fifty requests of a cold user", "1", "miss", noted("herd", report.Count), atMost(1)},
	{"a revocation is seen by each of three replicas, p99", "at most 10 ms", "propagation", noted("revocation", report.Seconds), atMost(.010)},
	{"a new policy is seen, p99, with OPA's status push", "at most 20 ms", "propagation", noted("activation", report.Seconds), atMost(.020)},
	{"a new policy is seen, p99, every push lost", "at most the lease, 1 s", "propagation", noted("lost", report.Seconds), atMost(1)},
	{"resident memory with 100,000 decisions of 1,000 users", "at most 64 MiB", "scale-decisions", noted("memory", report.Bytes), atMost(64 << 20)},
}

// budgets holds the run against the promises. One of a table that the run did not
// make, or that is void, is not measured.
func (b *bench) budgets(r *report.Report) (all []report.Budget) {
	for _, p := range budgets {
		t := r.Table(p.table)
		if t == nil {
			continue
		}
		x := report.Budget{Claim: p.claim, Limit: p.limit, Table: p.table}
		if v, unit, ok := p.value(r, b.found); ok && t.Void == "" {
			x.Measured, x.Met = unit.Format(v), p.met(v.Number)
		}
		all = append(all, x)
	}
	return all
}
