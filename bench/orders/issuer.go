package orders

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Users are those for whom the stack has tokens: what each may do is in its scopes.
var Users = map[string]map[string]any{
	"acme-clerk":   {"tenant": "acme", "scope": "orders:read orders:create orders:delete"},
	"acme-auditor": {"tenant": "acme", "scope": "orders:read"},
	"globex-clerk": {"tenant": "globex", "scope": "orders:read orders:create orders:delete"},
}

// Audience is what the tokens are for.
const Audience = "orders"

// issuer signs tokens with one key and publishes it.
type issuer struct {
	url string

	mu  sync.Mutex
	kid string
	key ed25519.PrivateKey
}

func newIssuer(url string) (*issuer, error) {
	i := &issuer{url: url}
	_, err := i.rotate()
	return i, err
}

// rotate puts a new key in the place of the old one, whose tokens are worth
// nothing from the moment that the new key is read.
func (i *issuer) rotate() (kid string, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("cannot make a signing key: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.kid, i.key = base64.RawURLEncoding.EncodeToString(public[:12]), private
	return i.kid, nil
}

// TokenRequest asks for a token. Claims replace those of the user; a null one is
// left out.
type TokenRequest struct {
	User   string         `json:"user"`
	Claims map[string]any `json:"claims,omitempty"`
	TTL    *int64         `json:"ttl_s,omitempty"` // life in seconds, may be negative; nil: 8 h
}

func (i *issuer) mint(ask TokenRequest) (string, error) {
	life := 8 * time.Hour
	if ask.TTL != nil {
		life = time.Duration(*ask.TTL) * time.Second
	}
	now := time.Now()
	claims := jwt.MapClaims{"iss": i.url, "sub": ask.User, "aud": Audience, "iat": now.Unix(), "exp": now.Add(life).Unix()}
	for _, more := range []map[string]any{Users[ask.User], ask.Claims} {
		for name, value := range more {
			claims[name] = value
			if value == nil {
				delete(claims, name)
			}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	token.Header["kid"] = i.kid
	signed, err := token.SignedString(i.key)
	if err != nil {
		return "", fmt.Errorf("cannot sign a token: %w", err)
	}
	return signed, nil
}

// routes are what anybody may ask: the keys, and tokens for a user whose password
// is the name.
func (i *issuer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		writeJSON(w, http.StatusOK, map[string]any{"keys": []any{map[string]string{
			"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": i.kid,
			"x": base64.RawURLEncoding.EncodeToString(i.key.Public().(ed25519.PublicKey)),
		}}})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		user := r.PostFormValue("username")
		if Users[user] == nil || r.PostFormValue("password") != user {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "invalid_grant"})
			return
		}
		token, err := i.mint(TokenRequest{User: user})
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int((8 * time.Hour).Seconds())})
	})
	return mux
}
