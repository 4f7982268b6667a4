package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"headgate/proxy/authz"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// signer is a key of the issuer.
type signer struct {
	kid    string
	method jwt.SigningMethod
	key    crypto.Signer
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var (
	rsaKey     = sync.OnceValue(func() signer { return newRSA("rsa-1", jwt.SigningMethodRS256) })
	otherKey   = sync.OnceValue(func() signer { return newRSA("rsa-2", jwt.SigningMethodRS256) })
	p256Key    = signer{"p256", jwt.SigningMethodES256, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	p384Key    = signer{"p384", jwt.SigningMethodES384, must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))}
	p521Key    = signer{"p521", jwt.SigningMethodES512, must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))}
	ed25519Key = signer{"ed25519", jwt.SigningMethodEdDSA, ed25519.NewKeyFromSeed(make([]byte, 32))}
)

func newRSA(kid string, method jwt.SigningMethod) signer {
	return signer{kid, method, must(rsa.GenerateKey(rand.Reader, 2048))}
}

// with is the same key used with another algorithm.
func (s signer) with(method jwt.SigningMethod) signer {
	s.method = method
	return s
}

// jwk is the public key as the issuer publishes it.
func (s signer) jwk(extra ...map[string]any) map[string]any {
	key := must(jwkset.NewJWKFromKey(s.key.Public(), jwkset.JWKOptions{
		Metadata: jwkset.JWKMetadataOptions{KID: s.kid, USE: jwkset.UseSig},
	}))
	var members map[string]any
	if err := json.Unmarshal(must(json.Marshal(key.Marshal())), &members); err != nil {
		panic(err)
	}
	for _, e := range extra {
		maps.Copy(members, e)
	}
	return members
}

// token signs claims; nil removes one of the usual claims or header members.
func (s signer) token(header, claims map[string]any) string {
	now := time.Now().Unix()
	t := jwt.NewWithClaims(s.method, jwt.MapClaims{
		"iss": issuerName, "sub": "f:1:m5", "exp": now + 300, "iat": now, "typ": "Bearer",
		"preferred_username": "m5hectest", "azp": "cwms",
	})
	t.Header["kid"] = s.kid
	apply(t.Header, header)
	apply(t.Claims.(jwt.MapClaims), claims)
	return must(t.SignedString(s.key))
}

func apply(members, changes map[string]any) {
	for name, value := range changes {
		if value == nil {
			delete(members, name)
		} else {
			members[name] = value
		}
	}
}

const issuerName = "https://id.example/realms/cwms"

type members = map[string]any

// hand is a clock that is moved by hand.
type hand struct{ at atomic.Int64 }

func (h *hand) now() time.Time          { return time.Unix(0, h.at.Load()) }
func (h *hand) advance(d time.Duration) { h.at.Add(int64(d)) }

// issuer serves a key set over HTTP.
type issuer struct {
	url *url.URL

	mu     sync.Mutex
	status int
	body   []byte
	calls  int
}

func newIssuer(t testing.TB, keys ...members) *issuer {
	i := &issuer{status: http.StatusOK}
	i.publish(keys...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.calls++
		if i.status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(i.status)
		w.Write(i.body)
	}))
	t.Cleanup(server.Close)
	i.url = must(url.Parse(server.URL + "/certs"))
	return i
}

func (i *issuer) publish(keys ...members) {
	i.answer(http.StatusOK, string(must(json.Marshal(members{"keys": keys}))))
}

func (i *issuer) answer(status int, body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.body = status, []byte(body)
}

func (i *issuer) asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls
}

// newVerifier makes a verifier that has fetched the issuer's keys once; it does
// not run.
func newVerifier(t testing.TB, i *issuer, change func(*Config)) *Verifier {
	t.Helper()
	cfg := Config{Issuer: issuerName, JWKSURL: i.url}
	if change != nil {
		change(&cfg)
	}
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.keys.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	return v
}

// verify puts an Authorization header to the verifier.
func verify(v *Verifier, authorization string) (*authz.Principal, error) {
	return v.Verify(context.Background(), authz.Credentials{Authorization: []byte(authorization)})
}
