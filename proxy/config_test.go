package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// enough is an environment that starts.
func enough(more ...string) []string {
	return append([]string{"JWT_ISSUER=https://id.example.org/realms/cwms", "JWT_JWKS_URL=http://id.internal:8080/certs"}, more...)
}

func TestConfigDefaults(t *testing.T) {
	c, warnings, err := LoadConfig(enough())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Upstream.url().String(), "http://localhost:7001/cwms-data"; got != want {
		t.Errorf("upstream %q, want %q", got, want)
	}
	if c.Prefix() != "/cwms-data" || c.OwnPrefix() != "" || c.below("/user/profile") != "http://localhost:7001/cwms-data/user/profile" {
		t.Errorf("prefix %q, own prefix %q, profile %q", c.Prefix(), c.OwnPrefix(), c.below("/user/profile"))
	}
	if c.Redis != "redis://localhost:6379" || c.BodyInspectMax != 16<<20 || c.CacheTTL.duration().Minutes() != 5 {
		t.Errorf("redis %q, inspect %d, ttl %v", string(c.Redis), c.BodyInspectMax, c.CacheTTL.duration())
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "JWT_AUDIENCE") {
		t.Errorf("warnings %q, want the one about the audience", warnings)
	}
}

// Every bad value is named with the variable, the value and what is accepted, and
// all of them at once.
func TestConfigFaults(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"PORT=http", `PORT="http": want a whole number`},
		{"PORT=70000", `PORT=70000: want 0 to 65535`},
		{"LOG_LEVEL=loud", `LOG_LEVEL="loud": want debug, info, warn or error`},
		{"UPSTREAM_URL=localhost:7001", `UPSTREAM_URL="localhost:7001": want an http or https URL without user, such as http://localhost:7001/v2`},
		{"UPSTREAM_URL=http://a/b?c", `UPSTREAM_URL="http://a/b?c": want no query`},
		{"UPSTREAM_TIMEOUT=5s", `UPSTREAM_TIMEOUT="5s": want a whole number of milliseconds`},
		{"UPSTREAM_TIMEOUT=0", `UPSTREAM_TIMEOUT=0s: want more than 0`},
		{"UPSTREAM_HEADER_MAX=2KiB", `UPSTREAM_HEADER_MAX=2048: want 4KiB to 1MiB`},
		{"UPSTREAM_HEADER_MAX=8k", `UPSTREAM_HEADER_MAX="8k": want a number of bytes such as 65536, 64KiB, 16MiB or 2GiB`},
		{"OPA_URL=opa:8181", `OPA_URL="opa:8181": want http://host:port, https://host:port or unix:///path/of/socket`},
		{"OPA_URL=unix://opa.sock", `OPA_URL="unix://opa.sock": want http://host:port, https://host:port or unix:///path/of/socket`},
		{"POLICY_LEASE=1", `POLICY_LEASE="1": want a duration such as 250ms, 1s or 5m`},
		{"POLICY_LEASE=100ms", `POLICY_POLL_INTERVAL=250ms: want less than POLICY_LEASE=100ms, or every lease runs out`},
		{"ENFORCE=no", `ENFORCE="no": want true or report`},
		{"CACHE_TTL_SECONDS=-1", `CACHE_TTL_SECONDS="-1": want a whole number of seconds`},
		{"CACHE_MAX_SIZE=0", `CACHE_MAX_SIZE=0: want 1 or more`},
		{"BODY_MAX=2GB", `BODY_MAX="2GB": want a number of bytes such as 65536, 64KiB, 16MiB or 2GiB`},
		{"CONTEXT_HEADER=x y", `CONTEXT_HEADER="x y": want the name of a header, or none`},
		{"USER_CONTEXT_URL=profile", `USER_CONTEXT_URL="profile": want an http or https URL without user, such as http://localhost:7001/v2, or none, or redis`},
		{"USER_CONTEXT_REFRESH_SECONDS=4000", `USER_CONTEXT_REFRESH_SECONDS=4000: want at most USER_CONTEXT_TTL_SECONDS=1800`},
		{"USER_CONTEXT_REFRESH_SECONDS=0", `USER_CONTEXT_REFRESH_SECONDS=0: want 1 or more`},
		{"USER_CONTEXT_TTL_SECONDS=0", `USER_CONTEXT_TTL_SECONDS=0: want 1 or more`},
		{"USER_LOOKUP_URL=http://a/users", `USER_LOOKUP_URL="http://a/users": want {name} where the name of the user goes`},
		{"AUTH_MODE=open", `AUTH_MODE="open": want jwt or none`},
		{"CORS_ORIGINS=example.org", `CORS_ORIGINS: "example.org": want origins such as https://maps.example.org`},
		{"TRUSTED_PROXIES=10.0.0.0/8,lb", `TRUSTED_PROXIES="10.0.0.0/8,lb": want addresses or CIDR ranges such as 10.0.0.0/8, got "lb"`},
		{"TLS_CERT=a.pem", `TLS_CERT and TLS_KEY: want both or none`},
		{"ADMIN_ADDR=9091", `ADMIN_ADDR="9091": want host:port`},
		{"ADMIN_ADDR=0.0.0.0:9091", `ADMIN_TOKEN: want a token, since ADMIN_ADDR="0.0.0.0:9091" can be reached from elsewhere`},
		{"TEST_USERS=true", `TEST_USERS=true: want HOST to be a loopback address, since it gives anybody any identity; HOST="0.0.0.0"`},
		{"BYPASS_AUTH=true", `BYPASS_AUTH=true: not supported, since it would forward every request undecided while OPA is away; ENFORCE=report shows what policy would deny without denying it`},
		{"ADMIN_TOKEN_FILE=/nowhere", `ADMIN_TOKEN_FILE="/nowhere": open /nowhere: no such file or directory`},
		{"ADMIN_TOKEN_FILE=/dev/null", `ADMIN_TOKEN_FILE="/dev/null": want a secret in it, it is empty`},
		{"ADMIN_ADDR=127.0.0.1:x", `ADMIN_ADDR="127.0.0.1:x": want host:port`},
		{"SHUTDOWN_DELAY=-1s", `SHUTDOWN_DELAY=-1s: want 0 or more`},
		{"OPA_POLICY_PATH=cwms/authz", `OPA_POLICY_PATH="cwms/authz": want a path such as /v1/data/cwms/authz/decision`},
		{"USER_LOOKUP_URL=users/{name}", `USER_LOOKUP_URL="users/{name}": want an http or https URL without user, such as http://localhost:7001/v2`},
		{"REDIS_URL=http://redis:6379", `REDIS_URL: want a URL such as redis://user:password@host:6379, rediss:// or unix://, with a password that is percent-encoded`},
		{"DEBUG_HEADERS=maybe", `DEBUG_HEADERS="maybe": want true or false`},
	} {
		_, _, err := LoadConfig(enough(c.set))
		if err == nil || !slicesContainsLine(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.set, err, c.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: one fault is said more than once:\n%v", c.set, err)
		}
	}

	_, _, err := LoadConfig([]string{"PORT=x", "OPA_TIMEOUT=y", "CWMS_API_URL=http://a/x", "UPSTREAM_URL=http://b/x"})
	for _, want := range []string{"PORT=", "OPA_TIMEOUT=", "CWMS_API_URL=", "JWT_ISSUER:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("all faults at once: %q is missing in:\n%v", want, err)
		}
	}
}

// Files that settings name are looked at as well, each under the name of its setting.
func TestCheckConfigFiles(t *testing.T) {
	err := run(t.Context(), []string{"check-config"}, enough("ROUTES_FILE=/nowhere", "UPSTREAM_CA=/nowhere", "TLS_CERT=/nowhere", "TLS_KEY=/nowhere", "PREWARM_FILE=/nowhere", "CWMS_API_KEY=k"), io.Discard, io.Discard)
	for _, name := range []string{"ROUTES_FILE", "UPSTREAM_CA", "TLS_CERT and TLS_KEY", "PREWARM_FILE"} {
		if err == nil || !strings.Contains("\n"+err.Error(), "\n"+name+": ") {
			t.Errorf("%s is missing in: %v", name, err)
		}
	}
}

func slicesContainsLine(text, line string) bool {
	return strings.Contains("\n"+text+"\n", "\n"+line+"\n")
}

// Secrets come from files too, and are never shown.
func TestConfigSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := LoadConfig(enough("ADMIN_TOKEN_FILE=" + file))
	if err != nil || c.AdminToken != "from-a-file" {
		t.Errorf("token %q, %v", string(c.AdminToken), err)
	}
	_, _, err = LoadConfig(enough("ADMIN_TOKEN=canary-secret", "ADMIN_TOKEN_FILE="+file, "PORT=x"))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "both set") {
		t.Errorf("got %v", err)
	}
	for _, url := range []string{"redis://proxy:canary/x@redis", "redis://proxy:1/canary@redis", "redis://proxy:canary#x@redis", "redis://proxy:10%canary@redis:x"} {
		_, _, err = LoadConfig(enough("REDIS_URL=" + url))
		if err == nil || strings.Contains(err.Error(), "canary") || !strings.HasPrefix(err.Error(), "REDIS_URL: want a URL") {
			t.Errorf("%s: got %v", url, err)
		}
	}
}

// Names of the earlier proxy keep their meaning; what it exempted is decided now.
func TestConfigOfTheEarlierProxy(t *testing.T) {
	c, warnings, err := LoadConfig(enough("CWMS_API_URL=http://data-api:7000/cwms-data", `OPA_WHITELIST_ENDPOINTS=["/cwms-data/x"]`, "JWT_AUDIENCE=a, b"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Upstream.Host != "data-api:7000" || len(c.Audience) != 2 || c.Audience[1] != "b" {
		t.Errorf("upstream %q, audience %q", c.Upstream.Host, c.Audience)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "OPA_WHITELIST_ENDPOINTS is ignored") {
		t.Errorf("warnings %q", warnings)
	}
}

// REDIS_URL set to nothing is a choice, not the default.
func TestConfigWithoutRedis(t *testing.T) {
	c, _, err := LoadConfig(enough("REDIS_URL="))
	if err != nil || c.Redis != "" {
		t.Errorf("redis %q, %v", string(c.Redis), err)
	}
}
