package authz

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Method says how a principal proved who it is; it is user.auth_method of the
// input document.
type Method string

const (
	None     Method = "none"     // no credential: the anonymous principal
	JWT      Method = "jwt"      // a verified token
	APIKey   Method = "api_key"  // Authorization: apikey …, vouched for by the API
	Session  Method = "session"  // JSESSIONID, JSESSIONIDSSO, vouched for by the API
	Asserted Method = "asserted" // named by a trusted caller of /authorize
	Test     Method = "test"     // x-test-user, TEST_USERS=true only
)

// Digest is a SHA-256 that stands for a credential or for an identity.
type Digest [32]byte

// Credential is what proves a principal to the API: one request header, to be
// replayed on profile calls. It is never logged, stored or shown.
type Credential struct{ Header, Value string }

// String keeps a credential out of every log line.
func (Credential) String() string { return "[credential]" }

// GoString keeps a credential out of every %#v.
func (Credential) GoString() string { return "[credential]" }

// MarshalJSON keeps a credential out of every JSON document.
func (Credential) MarshalJSON() ([]byte, error) { return []byte(`"[credential]"`), nil }

// Principal is a verified identity. Only package identity makes one (a test
// holds that rule). API keys and sessions cannot be verified without the API:
// their principal says which credential was shown, and package pip lets the API
// say whose it is.
type Principal struct {
	Method Method
	Issuer string          // JWT: the verified issuer
	ID     string          // JWT: the subject claim; otherwise empty until the API tells
	Name   string          // JWT: preferred_username, a hint for logs only
	Claims json.RawMessage // JWT: the claims of JWT_CLAIMS, one sorted ASCII object; nil without

	// Alias names the principal in caches: SHA-256 of "issuer::sub" for a token,
	// of kind, NUL, key or cookie for the others.
	Alias      Digest
	Credential Credential

	// Expires is when the credential ends by itself; zero if it does not say.
	Expires time.Time
	// Keys are the signing keys, by their generation, that a token was verified with,
	// and Until is when it has to be verified again.
	Keys  uint64
	Until time.Time
	// Guessable marks a credential of less than 128 bits: its digest must not
	// leave the process.
	Guessable bool
	// Optional marks a credential that the API may not know without that being
	// an error (a servlet session cookie): then the caller is anonymous.
	Optional bool

	// From is, of a key or a session, where the credential was seen first.
	From netip.Addr

	// User is set for Asserted and Test principals, whose description came with
	// the request; nil for all others.
	User *User
}

// Anonymous reports whether the principal showed no credential.
func (p *Principal) Anonymous() bool { return p.Method == None }

// Credentials are the credentials of one request, as received. The slices are
// valid only during the call they are passed to.
type Credentials struct {
	Authorization []byte // the value of the only Authorization header; nil without
	Cookie        []byte // the session cookies alone, "name=value; name=value"; nil without
	TestUser      []byte // x-test-user; nil without

	// Last is whom the request before on the same connection came from; nil if it is
	// not known. Mostly this one comes from them too.
	Last *Principal

	// From is the address of the client, of IPv6 its network of 64 bits; the zero
	// Addr if it is not known.
	From netip.Addr
}
