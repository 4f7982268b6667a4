package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What MIGRATION.md says is there is there: settings, series and secrets' files.
func TestMigration(t *testing.T) {
	b, err := os.ReadFile("MIGRATION.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for alias := range aliases {
		known[alias] = true
	}
	for _, s := range settings() {
		known[s.Name] = true
		known[s.Name+"_FILE"] = s.Secret
	}
	section := func(title string) string {
		_, rest, ok := strings.Cut(string(b), "\n## "+title+"\n")
		if !ok {
			t.Fatalf("no section %s", title)
		}
		text, _, _ := strings.Cut(rest, "\n## ")
		return text
	}
	rows := regexp.MustCompile("(?m)^\\| (?:`([A-Z_]+)`|-) \\| (?:`([A-Z_]+)`|-) \\|")
	before := map[string]bool{}
	for _, row := range rows.FindAllStringSubmatch(section("Settings"), -1) {
		before[row[1]] = true
		if row[2] != "" && !known[row[2]] {
			t.Errorf("%s is no setting", row[2])
		}
		if row[2] == "" && known[row[1]] {
			t.Errorf("%s is a setting", row[1])
		}
	}
	// All variables of the earlier proxy.
	for _, name := range strings.Fields("PORT HOST LOG_LEVEL CWMS_API_URL CWMS_API_TIMEOUT OPA_URL OPA_POLICY_PATH BYPASS_AUTH CACHE_TTL_SECONDS CACHE_MAX_SIZE OPA_WHITELIST_ENDPOINTS CWMS_API_KEY REDIS_URL NODE_ENV") {
		if !before[name] {
			t.Errorf("no row for %s", name)
		}
	}
	series := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section("Metrics"), -1)
	if len(series) != 13 { // as many as the earlier proxy had
		t.Errorf("%d series", len(series))
	}
	for _, row := range series {
		if helpOf[metricPrefix+row[1]] == "" {
			t.Errorf("%s is no series", row[1])
		}
	}
}
