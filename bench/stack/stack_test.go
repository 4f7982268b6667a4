package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"headgate/bench/standin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Everything but the proxy: what a test of the parts relies on.
func TestBackends(t *testing.T) {
	s := New(t, Options{NoProxy: true})
	ctx := t.Context()

	if want := []string{"opa", "redis", "api"}; s.RedisServer != nil && !slices.Equal(names(s), want) {
		t.Errorf("children %q, want %q", names(s), want)
	}
	if len(s.Tokens) != len(standin.Users) {
		t.Errorf("%d tokens for %d users", len(s.Tokens), len(standin.Users))
	}

	// OPA answers by the shipped policy.
	var answer struct {
		DecisionID string `json:"decision_id"`
		Result     struct{ Allow bool }
	}
	question := json.RawMessage(`{"input":{"user":{"id":"anonymous","authenticated":false,"roles":[],"offices":[]},"resource":"offices","action":"read","context":{"method":"GET","offices":[],"office_scope":"none"}}}`)
	if err := s.call(ctx, http.MethodPost, s.OPA+"/v1/data/cwms/authz/decision", question, &answer); err != nil {
		t.Fatal(err)
	}
	if !answer.Result.Allow || answer.DecisionID == "" {
		t.Errorf("%+v", answer)
	}

	// Another policy is taken up, and OPA tells of it.
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".manifest"), `{"rego_version":1,"roots":["cwms"]}`)
	write(t, filepath.Join(dir, "cwms.rego"), "package cwms.authz\n\ndecision := {\"allow\": false}\n")
	revision, err := s.PublishBundle(ctx, dir, "-entrypoint", "cwms/authz/decision")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitRevision(ctx, revision); err != nil {
		t.Fatal(err)
	}
	if err := s.call(ctx, http.MethodPost, s.OPA+"/v1/data/cwms/authz/decision", question, &answer); err != nil || answer.Result.Allow {
		t.Errorf("%+v %v", answer, err)
	}

	// Credentials of the stand-in work.
	token, err := s.Token(ctx, standin.TokenRequest{User: "M5HECTEST"})
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.API+"/cwms-data/user/profile", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if stats, err := s.Stats(ctx); res.StatusCode != 200 || err != nil || stats.ProfileCalls != 1 {
		t.Errorf("profile %d, %+v %v", res.StatusCode, stats, err)
	}
}

// A process can be killed, paused and stopped, and comes back on its port.
func TestChildren(t *testing.T) {
	s := New(t, Options{NoProxy: true})
	ctx := t.Context()
	for _, c := range s.Children() {
		before := c.PID()
		if err := c.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c.ready(ctx); err == nil {
			t.Errorf("%s answers after it was killed", c.Name)
		}
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if c.PID() == before {
			t.Errorf("%s has its old process", c.Name)
		}

		if err := c.Pause(); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := c.ready(short); err == nil && c != s.RedisServer { // its probe has a bound of its own
			t.Errorf("%s answers while it is paused", c.Name)
		}
		cancel()
		if err := c.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := c.Stop(stopBound); err != nil {
			t.Error(err)
		}
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Nothing is left behind, and what did not end in order is told.
func TestStop(t *testing.T) {
	s, err := Start(t.Context(), Options{NoProxy: true})
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, c := range s.Children() {
		pids = append(pids, c.PID())
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %d: %v", pid, err)
		}
	}
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", s.dir, err)
	}
}

// Without redis-server on PATH the stack says so and goes on.
func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", pathWithout(t, "redis-server"))
	var said bytes.Buffer
	s := New(t, Options{NoProxy: true, Progress: &said})
	if s.RedisServer != nil || s.Redis != "" || !bytes.Contains(said.Bytes(), []byte("redis-server is not installed")) {
		t.Errorf("redis %q; said %q", s.Redis, said.String())
	}
}

// The environment of the proxy comes from the caller first.
func TestEnvironment(t *testing.T) {
	t.Setenv("LOG_LEVEL", "warn")
	t.Setenv("ADMIN_TOKEN", "of the process")
	env := environment(map[string]string{"ADMIN_TOKEN": "of the options"})
	if env["LOG_LEVEL"] != "warn" || env["ADMIN_TOKEN"] != "of the options" {
		t.Errorf("LOG_LEVEL %q, ADMIN_TOKEN %q", env["LOG_LEVEL"], env["ADMIN_TOKEN"])
	}
	for _, c := range []struct{ upstream, below string }{
		{"http://127.0.0.1:7001/cwms-data", ""},
		{"http://127.0.0.1:7001", "/-"},
		{"http://127.0.0.1:7001/", "/-"},
	} {
		if got := below(map[string]string{"UPSTREAM_URL": c.upstream}); got != c.below {
			t.Errorf("below %q: %q, want %q", c.upstream, got, c.below)
		}
	}
}

// pathWithout is PATH as if a program were not installed: a directory that holds
// it is replaced by one with links to all else.
func pathWithout(t *testing.T, program string) string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, program)); err == nil {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			links := t.TempDir()
			for _, e := range entries {
				if e.Name() == program {
					continue
				}
				if err := os.Symlink(filepath.Join(dir, e.Name()), filepath.Join(links, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
			dir = links
		}
		dirs = append(dirs, dir)
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

func names(s *Stack) (names []string) {
	for _, c := range s.Children() {
		names = append(names, c.Name)
	}
	return names
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The whole path: a decision by the shipped policy, forwarded to the stand-in
// with its context, on each of several proxies.
func TestProxies(t *testing.T) {
	s := New(t, Options{Replicas: 2, LeastPrivilege: true})
	ctx := t.Context()
	for _, proxy := range s.Proxies {
		for _, c := range []struct {
			office string
			status int
		}{{"SWT", 200}, {"SPK", 403}} {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, proxy+"/cwms-data/timeseries?name=X&office="+c.office, nil)
			req.Header.Set("Authorization", "Bearer "+s.Tokens["M5HECTEST"])
			res, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("%s: %d %s", c.office, res.StatusCode, body)
			}
		}
		seen, err := s.Seen(ctx, 1)
		if err != nil || len(seen) != 1 || len(seen[0].Header("x-cwms-auth-context")) != 1 {
			t.Errorf("%+v %v", seen, err)
		}
	}
	// One profile for both, by way of Redis.
	if stats, err := s.Stats(ctx); err != nil || stats.ProfileCalls != 1 {
		t.Errorf("%+v %v", stats, err)
	}
	for _, c := range s.Replicas {
		if err := c.Stop(stopBound); err != nil {
			t.Error(err)
		}
		if records, err := os.ReadFile(c.OutFile()); err != nil || bytes.Count(records, []byte("\n")) < 2 {
			t.Errorf("records of %s: %s %v", c.Name, records, err)
		}
	}
}
