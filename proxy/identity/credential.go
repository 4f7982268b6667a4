package identity

import (
	"bytes"
	"crypto/sha256"
	"math"
	"net/netip"

	"headgate/proxy/authz"
)

// The API reads an Authorization header so (CDA: OpenIdConnectIdentityProvider,
// ApiKeyIdentityProvider): it trims, and compares how the header begins, in any
// case and without asking for a space after it. What it would take for a token
// or a key must be one here too, or be refused; else the API would act on a
// credential that nobody looked at.
const (
	bearer = "bearer"
	apikey = "apikey"
)

// How a token or a key is shown to the API, whatever the client wrote.
const (
	tokenPrefix = "Bearer "
	keyPrefix   = "apikey "
)

const (
	minKey, maxKey = 16, 512
	maxSession     = 1 << 10
	// strongKey is the strength, in bits, from which the digest of a key may be
	// known to others without the key being found by trying.
	strongKey = 128
)

// schemeOf tells what an Authorization header holds: a token (authz.JWT), a key
// (authz.APIKey) or nothing we know (authz.None). The secret is all that follows,
// to be checked by whoever reads it; nil if nothing does.
func schemeOf(header []byte) (authz.Method, []byte) {
	h := bytes.TrimFunc(header, func(r rune) bool { return r <= ' ' })
	switch {
	case beginsWith(h, bearer):
		return authz.JWT, secretOf(h[len(bearer):])
	case beginsWith(h, apikey):
		return authz.APIKey, secretOf(h[len(apikey):])
	}
	return authz.None, nil
}

func beginsWith(h []byte, scheme string) bool {
	return len(h) >= len(scheme) && bytes.EqualFold(h[:len(scheme)], []byte(scheme))
}

func secretOf(rest []byte) []byte {
	secret := bytes.TrimLeft(rest, " \t")
	if len(secret) == len(rest) {
		return nil
	}
	return secret
}

// printable reports whether b is visible ASCII alone.
func printable(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return len(b) > 0
}

// apiKey is the principal of a key, which the API has yet to vouch for.
func (v *Verifier) apiKey(key []byte, from netip.Addr) (*authz.Principal, error) {
	if len(key) < minKey || len(key) > maxKey || !printable(key) {
		return nil, badKey.refuse(nil)
	}
	place := v.keyOf(key)
	if p, ok := v.opaque.Get(place); ok && shows(p, keyPrefix, key) {
		return p, nil
	}
	p := &authz.Principal{
		Method:     authz.APIKey,
		Alias:      aliasOf(authz.APIKey, key),
		Credential: authz.Credential{Header: "Authorization", Value: keyPrefix + string(key)},
		Guessable:  strength(key) < strongKey,
		From:       from,
	}
	v.opaque.Set(place, p, cacheLife)
	return p, nil
}

// session is the principal of session cookies, which the API has yet to vouch
// for, or the anonymous one without any. JSESSIONIDSSO must be known to the API.
// A JSESSIONID alone need not be: servlet containers hand them to everybody.
//
// All of them together are the credential, as the API receives all of them: a
// browser may well have two of one name, for two paths.
func (v *Verifier) session(cookies []byte, from netip.Addr) (*authz.Principal, error) {
	if len(cookies) == 0 {
		return anonymous, nil
	}
	var line [maxSession]byte
	b, sso := line[:0], false
	for cookie := range bytes.SplitSeq(cookies, []byte(";")) {
		name, value, _ := bytes.Cut(cookie, []byte("="))
		name, value = bytes.Trim(name, " \t"), bytes.Trim(value, " \t") // as Tomcat does
		switch string(name) {
		case "JSESSIONIDSSO", "JSESSIONID":
		default:
			continue
		}
		if len(value) == 0 {
			continue // how clients delete a cookie
		}
		if !printable(value) || len(b)+len("; =")+len(name)+len(value) > maxSession {
			return nil, badSession.refuse(nil)
		}
		if len(b) > 0 {
			b = append(b, "; "...)
		}
		b = append(append(append(b, name...), '='), value...)
		sso = sso || string(name) == "JSESSIONIDSSO"
	}
	if len(b) == 0 {
		return anonymous, nil
	}
	place := v.keyOf(b)
	if p, ok := v.opaque.Get(place); ok && shows(p, "", b) {
		return p, nil
	}
	p := &authz.Principal{
		Method:     authz.Session,
		Alias:      aliasOf(authz.Session, b),
		Credential: authz.Credential{Header: "Cookie", Value: string(b)},
		Optional:   !sso,
		From:       from,
	}
	v.opaque.Set(place, p, cacheLife)
	return p, nil
}

// aliasOf is the SHA-256 of the kind of a credential, NUL and the credential.
func aliasOf(kind authz.Method, secret []byte) authz.Digest {
	return sha256.Sum256(append(append([]byte(kind), 0), secret...))
}

// strength estimates the entropy of a key in bits from how often it uses each
// character. For random keys it is a little low, which only keeps a key of just
// 128 bits out of the shared cache.
func strength(key []byte) float64 {
	var count [256]int
	for _, c := range key {
		count[c]++
	}
	bits := 0.0
	for _, n := range count {
		if n > 0 {
			bits += float64(n) * math.Log2(float64(len(key))/float64(n))
		}
	}
	return bits
}
