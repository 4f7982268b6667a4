package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"
)

const (
	// refreshEvery bounds how long a key that the issuer has withdrawn is
	// believed. The actual interval is up to a tenth shorter, so that replicas
	// started together do not ask together.
	refreshEvery = 5 * time.Minute
	// wantedEvery is how often, at most, tokens with an unknown kid make us look.
	// Anybody can invent a kid.
	wantedEvery = 30 * time.Second
	// After a failure the next try is this much later, doubled each time.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	// maxKeysAge is how old the last good keys may be. An issuer that is down for
	// an hour must not lock everybody out; nor may a withdrawn key live for ever.
	maxKeysAge = 24 * time.Hour

	fetchTimeout = 10 * time.Second
	maxKeysBytes = 256 << 10
	maxKeys      = 50
	minRSABits   = 2048 // RFC 7518, section 3.3
)

var (
	keysChanged   = metrics.NewCounter(`authorizer_proxy_keys_refreshes_total{result="changed"}`)
	keysUnchanged = metrics.NewCounter(`authorizer_proxy_keys_refreshes_total{result="unchanged"}`)
	keysFailed    = metrics.NewCounter(`authorizer_proxy_keys_refreshes_total{result="failed"}`)
)

// keyring holds the issuer's signing keys. Readers take an immutable set and
// never wait; one goroutine (run) replaces it.
type keyring struct {
	url    string
	client *http.Client
	now    func() time.Time
	log    zerolog.Logger
	made   time.Time
	set    atomic.Pointer[keySet]
	wanted chan struct{} // room for one: a token had an unknown kid
}

// keySet is what the issuer published. The generation changes with the keys, and
// with it every token verified before is verified again.
type keySet struct {
	keys       map[string]signingKey // by kid
	generation uint64
	confirmed  time.Time
}

// signingKey is a public key and the algorithms it may be used with.
type signingKey struct {
	public     crypto.PublicKey
	algorithms []string
}

func newKeyring(cfg Config) *keyring {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// A connection that is used every five minutes is one that a firewall on the
	// way has forgotten.
	transport.DisableKeepAlives = true
	return &keyring{
		url: cfg.JWKSURL.String(),
		client: &http.Client{
			Transport: transport,
			Timeout:   fetchTimeout,
			// Keys come from the configured place or not at all.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		now:    cfg.Now,
		log:    cfg.Log,
		made:   cfg.Now(),
		wanted: make(chan struct{}, 1),
	}
}

// usable is the current set, or nil if there is none or it is too old.
func (k *keyring) usable(now time.Time) *keySet {
	set := k.set.Load()
	if set == nil || now.Sub(set.confirmed) > maxKeysAge {
		return nil
	}
	return set
}

func (k *keyring) age(now time.Time) time.Duration {
	if set := k.set.Load(); set != nil {
		return now.Sub(set.confirmed)
	}
	return now.Sub(k.made)
}

// want asks for a refresh, soon.
func (k *keyring) want() {
	select {
	case k.wanted <- struct{}{}:
	default:
	}
}

// run fetches the keys at once and then again and again until ctx ends.
func (k *keyring) run(ctx context.Context) {
	var asked time.Time
	due, retry := time.Now(), firstRetry
	for k.await(ctx, due, asked.Add(wantedEvery)) {
		asked = time.Now()
		if k.refresh(ctx) == nil {
			due, retry = time.Now().Add(refreshEvery-rand.N(refreshEvery/10)), firstRetry
		} else {
			due, retry = time.Now().Add(retry), min(2*retry, lastRetry)
		}
	}
}

// await returns true when a refresh is due, or wanted and allowed again; false
// when ctx ends. A wish that comes too early is kept, not dropped: else an
// invented kid could hold up the first token of a real new key.
func (k *keyring) await(ctx context.Context, due, allowed time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	wanted := k.wanted
	for {
		select {
		case <-ctx.Done():
			return false
		case <-wanted:
			if allowed.Before(due) {
				timer.Reset(time.Until(allowed))
			}
			wanted = nil // one is enough: no more of a flood wakes us
		case <-timer.C:
			select { // what else was wished comes with this refresh
			case <-k.wanted:
			default:
			}
			return true
		}
	}
}

// refresh replaces the set by what the issuer publishes now. On any failure the
// set stays.
func (k *keyring) refresh(ctx context.Context) error {
	confirmed := k.now() // what is read was true then, perhaps no longer at the end
	keys, err := k.fetch(ctx)
	old := k.set.Load()
	if err != nil {
		if ctx.Err() == nil {
			keysFailed.Inc()
			k.log.Warn().Err(err).Dur("age", k.age(k.now())).Msg("cannot refresh signing keys")
		}
		return err
	}
	next := &keySet{keys: keys, generation: 1, confirmed: confirmed}
	if old != nil {
		next.generation = old.generation
		if !equalKeys(old.keys, keys) {
			next.generation++
		}
	}
	if old == nil || next.generation != old.generation {
		keysChanged.Inc()
		k.log.Info().Int("keys", len(keys)).Uint64("generation", next.generation).Msg("signing keys changed")
	} else {
		keysUnchanged.Inc()
	}
	k.set.Store(next)
	return nil
}

func (k *keyring) fetch(ctx context.Context) (map[string]signingKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the issuer answered %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeysBytes+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the key set: %w", err)
	}
	if len(body) > maxKeysBytes {
		return nil, fmt.Errorf("the key set is over %d bytes", maxKeysBytes)
	}
	return parseKeys(body)
}

// parseKeys reads a JSON Web Key Set (RFC 7517). Keys that cannot verify a token
// are left out: of unknown kinds, symmetric or private ones, those for
// encryption. Of two with one kid the first counts. A set without a usable key is
// an error, since an issuer without keys is a fault and not a wish to lock
// everybody out.
func parseKeys(body []byte) (map[string]signingKey, error) {
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("cannot read the key set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has over %d keys", maxKeys)
	}
	keys := make(map[string]signingKey)
	for _, raw := range set.Keys {
		var jwk jwkset.JWKMarshal
		if json.Unmarshal(raw, &jwk) != nil {
			continue
		}
		if _, twice := keys[jwk.KID]; twice {
			continue
		}
		if key, ok := signingKeyOf(jwk); ok {
			keys[jwk.KID] = key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no usable signing key")
	}
	return keys, nil
}

func signingKeyOf(jwk jwkset.JWKMarshal) (signingKey, bool) {
	none := signingKey{}
	switch {
	case jwk.KID == "" || len(jwk.KID) > maxKID,
		jwk.USE != "" && jwk.USE != jwkset.UseSig,
		len(jwk.KEYOPS) > 0 && !slices.Contains(jwk.KEYOPS, jwkset.KeyOpsVerify),
		jwk.D != "": // whoever can read the set can sign
		return none, false
	}
	// Certificates prove nothing here: the key is believed because of where it is
	// published.
	jwk.X5C, jwk.X5U, jwk.X5T, jwk.X5TS256 = nil, "", "", ""
	parsed, err := jwkset.NewJWKFromMarshal(jwk, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return none, false
	}
	fit := algorithmsFor(parsed.Key())
	if jwk.ALG != "" {
		if !slices.Contains(fit, jwk.ALG.String()) {
			return none, false
		}
		fit = []string{jwk.ALG.String()}
	}
	return signingKey{parsed.Key(), fit}, len(fit) > 0
}

// algorithmsFor binds a key to its algorithms, so that no token chooses one that
// was not meant for it (RFC 8725, section 3.1).
func algorithmsFor(key any) []string {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSABits {
			return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
		}
	case *ecdsa.PublicKey:
		switch key.Curve.Params().Name {
		case "P-256":
			return []string{"ES256"}
		case "P-384":
			return []string{"ES384"}
		case "P-521":
			return []string{"ES512"}
		}
	case ed25519.PublicKey:
		return []string{"EdDSA"}
	}
	return nil
}

func equalKeys(a, b map[string]signingKey) bool {
	if len(a) != len(b) {
		return false
	}
	for kid, x := range a {
		y, ok := b[kid]
		if !ok || !slices.Equal(x.algorithms, y.algorithms) ||
			!x.public.(interface{ Equal(crypto.PublicKey) bool }).Equal(y.public) {
			return false
		}
	}
	return true
}
