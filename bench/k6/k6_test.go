package k6

import (
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"headgate/bench/standin"
)

// The figures that the page of results is compared by.
func TestScenarios(t *testing.T) {
	d, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if d.Quick != (Scenario{VUs: 10, Seconds: 30}) || d.Stress != (Scenario{From: 5, To: 50, Seconds: 60}) || d.PauseMS != 50 {
		t.Errorf("quick %+v, stress %+v, pause %d ms", d.Quick, d.Stress, d.PauseMS)
	}
	for _, u := range d.Users {
		if !slices.Contains(standin.Users, u.Name) {
			t.Errorf("%q is no test user", u.Name)
		}
	}
	next := d.Mixed("http://p", map[string]string{"M5HECTEST": "t"})
	for _, from := range []int64{0, 100, 12345} {
		count := map[string]int{}
		for n := range int64(100) {
			count[next(from+n).Name]++
		}
		if count["/health"] != 20 || count["/cwms-data/timeseries"] != 40 || count["/authorize"] != 40 {
			t.Errorf("from %d: %v", from, count)
		}
	}
	call := d.Call("http://p", "/authorize", d.Users[0], map[string]string{"M5HECTEST": "t"})
	if call.URL != "http://p/authorize" || string(call.Body) != `{"resource":"timeseries","action":"read","context":{"office_id":"SWT"}}` ||
		!slices.Contains(call.Header, [2]string{"Authorization", "Bearer t"}) {
		t.Errorf("%+v, body %s", call, call.Body)
	}
	for name, s := range d.Scenarios {
		if _, ok := d.Calls[s.Call]; s.Call != "" && !ok || s.Seconds == 0 || (s.VUs == 0) == (s.To == 0) {
			t.Errorf("scenario %s: %+v", name, s)
		}
	}
}

// The scripts are JavaScript, as far as the runtime of this machine can tell.
func TestScriptsParse(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	for _, name := range []string{"mix.js", "quick.js", "stress.js", "scenarios.js"} {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(node, "--input-type=module", "--check")
		cmd.Stdin = strings.NewReader(string(script))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// The scripts send the requests of the Go harness, in the same order: the shared
// part of them is run with what k6 would lend it replaced, and asked for the first
// three hundred.
func TestScriptsSendWhatTheHarnessSends(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	d, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("mix.js")
	if err != nil {
		t.Fatal(err)
	}
	lent := `import { readFileSync } from 'node:fs';
const __ENV = { PROXY_URL: 'http://p' };
const open = (file) => readFileSync(file, 'utf8');
const fail = (text) => { throw new Error(text); };
const sent = [];
const http = { request: (method, url, body, params) => { sent.push([method, url, body, params.headers]); return {}; } };
const checks = [];
const check = (_, all) => checks.push(Object.keys(all).length);
`
	asked := `
const allTokens = Object.fromEntries(data.users.map((u) => [u.name, 'token of ' + u.name]));
for (let n = 0; n < 300; n++) { send(nth(n), userOf(n), allTokens); }
if (checks.length !== 300 || checks.some((n) => n !== 2)) { fail('answers are not checked'); }
console.log(JSON.stringify(sent));
`
	own := regexp.MustCompile(`(?m)^import .*$`).ReplaceAllString(string(script), "")
	cmd := exec.Command(node, "--input-type=module")
	cmd.Stdin = strings.NewReader(lent + own + asked)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var sent [][4]any
	if err := json.Unmarshal(out, &sent); err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, u := range d.Users {
		tokens[u.Name] = "token of " + u.Name
	}
	next := d.Mixed("http://p", tokens)
	for n, got := range sent {
		call := next(int64(n))
		want := [4]any{call.Method, call.URL, nil, map[string]any{}}
		if call.Body != nil {
			want[2] = string(call.Body)
		}
		for _, h := range call.Header {
			want[3].(map[string]any)[h[0]] = h[1]
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("request %d: the script sends %q, the harness %q", n, got, want)
		}
	}
	if len(sent) != 300 {
		t.Errorf("%d requests", len(sent))
	}
}
