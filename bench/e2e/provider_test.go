package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/bench/stack"
)

// provider is an OpenID provider that is not ours, a process of its own.
type provider struct {
	issuer, keys, tokens string // URLs, as it publishes them
}

// buildProvider builds it: a module of its own, whose libraries nothing else needs.
func buildProvider(t *testing.T) string {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(root, ".bin", "provider")
	if said, err := exec.Command("go", "build", "-C", filepath.Join(root, "bench", "e2e", "provider"), "-o", binary).CombinedOutput(); err != nil {
		t.Skipf("the OpenID provider cannot be built here, so no tokens but those of the stand-in were tried: %v\n%s", err, said)
	}
	return binary
}

func startProvider(t *testing.T, binary string) *provider {
	t.Helper()
	cmd := exec.Command(binary)
	var log bytes.Buffer
	cmd.Stderr = &log
	input, err := cmd.StdinPipe() // it ends with it
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("the provider: %v\n%s", err, log.Bytes())
		}
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("the provider does not start: %v", err)
	}
	p := &provider{issuer: strings.TrimSpace(line)}
	res, err := http.Get(p.issuer + "/.well-known/openid-configuration")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var published struct {
		Issuer  string
		JWKSURI string `json:"jwks_uri"`
		Token   string `json:"token_endpoint"`
	}
	if err := json.NewDecoder(res.Body).Decode(&published); err != nil || published.Issuer != p.issuer {
		t.Fatalf("the provider publishes %+v, %v", published, err)
	}
	p.keys, p.tokens = published.JWKSURI, published.Token
	return p
}

// token is what a client gets by the client credentials grant (RFC 6749, 4.4).
func (p *provider) token(t *testing.T, client string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, p.tokens, strings.NewReader(url.Values{"grant_type": {"client_credentials"}, "scope": {"openid"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(client, client)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var granted struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&granted); err != nil || res.StatusCode != http.StatusOK || granted.Token == "" {
		t.Fatalf("the provider grants no token: %s, %v", res.Status, err)
	}
	return granted.Token
}

func (p *provider) rotate(t *testing.T, alg string, overlap bool) {
	t.Helper()
	res, err := http.PostForm(p.issuer+"/rotate", url.Values{"alg": {alg}, "overlap": {fmt.Sprint(overlap)}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the provider does not rotate its keys: %s", res.Status)
	}
}

// relyingAPI is an API that trusts the provider: it knows its users by issuer and
// subject, and answers everything else with the context that it was told.
func relyingAPI(t *testing.T, p *provider) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if told := r.Header.Get("x-cwms-auth-context"); told != "" {
			fmt.Fprint(w, told)
			return
		}
		var claims struct{ Sub string }
		if parts := strings.Split(r.Header.Get("Authorization"), "."); len(parts) == 3 {
			payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
			_ = json.Unmarshal(payload, &claims)
		}
		if r.URL.Path != "/cwms-data/user/profile" || claims.Sub == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"user-name":%q,"principal":"%s::%s","roles":{"SWT":["CWMS Users","water_manager"]}}`,
			strings.ToUpper(claims.Sub), p.issuer, claims.Sub)
	}))
	t.Cleanup(api.Close)
	return api.URL + "/cwms-data"
}

// rely starts a provider, an API that trusts it and a proxy between, which knows no
// more of the provider than its name and where its keys are.
func rely(t *testing.T, binary string) (*provider, *stack.Stack) {
	p := startProvider(t, binary)
	return p, stack.New(t, stack.Options{Env: map[string]string{
		"CWMS_API_URL": relyingAPI(t, p), "JWT_ISSUER": p.issuer, "JWT_JWKS_URL": p.keys,
	}})
}

// learned is how long a new key may take to be learned: the proxy asks for keys
// every 30 s at most because of a token that it cannot verify.
const learned = 2 * time.Minute

// Tokens of a provider that is not ours are accepted with nothing but the issuer and
// the URL of its keys set, whatever it does to its keys.
func TestTokensOfAnotherProvider(t *testing.T) {
	binary := buildProvider(t)

	// The old keys stay published.
	t.Run("rotation with overlap", func(t *testing.T) {
		t.Parallel()
		p, st := rely(t, binary)
		old := p.token(t, "gauge")
		a := send(t, st.Proxy, get(reading, bearer(old)))
		told, _ := object(t, a.body)["user"].(map[string]any)
		if a.status != http.StatusOK || told["id"] != "GAUGE" || told["primary_office"] != "SWT" {
			t.Errorf("a token of the provider: %d %s", a.status, a.body)
		}

		// What it did not sign, or not for this proxy's issuer, is refused.
		head, rest, _ := strings.Cut(old, ".")
		payload, signature, _ := strings.Cut(rest, ".")
		other := strings.Split(p.token(t, "other"), ".")
		altered := []byte(signature)
		altered[0] ^= 'A' ^ 'B'
		for name, token := range map[string]string{
			"of another provider":           startProvider(t, binary).token(t, "gauge"),
			"with an altered signature":     head + "." + payload + "." + string(altered),
			"with the payload of another's": head + "." + other[1] + "." + signature,
			"without a signature":           base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + payload + ".",
		} {
			if a := send(t, st.Proxy, get(reading, bearer(token))); a.status != http.StatusUnauthorized {
				t.Errorf("a token %s: %d %s", name, a.status, a.body)
			}
		}

		p.rotate(t, "ES256", true)
		young := get(reading, bearer(p.token(t, "gauge")))
		awaitLong(t, "a token of the new key is accepted", learned, func() bool {
			if s := statusOf(st, get(reading, bearer(old))); s != http.StatusOK {
				t.Fatalf("a token of the old key: %d, want 200", s)
			}
			return statusOf(st, young) == http.StatusOK
		})
		if s := statusOf(st, get(reading, bearer(old))); s != http.StatusOK {
			t.Errorf("afterwards a token of the old key: %d, want 200", s)
		}
	})

	// The old keys are gone at once.
	t.Run("rotation without overlap", func(t *testing.T) {
		t.Parallel()
		p, st := rely(t, binary)
		old := get(reading, bearer(p.token(t, "gauge")))
		if s := statusOf(st, old); s != http.StatusOK {
			t.Errorf("a token of the provider: %d, want 200", s)
		}
		p.rotate(t, "RS256", false)
		young := get(reading, bearer(p.token(t, "gauge")))
		awaitLong(t, "a token of the new key is accepted", learned, func() bool { return statusOf(st, young) == http.StatusOK })
		if s := statusOf(st, old); s != http.StatusUnauthorized {
			t.Errorf("afterwards a token of the withdrawn key: %d, want 401", s)
		}
	})
}
