package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// .env.example names what the compose file or the proxy reads and nothing else, and
// what it sets the proxy accepts.
func TestEnvExample(t *testing.T) {
	text := func(name string) string {
		b, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$\{([A-Z_]+)`).FindAllStringSubmatch(text("docker-compose.yml"), -1) {
		known[m[1]] = true
	}
	if len(known) == 0 {
		t.Fatal("docker-compose.yml reads no variable")
	}
	for alias := range aliases {
		known[alias] = true
	}
	for _, s := range settings() {
		known[s.Name] = true
		known[s.Name+"_FILE"] = s.Secret
	}
	given := map[string]string{}
	var environ []string
	for _, m := range regexp.MustCompile(`(?m)^(# )?([A-Z_]+)=(.*)$`).FindAllStringSubmatch(text(".env.example"), -1) {
		name, value := m[2], m[3]
		if !known[name] {
			t.Errorf(".env.example sets %s, which nothing reads", name)
		}
		for _, s := range settings() {
			if s.Name == name && s.Secret && value != "" {
				t.Errorf(".env.example shows a secret: %s", name)
			}
		}
		if m[1] == "" {
			given[name] = value
			environ = append(environ, name+"="+value)
		}
	}
	for _, name := range []string{"CWMS_API_URL", "JWT_ISSUER", "JWT_JWKS_URL"} {
		if given[name] == "" {
			t.Errorf(".env.example does not set %s", name)
		}
	}
	if given["STANDIN_REPLICAS"] != "0" {
		t.Errorf("the stand-in would run beside a real API: STANDIN_REPLICAS=%q", given["STANDIN_REPLICAS"])
	}
	if _, warnings, err := LoadConfig(environ); err != nil || len(warnings) > 0 {
		t.Errorf("%v\n%s", err, strings.Join(warnings, "\n"))
	}
}
