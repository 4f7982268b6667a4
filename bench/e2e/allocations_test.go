package e2e

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// A warm, authorized and recorded request may make this many allocations in the
// whole proxy, its share of polls and background work included.
const allocationBudget = 10

var mallocs = regexp.MustCompile(`(?m)^# Mallocs = (\d+)$`)

// The budget of a whole request, counted by the runtime of the real process.
func TestAllocationsOfAWarmRequest(t *testing.T) {
	st := stack.New(t, stack.Options{Env: map[string]string{"ADMIN_PPROF": "true"}})
	call := &load.Call{
		URL:      st.Proxy + reading,
		Header:   [][2]string{{"Authorization", "Bearer " + st.Tokens["M5HECTEST"]}, {"Accept", "application/json;version=2"}, {"Accept-Encoding", "gzip, deflate"}},
		Contains: "KEYS",
	}
	run := func(requests int64) {
		r, err := load.Run(t.Context(), load.Options{Connections: 4, Requests: requests}, func(int64) *load.Call { return call })
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func() int64 {
		res, err := http.Get(st.Admin + "/debug/pprof/allocs?debug=1")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		m := mallocs.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%d: no count of allocations in %.300s", res.StatusCode, text)
		}
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	run(2000) // connections, pools and caches are made
	count()
	const requests = 20_000
	before := count()
	run(requests)
	each := float64(count()-before) / requests
	t.Logf("%.2f allocations a request", each)
	if each > allocationBudget {
		t.Errorf("%.2f allocations a request, the budget is %d", each, allocationBudget)
	}
}
