// Package observe holds what watches the proxies: Prometheus's configuration and
// rules, and Grafana's dashboard. There is no code in it but these tests.
//
// What the files say is checked here; that they say it of the proxy as it is, in
// live_test.go, with a real Prometheus.
package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ruleFile is rules.yml as far as the tests read it.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// key tells apart two severities of one alert.
func (r rule) key() string { return r.Alert + " " + r.Labels["severity"] }

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file ruleFile
	read(t, "rules.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".json") {
		err = json.Unmarshal(b, into)
	} else {
		err = yaml.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// promtool runs it and returns what it says; without it the test is left out.
func promtool(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("left out: promtool is not installed (Debian's package prometheus)")
	}
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"check", "rules", "--lint-fatal", "rules.yml"},
		{"test", "rules", "rules_test.yml"},
	} {
		if out, err := promtool(t, "", args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Whoever is called at night is told what it is, what it means and what to do;
// and for each alert there is a case in which it fires.
func TestAlertsAreComplete(t *testing.T) {
	var cases struct {
		Tests []struct {
			PromqlExprTest []struct {
				ExpSamples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	read(t, "rules_test.yml", &cases)
	fired := map[string]bool{}
	labels := regexp.MustCompile(`^\{alertname="(\w+)", severity="(\w+)"\}$`)
	for _, c := range cases.Tests {
		for _, e := range c.PromqlExprTest {
			for _, s := range e.ExpSamples {
				m := labels.FindStringSubmatch(s.Labels)
				if m == nil {
					t.Fatalf("rules_test.yml: cannot read the labels %q", s.Labels)
				}
				fired[m[1]+" "+m[2]] = true
			}
		}
	}
	seen := map[string]bool{}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if seen[r.key()] {
			t.Errorf("%s is there twice", r.key())
		}
		seen[r.key()] = true
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		for _, name := range []string{"summary", "description", "runbook"} {
			if len(r.Annotations[name]) < 15 {
				t.Errorf("%s: its %s says %q", r.Alert, name, r.Annotations[name])
			}
		}
		if !fired[r.key()] {
			t.Errorf("%s: rules_test.yml has no case in which it fires", r.key())
		}
	}
}

// dashboard is a dashboard of Grafana as far as the tests read it.
type dashboard struct {
	UID, Title  string
	Panels      []panel
	Annotations struct{ List []struct{ Name, Expr string } }
	Templating  struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource source
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

type source struct{ Type, UID string }

const dashboardFile = "grafana/dashboards/headgate.json"

// queries are all expressions of the dashboard with where they stand.
func (d dashboard) queries() map[string]string {
	all := map[string]string{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all[p.Title+", "+q.RefID] = q.Expr
		}
	}
	for _, a := range d.Annotations.List {
		all["annotation "+a.Name] = a.Expr
	}
	return all
}

// Units that Grafana knows, of those a dashboard of ours may use.
var units = []string{"reqps", "ops", "percentunit", "s", "bytes", "short", "none"}

func TestDashboard(t *testing.T) {
	var d dashboard
	read(t, dashboardFile, &d)
	ids, titles := map[int]bool{}, map[string]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("%q: id %d is not its own", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || titles[p.Title] {
			t.Errorf("panel %d: title %q is not its own", p.ID, p.Title)
		}
		titles[p.Title] = true
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.Y < 0 || g.X+g.W > 24 {
			t.Errorf("%q is not on the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
			t.Errorf("%q: unit %q", p.Title, p.FieldConfig.Defaults.Unit)
		}
		want := source{"prometheus", "${datasource}"}
		if p.Datasource != want {
			t.Errorf("%q: data source %+v", p.Title, p.Datasource)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.RefID == "" || q.Expr == "" || q.Datasource != want {
				t.Errorf("%q: query %+v", p.Title, q)
			}
			refs[q.RefID] = true
		}
		if len(refs) == 0 {
			t.Errorf("%q shows nothing", p.Title)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" && v.Definition != "label_values(authorizer_proxy_ready, instance)" {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
		}
	}
}

// Grafana finds the dashboard where it is mounted, and Prometheus at its name.
func TestProvisioning(t *testing.T) {
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct{ Name, UID, Type, URL, Access string }
	}
	read(t, "grafana/provisioning/datasources/prometheus.yml", &sources)
	if len(sources.Datasources) != 1 || sources.APIVersion != 1 || sources.Datasources[0].Type != "prometheus" || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("%+v", sources)
	}
	var providers struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	read(t, "grafana/provisioning/dashboards/headgate.yml", &providers)
	if len(providers.Providers) != 1 || providers.Providers[0].Type != "file" || providers.Providers[0].Options.Path != "/etc/grafana/dashboards" {
		t.Errorf("%+v", providers)
	}
	compose, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(compose), "grafana:") {
		return
	}
	for _, mount := range []string{
		"./bench/observe/prometheus.yml:/etc/prometheus/prometheus.yml", "./bench/observe/rules.yml:/etc/prometheus/rules.yml",
		"./bench/observe/grafana/provisioning:/etc/grafana/provisioning", "./bench/observe/grafana/dashboards:" + path.Clean(providers.Providers[0].Options.Path),
	} {
		if !strings.Contains(string(compose), mount) {
			t.Errorf("docker-compose.yml does not mount %s", mount)
		}
	}
}

var metricName = regexp.MustCompile(`authorizer_proxy_\w+`)

// used are the families that rules and dashboard speak of, with where.
func used(t *testing.T) map[string]string {
	t.Helper()
	var d dashboard
	read(t, dashboardFile, &d)
	names := map[string]string{}
	add := func(where, expr string) {
		for _, name := range metricName.FindAllString(expr, -1) {
			names[name] = where
		}
	}
	for _, r := range rules(t) {
		add(fmt.Sprint(r.Record, r.Alert), r.Expr)
	}
	for where, expr := range d.queries() {
		add(where, expr)
	}
	return names
}
