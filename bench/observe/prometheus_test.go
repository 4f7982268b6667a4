package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// prometheus is a running server with the shipped files, in a hurry: it scrapes
// and evaluates every second, looks back for seconds instead of minutes, and
// lets nothing wait.
type prometheus struct {
	url     string
	targets string // file of addresses to scrape; read again when it changes
	client  *http.Client
}

var waiting = regexp.MustCompile(`(?m)^ +for: .*\n`)

// shortened makes every window of rules and dashboard one that a test can wait for.
func shortened(expr string) string {
	return strings.NewReplacer("[1m]", "[10s]", "[5m]", "[10s]", "[15m]", "[1m]").Replace(expr)
}

func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("left out: prometheus is not installed (Debian's package)")
	}
	dir := t.TempDir()
	p := &prometheus{targets: filepath.Join(dir, "targets.json"), client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}}
	t.Cleanup(p.client.CloseIdleConnections)

	var config map[string]any
	read(t, "prometheus.yml", &config)
	config["global"] = map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
	job := config["scrape_configs"].([]any)[0].(map[string]any)
	if job["job_name"] != "headgate" || job["dns_sd_configs"] == nil {
		t.Fatalf("the first job is %v", job)
	}
	delete(job, "dns_sd_configs")
	job["file_sd_configs"] = []any{map[string]any{"files": []any{p.targets}, "refresh_interval": "1s"}}
	p.scrape(t)
	rules, err := os.ReadFile("rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules = []byte(waiting.ReplaceAllString(shortened(string(rules)), ""))
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"prometheus.yml": text, "rules.yml": rules} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // another process may take the port before Prometheus does
		if p.start(t, program, dir) {
			return p
		}
	}
	t.Fatal("prometheus does not start")
	return nil
}

func (p *prometheus) start(t *testing.T, program, dir string) bool {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p.url = "http://" + address
	var log lockedBuffer
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	stop := func() { _ = cmd.Process.Kill(); <-exited }
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		select {
		case <-exited:
			t.Logf("prometheus ended: %s", log.String())
			return false
		case <-time.After(50 * time.Millisecond):
		}
		if res, err := p.client.Get(p.url + "/-/ready"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				t.Cleanup(func() {
					stop()
					if t.Failed() {
						t.Logf("---- prometheus ----\n%s", log.String())
					}
				})
				return true
			}
		}
	}
	stop()
	t.Logf("prometheus is not ready: %s", log.String())
	return false
}

// scrape says which admin listeners there are.
func (p *prometheus) scrape(t *testing.T, admins ...string) {
	t.Helper()
	list := []any{}
	for _, a := range admins {
		list = append(list, map[string]any{"targets": []string{strings.TrimPrefix(a, "http://")}})
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	next := p.targets + ".next"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, p.targets); err != nil {
		t.Fatal(err)
	}
}

// sample is one series of an answer.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// query evaluates an expression now.
func (p *prometheus) query(ctx context.Context, expr string) (samples []sample, err error) {
	var data struct{ Result []sample }
	err = p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result, err
}

// alert is an alert as it stands.
type alert struct {
	Labels, Annotations map[string]string
}

func (p *prometheus) alerts(ctx context.Context) (all []alert, err error) {
	var data struct{ Alerts []alert }
	err = p.get(ctx, "/api/v1/alerts", &data)
	return data.Alerts, err
}

func (p *prometheus) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s %.500s", path, res.Status, body)
	}
	return json.Unmarshal(answer.Data, data)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
