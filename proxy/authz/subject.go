package authz

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"
)

// User is what is known about a user, whichever credential it comes with.
type User struct {
	ID            string
	Username      string
	Email         string
	Roles         []string            // every role once, sorted
	RolesByOffice map[string][]string // nil: not known, roles count at every office of Offices
	Offices       []string            // upper case, sorted
	PrimaryOffice string
	Privileges    json.RawMessage // ts_privileges, an array; nil without
	Attributes    json.RawMessage // any JSON an operator wrote; nil without

	// Extra are further members of an asserted user (persona, shift_start …),
	// passed to policy as they came. Names of the fields above are not in it.
	Extra map[string]json.RawMessage
}

// Subject is a principal with the attributes that policy reads.
type Subject struct {
	User
	Method        Method
	Authenticated bool

	// Fetched is when the attributes were read from their source; zero when they
	// came with the credential.
	Fetched time.Time

	input  []byte            // the user member of the input document
	digest [sha256.Size]byte // of input
	header []byte            // the user member of the context header
	brief  []byte            // the same without ts_privileges
	least  []byte            // the same without roles too
}

// AnonymousSubject is the subject of a request without a credential.
var AnonymousSubject = NewSubject(&Principal{Method: None}, User{
	ID: "anonymous", Username: "anonymous", RolesByOffice: map[string][]string{},
}, time.Time{})

// NewSubject binds what is known about a user to the credential it came with,
// and prepares what the question and the context header say of it.
func NewSubject(p *Principal, u User, fetched time.Time) *Subject {
	s := &Subject{User: u, Method: p.Method, Authenticated: p.Method != None, Fetched: fetched}
	s.input = s.appendInput(nil, p.Claims)
	s.digest = sha256.Sum256(s.input)
	s.header = s.appendHeader(nil, true, true)
	s.brief = s.appendHeader(nil, true, false)
	s.least = s.appendHeader(nil, false, false)
	return s
}

// JSON is the user member of the input document. The caller must not change it.
func (s *Subject) JSON() []byte { return s.input }

// HeaderJSON is the user member of the context header. The caller must not change
// it.
func (s *Subject) HeaderJSON() []byte { return s.header }

func (s *Subject) appendInput(b []byte, claims json.RawMessage) []byte {
	b = append(b, `{"id":`...)
	b = AppendString(b, s.ID)
	b = append(b, `,"username":`...)
	b = AppendString(b, s.Username)
	if s.Email != "" {
		b = append(b, `,"email":`...)
		b = AppendString(b, s.Email)
	}
	b = append(b, `,"authenticated":`...)
	b = appendBool(b, s.Authenticated)
	b = append(b, `,"auth_method":`...)
	b = AppendString(b, string(s.Method))
	b = append(b, `,"roles":`...)
	b = AppendStrings(b, s.Roles)
	if s.RolesByOffice != nil {
		b = append(b, `,"roles_by_office":{`...)
		for i, office := range sortedKeys(s.RolesByOffice) {
			b = comma(b, i)
			b = AppendString(b, office)
			b = append(b, ':')
			b = AppendStrings(b, s.RolesByOffice[office])
		}
		b = append(b, '}')
	}
	b = append(b, `,"offices":`...)
	b = AppendStrings(b, s.Offices)
	if s.PrimaryOffice != "" {
		b = append(b, `,"primary_office":`...)
		b = AppendString(b, s.PrimaryOffice)
	}
	b = appendRaw(b, "ts_privileges", s.Privileges)
	b = appendRaw(b, "claims", claims)
	b = appendRaw(b, "attributes", s.Attributes)
	for _, name := range sortedKeys(s.Extra) {
		b = appendRaw(b, name, s.Extra[name])
	}
	return append(b, '}')
}

func (s *Subject) appendHeader(b []byte, roles, privileges bool) []byte {
	b = append(b, `{"id":`...)
	b = AppendString(b, s.ID)
	b = append(b, `,"username":`...)
	b = AppendString(b, s.Username)
	if s.Email != "" {
		b = append(b, `,"email":`...)
		b = AppendString(b, s.Email)
	}
	if roles {
		b = append(b, `,"roles":`...)
		b = AppendStrings(b, s.Roles)
	}
	b = append(b, `,"offices":`...)
	b = AppendStrings(b, s.Offices)
	b = append(b, `,"primary_office":`...)
	b = AppendString(b, s.PrimaryOffice)
	b = appendRaw(b, "persona", s.Extra["persona"])
	if privileges {
		b = appendRaw(b, "ts_privileges", s.Privileges)
	}
	return append(b, '}')
}

func appendRaw(b []byte, name string, raw json.RawMessage) []byte {
	if raw == nil {
		return b
	}
	b = append(b, ',')
	b = AppendString(b, name)
	b = append(b, ':')
	return AppendASCII(b, raw)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, "true"...)
	}
	return append(b, "false"...)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
