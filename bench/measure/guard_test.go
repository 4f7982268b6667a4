package measure

import (
	"testing"
	"time"

	"headgate/bench/report"
)

// What the proxy costs stays near what a hop costs that only forwards. The budget
// is 1.25 and is for a quiet machine; this guards against a change that makes it
// another kind of figure. Processor time is compared, of slices in turn: a busy
// machine makes both slower, and neither use more.
func TestCostIsNearABareHop(t *testing.T) {
	const most = 3
	t.Setenv("POLICY_LEASE", "30s")
	t.Setenv("OPA_TIMEOUT", "20000")
	size := Size{Rounds: 2, Slice: 500 * time.Millisecond}
	r, err := Run(t.Context(), Options{Size: &size, Only: []string{"saturation"}})
	if err != nil {
		t.Fatal(err)
	}
	table := r.Table("saturation")
	if table.Void != "" {
		t.Fatal(table.Void)
	}
	for _, row := range table.Rows {
		t.Logf("%-26s %s", row.Name, table.Cells(row))
	}
	ratio, _, ok := table.Value("headgate", "CPU, of bare hop's")
	if !ok {
		t.Skip("this system does not tell of processor time")
	}
	if ratio.Number > most {
		t.Errorf("a request costs %s what the bare hop costs, more than %s", report.Ratio.Format(ratio), report.Ratio.Format(report.Of(most)))
	}
}
