package standin

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	realmPath = "/auth/realms/cwms"
	keyBits   = 2048
)

// signingKey is one key of the issuer.
type signingKey struct {
	id      string
	private *rsa.PrivateKey
}

// keyring holds the key that signs, the one before it, and one that was never
// published.
type keyring struct {
	mu        sync.RWMutex
	current   *signingKey
	previous  *signingKey // nil before the first rotation
	overlap   bool        // the previous key is still published
	neverSeen *signingKey // made when first asked for
}

func newKeyring() (*keyring, error) {
	key, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	return &keyring{current: key}, nil
}

func newSigningKey() (*signingKey, error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, fmt.Errorf("cannot make a signing key: %w", err)
	}
	sum := sha256.Sum256(private.N.Bytes())
	return &signingKey{id: base64.RawURLEncoding.EncodeToString(sum[:]), private: private}, nil
}

// rotate puts a new key in use. With overlap the old one stays published.
func (k *keyring) rotate(overlap bool) (kid string, err error) {
	key, err := newSigningKey()
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.previous, k.current, k.overlap = k.current, key, overlap
	return key.id, nil
}

// named returns the key that signs a token of the control listener.
func (k *keyring) named(which string) (*signingKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch which {
	case "", "current", "none":
		return k.current, nil
	case "previous":
		if k.previous == nil {
			return nil, errors.New("there is no previous key: rotate first")
		}
		return k.previous, nil
	case "unknown":
		var err error
		if k.neverSeen == nil {
			k.neverSeen, err = newSigningKey()
		}
		return k.neverSeen, err
	}
	return nil, fmt.Errorf("key is %q: want current, previous, unknown or none", which)
}

// published returns the keys that the key document shows.
func (k *keyring) published() []*signingKey {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.overlap {
		return []*signingKey{k.current, k.previous}
	}
	return []*signingKey{k.current}
}

func (k *keyring) public(kid string) (*rsa.PublicKey, bool) {
	for _, key := range k.published() {
		if key.id == kid {
			return &key.private.PublicKey, true
		}
	}
	return nil, false
}

// publicPEM is the text that an attacker would use as an HMAC secret.
func (k *signingKey) publicPEM() []byte {
	der, err := x509.MarshalPKIXPublicKey(&k.private.PublicKey)
	if err != nil {
		panic("BUG: cannot encode an RSA public key: " + err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// TokenRequest asks the control listener for a token. A null claim or header
// field is left out of the token.
type TokenRequest struct {
	User   string         `json:"user"`
	Claims map[string]any `json:"claims,omitempty"`
	Header map[string]any `json:"header,omitempty"`
	// TTL is the life in seconds and may be negative; nil means the usual life.
	TTL *int64 `json:"ttl_s,omitempty"`
	// Key is current, previous, unknown (never published) or none (no kid).
	Key string `json:"key,omitempty"`
	// Alg is an algorithm of JWT for RSA keys, "none", or an HS… that uses the
	// public key's PEM text as its secret. Empty means RS256.
	Alg string `json:"alg,omitempty"`
}

func (s *Server) mint(r TokenRequest) (string, error) {
	key, err := s.keys.named(r.Key)
	if err != nil {
		return "", err
	}
	now := time.Now()
	life := s.opts.TokenLife
	if r.TTL != nil {
		life = time.Duration(*r.TTL) * time.Second
	}
	name := strings.ToLower(r.User)
	claims := jwt.MapClaims{
		"iss": s.opts.IssuerURL, "sub": subjectOf(r.User), "aud": "account", "azp": "cwms", "typ": "Bearer",
		"jti": newUUID(), "iat": now.Unix(), "exp": now.Add(life).Unix(),
		"preferred_username": name, "scope": "profile email", "email_verified": false,
		"realm_access": map[string]any{"roles": []string{"default-roles-cwms", "cwms_user"}},
	}
	if r.User == "" {
		delete(claims, "sub")
		delete(claims, "preferred_username")
	}
	alg := r.Alg
	if alg == "" {
		alg = "RS256"
	}
	method := jwt.GetSigningMethod(alg)
	var signWith any
	switch {
	case alg == "none":
		signWith = jwt.UnsafeAllowNoneSignatureType
	case strings.HasPrefix(alg, "HS") && method != nil:
		signWith = key.publicPEM()
	case (strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")) && method != nil:
		signWith = key.private
	default:
		return "", fmt.Errorf("alg is %q: want none or one of RS256…512, PS256…512, HS256…512", alg)
	}
	token := jwt.NewWithClaims(method, claims)
	if r.Key != "none" {
		token.Header["kid"] = key.id
	}
	overlay(claims, r.Claims)
	overlay(token.Header, r.Header)
	signed, err := token.SignedString(signWith)
	if err != nil {
		return "", fmt.Errorf("cannot sign a token: %w", err)
	}
	return signed, nil
}

func overlay(base, over map[string]any) {
	for name, value := range over {
		if value == nil {
			delete(base, name)
		} else {
			base[name] = value
		}
	}
}

// issuerRoutes serves an OpenID provider's realm. Requests are matched by the end
// of their path, so a client may start from the issuer's URL or from its host.
func (s *Server) issuerRoutes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/.well-known/openid-configuration"):
			s.serveDiscovery(w)
		case strings.HasSuffix(path, "/protocol/openid-connect/certs"):
			s.serveKeys(w, r)
		case strings.HasSuffix(path, "/protocol/openid-connect/token"):
			s.serveToken(w, r)
		default:
			writeJSON(w, http.StatusNotFound, map[string]string{"error": "Unable to find matching target resource method"})
		}
	})
}

func (s *Server) serveDiscovery(w http.ResponseWriter) {
	base := s.opts.IssuerURL
	writeJSON(w, http.StatusOK, map[string]any{
		"issuer":                                base,
		"authorization_endpoint":                base + "/protocol/openid-connect/auth",
		"token_endpoint":                        base + "/protocol/openid-connect/token",
		"jwks_uri":                              base + "/protocol/openid-connect/certs",
		"grant_types_supported":                 []string{"password"},
		"response_types_supported":              []string{"none"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
}

func (s *Server) serveKeys(w http.ResponseWriter, r *http.Request) {
	s.keyCalls.add(r.Method, []byte(r.RequestURI), rawHeader(r), 0, emptySum)
	if s.faults.keys.meet(w) {
		return
	}
	type jwk struct {
		ID  string `json:"kid"`
		Kty string `json:"kty"`
		Alg string `json:"alg"`
		Use string `json:"use"`
		N   string `json:"n"`
		E   string `json:"e"`
	}
	var set struct {
		Keys []jwk `json:"keys"`
	}
	for _, key := range s.keys.published() {
		set.Keys = append(set.Keys, jwk{
			ID: key.id, Kty: "RSA", Alg: "RS256", Use: "sig",
			N: base64.RawURLEncoding.EncodeToString(key.private.N.Bytes()),
			E: base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.private.E)).Bytes()),
		})
	}
	w.Header().Set("Cache-Control", "no-cache")
	writeJSON(w, http.StatusOK, set)
}

// serveToken is the password grant. The password of a user is its name.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, code, text string) {
		writeJSON(w, status, map[string]string{"error": code, "error_description": text})
	}
	if r.Method != http.MethodPost {
		fail(http.StatusMethodNotAllowed, "invalid_request", "POST a form")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		fail(http.StatusBadRequest, "invalid_request", "the form cannot be read")
		return
	}
	name := r.PostForm.Get("username")
	switch {
	case r.PostForm.Get("grant_type") != "password":
		fail(http.StatusBadRequest, "unsupported_grant_type", "Unsupported grant_type")
	case r.PostForm.Get("client_id") != "cwms":
		fail(http.StatusUnauthorized, "invalid_client", "Invalid client or Invalid client credentials")
	case !s.people.has(name) || !strings.EqualFold(r.PostForm.Get("password"), name):
		fail(http.StatusUnauthorized, "invalid_grant", "Invalid user credentials")
	default:
		token, err := s.mint(TokenRequest{User: name})
		if err != nil {
			fail(http.StatusInternalServerError, "server_error", err.Error())
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		writeJSON(w, http.StatusOK, map[string]any{
			"access_token": token, "token_type": "Bearer", "expires_in": int(s.opts.TokenLife.Seconds()),
			"refresh_expires_in": 0, "not-before-policy": 0, "session_state": newUUID(), "scope": "profile email",
		})
	}
}

// subjectOf gives each user a subject that is the same in every run: a UUID of
// version 5 over the upper-case name.
func subjectOf(user string) string {
	sum := sha256.Sum256([]byte("headgate stand-in\x00" + strings.ToUpper(user)))
	return formatUUID([16]byte(sum[:16]), 5)
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return formatUUID(b, 4)
}

func formatUUID(b [16]byte, version byte) string {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// tokenCache remembers which tokens were verified; signatures would otherwise
// cost more than all other work of the stand-in together.
type tokenCache struct {
	mu     sync.RWMutex
	tokens map[string]verifiedToken
}

type verifiedToken struct {
	subject string
	expires time.Time
}

func (c *tokenCache) get(token []byte) (verifiedToken, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.tokens[string(token)]
	return v, ok && (v.expires.IsZero() || time.Now().Before(v.expires))
}

func (c *tokenCache) put(token string, v verifiedToken) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens == nil || len(c.tokens) >= 10_000 {
		c.tokens = make(map[string]verifiedToken)
	}
	c.tokens[token] = v
}

func (c *tokenCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens = nil
}

// verify checks a token as the API does: an RSA signature by a published key,
// the issuer, the times if the token has them, and no audience.
func (s *Server) verify(token []byte) (subject string, ok bool) {
	if v, ok := s.verified.get(token); ok {
		return v.subject, true
	}
	text := string(token)
	var claims jwt.RegisteredClaims
	_, err := jwt.ParseWithClaims(text, &claims, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		if key, ok := s.keys.public(kid); ok {
			return key, nil
		}
		return nil, errors.New("unknown key")
	}, jwt.WithValidMethods([]string{"RS256", "RS384", "RS512"}), jwt.WithIssuer(s.opts.IssuerURL))
	if err != nil {
		return "", false
	}
	v := verifiedToken{subject: claims.Subject}
	if claims.ExpiresAt != nil {
		v.expires = claims.ExpiresAt.Time
	}
	s.verified.put(text, v)
	return v.subject, true
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that left is not our fault
}

// rawHeader writes down the header fields of a net/http request, whose order is
// lost; for key calls that is enough.
func rawHeader(r *http.Request) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "Host: %s\r\n", r.Host)
	_ = r.Header.Write(&b) // a Builder does not fail
	return []byte(b.String())
}
