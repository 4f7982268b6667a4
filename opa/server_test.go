package policy

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// origin is a bundle server with an ETag, and the proxy that OPA tells its status.
type origin struct {
	*httptest.Server
	bundle string // the file it serves

	mu       sync.Mutex
	statuses []status
	tokens   map[string]bool
}

type status struct {
	Bundles map[string]struct {
		Active  string `json:"active_revision"`
		Message string `json:"message"`
	} `json:"bundles"`
}

func newOrigin(t *testing.T) *origin {
	o := &origin{bundle: filepath.Join(t.TempDir(), "bundle.tar.gz"), tokens: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bundle.tar.gz", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(o.bundle)
		if err != nil {
			http.Error(w, "no bundle yet", http.StatusNotFound)
			return
		}
		sum := sha256.Sum256(data)
		w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
		http.ServeContent(w, r, "bundle.tar.gz", time.Time{}, bytes.NewReader(data))
	})
	mux.HandleFunc("POST /opa/status", func(w http.ResponseWriter, r *http.Request) {
		var s status
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			t.Error(err)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.statuses = append(o.statuses, s)
		o.tokens[r.Header.Get("Authorization")] = true
	})
	o.Server = httptest.NewServer(mux)
	t.Cleanup(o.Close)
	return o
}

// complaint is the last error about a bundle that OPA told.
func (o *origin) complaint() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.statuses) == 0 {
		return ""
	}
	return o.statuses[len(o.statuses)-1].Bundles["headgate"].Message
}

// server is an OPA that runs by config.yaml.
type server struct {
	url   string
	state string
	log   *lines
	stop  func()
}

func startOPA(t *testing.T, o *origin, state string, args ...string) *server {
	t.Helper()
	s := &server{url: "http://" + freeAddress(t), state: state, log: &lines{}}
	cmd := exec.CommandContext(t.Context(), opa(t), append([]string{
		"run", "--server", "--addr", strings.TrimPrefix(s.url, "http://"), "--log-level", "error",
		"--config-file", "config.yaml", "--skip-version-check",
	}, args...)...)
	cmd.Env = append(os.Environ(), "BUNDLE_URL="+o.URL, "STATUS_URL="+o.URL+"/opa", "STATUS_TOKEN=the-token", "OPA_STATE="+state)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	t.Cleanup(s.stop)
	t.Cleanup(func() {
		if t.Failed() {
			said := s.log.text()
			t.Logf("OPA said last:\n%s", said[max(0, len(said)-2000):])
		}
	})
	return s
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// lines keeps what a child process writes.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// revision is the revision that OPA runs, empty while there is none.
func (s *server) revision() string {
	resp, err := http.Get(s.url + "/v1/data/system/bundles")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var answer struct {
		Result map[string]struct {
			Manifest struct{ Revision string }
		}
	}
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return ""
	}
	return answer.Result["headgate"].Manifest.Revision
}

func (s *server) decide(t testing.TB, path string, input any) answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"input": input})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.url+"/v1/data/"+path+"?provenance=true&strict-builtin-errors=true", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, data)
	}
	return decode[answer](t, data)
}

type answer struct {
	Result     json.RawMessage `json:"result"`
	ID         string          `json:"decision_id"`
	Provenance struct {
		Bundles map[string]struct{ Revision string }
	}
	Warning json.RawMessage `json:"warning"`
}

// eventually waits until a condition holds. Nothing is timed: the limit only ends
// a test that would never end.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

func (s *server) runs(t testing.TB, revision string) {
	t.Helper()
	eventually(t, "OPA runs "+revision, func() bool { return s.revision() == revision })
}

var question = map[string]any{
	"user": map[string]any{
		"id": "M5HECTEST", "username": "M5HECTEST", "email": "somebody@example.test", "authenticated": true, "auth_method": "jwt",
		"roles": []string{"CWMS Users", "water_manager"}, "roles_by_office": map[string]any{"HQ": []string{"water_manager"}, "SWT": []string{"CWMS Users"}},
		"offices": []string{"HQ", "SWT"}, "claims": map[string]any{"given_name": "Somebody"},
	},
	"resource": "timeseries", "action": "read",
	"context": map[string]any{"method": "GET", "office_id": "SWT", "offices": []string{"SWT"}, "office_scope": "one", "office_mask": nil},
}

// The whole way: a bundle is published, OPA fetches it, answers by it, tells its
// status with the token, logs what it may; a change is picked up by polling; a
// restart without the bundle server goes on with the last bundle.
func TestServe(t *testing.T) {
	o := newOrigin(t)
	state := t.TempDir()
	s := startOPA(t, o, state)
	first := buildBundle(t, o.bundle)
	s.runs(t, first)
	before := len(s.log.text()) // what is logged until then is not masked yet

	got := s.decide(t, "cwms/authz/decision", question)
	want := `{"allow":true,"constraints":{"allowed_offices":["HQ","SWT"],"data_classification":["public","internal","restricted","sensitive"],"embargo_exempt":true,"embargo_rules":{},"time_window":null,"ts_group_embargo":null},"reason":"role_at_office: a role of the user counts at every office asked for"}`
	if string(got.Result) != want || got.Warning != nil {
		t.Errorf("got %s %s\nwant %s", got.Result, got.Warning, want)
	}
	if got.ID == "" || got.Provenance.Bundles["headgate"].Revision != first {
		t.Errorf("no decision id, or not by %s: %+v", first, got)
	}
	eventually(t, "the decision is logged", func() bool { return strings.Contains(s.log.text(), got.ID) })
	for _, private := range []string{"somebody@example.test", "given_name", "system/bundles"} {
		if strings.Contains(s.log.text()[before:], private) {
			t.Errorf("%q is in the log", private)
		}
	}
	eventually(t, "OPA tells its revision", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.statuses) > 0 && o.statuses[len(o.statuses)-1].Bundles["headgate"].Active == first
	})
	if len(o.tokens) != 1 || !o.tokens["Bearer the-token"] {
		t.Errorf("the status came with %v", o.tokens)
	}

	changed := t.TempDir()
	if err := os.CopyFS(changed, os.DirFS("policy")); err != nil {
		t.Fatal(err)
	}
	replace(t, filepath.Join(changed, "cwms/personas/data.json"), `"water_manager": []`, `"water_manager": ["approved"]`)
	second := buildBundle(t, o.bundle, "-policy", changed)
	s.runs(t, second)
	if got := s.decide(t, "cwms/authz/decision", question); !bytes.Contains(got.Result, []byte(`"allow":false`)) {
		t.Errorf("by the changed table: %s", got.Result)
	}

	s.stop()
	o.Close()
	again := startOPA(t, o, state)
	again.runs(t, second)
}

func replace(t testing.TB, file, old, text string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s has no %s", file, old)
	}
	write(t, file, strings.ReplaceAll(string(data), old, text))
}

// With a key, OPA takes what is signed by it, and nothing else; what it has stays.
func TestSigned(t *testing.T) {
	dir := t.TempDir()
	private, public := newKey(t, dir, "good")
	other, _ := newKey(t, dir, "other")

	o := newOrigin(t)
	s := startOPA(t, o, t.TempDir(),
		"--set-file", "keys.headgate.key="+public, "--set", "keys.headgate.algorithm=ES256", "--set", "bundles.headgate.signing.keyid=headgate")
	good := buildBundle(t, o.bundle, "-signing-key", private)
	s.runs(t, good)

	for _, c := range []struct {
		name, complaint string
		args            []string
	}{
		{"unsigned", "missing .signatures.json", nil},
		{"signed by another key", "failed to verify", []string{"-signing-key", other}},
	} {
		buildBundle(t, o.bundle, c.args...)
		eventually(t, c.name+" is refused", func() bool { return strings.Contains(o.complaint(), c.complaint) })
		if got := s.revision(); got != good {
			t.Errorf("%s: OPA runs %s, want %s", c.name, got, good)
		}
	}
	s.runs(t, buildBundle(t, o.bundle, "-signing-key", private))
}

func newKey(t testing.TB, dir, name string) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private = filepath.Join(dir, name+".pem")
	write(t, private, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	if der, err = x509.MarshalPKIXPublicKey(&key.PublicKey); err != nil {
		t.Fatal(err)
	}
	public = filepath.Join(dir, name+".pub.pem")
	write(t, public, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return private, public
}

// The cases: what the proxy asks, and what it is told. Each line is a question and
// as much of the answer as matters; "not" lists what must not be there. They are
// asked of the bundle as it ships, optimised, by a real OPA.
func TestCases(t *testing.T) {
	o := newOrigin(t)
	revision := buildBundle(t, o.bundle)
	s := startOPA(t, o, t.TempDir())
	s.runs(t, revision)

	file, err := os.Open("cases/decisions.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	questions, answers := []any{}, []any{}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		c := decode[struct {
			ID          string
			Input       json.RawMessage
			Allow       bool
			Code        string
			Constraints map[string]json.RawMessage
		}](t, scanner.Bytes())
		t.Run(c.ID, func(t *testing.T) {
			raw := s.decide(t, "cwms/authz/decision", c.Input).Result
			got := decode[struct {
				Allow       bool
				Reason      string
				Constraints map[string]json.RawMessage
			}](t, raw)
			if code, _, _ := strings.Cut(got.Reason, ":"); got.Allow != c.Allow || code != c.Code {
				t.Errorf("allow %v for %s, want %v for %s", got.Allow, got.Reason, c.Allow, c.Code)
			}
			for name, want := range c.Constraints {
				if string(got.Constraints[name]) != string(want) {
					t.Errorf("%s is %s, want %s", name, got.Constraints[name], want)
				}
			}
			if got := s.decide(t, "cwms/authz/allow", c.Input).Result; string(got) != fmt.Sprint(c.Allow) {
				t.Errorf("the bare answer is %s", got)
			}
			questions = append(questions, c.Input)
			answers = append(answers, raw)
		})
	}
	if len(questions) < 20 {
		t.Fatalf("only %d cases", len(questions))
	}
	validate(t, "schemas/input.json", questions)
	validate(t, "schemas/decision.json", answers)
}

// validate holds documents against a JSON schema, by OPA itself.
func validate(t *testing.T, schema string, documents []any) {
	t.Helper()
	content, err := os.ReadFile(schema)
	if err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(map[string]any{"schema": json.RawMessage(content), "documents": documents})
	if err != nil {
		t.Fatal(err)
	}
	out, stderr, err := try(t, input, opa(t), "eval", "--stdin-input", "--format", "raw",
		`{[i, e.desc, e.field] | some i, d in input.documents; [ok, errors] := json.match_schema(d, input.schema); not ok; some e in errors}`)
	if err != nil {
		t.Fatalf("%v %s", err, stderr)
	}
	if faults := strings.TrimSpace(string(out)); faults != "[]" {
		t.Errorf("by %s: %s", schema, faults)
	}
}

// The policy of the earlier proxy under opa/compat: the one in $REFERENCE_POLICY, a
// folder, else a stand-in. Same answers as the boolean rule, with constraints.
func TestCompat(t *testing.T) {
	reference := os.Getenv("REFERENCE_POLICY")
	if reference == "" {
		reference = "testdata/reference"
	}
	o := newOrigin(t)
	revision := buildBundle(t, o.bundle, "-policy", "compat", "-policy", "policy/cwms/groups", "-policy", "policy/system", "-policy", reference,
		"-entrypoint", "cwms/compat/decision")
	s := startOPA(t, o, t.TempDir())
	s.runs(t, revision)

	hour := time.Now().UTC().Hour()
	user := func(roles []string, more map[string]any) map[string]any {
		u := map[string]any{"id": "X", "username": "X", "authenticated": true, "roles": roles, "offices": []string{"SWT"}}
		for name, value := range more {
			u[name] = value
		}
		return u
	}
	privileges := []any{map[string]any{"ts_group_id": "dam_operator_raw_r_72h", "privilege": "read", "embargo_hours": 0}}
	for name, c := range map[string]struct {
		user                   map[string]any
		action, resource, want string
	}{
		"reference data": {
			user([]string{}, nil), "read", "offices",
			`{"allow":true,"constraints":{"allowed_offices":["*"],"data_classification":["public","internal"],"embargo_exempt":false,"embargo_rules":{},"time_window":null,"ts_group_embargo":null},"reason":"allowed: a rule of the earlier policy allows it"}`,
		},
		"by role, embargo by the name of the group": {
			user([]string{"dam_operator"}, map[string]any{"ts_privileges": privileges}), "read", "timeseries",
			`{"allow":true,"constraints":{"allowed_offices":["SWT"],"data_classification":["public","internal"],"embargo_exempt":false,"embargo_rules":{"default":72},"time_window":null,"ts_group_embargo":{"dam_operator_raw_r_72h":72}},"reason":"allowed: a rule of the earlier policy allows it"}`,
		},
		"by the clock": {
			user([]string{"dam_operator"}, map[string]any{"persona": "dam_operator", "shift_start": hour - 2, "shift_end": hour + 2, "timezone": "UTC"}), "create", "timeseries",
			`{"allow":true,"cache":{"ttl_ms":0},"constraints":{"allowed_offices":["SWT"],"data_classification":["public","internal"],"embargo_exempt":false,"embargo_rules":{},"time_window":{"restrict_hours":8},"ts_group_embargo":null},"reason":"allowed: a rule of the earlier policy allows it"}`,
		},
		"an administrator": {
			user([]string{"system_admin"}, nil), "delete", "timeseries",
			`{"allow":true,"constraints":{"allowed_offices":["*"],"data_classification":["public","internal","restricted","sensitive"],"embargo_exempt":true,"embargo_rules":{},"time_window":null,"ts_group_embargo":null},"reason":"allowed: a rule of the earlier policy allows it"}`,
		},
		"nobody": {
			user([]string{"CWMS Users"}, nil), "read", "timeseries",
			`{"allow":false,"constraints":{"allowed_offices":[],"data_classification":["public","internal"],"embargo_exempt":false,"embargo_rules":{},"time_window":null,"ts_group_embargo":null},"reason":"denied: no rule of the earlier policy allows it"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			input := map[string]any{"user": c.user, "action": c.action, "resource": c.resource, "context": map[string]any{
				"office_id": "SWT", "offices": []string{"SWT"}, "office_scope": "one", "office_mask": nil, "data_source": "MANUAL",
			}}
			got := s.decide(t, "cwms/compat/decision", input).Result
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			bare := s.decide(t, "cwms/authz/allow", input).Result
			if allow := bytes.Contains(got, []byte(`"allow":true`)); string(bare) != fmt.Sprint(allow) {
				t.Errorf("the rule of the earlier policy says %s", bare)
			}
			validate(t, "schemas/decision.json", []any{got})
		})
	}
}
