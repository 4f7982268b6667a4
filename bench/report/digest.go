package report

import (
	"cmp"
	"fmt"
	"strings"
)

// digestRow is a line of the digest: some numbers of one row, with what the
// reference published of the same.
type digestRow struct {
	what       string
	table, row string
	columns    []string
	reference  string
}

var digestRows = []digestRow{
	{"an authorized read with 10 users, average and p95", "latency", "/cwms-data/timeseries", []string{"average", "p95"}, "12 ms, 15 ms"},
	{"a decision for another service, average and p95", "latency", "/authorize", []string{"average", "p95"}, "2.2 ms, 3 ms"},
	{"the mix with 50 users, throughput and p95", "load", "50", []string{"throughput", "p95"}, "180 /s, 45 ms"},
	{"everything but forwarding: all cached, nothing cached (p50; the API takes 175 ms for a profile)", "miss", "whole overhead", []string{"cached p50", "not cached p50"}, "2-3 ms, 180-200 ms"},
	{"asking policy, average: allow", "opa", "allow", []string{"average"}, "6.4 ms"},
	{"asking policy, average: deny", "opa", "deny", []string{"average"}, "11 ms"},
	{"10,000 different URLs that mean the same: decisions from the cache", "varied", "1 parameter", []string{"decision hit rate"}, "0 %"},
	{"a revoked user is refused by each of three replicas after, p99", "propagation", "a user's context, proxy invalidate", []string{"p99"}, "30 min"},
	{"a new policy is followed after, p99", "propagation", "policy, with OPA's status push", []string{"p99"}, "5 min"},
}

// Digest is the heart of a report as Markdown, for the README. Without a report it
// says how to make one.
func Digest(r *Report) string {
	if r == nil {
		return "Not measured yet: `go run ./bench run --out bench/results`.\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, %d cores, load generator and API included. The reference's figures are those it published for a laptop of its own.\n\n", r.summary(), r.Machine.CPU, r.Machine.Cores)
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "**Beware:** %s\n\n", w)
	}
	b.WriteString("| | Headgate | reference |\n|---|---|---|\n")
	for _, d := range digestRows {
		var texts []string
		for _, c := range d.columns {
			if v, unit, ok := r.Table(d.table).Value(d.row, c); ok {
				texts = append(texts, unit.Format(v))
			}
		}
		if len(texts) == len(d.columns) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(d.what), cell(strings.Join(texts, ", ")), cell(d.reference))
		}
	}
	if t := r.Table("saturation"); t != nil && t.Void == "" {
		b.WriteString("\nSide by side at saturation, in interleaved slices of one run; Headgate verifies, decides and records every request, the others forward:\n\n")
		t.only("throughput", "CPU per request", "CPU, of bare hop's", "p50", "p99").grid(&b)
	}
	b.WriteString("\n" + r.verdict() + "\nAll tables, with budgets and charts: [bench/results](bench/results/results.md).\n")
	return b.String()
}

// verdict says in a sentence which budgets are not met.
func (r *Report) verdict() string {
	if len(r.Budgets) == 0 {
		return "No budget was measured."
	}
	var missed []string
	for _, budget := range r.Budgets {
		if !budget.Met {
			missed = append(missed, fmt.Sprintf("%s: %s (%s)", budget.Claim, cmp.Or(budget.Measured, budget.Verdict()), budget.Limit))
		}
	}
	if len(missed) == 0 {
		return fmt.Sprintf("All of %d budgets are met.", len(r.Budgets))
	}
	return fmt.Sprintf("Of %d budgets %d are met. Not: %s.", len(r.Budgets), len(r.Budgets)-len(missed), strings.Join(missed, "; "))
}

// only is the table with these columns alone.
func (t Table) only(columns ...string) Table {
	less := Table{First: t.First}
	var keep []int
	for _, name := range columns {
		for i, c := range t.Columns {
			if c.Name == name {
				keep, less.Columns = append(keep, i), append(less.Columns, c)
			}
		}
	}
	for _, row := range t.Rows {
		short := Row{Name: row.Name, Ours: row.Ours}
		for _, i := range keep {
			if i < len(row.Values) {
				short.Values = append(short.Values, row.Values[i])
			}
		}
		less.Rows = append(less.Rows, short)
	}
	return less
}
