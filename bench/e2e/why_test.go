package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// A change of policy is tried before it bites: what ENFORCE=report forwards is
// counted and reported, what a candidate bundle would change is found in the log
// before it ships, and explained once it has shipped.
func TestPolicyIsTriedBeforeItBites(t *testing.T) {
	st := stack.New(t, stack.Options{Env: map[string]string{"ENFORCE": "report", "LOG_INPUTS": "true"}})
	proxy := buildProxy(t)

	said, err := os.ReadFile(st.Replicas[0].ErrFile())
	if err != nil || !strings.Contains(string(said), "ENFORCE=report: what policy denies is FORWARDED") {
		t.Errorf("the start says %s, %v", said, err)
	}
	sent := 0
	for _, c := range loadCases(t) {
		if c.Kind == "opa" || c.Kind == "authorize" || strings.HasPrefix(c.Credential, "x-test-user") || !strings.HasPrefix(c.Path, "/cwms-data/") {
			continue
		}
		r := request{method: c.Method, target: strings.ReplaceAll(c.Path, "<cursor with search office SPK>", cursor), header: c.credentials(t, st)}
		if len(c.Body) > 0 && string(c.Body) != "null" {
			r.body = string(c.Body)
			r.header = append(r.header, "Content-Type: application/json")
		}
		answer := send(t, st.Proxy, r)
		sent++
		if c.Expect == "deny" && answer.status == http.StatusForbidden && strings.Contains(answer.body, "incidentIdentifier") {
			t.Errorf("%s was not forwarded: %d %s", c.ID, answer.status, answer.body)
		}
	}
	log := st.Replicas[0].OutFile()
	denies := 0
	await(t, "the records are written", func() bool {
		content, err := os.ReadFile(log)
		denies = bytes.Count(content, []byte(`"enforced":false`))
		return err == nil && bytes.Count(content, []byte(`"event":"decision"`))-bytes.Count(content, []byte(`"route":"ready"`))-bytes.Count(content, []byte(`"route":"health"`)) == sent
	})
	if denies == 0 {
		t.Fatal("no case is denied by policy")
	}

	var report struct {
		Denied   int `json:"denied"`
		Reported int `json:"would_be_denied"`
		ByRoute  []struct {
			Name      []string
			Count     int
			Forwarded int `json:"of_which_forwarded"`
		} `json:"denies_by_route"`
	}
	if status := command(t, proxy, nil, &report, "report", "--log", log, "--json"); status != 0 {
		t.Fatalf("report ended with %d", status)
	}
	if report.Denied != 0 || report.Reported != denies || len(report.ByRoute) == 0 {
		t.Errorf("report: %+v, want %d that would be denied", report, denies)
	}
	metrics := send(t, st.Admin, get("/metrics")).body
	for _, route := range report.ByRoute {
		if n := sum(metrics, fmt.Sprintf("authorizer_proxy_reported_denies_total{route=%q}", route.Name[1])); n < float64(route.Forwarded) || route.Count != route.Forwarded {
			t.Errorf("%v: %d denies, %d forwarded, counted %v", route.Name, route.Count, route.Forwarded, n)
		}
	}
	if sum(metrics, "authorizer_proxy_enforce_report ") != 1 || sum(metrics, "authorizer_proxy_reported_denies_total") != float64(denies) {
		t.Errorf("the metrics do not say what is reported: want %d", denies)
	}

	// The policy that runs answers as it did.
	var same replayed
	if status := command(t, proxy, nil, &same, "replay", "--log", log, "--opa", st.OPA, "--json", "--timeout", "30s"); status != 0 || len(same.Flips) != 0 || same.Questions < 10 {
		t.Errorf("replay of the same policy ends with %d: %+v", status, same)
	}
	// A candidate closes a resource that was public: three cases were allowed by it.
	changed := policyWith(t, "cwms/public/data.json", func(data map[string]any) {
		data["public_read"] = []string{"", "counties", "offices", "states", "swagger-docs", "timezones", "units"}
	})
	bundle := filepath.Join(t.TempDir(), "candidate.tar.gz")
	revision, err := st.BuildBundle(t.Context(), bundle, "-policy", changed)
	if err != nil {
		t.Fatal(err)
	}
	var next replayed
	candidate := startCandidate(t, st, bundle)
	if status := command(t, proxy, nil, &next, "replay", "--log", log, "--opa", candidate, "--json", "--timeout", "30s"); status != 1 {
		t.Errorf("replay of another policy ends with %d", status)
	}
	var flips []string
	for _, f := range next.Flips {
		flips = append(flips, fmt.Sprint(f.Kind, " ", f.Route, " ", f.Example.Subject, " ", f.Requests))
	}
	slices.Sort(flips)
	want := []string{"allow->deny /parameters DAMOP001 2", "allow->deny /parameters anonymous 1"}
	if !slices.Equal(flips, want) || next.Revision != revision {
		t.Errorf("the flips are\n%s\nwant\n%s", strings.Join(flips, "\n"), strings.Join(want, "\n"))
	}

	// It ships, and says why.
	if err := st.PublishFile(bundle); err != nil {
		t.Fatal(err)
	}
	if err := st.WaitRevision(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	await(t, "the proxy follows", func() bool {
		e, _ := explain(t, st, question{Method: "GET", Target: "/cwms-data/parameters"})
		return e.Decision != nil && e.Decision.Revision == revision
	})
	for _, q := range []question{
		{Method: "GET", Target: "/cwms-data/parameters", User: "L1HECTEST", Trace: "full"}, {Method: "GET", Target: "/cwms-data/parameters"},
	} {
		e, text := explain(t, st, q)
		if e.Decision == nil || e.Decision.Allow || e.Decision.Enforced || !e.Answer.Forwarded || e.OPA.Revision != revision || e.Decision.Reason == "" {
			t.Errorf("%+v: %s", q, text)
		}
		if q.Trace != "" && (e.Trace == nil || len(e.Trace.Lines) == 0) {
			t.Errorf("no trace: %s", text)
		}
	}
	admin := []string{"ADMIN_ADDR=" + strings.TrimPrefix(st.Admin, "http://"), "ADMIN_TOKEN=" + st.AdminToken}
	var printed bytes.Buffer
	if status := command(t, proxy, admin, &printed, "explain", "--user", "L1HECTEST", "GET", "/cwms-data/parameters"); status != 0 ||
		!strings.HasPrefix(printed.String(), "GET /cwms-data/parameters: forwarded although denied, ") {
		t.Errorf("explain ended with %d:\n%s", status, printed.String())
	}

	// Without OPA an explanation says so, and what the client would see.
	if err := st.OPAServer.Kill(); err != nil {
		t.Fatal(err)
	}
	e, text := explain(t, st, question{Method: "GET", Target: "/cwms-data/levels?office=SWT", User: "M5HECTEST"})
	if e.Answer.Status != http.StatusServiceUnavailable || e.OPA.Error == "" || e.Decision != nil || e.Context.User != "M5HECTEST" {
		t.Errorf("without OPA: %s", text)
	}
}

// replayed is what these tests read of a replay.
type replayed struct {
	Questions int
	Revision  string
	Flips     []struct {
		Kind     string
		Route    string
		Requests int
		Example  struct{ Subject string }
	}
}

// buildProxy builds the program for its subcommands.
func buildProxy(t *testing.T) string {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(t.TempDir(), "proxy")
	build := exec.Command("go", "build", "-o", proxy, "./proxy")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return proxy
}

// command runs a subcommand and reads its JSON, or its text into a buffer.
func command(t *testing.T, proxy string, env []string, into any, args ...string) (status int) {
	t.Helper()
	var out, faults bytes.Buffer
	cmd := exec.Command(proxy, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &faults, append([]string{}, env...)
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		status, err = ended.ExitCode(), nil
	}
	if err != nil || faults.Len() > 0 {
		t.Errorf("%s: %v %s", args[0], err, faults.String())
	}
	if text, ok := into.(*bytes.Buffer); ok {
		*text = out
	} else if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Errorf("%s: %v: %s", args[0], err, out.String())
	}
	return status
}

// startCandidate runs an OPA beside that of the stack, on a Unix socket.
func startCandidate(t *testing.T, st *stack.Stack, bundle string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "opa") // t.TempDir is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(st.OPABinary, "run", "--server", "--addr", "unix://"+socket, "--log-level", "error", "-b", bundle)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	await(t, "the candidate listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "unix://" + socket
}
