package k6

import (
	"os"
	"os/exec"
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
