package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"headgate/bench/k6"
	"headgate/bench/report"
)

// smallest measures everything, and nothing well.
var smallest = Size{
	Rounds: 1, Slice: 150 * time.Millisecond, Rung: 150 * time.Millisecond, Profile: time.Second, Think: 600 * time.Millisecond, VUs: []int{1, 2},
	Warm: 20, Cold: 4, Slow: 2, URLs: 60, Revocations: 2, Activations: 1,
	Cores: []int{1}, Users: []int{1, 3}, Decisions: []int{2, 6}, Of: 2, Roles: []int{1, 5}, Header: []int{100},
}

// The smallest run of all, end to end: real servers, every table, every number
// accounted for.
func TestSmallestRun(t *testing.T) {
	// A machine that is busy with other tests shall make it slow, not void.
	t.Setenv("POLICY_LEASE", "30s")
	t.Setenv("OPA_TIMEOUT", "20000")
	var progress bytes.Buffer
	r, err := Run(t.Context(), Options{Size: &smallest, Command: "test", Progress: &progress})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	t.Logf("\n%s", progress.String())
	var got []string
	for _, table := range r.Tables {
		got = append(got, table.ID)
		if table.Void != "" {
			t.Errorf("%s is void: %s", table.ID, table.Void)
		} else if len(table.Rows) == 0 || len(table.Columns) == 0 || table.Title == "" || table.About == "" || len(table.Commands) == 0 {
			t.Errorf("%s is not complete: %+v", table.ID, table)
		}
		for _, c := range table.Charts {
			if c.Says == "" || c.Title == "" {
				t.Errorf("%s has a chart that nothing is said of: %+v", table.ID, c)
			}
		}
	}
	if !slices.Equal(got, TableIDs()) {
		t.Errorf("tables %q, want %q", got, TableIDs())
	}
	for _, want := range []struct{ table, row, column string }{
		{"latency", "overall", "p95"}, {"cache", "decisions", "hit rate"}, {"resources", "headgate", "resident"}, {"resources", "headgate", "heap in use"}, {"miss", "user context", "not cached p50"},
		{"opa", "plain client, allow", "p50"}, {"breakdown", "forward", "hit average"}, {"saturation", "bare hop", "throughput"}, {"saturation", "direct", "generator"},
		{"opa", "plain client, allow, Unix socket", "p50"}, {"opa", "allow, Unix socket", "p50, of the plain client's"},
		{"profile", "headgate, together", "in the kernel"}, {"profile", "bare hop", "CPU per request"}, {"profile", "write the answer", "share"},
		{"rate", "headgate", "p99"}, {"propagation", "policy, every push lost", "max"}, {"varied", "50 parameters", "OPA calls"}, {"scale-users", "3", "resident"}, {"scale-users", "3", "tokens known"}, {"scale-cores", "1", "resident"},
	} {
		if v, _, ok := r.Table(want.table).Value(want.row, want.column); !ok || v.Number <= 0 {
			t.Errorf("%+v: %+v, %v", want, v, ok)
		}
	}
	for _, b := range r.Budgets {
		if b.Measured == "" && b.Table != "scale-decisions" && !strings.Contains(b.Claim, "nginx") {
			t.Errorf("budget not measured: %+v", b)
		}
	}
	if err := errors.Join(r.WriteHTML(io.Discard), r.WriteMarkdown(io.Discard)); err != nil {
		t.Error(err)
	}
}

// A proxy elsewhere is measured as far as it can be, and one that answers wrongly
// gets no numbers.
func TestTarget(t *testing.T) {
	right := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" && r.Header.Get("Authorization") != "Bearer t0ken" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, `{"status":"healthy","allow":true,"values":[]}`)
	}
	wrong := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"status":"healthy","allow":false}`) }
	for name, answer := range map[string]http.HandlerFunc{"right": right, "wrong": wrong} {
		t.Run(name, func(t *testing.T) {
			target := httptest.NewServer(answer)
			defer target.Close()
			issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("username") != r.FormValue("password") {
					w.WriteHeader(http.StatusUnauthorized)
				}
				fmt.Fprint(w, `{"access_token":"t0ken"}`)
			}))
			defer issuer.Close()
			r, err := Run(t.Context(), Options{Size: &smallest, Target: target.URL, Issuer: issuer.URL})
			if err != nil {
				t.Fatal(err)
			}
			if r.Target != target.URL || len(r.LeftOut) == 0 || len(r.Budgets) != 0 {
				t.Errorf("%+v", r)
			}
			if name == "right" {
				var got []string
				for _, table := range r.Tables {
					got = append(got, table.ID+table.Void)
				}
				if !slices.Equal(got, []string{"latency", "load"}) {
					t.Errorf("tables %q", got)
				}
				// Every other table is told of.
				left := strings.Join(r.LeftOut, "\n")
				for _, p := range parts {
					for _, h := range p.tables {
						if (r.Table(h.id) == nil) != strings.Contains(left, h.title) {
							t.Errorf("%s: table %v, left out:\n%s", h.id, r.Table(h.id) != nil, left)
						}
					}
				}
				var page strings.Builder
				if err := r.WriteMarkdown(&page); err != nil || strings.Contains(page.String(), "share this machine") || strings.Contains(page.String(), "versions") {
					t.Errorf("%v: the page claims what is not known:\n%.2000s", err, page.String())
				}
				return
			}
			for _, table := range r.Tables {
				if len(table.Rows) > 0 || !strings.Contains(table.Void, "not right") {
					t.Errorf("%+v", table)
				}
			}
			if void := r.Voided(); !slices.Equal(void, []string{"latency", "cache", "resources", "load"}) {
				t.Errorf("void: %q", void)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Only: []string{"latency", "nonsense"}}, {Target: "http://127.0.0.1:1"}, {Issuer: "http://127.0.0.1:1"}} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Target: "http://127.0.0.1:1", Issuer: "http://127.0.0.1:1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
}

// More or fewer records than requests are errors, and a record counts when its
// line is complete.
func TestLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	const line = `{"source":"cache","decide_us":7}` + "\n"
	l := &ledger{file: file, bound: 30 * time.Millisecond}
	write(line + line + line[:9])
	var seen []record
	if err := l.settle(t.Context(), 2, func(r *record) { seen = append(seen, *r) }); err != nil {
		t.Error(err)
	}
	if len(seen) != 2 || seen[0].Source != "cache" || seen[0].Decide != 7 {
		t.Errorf("%+v", seen)
	}
	if err := l.settle(t.Context(), 1, nil); err == nil || !strings.Contains(err.Error(), "0 decision records for 1 requests") {
		t.Errorf("too few: %v", err)
	}
	write(line[9:])
	if err := l.settle(t.Context(), 1, nil); err != nil {
		t.Error(err)
	}
	write(line + line)
	if err := l.settle(t.Context(), 1, nil); err == nil || !strings.Contains(err.Error(), "2 decision records for 1 requests") {
		t.Errorf("too many: %v", err)
	}
	write("{\n")
	if err := l.settle(t.Context(), 1, func(*record) {}); err == nil {
		t.Error("a record that is no JSON is accepted")
	}
	if err := (&ledger{file: file + "x"}).settle(t.Context(), 1, nil); err == nil {
		t.Error("no file is accepted")
	}
}

func TestMetrics(t *testing.T) {
	before := metrics{`a_total{x="1"}`: 1, `a_total{x="2"}`: 2, `h_sum{s="x"}`: 1, `h_count{s="x"}`: 2}
	after := metrics{`a_total{x="1"}`: 4, `a_total{x="2"}`: 2, `a_total_more`: 9, `h_sum{s="x"}`: 7, `h_count{s="x"}`: 5}
	d := after.since(before)
	if d.sum("a_total") != 3 || d.mean("h", `{s="x"}`) != 2 || d.mean("h", `{s="y"}`) != 0 {
		t.Errorf("%v", d)
	}
}

func TestProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("there is no /proc")
	}
	if memoryOf(os.Getpid()) < 1<<20 {
		t.Error("no memory is used")
	}
	before := cpuOf(os.Getpid())
	if other := cpuOf(os.Getppid()); before <= 0 || other <= 0 {
		t.Errorf("processor time of this process %v, of its parent %v", before, other)
	}
	for end := time.Now().Add(time.Minute); cpuOf(os.Getpid()) == before; {
		if time.Now().After(end) {
			t.Fatal("working takes no processor time")
		}
	}
	if m := machine(); m.Cores < 1 || m.Memory < 1<<20 {
		t.Errorf("%+v", m)
	}
}

// A full run measures what the k6 scripts do.
func TestScenarios(t *testing.T) {
	d, err := k6.Read()
	if err != nil {
		t.Fatal(err)
	}
	if got := full.Think * time.Duration(full.Rounds); got != time.Duration(d.Quick.Seconds)*time.Second || d.Quick.VUs != 10 {
		t.Errorf("ten users are measured for %v, the script has %+v", got, d.Quick)
	}
	if full.VUs[0] != d.Stress.From || full.VUs[len(full.VUs)-1] != d.Stress.To {
		t.Errorf("the ramp is %v, the script has %+v", full.VUs, d.Stress)
	}
}

// The samples of a profile are told apart by what is on their stacks, callers
// included, and by where they end.
func TestUses(t *testing.T) {
	sample := func(ms int64, stack ...string) *profile.Sample {
		s := &profile.Sample{Value: []int64{1, ms * 1e6}}
		for _, f := range stack {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: f}}}})
		}
		return s
	}
	const handle, loop = "headgate/proxy/pep.(*Handler).Handle", "github.com/valyala/fasthttp.(*Server).serveConn"
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample: []*profile.Sample{
			sample(1, "crypto/sha256.Sum256", "headgate/proxy/pep.(*Handler).identify", handle, loop),
			sample(2, "internal/runtime/syscall/linux.Syscall6", "headgate/proxy/upstream.(*conn).exchange", "headgate/proxy/pep.(*Handler).forward", handle, loop),
			sample(4, "runtime.memmove", "headgate/proxy/pep.(*Handler).forward", handle, loop),
			sample(8, "runtime.mallocgc", "headgate/proxy/pep.(*Handler).forward", handle, loop),
			sample(16, "internal/runtime/syscall/linux.EpollWait", "runtime.netpoll", "runtime.findRunnable", "runtime.schedule", "runtime.mcall"),
			sample(32, "somewhere.else"),
		},
	}
	got, err := usesOf(p)
	want := map[string]use{
		"verify the credential": {.001, 0}, "forward and read the API's answer": {.004, .002}, "allocation and collection": {.008, 0},
		"scheduler and poller": {0, .016}, unclassified: {.032, 0},
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	if _, err := usesOf(&profile.Profile{SampleType: p.SampleType[:1], Sample: p.Sample}); err == nil {
		t.Error("a profile of something else is accepted")
	}
}

// A function of the proxy that a stage is known by exists under that name.
func TestStageFunctions(t *testing.T) {
	pattern := regexp.MustCompile(`^headgate/(proxy/\w+)\.\(\*(\w+)\)(?:\.(\w+))?$`)
	for _, st := range stagesOf {
		for _, f := range st.functions {
			m := pattern.FindStringSubmatch(f)
			if m == nil {
				continue
			}
			files, err := filepath.Glob(filepath.Join("..", "..", m[1], "*.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no source of %s: %v", f, err)
			}
			defined := regexp.MustCompile(`(?m)^func \(\w+ \*` + m[2] + `\) ` + m[3])
			if !slices.ContainsFunc(files, func(file string) bool {
				text, err := os.ReadFile(file)
				return err == nil && defined.Match(text)
			}) {
				t.Errorf("%s: there is no %s", st.name, f)
			}
		}
	}
}

// The limits that the page explains a ladder by are those of the proxy.
func TestLimits(t *testing.T) {
	for _, limit := range []struct{ file, line string }{
		{"identity/identity.go", fmt.Sprintf("\tmaxTokens = %d\n", maxTokens)},
		{"pip/source.go", "\t\tcfg.MaxUsers = " + strings.Replace(counted(maxUsers), ",", "_", 1) + "\n"},
		{"config.go", fmt.Sprintf(`env:"CACHE_MAX_SIZE" envDefault:"%d"`, maxDecisions)},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "proxy", limit.file))
		if err != nil || !strings.Contains(string(text), limit.line) {
			t.Errorf("%s has no %q: %v", limit.file, limit.line, err)
		}
	}
}

// Tables have one name each, and every budget is about one of them.
func TestPlan(t *testing.T) {
	ids := TableIDs()
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			t.Errorf("two tables are called %q", id)
		}
	}
	for _, b := range budgets {
		if !slices.Contains(ids, b.table) {
			t.Errorf("a budget is about %q", b.table)
		}
		if _, _, ok := b.value(&report.Report{}, nil); ok {
			t.Errorf("%q is measured by an empty run", b.claim)
		}
	}
}
