package standin

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ServiceUser may read the profile of others; its API key is what a proxy uses
// as its service credential.
const ServiceUser = "HEADGATE"

// Users are the test users, beside ServiceUser.
var Users = []string{
	"DAMOP001", "M5HECTEST", "DATAMGR001", "L1HECTEST", "L2HECTEST", "EXTPARTNER",
	"APICOLLECTOR", "APIPROCESSOR", "MIXED01", "HECADMIN",
}

// builtIn holds the roles by office of each user. The order of offices is that
// of a hash map in the real API: it means nothing.
var builtIn = map[string]string{
	"DAMOP001":     `{"SPK":["All Users","CWMS Users","TS ID Creator"],"HQ":["dam_operator"]}`,
	"M5HECTEST":    `{"SWT":["All Users","CWMS Users","TS ID Creator"],"HQ":["water_manager"]}`,
	"DATAMGR001":   `{"HQ":["data_manager"],"SWT":["All Users","CWMS Users","TS ID Creator"]}`,
	"L1HECTEST":    `{"SPL":["All Users"],"HQ":["public_user"]}`,
	"L2HECTEST":    `{"SPK":["All Users","CWMS Users","TS ID Creator"]}`,
	"EXTPARTNER":   `{"SPK":["All Users","CWMS Users"],"HQ":["external_cooperator"]}`,
	"APICOLLECTOR": `{"SPK":["CWMS Users","automated_collector"]}`,
	"APIPROCESSOR": `{"HQ":["CWMS Users","automated_processor"]}`,
	"MIXED01":      `{"SWT":["water_manager"],"SPK":["All Users"]}`,
	"HECADMIN":     `{"HQ":["system_admin"]}`,
	ServiceUser:    `{"HQ":["All Users","CWMS Users","CWMS User Admins"]}`,
}

// credentialKind is how a caller proved who it is.
type credentialKind byte

const (
	guest credentialKind = iota
	bearer
	apiKey
	session
)

// person is a user's row. It is replaced, never changed.
type person struct {
	name    string
	roles   []string // of all offices
	profile [2]document
}

// document is a prepared answer. The profile differs only in cac-auth, which is
// false for an API key and true otherwise.
type document struct {
	body []byte
	etag string
}

func (p *person) is(role string) bool { return slices.Contains(p.roles, role) }

func (p *person) profileFor(kind credentialKind) *document {
	if kind == apiKey {
		return &p.profile[0]
	}
	return &p.profile[1]
}

// holder is who a key or a session belongs to.
type holder struct {
	user string // upper case
	kind credentialKind
}

// directory holds users, API keys and sessions.
type directory struct {
	issuer string

	mu        sync.RWMutex
	people    map[string]*person // by upper-case name
	subjects  map[string]string  // subject -> upper-case name
	keys      map[string]holder
	sso       map[string]holder // JSESSIONIDSSO
	sessions  map[string]holder // JSESSIONID
	sessionOf map[string]string // holder of a credential -> its JSESSIONID
}

func newDirectory(issuer string) *directory {
	d := &directory{
		issuer: issuer,
		people: make(map[string]*person), subjects: make(map[string]string), keys: make(map[string]holder),
		sso: make(map[string]holder), sessions: make(map[string]holder), sessionOf: make(map[string]string),
	}
	for name, roles := range builtIn {
		if err := d.put(name, []byte(`{"roles":`+roles+`}`)); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return d
}

// put makes or replaces a user. Members of the profile that raw leaves out get
// their usual value; a null member is left out of the answer.
func (d *directory) put(name string, raw []byte) error {
	name = strings.ToUpper(name)
	p := &person{name: name}
	for i, cac := range [...]string{"false", "true"} {
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &fields); err != nil {
			return fmt.Errorf("cannot read the profile of %q: %w", name, err)
		}
		for member, usual := range map[string]string{
			"user-name": `"` + name + `"`,
			"principal": `"` + d.issuer + "::" + subjectOf(name) + `"`,
			"email":     `"` + strings.ToLower(name) + `@example.test"`,
			"cac-auth":  cac,
			"roles":     "{}",
		} {
			switch given, ok := fields[member]; {
			case !ok:
				fields[member] = json.RawMessage(usual)
			case string(given) == "null":
				delete(fields, member)
			}
		}
		var byOffice map[string][]string
		if given := fields["roles"]; given != nil {
			if err := json.Unmarshal(given, &byOffice); err != nil {
				return fmt.Errorf("cannot read the roles of %q: %w", name, err)
			}
		}
		p.roles = p.roles[:0]
		for _, roles := range byOffice {
			p.roles = append(p.roles, roles...)
		}
		body, err := json.Marshal(fields)
		if err != nil {
			return fmt.Errorf("cannot write the profile of %q: %w", name, err)
		}
		p.profile[i] = document{body: body, etag: etagOf(body)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.people[name] = p
	d.subjects[subjectOf(name)] = name
	return nil
}

// remove deletes a user with its keys and sessions and reports whether there was
// one. Tokens cannot be taken back; from now on they name nobody.
func (d *directory) remove(name string) bool {
	name = strings.ToUpper(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.people[name]
	delete(d.people, name)
	for _, credentials := range []map[string]holder{d.keys, d.sso, d.sessions} {
		for c, h := range credentials {
			if h.user == name {
				delete(credentials, c)
			}
		}
	}
	return ok
}

func (d *directory) has(name string) bool { return d.named(name) != nil }

// named returns a user, or nil.
func (d *directory) named(name string) *person {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.people[strings.ToUpper(name)]
}

// bySubject returns the user of a token's subject, or nil.
func (d *directory) bySubject(subject string) *person {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.people[d.subjects[subject]]
}

// holderOf looks a key or a cookie up in one of the maps of the directory.
func (d *directory) holderOf(credentials map[string]holder, value []byte) (*person, credentialKind) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	h, ok := credentials[string(value)]
	if !ok {
		return nil, guest
	}
	return d.people[h.user], h.kind
}

// sessionFor returns the servlet session of a user's credential. The real API
// opens one for each call that brings none; here equal calls share one, so that
// a load test does not fill the memory.
func (d *directory) sessionFor(p *person, kind credentialKind) string {
	owner := string('0'+kind) + p.name
	d.mu.RLock()
	id, ok := d.sessionOf[owner]
	if ok {
		_, ok = d.sessions[id]
	}
	d.mu.RUnlock()
	if ok {
		return id
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id = strings.ToUpper(randomText(32, "0123456789abcdef"))
	d.sessions[id] = holder{user: p.name, kind: kind}
	d.sessionOf[owner] = id
	return id
}

// adopt gives an open session to the user who authenticated in it.
func (d *directory) adopt(id []byte, p *person, kind credentialKind) {
	h := holder{user: p.name, kind: kind}
	d.mu.RLock()
	same := d.sessions[string(id)] == h
	d.mu.RUnlock()
	if !same {
		d.mu.Lock()
		d.sessions[string(id)] = h
		d.mu.Unlock()
	}
}

var errNoUser = errors.New("no such user")

const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newKey registers an API key. An empty key is made up in the form of the real
// ones: ak1_, 8 characters of id, 256 of secret.
func (d *directory) newKey(user, key string) (string, error) {
	if !d.has(user) {
		return "", errNoUser
	}
	if key == "" {
		key = "ak1_" + randomText(8+256, alphanumeric)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys[key] = holder{user: strings.ToUpper(user), kind: apiKey}
	return key, nil
}

// newSession registers a single sign-on cookie and returns its value.
func (d *directory) newSession(user string) (string, error) {
	if !d.has(user) {
		return "", errNoUser
	}
	id := randomText(32, "0123456789ABCDEF")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sso[id] = holder{user: strings.ToUpper(user), kind: session}
	return id, nil
}

// withdraw ends a key or a session and reports whether it was known.
func (d *directory) withdraw(value string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := false
	for _, credentials := range []map[string]holder{d.keys, d.sso, d.sessions} {
		if _, ok := credentials[value]; ok {
			known = true
			delete(credentials, value)
		}
	}
	return known
}

// randomText draws n characters of an alphabet; the bias of the remainder does
// not matter here.
func randomText(n int, alphabet string) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return string(b)
}
