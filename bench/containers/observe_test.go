package containers

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/bench/standin"
)

// Prometheus of the profile observe finds the proxy, has the rules and answers what
// the dashboard asks. Grafana itself is not run: TestConfig sees what it is given.
func TestObserve(t *testing.T) {
	p := newProject(t, "observe")
	took := p.up("proxy", "prometheus")
	t.Logf("up and healthy after %v", took.Round(100*time.Millisecond))
	st := p.attach()

	// The dashboard's last question needs an answer that is an error.
	if err := st.Do(t.Context(), http.MethodPut, "/fault", standin.Fault{Target: "api", Status: http.StatusBadGateway, Times: 5}, nil); err != nil {
		t.Fatal(err)
	}
	open := p.dashboard()
	questions := len(open)
	got := during(t, st, func() {
		p.await("Prometheus reads the proxy", func() bool {
			var targets struct {
				ActiveTargets []struct {
					Health, LastError string
					Labels            map[string]string
				}
			}
			p.prometheus("targets?state=active", &targets)
			return len(targets.ActiveTargets) == 1 && targets.ActiveTargets[0].Health == "up" && targets.ActiveTargets[0].Labels["job"] == "headgate"
		})
		var rules int
		p.await("the rules are evaluated", func() bool {
			var answer struct {
				Groups []struct {
					Rules []struct{ Name, Health, LastError string }
				}
			}
			p.prometheus("rules", &answer)
			rules = 0
			for _, g := range answer.Groups {
				for _, r := range g.Rules {
					if r.LastError != "" {
						t.Fatalf("%s: %s", r.Name, r.LastError)
					}
					if r.Health != "ok" {
						return false
					}
					rules++
				}
			}
			return rules > 0
		})
		defer func() {
			if t.Failed() {
				t.Logf("nothing is answered to %q", slices.Sorted(maps.Keys(open)))
			}
		}()
		took := p.await("every question of the dashboard has an answer", func() bool {
			for where, expr := range open {
				var answer struct{ Result []json.RawMessage }
				p.prometheus("query?query="+url.QueryEscape(expr), &answer)
				if len(answer.Result) > 0 {
					delete(open, where)
				}
			}
			return len(open) == 0
		})
		t.Logf("%d rules are evaluated, %d questions of the dashboard answered after %v", rules, questions, took.Round(time.Second))
	})
	only(t, "while Prometheus watches", got, http.StatusBadGateway)
}

// prometheus asks the published port for part of its API.
func (p *project) prometheus(path string, into any) {
	p.t.Helper()
	res, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/api/v1/%s", p.prometheusPort, path))
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %s %v %.500s", path, res.Status, err, body)
	}
}

// dashboard is every question of the dashboard as Grafana would put it, by where it
// stands.
func (p *project) dashboard() map[string]string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, "bench", "observe", "grafana", "dashboards", "headgate.json"))
	if err != nil {
		p.t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		p.t.Fatal(err)
	}
	place := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	all := map[string]string{}
	for _, panel := range d.Panels {
		for _, q := range panel.Targets {
			all[panel.Title+", "+q.RefID] = place.Replace(q.Expr)
		}
	}
	if len(all) == 0 {
		p.t.Fatal("the dashboard asks nothing")
	}
	return all
}
