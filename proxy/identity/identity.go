// Package identity turns the credential of a request into a verified
// authz.Principal. It is the only package that makes one.
//
// A request has one identity: that of its Authorization header when the scheme
// is one we know, else that of its session cookies, else none. No credential is
// the anonymous principal; a bad one is an error of kind
// authz.ErrUnauthenticated, never anonymous. Tokens are verified here, against
// keys that one goroutine (Run) keeps up to date. API keys and sessions only the
// API can verify: of them this package checks the form, and package pip asks.
//
// A Verifier is safe for concurrent use. The way of a credential seen before
// takes no lock and allocates nothing. Principals are shared between requests
// and must not be changed.
package identity

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rs/zerolog"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
)

const (
	// cacheLife bounds how long a credential is taken for verified without
	// another look at it.
	cacheLife = time.Minute
	// maxTokens and maxOpaque bound the memory held for credentials: about 2 KiB
	// for a token of usual size, 1 KiB for a key or a cookie.
	maxTokens = 8192
	maxOpaque = 4096
)

// Config says whose tokens are accepted.
type Config struct {
	// None accepts no token at all: a Bearer token is refused, whatever else is
	// set. Keys and sessions still work.
	None bool

	Issuer   string   // exact value of the iss claim
	JWKSURL  *url.URL // where the issuer publishes its keys; http or https
	Audience []string // one of them must be in the aud claim; empty: not checked
	Claims   []string // names of top-level claims to pass to policy

	// TestUsers accepts x-test-user. It gives anybody any identity.
	TestUsers bool

	Now func() time.Time // nil: time.Now; called by several goroutines
	Log zerolog.Logger   // for what happens beside requests
}

// Verifier verifies credentials. Make one with New.
type Verifier struct {
	cfg    Config
	now    func() time.Time
	parser *jwt.Parser
	keys   *keyring
	seed   maphash.Seed
	tokens *cache.Local[*authz.Principal] // by keyOf the compact token
	opaque *cache.Local[*authz.Principal] // by keyOf the key or the cookies
}

// keyOf is where a credential is found in a cache: a hash with a secret seed,
// which costs a tenth of a SHA-256. That two credentials may share it does no
// harm, since the one found is compared.
func (v *Verifier) keyOf(secret []byte) (key [32]byte) {
	binary.LittleEndian.PutUint64(key[:], maphash.Bytes(v.seed, secret))
	return key
}

// shows reports whether this very credential, byte for byte, is the principal's.
func shows(p *authz.Principal, prefix string, secret []byte) bool {
	value, ok := strings.CutPrefix(p.Credential.Value, prefix)
	return ok && value == string(secret)
}

// anonymous is the principal of every request without a credential.
var anonymous = &authz.Principal{Method: authz.None}

// New makes a Verifier. Until Run has fetched the issuer's keys, tokens are
// refused with authz.ErrUnavailable.
func New(cfg Config) (*Verifier, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	v := &Verifier{
		cfg:    cfg,
		now:    cfg.Now,
		seed:   maphash.MakeSeed(),
		opaque: cache.NewLocal[*authz.Principal](cache.LocalOptions{MaxEntries: maxOpaque, Now: cfg.Now}),
	}
	if cfg.None {
		return v, nil
	}
	if cfg.Issuer == "" {
		return nil, errors.New("cannot verify tokens without the issuer's name")
	}
	if u := cfg.JWKSURL; u == nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("cannot verify tokens without the http or https URL of the issuer's keys")
	}
	v.parser = newParser(cfg)
	v.keys = newKeyring(cfg)
	v.tokens = cache.NewLocal[*authz.Principal](cache.LocalOptions{MaxEntries: maxTokens, Now: cfg.Now})
	return v, nil
}

// Run keeps the issuer's keys up to date. It returns when ctx ends.
func (v *Verifier) Run(ctx context.Context) {
	if v.cfg.None {
		<-ctx.Done()
		return
	}
	v.keys.run(ctx)
}

// Verify returns the principal of a request. The errors are of kind
// authz.ErrUnauthenticated, authz.ErrUnavailable (no signing keys) or, for the
// test header, authz.ErrMalformed.
//
// An Authorization header of a scheme that the API knows decides alone, and the
// cookies are ignored; one of another scheme is ignored, as the API does. What
// was not decided on must not be forwarded: Authorization unless the principal's
// method is JWT or APIKey, session cookies unless it is Session.
func (v *Verifier) Verify(_ context.Context, c authz.Credentials) (*authz.Principal, error) {
	if v.cfg.TestUsers && c.TestUser != nil {
		return asserted(c.TestUser, authz.Test)
	}
	switch method, secret := schemeOf(c.Authorization); method {
	case authz.JWT:
		return v.verifyToken(secret, c.Last)
	case authz.APIKey:
		return v.apiKey(secret, c.From)
	}
	return v.session(c.Cookie, c.From)
}

// VerifyToken returns the principal of a token that came without a header.
func (v *Verifier) VerifyToken(_ context.Context, token string) (*authz.Principal, error) {
	return v.verifyToken([]byte(token), nil)
}

// verifyToken is given whom the last token of the same connection proved, which
// spares it, when it is the same token, the way to the cache.
func (v *Verifier) verifyToken(token []byte, last *authz.Principal) (*authz.Principal, error) {
	if v.cfg.None {
		return nil, tokensOff.refuse(nil)
	}
	if len(token) > maxToken {
		return nil, tokenMalformed.refuse(errTooLong)
	}
	now := v.now()
	keys := v.keys.usable(now)
	stands := func(p *authz.Principal) bool {
		// The wall clock may have been set since: ask it, not the cache alone.
		return shows(p, tokenPrefix, token) && p.Keys == keys.generation && now.Before(p.Until) && now.Before(p.Expires)
	}
	if keys != nil && last != nil && stands(last) {
		tokenHits.Inc()
		return last, nil
	}
	key := v.keyOf(token)
	if keys != nil {
		if p, ok := v.tokens.Get(key); ok && stands(p) {
			tokenHits.Inc()
			return p, nil
		}
	}
	tokenMisses.Inc()
	p, err := v.parse(string(token), keys)
	if err != nil {
		return nil, err
	}
	p.Keys, p.Until = keys.generation, now.Add(cacheLife)
	v.tokens.Set(key, p, min(p.Expires.Sub(now), cacheLife))
	return p, nil
}

// Ready is nil when tokens can be verified.
func (v *Verifier) Ready() error {
	if v.cfg.None || v.keys.usable(v.now()) != nil {
		return nil
	}
	return errNoKeys
}

// KeysAge is the time since the signing keys were last confirmed by the issuer,
// or since New if they never were; 0 if no token is accepted anyway.
func (v *Verifier) KeysAge() time.Duration {
	if v.cfg.None {
		return 0
	}
	return v.keys.age(v.now())
}

// Generation is the number of different key sets seen so far.
func (v *Verifier) Generation() uint64 {
	if v.cfg.None {
		return 0
	}
	if set := v.keys.set.Load(); set != nil {
		return set.generation
	}
	return 0
}

// Cached is the number of credentials held in memory.
func (v *Verifier) Cached() int {
	n := v.opaque.Len()
	if v.tokens != nil {
		n += v.tokens.Len()
	}
	return n
}
