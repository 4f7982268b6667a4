package identity

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"headgate/proxy/authz"
)

const (
	// maxToken is the longest token looked at, in bytes.
	maxToken = 16 << 10
	// maxKID is the longest name of a key.
	maxKID = 256
	// leeway is the difference between the issuer's clock and ours that exp, nbf
	// and iat forgive. It is a matter of seconds between machines that keep time,
	// and it lengthens the life of every token. Nothing that is cached makes use
	// of it: a principal expires at exp.
	leeway = 5 * time.Second
)

// algorithms are those a token may be signed with: asymmetric ones only, for
// with a symmetric one whoever verifies can sign.
var algorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

var (
	errTooLong = fmt.Errorf("over %d bytes", maxToken)
	errNoKeys  = errors.New("signing keys were never loaded or are too old")
)

func newParser(cfg Config) *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods(algorithms),
		jwt.WithStrictDecoding(),
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience...),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(cfg.Now),
	)
}

// parse verifies a compact token with the given keys, which may be nil. What is
// wrong with the token itself is found first: a client need not wait for keys to
// be told.
func (v *Verifier) parse(token string, keys *keySet) (*authz.Principal, error) {
	if !compact(token) {
		return nil, tokenMalformed.refuse(nil)
	}
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		if err := checkHeader(t.Header); err != nil {
			return nil, err
		}
		if c.issuer != v.cfg.Issuer { // before its kid makes us look for newer keys
			return nil, tokenIssuer
		}
		if keys == nil {
			return nil, errNoKeys
		}
		key, ok := keys.keys[t.Header["kid"].(string)]
		if !ok {
			v.keys.want()
			return nil, tokenKey
		}
		if !slices.Contains(key.algorithms, t.Method.Alg()) {
			return nil, fmt.Errorf("%w: the key is not for %s", tokenHeader, t.Method.Alg())
		}
		return key.public, nil
	})
	if errors.Is(err, errNoKeys) {
		return nil, authz.Refuse(authz.ErrUnavailable, "tokens cannot be verified at the moment").Because(errNoKeys)
	}
	if err != nil {
		return nil, reasonOf(err).refuse(err)
	}
	passed, err := c.passed(v.cfg.Claims)
	if err != nil {
		return nil, tokenMalformed.refuse(err)
	}
	return &authz.Principal{
		Method:     authz.JWT,
		Issuer:     c.issuer,
		ID:         c.subject,
		Name:       c.name,
		Claims:     passed,
		Alias:      sha256.Sum256([]byte(c.issuer + "::" + c.subject)),
		Credential: authz.Credential{Header: "Authorization", Value: tokenPrefix + token},
		Expires:    c.expires.Time,
	}, nil
}

// compact reports whether the token is three base64url words (RFC 7515, section
// 7.1). The decoder alone would skip line ends, and one token would have many
// spellings.
func compact(token string) bool {
	dots := 0
	for i := range len(token) {
		switch c := token[i]; {
		case c == '.':
			dots++
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c == '-', c == '_':
		default:
			return false
		}
	}
	return dots == 2
}

// checkHeader refuses what a verifier must understand and we do not (crit, RFC
// 7515 section 4.1.11), keys that a token brings along (jku, jwk, x5c, x5u: we
// would ignore them, but nobody sends them in good faith), and tokens of another
// kind. A typ, if there is one, is JWT or at+jwt (RFC 9068, section 4).
func checkHeader(h map[string]any) error {
	for _, name := range [...]string{"crit", "jku", "jwk", "x5c", "x5u"} {
		if _, ok := h[name]; ok {
			return fmt.Errorf("%w: %s", tokenHeader, name)
		}
	}
	if typ, ok := h["typ"]; ok {
		s, _ := typ.(string)
		s = strings.TrimPrefix(strings.ToLower(s), "application/")
		if s != "jwt" && s != "at+jwt" {
			return fmt.Errorf("%w: typ of the header", tokenType)
		}
	}
	if kid, _ := h["kid"].(string); kid == "" || len(kid) > maxKID {
		return fmt.Errorf("%w: kid", tokenHeader)
	}
	return nil
}

func reasonOf(err error) *reason {
	var r *reason
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, jwt.ErrTokenExpired):
		return tokenExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return tokenEarly
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return tokenIncomplete
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return tokenAudience
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return tokenSignature
	}
	return tokenMalformed
}

// claims are the claims of a token by their exact names. encoding/json would
// take "ISS" for iss and the last of two claims of one name; a claim that others
// may read differently is refused instead.
type claims struct {
	members  map[string]json.RawMessage
	issuer   string
	subject  string
	audience jwt.ClaimStrings
	expires  *jwt.NumericDate
	begins   *jwt.NumericDate
	issued   *jwt.NumericDate
	name     string // preferred_username
}

// UnmarshalJSON keeps every claim as it came and decodes those we read.
func (c *claims) UnmarshalJSON(raw []byte) error {
	var err error
	if c.members, err = object(raw); err != nil {
		return err
	}
	for name, raw := range c.members {
		switch name {
		case "iss":
			c.issuer, err = text(raw)
		case "sub":
			c.subject, err = text(raw)
		case "aud":
			err = json.Unmarshal(raw, &c.audience)
		case "exp":
			c.expires, err = date(raw)
		case "nbf":
			c.begins, err = date(raw)
		case "iat":
			c.issued, err = date(raw)
		}
		if err != nil {
			return fmt.Errorf("cannot read claim %s: %w", name, err)
		}
	}
	if raw, ok := c.members["preferred_username"]; ok {
		c.name, _ = text(raw) // a hint
	}
	return nil
}

// Validate makes the checks that the parser does not know. The parser calls it
// after those it knows.
func (c *claims) Validate() error {
	// A token bound to a key of its sender (RFC 9449, RFC 8705) that is taken as
	// a plain bearer token is worth as much stolen as owned.
	if _, ok := c.members["cnf"]; ok {
		return tokenBound
	}
	// Keycloak says here what a token is for; ID, Refresh and Offline tokens have
	// the same issuer, keys and signature.
	if raw, ok := c.members["typ"]; ok {
		if typ, err := text(raw); err != nil || typ != "Bearer" {
			return fmt.Errorf("%w: typ of the claims", tokenType)
		}
	}
	if c.subject == "" {
		return fmt.Errorf("%w: sub", tokenIncomplete)
	}
	return nil
}

// passed is the object of the named claims, sorted by name; nil if none is named.
func (c *claims) passed(names []string) (json.RawMessage, error) {
	if len(names) == 0 {
		return nil, nil
	}
	some := make(map[string]json.RawMessage, len(names))
	for _, name := range names {
		if raw, ok := c.members[name]; ok {
			some[name] = raw
		}
	}
	return appendObject(nil, some, maxDepth)
}

func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.expires, nil }
func (c *claims) GetNotBefore() (*jwt.NumericDate, error)      { return c.begins, nil }
func (c *claims) GetIssuedAt() (*jwt.NumericDate, error)       { return c.issued, nil }
func (c *claims) GetAudience() (jwt.ClaimStrings, error)       { return c.audience, nil }
func (c *claims) GetIssuer() (string, error)                   { return c.issuer, nil }
func (c *claims) GetSubject() (string, error)                  { return c.subject, nil }

// date reads a NumericDate (RFC 7519, section 2), to the second. One that no
// calendar reaches would overflow into the past or the future.
func date(raw json.RawMessage) (*jwt.NumericDate, error) {
	const year10000 = 253402300800
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || seconds < 0 || seconds >= year10000 {
		return nil, errors.New("not a date")
	}
	return jwt.NewNumericDate(time.Unix(int64(seconds), 0)), nil
}
