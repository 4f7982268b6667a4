package identity

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"headgate/proxy/authz"
)

func TestPrincipalOfAToken(t *testing.T) {
	v := newVerifier(t, newIssuer(t, rsaKey().jwk()), func(c *Config) {
		c.Claims = []string{"realm_access", "azp", "level", "absent"}
	})
	exp := time.Now().Unix() + 120
	token := rsaKey().token(nil, members{"exp": exp, "level": json.RawMessage(`1.50`),
		"realm_access": json.RawMessage(`{ "roles" : ["b","a"], "é" : 12345678901234567890 }`)})

	got, err := verify(v, "bEaReR \t"+token+" ")
	if err != nil {
		t.Fatal(err)
	}
	want := &authz.Principal{
		Method:     authz.JWT,
		Issuer:     issuerName,
		ID:         "f:1:m5",
		Name:       "m5hectest",
		Claims:     json.RawMessage(`{"azp":"cwms","level":1.50,"realm_access":{"roles":["b","a"],"\u00e9":12345678901234567890}}`),
		Alias:      sha256.Sum256([]byte(issuerName + "::f:1:m5")),
		Credential: authz.Credential{Header: "Authorization", Value: "Bearer " + token},
		Expires:    time.Unix(exp, 0),
		Keys:       1,
		Until:      got.Until,
	}
	if left := time.Until(got.Until); left <= 0 || left > cacheLife {
		t.Errorf("it counts for %v", left)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if again, err := v.VerifyToken(context.Background(), token); again != got || err != nil {
		t.Errorf("the same token without its header gave %v, %v", again, err)
	}
}

func TestAcceptedTokens(t *testing.T) {
	rsa := rsaKey()
	issuer := newIssuer(t, rsa.jwk(), p256Key.jwk(), p384Key.jwk(), p521Key.jwk(), ed25519Key.jwk())
	v := newVerifier(t, issuer, func(c *Config) { c.Audience = []string{"cda", "cwms"} })
	now := time.Now().Unix()
	aud := members{"aud": "cda"}
	for name, token := range map[string]string{
		"RS256":                 rsa.token(nil, aud),
		"RS384":                 rsa.with(jwt.SigningMethodRS384).token(nil, aud),
		"RS512":                 rsa.with(jwt.SigningMethodRS512).token(nil, aud),
		"PS256":                 rsa.with(jwt.SigningMethodPS256).token(nil, aud),
		"PS384":                 rsa.with(jwt.SigningMethodPS384).token(nil, aud),
		"PS512":                 rsa.with(jwt.SigningMethodPS512).token(nil, aud),
		"ES256":                 p256Key.token(nil, aud),
		"ES384":                 p384Key.token(nil, aud),
		"ES512":                 p521Key.token(nil, aud),
		"EdDSA":                 ed25519Key.token(nil, aud),
		"header typ jwt":        rsa.token(members{"typ": "jwt"}, aud),
		"header typ RFC 9068":   rsa.token(members{"typ": "at+JWT"}, aud),
		"header typ media type": rsa.token(members{"typ": "application/at+jwt"}, aud),
		"no typ anywhere":       rsa.token(members{"typ": nil}, members{"aud": "cda", "typ": nil}),
		"one of two audiences":  rsa.token(nil, members{"aud": []string{"account", "cwms"}}),
		"exp with a fraction":   rsa.token(nil, members{"aud": "cda", "exp": float64(now) + 9.5}),
		"no iat":                rsa.token(nil, members{"aud": "cda", "iat": nil}),
		"ISS beside iss":        rsa.token(nil, members{"aud": "cda", "ISS": "https://evil.example"}),
		"15 KiB of claims":      rsa.token(nil, members{"aud": "cda", "x": strings.Repeat("x", 11<<10)}),
	} {
		if p, err := verify(v, "Bearer "+token); err != nil || p.ID != "f:1:m5" {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

func TestRefusedTokens(t *testing.T) {
	rsa, es := rsaKey(), p256Key
	issuer := newIssuer(t, rsa.jwk(), es.jwk(), ed25519Key.jwk(), newRSA("only-ps", nil).jwk(members{"alg": "PS256"}))
	v := newVerifier(t, issuer, func(c *Config) { c.Audience = []string{"cda"} })
	now := time.Now().Unix()
	good := rsa.token(nil, members{"aud": "cda"})
	head, body, signature := part(good, 0), part(good, 1), part(good, 2)

	claim := func(name string, value any) string {
		return rsa.token(nil, members{"aud": "cda", name: value})
	}
	header := func(name string, value any) string {
		return rsa.token(members{name: value}, members{"aud": "cda"})
	}
	raw := func(claims string) string { return sign(rsa, `{"alg":"RS256","kid":"rsa-1"}`, claims) }
	usual := `"iss":"` + issuerName + `","aud":"cda","exp":9999999999`
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(rsa.key.Public()))})

	for _, c := range []struct {
		name, token string
		want        *reason
	}{
		{"no token", "", tokenMalformed},
		{"not a token", "x", tokenMalformed},
		{"four parts", good + ".x", tokenMalformed},
		{"five parts: encrypted", "a.b.c.d.e", tokenMalformed},
		{"no signature", head + "." + body, tokenMalformed},
		{"empty signature", head + "." + body + ".", tokenSignature},
		{"base64 with padding", head + "=." + body + "." + signature, tokenMalformed},
		{"base64 of the other alphabet", head + "." + body + ".+/" + signature[2:], tokenMalformed},
		{"base64 with spare bits set", head + "." + body + "." + spareBits(signature), tokenMalformed},
		{"10 MB", good + strings.Repeat("A", 10<<20), tokenMalformed},
		{"header not JSON", b64("x") + "." + body + "." + signature, tokenMalformed},
		{"header null", b64("null") + "." + body + "." + signature, tokenMalformed},
		{"claims not JSON", raw(`{"iss":`), tokenMalformed},
		{"claims null", raw(`null`), tokenIssuer},
		{"claims an array", raw(`[]`), tokenMalformed},
		{"claims and more", raw(`{"sub":"a",` + usual + `} {}`), tokenMalformed},
		{"claims not UTF-8", raw("{\"sub\":\"\xff\"," + usual + `}`), tokenMalformed},
		{"half a surrogate pair as sub", raw(`{"sub":"\ud800",` + usual + `}`), tokenMalformed},

		{"another signature", head + "." + body + "." + part(claim("x", 1), 2), tokenSignature},
		{"signed with a key not published, its kid", otherKey().token(members{"kid": rsa.kid}, members{"aud": "cda"}), tokenSignature},
		{"signed with a key not published", otherKey().token(nil, members{"aud": "cda"}), tokenKey},
		{"alg none", must(jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"iss": issuerName}).SignedString(jwt.UnsafeAllowNoneSignatureType)), tokenSignature},
		{"alg none, its signature kept", b64(`{"alg":"none","kid":"rsa-1"}`) + "." + body + "." + signature, tokenSignature},
		{"alg nOnE", b64(`{"alg":"nOnE","kid":"rsa-1"}`) + "." + body + "." + signature, tokenMalformed},
		{"no alg", b64(`{"kid":"rsa-1"}`) + "." + body + "." + signature, tokenMalformed},
		{"HS256 made with the public key", hmacToken(publicPEM, rsa.kid), tokenSignature},
		{"ES256 under an RSA key", es.token(members{"kid": rsa.kid}, members{"aud": "cda"}), tokenHeader},
		{"EdDSA under an EC key", ed25519Key.token(members{"kid": es.kid}, members{"aud": "cda"}), tokenHeader},
		{"RS256 under a key published for PS256", header("kid", "only-ps"), tokenHeader},

		{"no kid", header("kid", nil), tokenHeader},
		{"empty kid", header("kid", ""), tokenHeader},
		{"kid a number", header("kid", 1), tokenHeader},
		{"long kid", header("kid", strings.Repeat("k", 257)), tokenHeader},
		{"unknown kid", header("kid", "RSA-1"), tokenKey},
		{"crit", header("crit", []string{"exp"}), tokenHeader},
		{"jku", header("jku", "https://evil.example/keys"), tokenHeader},
		{"jwk", header("jwk", rsa.jwk()), tokenHeader},
		{"x5u", header("x5u", "https://evil.example/cert"), tokenHeader},
		{"x5c", header("x5c", []string{"AA=="}), tokenHeader},
		{"header typ of a proof", header("typ", "dpop+jwt"), tokenType},
		{"header typ of a logout token", header("typ", "logout+jwt"), tokenType},
		{"header typ a number", header("typ", 1), tokenType},
		{"an ID token", claim("typ", "ID"), tokenType},
		{"a refresh token", claim("typ", "Refresh"), tokenType},
		{"typ null", raw(`{"sub":"a","typ":null,` + usual + `}`), tokenType},
		{"bound to a key (DPoP)", claim("cnf", members{"jkt": "x"}), tokenBound},
		{"bound to a certificate", claim("cnf", members{"x5t#S256": "x"}), tokenBound},

		{"another issuer", claim("iss", "https://evil.example"), tokenIssuer},
		{"another issuer, kid unknown", rsa.token(members{"kid": "x"}, members{"iss": "https://evil.example"}), tokenIssuer},
		{"issuer with a slash more", claim("iss", issuerName+"/"), tokenIssuer},
		{"issuer an array", claim("iss", []string{issuerName}), tokenMalformed},
		{"no issuer", claim("iss", nil), tokenIssuer},
		{"ISS instead of iss", rsa.token(nil, members{"iss": nil, "ISS": issuerName, "aud": "cda"}), tokenIssuer},
		{"two issuers", raw(`{"sub":"a","iss":"https://evil.example",` + usual + `}`), tokenMalformed},
		{"two subjects", raw(`{"sub":"a","sub":"b",` + usual + `}`), tokenMalformed},
		{"two subjects, one escaped", raw(`{"sub":"a","s\u0075b":"b",` + usual + `}`), tokenMalformed},
		{"two of any claim", raw(`{"sub":"a","x":1,"x":2,` + usual + `}`), tokenMalformed},
		{"another audience", claim("aud", "account"), tokenAudience},
		{"other audiences", claim("aud", []string{"account", "cd"}), tokenAudience},
		{"audience a number", claim("aud", 1), tokenMalformed},
		{"no audience", claim("aud", nil), tokenIncomplete},
		{"azp is not audience", rsa.token(nil, members{"azp": "cda"}), tokenIncomplete},
		{"no subject", claim("sub", nil), tokenIncomplete},
		{"empty subject", claim("sub", ""), tokenIncomplete},
		{"subject a number", claim("sub", 1), tokenMalformed},

		{"expired", claim("exp", now-60), tokenExpired},
		{"expired and bound", rsa.token(nil, members{"aud": "cda", "exp": now - 60, "cnf": 1}), tokenBound},
		{"no exp", claim("exp", nil), tokenIncomplete},
		{"exp 0", claim("exp", 0), tokenExpired},
		{"exp negative", claim("exp", -1), tokenMalformed},
		{"exp a string", claim("exp", "9999999999"), tokenMalformed},
		{"exp null", raw(`{"sub":"a","iss":"` + issuerName + `","aud":"cda","exp":null}`), tokenMalformed},
		{"exp beyond every calendar", raw(`{"sub":"a","iss":"` + issuerName + `","aud":"cda","exp":1e300}`), tokenMalformed},
		{"not yet valid", claim("nbf", now+60), tokenEarly},
		{"issued in the future", claim("iat", now+60), tokenEarly},
	} {
		p, err := verify(v, "Bearer "+c.token)
		var r *authz.Refusal
		if p != nil || !errors.Is(err, authz.ErrUnauthenticated) || !errors.As(err, &r) || r.Message != c.want.text {
			t.Errorf("%s: got %v, %v; want refusal %q", c.name, p, err, c.want.text)
			continue
		}
		if s := part(c.token, 1); len(s) > 8 && strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error quotes the token: %v", c.name, err)
		}
	}
	if n := v.Cached(); n != 0 {
		t.Errorf("%d refused tokens are cached", n)
	}
}

func part(token string, n int) string {
	if parts := strings.Split(token, "."); n < len(parts) {
		return parts[n]
	}
	return ""
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// sign makes a token of any bytes.
func sign(s signer, header, claims string) string {
	text := b64(header) + "." + b64(claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(must(s.method.Sign(text, s.key)))
}

func hmacToken(secret []byte, kid string) string {
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": issuerName, "aud": "cda", "sub": "a", "exp": 9999999999})
	t.Header["kid"] = kid
	return must(t.SignedString(secret))
}

// spareBits sets the bits of the last character that do not count: 256 bytes
// leave four of them.
func spareBits(signature string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(signature) - 1
	return signature[:last] + string(alphabet[strings.IndexByte(alphabet, signature[last])|1])
}

// The clocks of issuer and proxy differ by seconds; nothing more is forgiven.
func TestLeeway(t *testing.T) {
	v := newVerifier(t, newIssuer(t, rsaKey().jwk()), nil)
	base := time.Now().Truncate(time.Second)
	v.now = func() time.Time { return base }
	v.parser = newParser(Config{Issuer: issuerName, Now: v.now})
	for _, c := range []struct {
		claim string
		age   int64 // seconds before now
		want  *reason
	}{
		{"exp", -1, nil}, {"exp", 0, nil}, {"exp", 1, nil}, {"exp", 4, nil},
		{"exp", 5, tokenExpired}, {"exp", 29, tokenExpired}, {"exp", 31, tokenExpired},
		{"nbf", 1, nil}, {"nbf", 0, nil}, {"nbf", -1, nil}, {"nbf", -5, nil},
		{"nbf", -6, tokenEarly}, {"nbf", -29, tokenEarly}, {"nbf", -31, tokenEarly},
		{"iat", 1, nil}, {"iat", 0, nil}, {"iat", -1, nil}, {"iat", -5, nil},
		{"iat", -6, tokenEarly}, {"iat", -29, tokenEarly}, {"iat", -31, tokenEarly},
	} {
		p, err := verify(v, "Bearer "+rsaKey().token(nil, members{c.claim: base.Unix() - c.age}))
		if c.want == nil && err != nil || c.want != nil && (err == nil || !strings.Contains(err.Error(), c.want.text)) {
			t.Errorf("%s %d s ago: got %v, want %v", c.claim, c.age, err, c.want)
		}
		if p != nil && c.claim == "exp" && p.Expires.Unix() != base.Unix()-c.age {
			t.Errorf("exp %d s ago: the principal expires at %v", c.age, p.Expires)
		}
	}
}

func TestTokenCache(t *testing.T) {
	t.Run("in the process", func(t *testing.T) { testTokenCache(t, false) })
	t.Run("with the connection", func(t *testing.T) { testTokenCache(t, true) })
}

// testTokenCache: with the connection, whom it showed last is all that is known.
func testTokenCache(t *testing.T, connection bool) {
	issuer := newIssuer(t, rsaKey().jwk())
	var clock hand
	clock.advance(time.Duration(time.Now().Unix()) * time.Second)
	v := newVerifier(t, issuer, func(c *Config) { c.Now = clock.now })
	var last *authz.Principal
	show := func(token string) (*authz.Principal, error) {
		c := authz.Credentials{Authorization: []byte("Bearer " + token)}
		if connection {
			v.tokens.Clear()
			c.Last = last
		}
		return v.Verify(context.Background(), c)
	}
	ask := func(token string) *authz.Principal {
		t.Helper()
		p, err := show(token)
		if err != nil {
			t.Fatal(err)
		}
		last = p
		return p
	}

	long := rsaKey().token(nil, members{"exp": clock.now().Unix() + 3600})
	first := ask(long)
	clock.advance(59 * time.Second)
	if ask(long) != first {
		t.Error("a token was verified twice within a minute")
	}
	clock.advance(time.Second)
	if ask(long) == first {
		t.Error("a token was not verified again after a minute")
	}

	short := rsaKey().token(nil, members{"exp": clock.now().Unix() + 10})
	first = ask(short)
	clock.advance(10 * time.Second)
	if ask(short) == first {
		t.Error("a token was served from the cache at its exp")
	}
	clock.advance(leeway)
	if _, err := show(short); !errors.Is(err, authz.ErrUnauthenticated) {
		t.Errorf("a token after exp and leeway gave %v", err)
	}
	if clock.advance(-leeway - 5*time.Second); ask(short) == nil {
		t.Error("after the clock was set back the token is good again")
	}

	// Another token of the same user is another entry, with the same alias.
	if other := ask(rsaKey().token(nil, members{"jti": "2"})); other == ask(long) || other.Alias != ask(long).Alias {
		t.Error("tokens of one user must differ in the principal and agree in the alias")
	}

	// A change of the keys ends every cached token.
	first = ask(long)
	issuer.publish(rsaKey().jwk(), otherKey().jwk())
	if err := v.keys.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if ask(long) == first {
		t.Error("a token of the key set before was served from the cache")
	}
	issuer.publish(otherKey().jwk())
	if err := v.keys.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := show(long); !errors.Is(err, authz.ErrUnauthenticated) {
		t.Errorf("a token of a withdrawn key gave %v", err)
	}
	if v.Generation() != 3 {
		t.Errorf("generation %d, want 3", v.Generation())
	}
}

func TestNoTokensWithoutAnIssuer(t *testing.T) {
	v, err := New(Config{None: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify(v, "Bearer "+rsaKey().token(nil, nil)); !errors.Is(err, authz.ErrUnauthenticated) {
		t.Errorf("got %v", err)
	}
	if p, err := verify(v, "apikey "+key268); err != nil || p.Method != authz.APIKey {
		t.Errorf("got %v, %v", p, err)
	}
	if err := v.Ready(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	v.Run(ctx)

	for name, cfg := range map[string]Config{
		"nothing":     {},
		"no keys":     {Issuer: issuerName},
		"no issuer":   {JWKSURL: newIssuer(t).url},
		"not a place": {Issuer: issuerName, JWKSURL: must(newIssuer(t).url.Parse("file:///keys"))},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzToken puts anything where a token stands: nothing is accepted, nothing
// panics, whichever part is replaced.
func FuzzToken(f *testing.F) {
	v := newVerifier(f, newIssuer(f, rsaKey().jwk()), nil)
	good := rsaKey().token(nil, nil)
	f.Add(`{"alg":"RS256","kid":"rsa-1"}`, `{"iss":"`+issuerName+`","sub":"a","exp":9999999999}`, "sig")
	f.Add(`{"alg":"none"}`, `{}`, "")
	f.Fuzz(func(t *testing.T, header, claims, signature string) {
		for _, token := range []string{
			header, signature,
			b64(header) + "." + part(good, 1) + "." + part(good, 2),
			b64(header) + "." + b64(claims) + "." + b64(signature),
		} {
			if token == good || b64(header) == part(good, 0) {
				continue
			}
			if p, err := v.VerifyToken(context.Background(), token); err == nil {
				t.Errorf("accepted %q as %+v", token, p)
			}
		}
		// Whatever an issuer signs is read without a panic.
		v.VerifyToken(context.Background(), sign(ed25519Key, `{"alg":"RS256","kid":"rsa-1"}`, claims))
	})
}

func BenchmarkTokenHit(b *testing.B) {
	v, header := benchToken(b, rsaKey())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), authz.Credentials{Authorization: header}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTokenHitParallel(b *testing.B) {
	v, header := benchToken(b, rsaKey())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			v.Verify(context.Background(), authz.Credentials{Authorization: header})
		}
	})
}

func BenchmarkTokenMiss(b *testing.B) {
	for _, key := range []signer{rsaKey(), p256Key, ed25519Key} {
		b.Run(key.method.Alg(), func(b *testing.B) {
			v, header := benchToken(b, key)
			token, keys := string(header[len("Bearer "):]), v.keys.usable(v.now())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.parse(token, keys); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchToken gives a verifier and a header with a token of 1.2 KB, seen before.
func benchToken(b testing.TB, key signer) (*Verifier, []byte) {
	v := newVerifier(b, newIssuer(b, key.jwk()), func(c *Config) { c.Claims = []string{"realm_access"} })
	token := key.token(nil, members{
		"exp":          time.Now().Unix() + 3600,
		"realm_access": members{"roles": []string{"offline_access", "uma_authorization", "default-roles-cwms"}},
		"sid":          "9d2f4e0c-5b7a-4c43-9f8e-0e2b6a1d7c55", "scope": "openid email profile", "name": "M5 Hectest",
		"resource_access": members{"account": members{"roles": []string{"manage-account", "manage-account-links", "view-profile"}}},
		"auth_time":       time.Now().Unix(), "jti": "onrtro:6b1f0a52-6a3e-4a5d-93f1-4d7b0f0a9c11", "allowed-origins": []string{"https://cwms-data.example"},
		"given_name": "Hectest", "family_name": "M5", "email": "m5hectest@example.mil", "email_verified": true,
	})
	header := []byte("Bearer " + token)
	if _, err := v.Verify(context.Background(), authz.Credentials{Authorization: header}); err != nil {
		b.Fatal(err)
	}
	b.Logf("token of %d bytes", len(token))
	return v, header
}

// Tokens are verified while the keys change: a token is accepted or refused by
// one whole key set, never by half of one.
func TestVerifyWhileKeysChange(t *testing.T) {
	issuer := newIssuer(t, rsaKey().jwk())
	v := newVerifier(t, issuer, nil)
	always, sometimes := []byte("Bearer "+rsaKey().token(nil, nil)), []byte("Bearer "+p256Key.token(nil, nil))
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if p, err := v.Verify(context.Background(), authz.Credentials{Authorization: always}); err != nil || p.ID != "f:1:m5" {
					t.Errorf("a key that stays: %v, %v", p, err)
				}
				if _, err := v.Verify(context.Background(), authz.Credentials{Authorization: sometimes}); err != nil && !errors.Is(err, authz.ErrUnauthenticated) {
					t.Errorf("a key that comes and goes: %v", err)
				}
			}
		})
	}
	for n := range 20 {
		issuer.publish([]members{rsaKey().jwk(), p256Key.jwk()}[:1+n%2]...)
		if err := v.keys.refresh(context.Background()); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}
