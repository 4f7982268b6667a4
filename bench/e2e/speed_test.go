package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// A guard against what makes the request path much slower by mistake: processor
// time and throughput beside those of bench/bare, which does nothing but pass
// requests on. The budget is 1.25 times its time; what fails here is far beyond
// it, since the machine that runs the tests may be busy with other things.
const (
	costBound       = 2.0
	throughputBound = 0.4
)

// Slices of bare and proxy take turns, so that what else the machine does befalls
// both; each pair gives one ratio.
const (
	speedRounds = 5
	sliceTime   = time.Second
)

func TestSpeedBesideTheBareHop(t *testing.T) {
	if os.Getenv("HEADGATE_SPEED") == "" {
		t.Skip("measures: set HEADGATE_SPEED=1")
	}
	st := stack.New(t, stack.Options{})
	path, err := st.Build(t.Context(), "bare", "./bench/bare")
	if err != nil {
		t.Fatal(err)
	}
	at, err := stack.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	bare, err := st.Spawn(t.Context(), "bare", path, "http://"+at+"/cwms-data/offices", "-listen", at, "-upstream", strings.TrimPrefix(st.API, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	header := [][2]string{{"Authorization", "Bearer " + st.Tokens["M5HECTEST"]}, {"Accept", "application/json;version=2"}, {"Accept-Encoding", "gzip, deflate"}}
	sent := int64(0)
	run := func(base string, pid int) (cost, rate float64) {
		call := &load.Call{URL: base + reading, Header: header, Contains: "KEYS"}
		before := processorTime(t, pid)
		r, err := load.Run(t.Context(), load.Options{Connections: 50, Duration: sliceTime}, func(int64) *load.Call { return call })
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		if pid != bare.PID() {
			sent += r.Total.Requests
		}
		return float64(processorTime(t, pid)-before) / float64(r.Total.Requests), r.Rate()
	}
	proxy := st.Replicas[0]
	run(bare.URL, bare.PID())
	run(st.Proxy, proxy.PID())
	var costs, rates []float64
	for range speedRounds {
		bareCost, bareRate := run(bare.URL, bare.PID())
		cost, rate := run(st.Proxy, proxy.PID())
		costs, rates = append(costs, cost/bareCost), append(rates, rate/bareRate)
		t.Logf("bare hop %5.1f us %6.0f/s   proxy %5.1f us %6.0f/s   ratio %.2f %.2f", bareCost/1e3, bareRate, cost/1e3, rate, cost/bareCost, rate/bareRate)
	}
	cost, rate := median(costs), median(rates)
	t.Logf("processor time a request %.2f times that of the bare hop, throughput %.2f times", cost, rate)
	if cost > costBound {
		t.Errorf("a request costs %.2f times the bare hop, the guard is at %v", cost, costBound)
	}
	if rate < throughputBound {
		t.Errorf("throughput is %.2f of the bare hop, the guard is at %v", rate, throughputBound)
	}
	if err := proxy.Stop(deadline); err != nil {
		t.Error(err)
	}
	if n := len(written(t, proxy)); int64(n) < sent {
		t.Errorf("%d records of %d requests", n, sent)
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// processorTime is what a process used so far, in nanoseconds.
func processorTime(t *testing.T, pid int) (sum int64) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Skip("only Linux tells the processor time of another process: ", err)
	}
	for _, thread := range threads {
		// A thread may just have ended.
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, thread.Name()))
		first, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(first, 10, 64)
		sum += n
	}
	return sum
}

// hop is what these tests read of a decision record.
type hop struct {
	Route  string `json:"route"`
	Source string `json:"source"`
}

// written are the records that a proxy has written so far.
func written(t *testing.T, proxy *stack.Child) (all []hop) {
	t.Helper()
	text, err := os.ReadFile(proxy.OutFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r hop
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

// Many different URLs with one meaning are one question: times, series and order
// of the query differ, user, office and parameter do not. With 50 parameters
// there are 50 questions.
func TestManyURLsAreOneQuestion(t *testing.T) {
	st := stack.New(t, stack.Options{})
	header := [][2]string{{"Authorization", "Bearer " + st.Tokens["M5HECTEST"]}, {"Accept", "application/json;version=2"}}
	const urls = 10_000
	from := 0
	for _, row := range []struct {
		parameters int
		hits       float64
	}{{1, 0.999}, {50, 0.994}} {
		calls := make([]*load.Call, urls)
		for i := range calls {
			query := []string{"office=SWT", fmt.Sprintf("name=LOC%d.Par%d.Inst.1Hour.0.Ccp-Rev", i, i%row.parameters), fmt.Sprintf("begin=2026-01-01T00:%02d:%02dZ", i/60%60, i%60), "page-size=" + strconv.Itoa(i)}
			if i%2 == 1 {
				slices.Reverse(query)
			}
			calls[i] = &load.Call{URL: st.Proxy + "/cwms-data/timeseries?" + strings.Join(query, "&"), Header: header}
		}
		r, err := load.Run(t.Context(), load.Options{Connections: 64, Requests: urls, Timeout: time.Minute}, func(n int64) *load.Call { return calls[n] })
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		var all []hop
		await(t, "a record of each request", func() bool {
			all = written(t, st.Replicas[0])[from:]
			return len(all) >= urls
		})
		from += len(all)
		questions := 0
		for _, r := range all {
			if r.Route == "/timeseries" && r.Source == "opa" {
				questions++
			}
		}
		hits := 1 - float64(questions)/urls
		t.Logf("%d parameters: OPA was asked %d times, %.2f %% hits", row.parameters, questions, 100*hits)
		if hits < row.hits {
			t.Errorf("%d parameters: OPA was asked %d times about %d URLs", row.parameters, questions, urls)
		}
	}
}
