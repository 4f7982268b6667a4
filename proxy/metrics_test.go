package main

import (
	"bytes"
	"strings"
	"testing"
)

// Every series has our prefix, and every family of ours says what it is before its
// first series. What a running proxy shows is audited in bench/observe.
func TestMetricsFormat(t *testing.T) {
	var text bytes.Buffer
	writeMetrics(&text)
	typed := map[string]bool{}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			if !strings.HasPrefix(name, metricPrefix) || len(help) < 10 || !strings.HasSuffix(help, ".") {
				t.Errorf("%q", line)
			}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if typed[name] {
				t.Errorf("%s is described twice", name)
			}
			typed[name] = kind != ""
			continue
		}
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		family := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && typed[base] {
				family = base
			}
		}
		if !strings.HasPrefix(name, metricPrefix) || !typed[family] {
			t.Errorf("%q has no description", line)
		}
	}
	for _, name := range []string{"process_open_fds", "process_resident_memory_bytes", "go_goroutines"} {
		if !typed[metricPrefix+name] {
			t.Errorf("no %s", name)
		}
	}
	if v := metricsJSON(); v[metricPrefix+"process_start_time_seconds"] == 0 {
		t.Errorf("/metrics/json has no start time: %v", v)
	}
}

func TestFamiliesAreNamedOnce(t *testing.T) {
	if len(helpOf) != len(families) {
		t.Errorf("%d names for %d families", len(helpOf), len(families))
	}
}
