package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// reading is a request that M5HECTEST may make.
const reading = "/cwms-data/timeseries?office=SWT&name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev"

// Every token that is not what the issuer gave this user for us is refused, on a
// route that is public, too: a bad credential is never an anonymous caller.
func TestHostileTokens(t *testing.T) {
	st := sharedStack(t)
	seconds := func(n int64) *int64 { return &n }
	good := token(t, st, standin.TokenRequest{User: "M5HECTEST"})
	head, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	other, _, _ := strings.Cut(strings.SplitN(token(t, st, standin.TokenRequest{User: "HECADMIN"}), ".", 2)[1], ".")

	mint := func(ask standin.TokenRequest) string {
		ask.User = "M5HECTEST"
		return token(t, st, ask)
	}
	for _, c := range []struct {
		name, token string
		status      int
	}{
		{"as it should be", good, 200},
		{"signature of another token", head + "." + other + "." + signature, 401},
		{"signature cut", head + "." + payload + "." + signature[:len(signature)-4], 401},
		{"no signature", head + "." + payload + ".", 401},
		{"alg none", mint(standin.TokenRequest{Alg: "none"}), 401},
		{"HS256 made with the public key", mint(standin.TokenRequest{Alg: "HS256"}), 401},
		{"another issuer", mint(standin.TokenRequest{Claims: map[string]any{"iss": "https://id.example.org/realms/cwms"}}), 401},
		{"expired", mint(standin.TokenRequest{TTL: seconds(-60)}), 401},
		{"not yet valid", mint(standin.TokenRequest{Claims: map[string]any{"nbf": 4102444800}}), 401},
		{"issued in the future", mint(standin.TokenRequest{Claims: map[string]any{"iat": 4102444800}}), 401},
		{"without exp", mint(standin.TokenRequest{Claims: map[string]any{"exp": nil}}), 401},
		{"without kid", mint(standin.TokenRequest{Key: "none"}), 401},
		{"unknown key", mint(standin.TokenRequest{Key: "unknown"}), 401},
		{"crit", mint(standin.TokenRequest{Header: map[string]any{"crit": []string{"b64"}, "b64": true}}), 401},
		{"cnf", mint(standin.TokenRequest{Claims: map[string]any{"cnf": map[string]any{"jkt": "x"}}}), 401},
		{"jwk in the header", mint(standin.TokenRequest{Header: map[string]any{"jwk": map[string]any{"kty": "RSA"}}}), 401},
		{"an ID token", mint(standin.TokenRequest{Claims: map[string]any{"typ": "ID"}}), 401},
		{"typ of the header", mint(standin.TokenRequest{Header: map[string]any{"typ": "dpop+jwt"}}), 401},
		{"no token at all", "", 401},
		{"four parts", good + ".x", 401},
		{"10 MB", strings.Repeat("a", 10<<20), 431},
	} {
		// Twice: a refusal is not remembered as something better.
		for range 2 {
			for _, target := range []string{reading, "/cwms-data/offices"} {
				answer, err := try(st.Proxy, get(target, bearer(c.token)))
				if c.status == 431 && err != nil {
					continue // the connection may be reset under so large a header
				}
				if err != nil || answer.status != c.status {
					t.Errorf("%s: %s answers %d %s, %v; want %d", c.name, target, answer.status, answer.body, err, c.status)
				}
				if c.status == 401 && answer.header.Get("WWW-Authenticate") != `Bearer error="invalid_token"` {
					t.Errorf("%s: WWW-Authenticate is %q", c.name, answer.header.Get("WWW-Authenticate"))
				}
			}
		}
	}

	two := send(t, st.Proxy, get(reading, bearer(good), bearer(good)))
	if two.status != http.StatusBadRequest {
		t.Errorf("two Authorization headers: %d, want 400", two.status)
	}
	// The scheme counts in any case.
	if a := send(t, st.Proxy, get(reading, "Authorization: bEaReR "+good)); a.status != http.StatusOK {
		t.Errorf("bEaReR: %d, want 200", a.status)
	}
	// A scheme that the API does not know is no credential, and stays here.
	if a := send(t, st.Proxy, get("/cwms-data/offices", "Authorization: Basic dXNlcjpwYXNz")); a.status != http.StatusOK {
		t.Errorf("Basic: %d, want 200 as an anonymous caller", a.status)
	}
	seen, err := st.Seen(t.Context(), 1)
	if err != nil || len(seen) != 1 {
		t.Fatalf("the API saw %v, %v", seen, err)
	}
	for _, h := range seen[0].Headers {
		if strings.EqualFold(h[0], "Authorization") {
			t.Errorf("the API saw %v", seen[0].Headers)
		}
	}
	mustNotSay(t, st, good, payload, signature, "dXNlcjpwYXNz")
}

// mustNotSay looks for secrets in everything that the proxies wrote.
func mustNotSay(t *testing.T, st *stack.Stack, secrets ...string) {
	t.Helper()
	for _, c := range st.Replicas {
		for _, file := range []string{c.OutFile(), c.ErrFile()} {
			said, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range secrets {
				if strings.Contains(string(said), s) {
					t.Errorf("%s holds a secret", file)
				}
			}
		}
	}
}
