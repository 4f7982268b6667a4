package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"headgate/proxy/authz"
)

// key268 has the form of the API's own keys: ak1_, 8 characters of id, 256 of
// secret.
var key268 = "ak1_Ab3dEf9h" + base64.RawURLEncoding.EncodeToString(random(192))

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// credentials makes a verifier that knows no issuer.
func credentials(t testing.TB) *Verifier {
	t.Helper()
	v, err := New(Config{None: true})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// say puts a principal or an error in few words.
func say(p *authz.Principal, err error) string {
	var r *authz.Refusal
	switch {
	case errors.As(err, &r):
		return r.Message
	case err != nil:
		return "BUG: " + err.Error()
	case p.Method == authz.None:
		return "anonymous"
	}
	return fmt.Sprintf("%s %s: %s", p.Method, p.Credential.Header, p.Credential.Value)
}

func TestWhichCredentialCounts(t *testing.T) {
	v := credentials(t)
	key := func(s string) string { return "api_key Authorization: apikey " + s }
	for _, c := range []struct{ authorization, cookie, want string }{
		{"", "", "anonymous"},
		{"apikey " + key268, "", key(key268)},
		{"  APIKEY \t " + key268 + " \t", "", key(key268)}, // the API trims and takes any case
		{"apikey ak1_0123456789ab", "", key("ak1_0123456789ab")},
		{"apikey " + strings.Repeat("k", 512), "", key(strings.Repeat("k", 512))},

		// What cannot be a key is not asked about.
		{"apikey", "", badKey.text},
		{"apikey ", "", badKey.text},
		{"apikey" + key268, "", badKey.text}, // the API would take it for a key
		{"apikey a b", "", badKey.text},      // of two words the API would take the first, others the last
		{"apikey ak1_\x7f0123456789", "", badKey.text},
		{"apikey ak1_é0123456789ab", "", badKey.text},
		{"apikey ak1_\x000123456789", "", badKey.text},
		{"apikey short", "", badKey.text},
		{"apikey " + strings.Repeat("k", 513), "", badKey.text},

		{"Bearer", "", tokensOff.text},
		{"BEARER x", "", tokensOff.text},
		{"bearerx y", "", tokensOff.text}, // the API would take it for a token
		{"\x01bearer x", "", tokensOff.text},

		// Another scheme is nothing, for us as for the API.
		{"Basic dTpw", "", "anonymous"},
		{"Bear x", "", "anonymous"},
		{key268, "", "anonymous"},
		{"DPoP x", "", "anonymous"},
		{"Basic dTpw", "JSESSIONIDSSO=a", "session Cookie: JSESSIONIDSSO=a"},

		// One request, one identity.
		{"apikey " + key268, "JSESSIONIDSSO=a", key(key268)},
		{"Bearer x", "JSESSIONIDSSO=a", tokensOff.text},
		{"apikey short", "JSESSIONIDSSO=a", badKey.text},

		{"", "JSESSIONIDSSO=a", "session Cookie: JSESSIONIDSSO=a"},
		{"", "JSESSIONID=a.node1", "session Cookie: JSESSIONID=a.node1"},
		{"", "theme=dark; JSESSIONID=b;JSESSIONIDSSO=a ; x", "session Cookie: JSESSIONID=b; JSESSIONIDSSO=a"},
		{"", "JSESSIONID=a; JSESSIONID=b", "session Cookie: JSESSIONID=a; JSESSIONID=b"}, // two paths
		{"", "jsessionidsso=a", "anonymous"},                                             // names have case
		{"", " JSESSIONIDSSO =\ta ", "session Cookie: JSESSIONIDSSO=a"},                  // so does Tomcat
		{"", "JSESSIONIDSSO=", "anonymous"},
		{"", "JSESSIONIDSSO", "anonymous"},
		{"", "theme=dark", "anonymous"},
		{"", "JSESSIONIDSSO=a b", badSession.text},
		{"", "JSESSIONIDSSO=\x01", badSession.text},
		{"", "JSESSIONIDSSO=" + strings.Repeat("a", 1024), badSession.text},
	} {
		in := authz.Credentials{TestUser: []byte(`{"id":"x"}`)} // ignored unless asked for
		if c.authorization != "" {
			in.Authorization = []byte(c.authorization)
		}
		if c.cookie != "" {
			in.Cookie = []byte(c.cookie)
		}
		if got := say(v.Verify(context.Background(), in)); got != c.want {
			t.Errorf("%q, cookie %q:\ngot  %s\nwant %s", c.authorization, c.cookie, got, c.want)
		}
	}
}

func TestPrincipalOfAKeyAndOfASession(t *testing.T) {
	v := credentials(t)
	ask := func(c authz.Credentials) *authz.Principal {
		t.Helper()
		p, err := v.Verify(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		in   authz.Credentials
		want authz.Principal
	}{
		{authz.Credentials{Authorization: []byte("ApiKey " + key268)}, authz.Principal{
			Method:     authz.APIKey,
			Alias:      sha256.Sum256([]byte("api_key\x00" + key268)),
			Credential: authz.Credential{Header: "Authorization", Value: "apikey " + key268},
		}},
		{authz.Credentials{Authorization: []byte("apikey secretsecretsecret")}, authz.Principal{
			Method:     authz.APIKey,
			Alias:      sha256.Sum256([]byte("api_key\x00secretsecretsecret")),
			Credential: authz.Credential{Header: "Authorization", Value: "apikey secretsecretsecret"},
			Guessable:  true,
		}},
		{authz.Credentials{Cookie: []byte("JSESSIONIDSSO=a; JSESSIONID=b")}, authz.Principal{
			Method:     authz.Session,
			Alias:      sha256.Sum256([]byte("session\x00JSESSIONIDSSO=a; JSESSIONID=b")),
			Credential: authz.Credential{Header: "Cookie", Value: "JSESSIONIDSSO=a; JSESSIONID=b"},
		}},
		{authz.Credentials{Cookie: []byte("JSESSIONID=b")}, authz.Principal{
			Method:     authz.Session,
			Alias:      sha256.Sum256([]byte("session\x00JSESSIONID=b")),
			Credential: authz.Credential{Header: "Cookie", Value: "JSESSIONID=b"},
			Optional:   true,
		}},
	} {
		got := ask(c.in)
		if !reflect.DeepEqual(*got, c.want) {
			t.Errorf("got  %+v\nwant %+v", *got, c.want)
		}
		// The slices were the caller's: the principal must not be made of them.
		clear(c.in.Authorization)
		clear(c.in.Cookie)
		if !reflect.DeepEqual(*got, c.want) {
			t.Errorf("after its bytes were reused: %+v", *got)
		}
	}
	if a, b := ask(authz.Credentials{}), ask(authz.Credentials{}); a != b {
		t.Error("the anonymous principal must be shared")
	}
}

func TestStrength(t *testing.T) {
	for _, c := range []struct {
		key    string
		strong bool
	}{
		{key268, true},
		{hex.EncodeToString(random(32)), true},
		{base64.RawURLEncoding.EncodeToString(random(32)), true},
		{strings.Repeat("a", 512), false},
		{"0123456789abcdef", false},
		{"correct-horse-battery-staple", false},
		{"ak1_12345678-12345678", false},
	} {
		if got := strength([]byte(c.key)); got >= strongKey != c.strong {
			t.Errorf("%q: %.0f bits, want strong %v", c.key, got, c.strong)
		}
	}
}

func TestHitsAllocateNothing(t *testing.T) {
	v, header := benchToken(t, rsaKey())
	for name, c := range map[string]authz.Credentials{
		"token":     {Authorization: header},
		"key":       {Authorization: []byte("apikey " + key268)},
		"session":   {Cookie: []byte("JSESSIONID=0123456789ABCDEF; JSESSIONIDSSO=0123456789ABCDEF")},
		"anonymous": {},
	} {
		n := testing.AllocsPerRun(1000, func() {
			if _, err := v.Verify(context.Background(), c); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzAuthorization: what the API would read as a token or a key is one here or
// an error, and what we make of a key is what the API would.
func FuzzAuthorization(f *testing.F) {
	for _, s := range []string{"", "Bearer x", "apikey " + key268, " \tBEARER\t\ta.b.c ", "apikeyx", "Basic x", "ApiKey a b"} {
		f.Add(s)
	}
	v := credentials(f)
	f.Fuzz(func(t *testing.T, header string) {
		p, err := verify(v, header)
		if err != nil && !errors.Is(err, authz.ErrUnauthenticated) {
			t.Fatalf("unexpected %v", err)
		}
		trimmed := strings.TrimFunc(header, func(r rune) bool { return r <= ' ' })
		lower := strings.Map(func(r rune) rune {
			if r >= 'A' && r <= 'Z' {
				return r + 'a' - 'A'
			}
			return r
		}, trimmed)
		switch {
		case strings.HasPrefix(lower, "bearer"), strings.HasPrefix(lower, "apikey"):
			if err == nil && p.Method == authz.None {
				t.Errorf("%q is anonymous", header)
			}
			if err == nil && p.Credential.Value != "apikey "+strings.TrimSpace(trimmed[len("apikey"):]) {
				t.Errorf("%q became %q", header, p.Credential.Value)
			}
		case err != nil || p.Method != authz.None:
			t.Errorf("%q is not anonymous: %v, %v", header, p, err)
		}
	})
}

func FuzzCookie(f *testing.F) {
	for _, s := range []string{"JSESSIONID=a", "JSESSIONIDSSO=a; JSESSIONID=b", ";;=;", "JSESSIONID=\"a b\""} {
		f.Add(s)
	}
	v := credentials(f)
	f.Fuzz(func(t *testing.T, cookie string) {
		p, err := v.Verify(context.Background(), authz.Credentials{Cookie: []byte(cookie)})
		if err != nil && !errors.Is(err, authz.ErrUnauthenticated) {
			t.Fatalf("unexpected %v", err)
		}
		if err != nil || p.Method == authz.None {
			return
		}
		// What is shown to the API is read as the same credential again.
		again, err := v.Verify(context.Background(), authz.Credentials{Cookie: []byte(p.Credential.Value)})
		if err != nil || again.Alias != p.Alias || !strings.Contains(cookie, "JSESSIONID") {
			t.Errorf("%q became %q, then %v, %v", cookie, p.Credential.Value, again, err)
		}
	})
}

func BenchmarkAPIKeyHit(b *testing.B) {
	v := credentials(b)
	c := authz.Credentials{Authorization: []byte("apikey " + key268)}
	b.ReportAllocs()
	for b.Loop() {
		v.Verify(context.Background(), c)
	}
}

// Keys that nobody has: each is looked at once.
func BenchmarkAPIKeyFlood(b *testing.B) {
	v := credentials(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v.Verify(context.Background(), authz.Credentials{Authorization: fmt.Appendf(nil, "apikey ak1_%0264d", i)})
	}
	b.ReportMetric(float64(v.Cached()), "cached")
}

func BenchmarkSessionHit(b *testing.B) {
	v := credentials(b)
	c := authz.Credentials{Cookie: []byte("JSESSIONIDSSO=0123456789ABCDEF0123456789ABCDEF")}
	b.ReportAllocs()
	for b.Loop() {
		v.Verify(context.Background(), c)
	}
}
