package observe

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// labelValues are all labels that a series may have, and what stands in them. None
// can be made up by a client.
var labelValues = map[string]*regexp.Regexp{
	"method":      regexp.MustCompile(`^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|other)$`),
	"route":       regexp.MustCompile(`^(none|unknown|[a-z]+(-[a-z]+)*|/[a-z0-9/{}*-]*)$`),
	"status_code": regexp.MustCompile(`^[1-5][0-9][0-9]$`),
	"stage":       regexp.MustCompile(`^(identify|context|decide|forward)$`),
	"decision":    regexp.MustCompile(`^(allow|deny)$`),
	"source":      regexp.MustCompile(`^(opa|cache|coalesced)$`),
	"result":      regexp.MustCompile(`^[a-z_]+$`),
	"reason":      regexp.MustCompile(`^[a-z_0-9]+$`),
	"kind":        regexp.MustCompile(`^[a-z_]+$`),
	"file":        regexp.MustCompile(`^[a-z_]+$`),
	"limit":       regexp.MustCompile(`^[a-z_]+$`),
	"cache":       regexp.MustCompile(`^user_context$`),
	"operation":   regexp.MustCompile(`^[a-z_]+$`),
	"call":        regexp.MustCompile(`^[a-z_]+$`),
	"bundle":      regexp.MustCompile(`^headgate$`),
	"revision":    regexp.MustCompile(`^[0-9]+-[0-9a-f]+$`),
	"version":     regexp.MustCompile(`.`),
	"le":          regexp.MustCompile(`^([0-9.e+-]+|\+Inf)$`),
}

var (
	seriesLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	documented = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
)

// audit looks at all that a proxy shows after traffic of which some is hostile.
func audit(t *testing.T, st *stack.Stack) {
	t.Helper()
	const canary = "Canary77"
	for _, target := range []string{"/" + canary, "/cwms-data/" + canary, series + canary, "/cwms-data/timeseries/" + canary + "?office=SWT"} {
		req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(canary), st.Proxy+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{req.Method, "GET", "DELETE"} {
			req.Method = method
			req.Header.Set("Authorization", "Bearer "+canary)
			fetch(t, req)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, st.Admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, header := fetch(t, req)
	// Prometheus 3 refuses what does not say what it is.
	if ct := header.Get("Content-Type"); ct != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("Content-Type %q", ct)
	}
	if i := strings.Index(strings.ToLower(text), strings.ToLower(canary)); i >= 0 {
		t.Errorf("clients can write into the metrics: …%.200s", text[max(0, i-100):])
	}

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]bool{} // of README.md; true when seen
	for _, m := range documented.FindAllStringSubmatch(string(readme), -1) {
		families["authorizer_proxy_"+m[1]] = false
	}
	runtime := regexp.MustCompile(`^authorizer_proxy_(go|process)_`)
	var ours strings.Builder // what promtool shall judge; the rest has names of others
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if words[0] == "#" {
			if runtime.MatchString(words[2]) {
				continue
			}
			if _, ok := families[words[2]]; !ok {
				t.Errorf("%s is not in README.md: say in proxy/metrics.go what it is, then `just docs`", words[2])
			}
			families[words[2]] = true
			ours.WriteString(line)
			continue
		}
		m := seriesLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || !strings.HasPrefix(m[1], "authorizer_proxy_") {
			t.Errorf("cannot read %q", line)
			continue
		}
		if runtime.MatchString(m[1]) {
			families[m[1]] = true
			continue
		}
		ours.WriteString(line)
		for _, label := range labelPair.FindAllStringSubmatch(m[2], -1) {
			if known := labelValues[label[1]]; known == nil || !known.MatchString(label[2]) {
				t.Errorf("label %s=%q of %s is not of a closed set", label[1], label[2], m[1])
			}
		}
	}
	for name, seen := range families {
		if !seen {
			t.Errorf("README.md speaks of %s, which is not there", name)
		}
	}
	for name, where := range used(t) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !families[name] && !families[base] {
			t.Errorf("%s uses %s, which is not there", where, name)
		}
	}
	if out, err := promtool(t, ours.String(), "check", "metrics"); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

func fetch(t *testing.T, req *http.Request) (body string, header http.Header) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(fmt.Errorf("%s %s: %w", req.Method, req.URL, err))
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(b), res.Header
}
