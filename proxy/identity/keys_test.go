package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/proxy/authz"
)

// running runs test in a bubble of fake time, with a verifier that keeps its keys
// up to date from a real HTTP server outside of it.
func running(t *testing.T, i *issuer, test func(t *testing.T, v *Verifier)) {
	synctest.Test(t, func(t *testing.T) {
		v, err := New(Config{Issuer: issuerName, JWKSURL: i.url})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { v.Run(ctx); close(done) }()
		synctest.Wait()
		test(t, v)
		cancel()
		<-done
	})
}

// pass lets time go by and everything happen that is due by then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// accepts reports whether a new token of the key is accepted; the error kinds
// are those of authz.
func accepts(v *Verifier, key signer) error {
	_, err := v.VerifyToken(context.Background(), key.token(nil, members{"jti": time.Now().String()}))
	return err
}

func TestStartWithoutTheIssuer(t *testing.T) {
	i := newIssuer(t)
	i.answer(http.StatusBadGateway, "")
	running(t, i, func(t *testing.T, v *Verifier) {
		if err := accepts(v, rsaKey()); !errors.Is(err, authz.ErrUnavailable) {
			t.Errorf("without keys: %v", err)
		}
		if _, err := verify(v, "Bearer nonsense"); !errors.Is(err, authz.ErrUnauthenticated) {
			t.Errorf("a token that no key could save: %v", err)
		}
		if p, err := verify(v, ""); err != nil || !p.Anonymous() {
			t.Errorf("without a token: %v, %v", p, err)
		}
		if v.Ready() == nil {
			t.Error("ready without keys")
		}
		// The tries follow at 1, 3, 7, 15, 31, 61 seconds and then every 30.
		if pass(20 * time.Second); i.asked() != 5 {
			t.Errorf("asked %d times in 20 s, want 5", i.asked())
		}
		if pass(10 * time.Minute); i.asked() != 25 {
			t.Errorf("asked %d times in 10 min 20 s, want 25", i.asked())
		}
		if v.KeysAge() != 620*time.Second {
			t.Errorf("age of no keys: %v", v.KeysAge())
		}
		i.publish(rsaKey().jwk())
		pass(30 * time.Second)
		if err := errors.Join(v.Ready(), accepts(v, rsaKey())); err != nil {
			t.Errorf("30 s after the issuer came up: %v", err)
		}
	})
}

func TestRotation(t *testing.T) {
	i := newIssuer(t, rsaKey().jwk())
	running(t, i, func(t *testing.T, v *Verifier) {
		// With overlap: the new key is published before it is used.
		i.publish(rsaKey().jwk(), otherKey().jwk())
		pass(refreshEvery)
		if err := errors.Join(accepts(v, rsaKey()), accepts(v, otherKey())); err != nil {
			t.Errorf("with overlap: %v", err)
		}
		// The old key is withdrawn: what was verified with it ends by the next
		// refresh, cached or not.
		old := rsaKey().token(nil, members{"exp": time.Now().Unix() + 3600})
		if _, err := verify(v, "Bearer "+old); err != nil {
			t.Error(err)
		}
		i.publish(otherKey().jwk())
		pass(refreshEvery)
		if _, err := verify(v, "Bearer "+old); !errors.Is(err, authz.ErrUnauthenticated) {
			t.Errorf("a token of a withdrawn key: %v", err)
		}
		// Without overlap: the first token of the new key is refused, and makes us
		// look at the end of the pause.
		i.publish(rsaKey().jwk())
		if err := accepts(v, rsaKey()); !errors.Is(err, authz.ErrUnauthenticated) {
			t.Errorf("the first token of a new key: %v", err)
		}
		pass(wantedEvery)
		if err := accepts(v, rsaKey()); err != nil {
			t.Errorf("the second: %v", err)
		}
	})
}

// An invented kid costs the issuer nothing and delays a real new key by no more
// than the pause.
func TestFloodOfInventedKeys(t *testing.T) {
	i := newIssuer(t, rsaKey().jwk())
	running(t, i, func(t *testing.T, v *Verifier) {
		before := i.asked()
		flood := func(seconds int) {
			for range seconds {
				for n := range 10_000 {
					if n%100 > 0 {
						v.keys.want() // what a token comes to, without the cost of it
						continue
					}
					token := b64(fmt.Sprintf(`{"alg":"RS256","kid":"%d"}`, n)) + "." + b64(`{"iss":"`+issuerName+`"}`) + ".AAAA"
					if _, err := v.VerifyToken(context.Background(), token); !errors.Is(err, authz.ErrUnauthenticated) {
						t.Fatal(err)
					}
				}
				pass(time.Second)
			}
		}
		flood(10)
		if n := i.asked() - before; n > 1 {
			t.Errorf("%d fetches in 10 s", n)
		}
		i.publish(rsaKey().jwk(), otherKey().jwk())
		if flood(30); accepts(v, otherKey()) != nil {
			t.Error("a new key was not learned within 30 s of a flood")
		}
		if n := i.asked() - before; n > 2 {
			t.Errorf("%d fetches in 40 s", n)
		}
	})
}

func TestIssuerDown(t *testing.T) {
	i := newIssuer(t, rsaKey().jwk())
	running(t, i, func(t *testing.T, v *Verifier) {
		for _, answer := range []struct {
			status int
			body   string
		}{
			{http.StatusInternalServerError, ""},
			{http.StatusFound, ""}, // to a page with 200, keys or not
			{http.StatusOK, ""},
			{http.StatusOK, "<html>maintenance</html>"},
			{http.StatusOK, "{}"},
			{http.StatusOK, `{"keys":null}`},
			{http.StatusOK, `{"keys":[]}`},
			{http.StatusOK, `{"keys":[{"kty":"oct","kid":"rsa-1","k":"AAAA"}]}`},
			{http.StatusOK, strings.Repeat(" ", maxKeysBytes) + `{"keys":[]}`},
			{http.StatusOK, `{"keys":[` + strings.Repeat(`{},`, maxKeys) + string(must(json.Marshal(otherKey().jwk()))) + `]}`},
		} {
			i.answer(answer.status, answer.body)
			before := i.asked()
			pass(10 * time.Minute)
			if i.asked() == before {
				t.Errorf("%d %.30q: not asked", answer.status, answer.body)
			}
			if err := errors.Join(v.Ready(), accepts(v, rsaKey())); err != nil {
				t.Errorf("%d %.30q: the last good keys are lost: %v", answer.status, answer.body, err)
			}
			if v.Generation() != 1 {
				t.Errorf("%d %.30q: generation %d", answer.status, answer.body, v.Generation())
			}
		}
		cached := rsaKey().token(nil, members{"exp": time.Now().Unix() + 3*86400})
		if pass(maxKeysAge - v.KeysAge()); accepts(v, rsaKey()) != nil {
			t.Error("keys of 24 hours must do")
		}
		if _, err := verify(v, "Bearer "+cached); err != nil {
			t.Error(err)
		}
		pass(1)
		if err := accepts(v, rsaKey()); !errors.Is(err, authz.ErrUnavailable) || v.Ready() == nil {
			t.Errorf("with keys older than 24 hours: %v", err)
		}
		if _, err := verify(v, "Bearer "+cached); !errors.Is(err, authz.ErrUnavailable) {
			t.Errorf("the same, token in the cache: %v", err)
		}
		i.publish(rsaKey().jwk())
		pass(lastRetry)
		if err := accepts(v, rsaKey()); err != nil || v.KeysAge() > lastRetry {
			t.Errorf("the issuer is back: %v, age %v", err, v.KeysAge())
		}
	})
}

// An issuer that takes the connection and says nothing holds up no request and
// not the stop.
func TestIssuerSilent(t *testing.T) {
	i := newIssuer(t, rsaKey().jwk())
	v := newVerifier(t, i, nil)
	i.mu.Lock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	for range 100 {
		if err := accepts(v, rsaKey()); err != nil {
			t.Error(err)
		}
		accepts(v, otherKey())
	}
	cancel()
	<-done
	i.mu.Unlock()
}

func TestWhichKeysAreUsed(t *testing.T) {
	rsa := newRSA("r", nil)
	small := `{"kty":"RSA","kid":"small","e":"AQAB","n":"` + strings.Repeat("A", 100) + strings.Repeat("z", 71) + `"}`
	list := func(keys ...any) string { return string(must(json.Marshal(members{"keys": keys}))) }
	without := func(m members, name string) members { delete(m, name); return m }
	for _, c := range []struct{ name, body, want string }{
		{"RSA", list(rsa.jwk()), "r: RS256 RS384 RS512 PS256 PS384 PS512"},
		{"RSA with an algorithm", list(rsa.jwk(members{"alg": "PS384"})), "r: PS384"},
		{"RSA with an algorithm of another kind", list(rsa.jwk(members{"alg": "ES256"})), ""},
		{"RSA for encryption by its algorithm", list(rsa.jwk(members{"alg": "RSA-OAEP"})), ""},
		{"RSA for encryption", list(rsa.jwk(members{"use": "enc"})), ""},
		{"RSA without use", list(without(rsa.jwk(), "use")), "r: RS256 RS384 RS512 PS256 PS384 PS512"},
		{"RSA to verify", list(rsa.jwk(members{"key_ops": []string{"verify"}})), "r: RS256 RS384 RS512 PS256 PS384 PS512"},
		{"RSA to encrypt", list(rsa.jwk(members{"key_ops": []string{"encrypt"}})), ""},
		{"RSA, private", list(rsa.jwk(members{"d": "AQAB"})), ""},
		{"RSA of under 2048 bits", `{"keys":[` + small + `]}`, ""},
		{"RSA without a name", list(rsa.jwk(members{"kid": ""})), ""},
		{"RSA with a certificate of nobody", list(rsa.jwk(members{"x5c": []string{"AAAA"}, "x5t": "x"})), "r: RS256 RS384 RS512 PS256 PS384 PS512"},
		{"elliptic", list(p256Key.jwk(), p384Key.jwk(), p521Key.jwk()), "p256: ES256, p384: ES384, p521: ES512"},
		{"a point beside the curve", list(p256Key.jwk(members{"y": "AAAA"})), ""},
		{"Edwards", list(ed25519Key.jwk()), "ed25519: EdDSA"},
		{"symmetric", `{"keys":[{"kty":"oct","kid":"s","alg":"HS256","k":"c2VjcmV0"}]}`, ""},
		{"unknown kinds beside a known one", list(members{"kty": "AKP", "kid": "new"}, "x", 1, nil, ed25519Key.jwk()), "ed25519: EdDSA"},
		{"two of one name: the first", list(p256Key.jwk(members{"kid": "k"}), rsa.jwk(members{"kid": "k"})), "k: ES256"},
		{"no set", `[]`, ""},
	} {
		keys, err := parseKeys([]byte(c.body))
		var got []string
		for _, kid := range slices.Sorted(maps.Keys(keys)) {
			got = append(got, kid+": "+strings.Join(keys[kid].algorithms, " "))
		}
		if strings.Join(got, ", ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func FuzzKeySet(f *testing.F) {
	f.Add(must(json.Marshal(members{"keys": []any{p256Key.jwk(), rsaKey().jwk(), ed25519Key.jwk()}})))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := parseKeys(body)
		if (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys and %v", len(keys), err)
		}
		if !equalKeys(keys, keys) {
			t.Error("a key set differs from itself")
		}
	})
}
