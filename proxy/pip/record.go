package pip

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"headgate/proxy/authz"
)

// version of the records that this program writes. Another version is a miss, so
// that two releases can share one Redis while one replaces the other.
const version = 2

// record is what is known about a user, as it stands in Redis under
// user:context:<name>. It is a superset of what the earlier proxy wrote there. It
// holds nothing of the credential by which the user came.
type record struct {
	ID            string              `json:"id"`
	Username      string              `json:"username"`
	Email         string              `json:"email,omitempty"`
	Roles         []string            `json:"roles"`
	Offices       []string            `json:"offices"`
	PrimaryOffice string              `json:"primary_office,omitempty"`
	RolesByOffice map[string][]string `json:"roles_by_office"`
	Privileges    json.RawMessage     `json:"ts_privileges,omitempty"`
	Version       int                 `json:"v"`
	// RunID is the Redis process it was written to. A replica that takes over, or
	// a server that was restarted from a snapshot, has another: it may not have
	// seen a deletion.
	RunID string `json:"run_id,omitempty"`
	// Principal is issuer::subject, if the API names it.
	Principal string    `json:"principal,omitempty"`
	Fetched   time.Time `json:"fetched_at"` // when the profile was asked for
}

func (r *record) encode() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic("BUG: cannot encode a record: " + err.Error())
	}
	return string(b)
}

// user is the record as policy sees it.
func (r *record) user() authz.User {
	return authz.User{
		ID: r.ID, Username: r.Username, Email: r.Email,
		Roles: r.Roles, RolesByOffice: r.RolesByOffice, Offices: r.Offices, PrimaryOffice: r.PrimaryOffice,
		Privileges: r.Privileges,
	}
}

// withoutRoles is the user when the API says that they may do nothing.
func (r *record) withoutRoles(fetched time.Time) *record {
	return &record{
		ID: r.ID, Username: r.Username, Email: r.Email, Principal: r.Principal,
		Roles: []string{}, Offices: []string{}, RolesByOffice: map[string][]string{},
		Version: version, Fetched: fetched,
	}
}

// profile is the answer of /user/profile and of /users/{name}: class User of the
// API whose table is built in, which names members in kebab case and
// leaves out what is null.
type profile struct {
	UserName   string              `json:"user-name"`
	Principal  string              `json:"principal"`
	Email      string              `json:"email"`
	Roles      map[string][]string `json:"roles"`
	Privileges []struct {
		Code    json.Number `json:"ts-group-code"`
		ID      string      `json:"ts-group-id"`
		Right   string      `json:"privilege"`
		Embargo json.Number `json:"embargo-hours"`
	} `json:"ts-group-privileges"`
}

// privilege is an element of ts_privileges, named as the earlier proxy did.
type privilege struct {
	Code    json.Number `json:"ts_group_code,omitempty"`
	ID      string      `json:"ts_group_id"`
	Right   string      `json:"privilege"`
	Embargo json.Number `json:"embargo_hours,omitempty"`
}

var errNoName = errors.New("the profile has no user name")

// parse reads a profile. The API answers in the order of a hash map; here
// everything is sorted, so that equal rights are equal bytes.
func parse(body []byte, fetched time.Time) (*record, error) {
	var p profile
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, fmt.Errorf("cannot read the profile: %w", err)
	}
	if p.UserName == "" {
		return nil, errNoName
	}
	if strings.HasPrefix(p.UserName, claimMark) || strings.ContainsFunc(p.UserName, unicode.IsControl) || len(p.UserName) > 256 {
		return nil, fmt.Errorf("the profile has the impossible user name %q", p.UserName)
	}
	r := &record{
		ID: p.UserName, Username: p.UserName, Email: p.Email, Principal: p.Principal,
		RolesByOffice: make(map[string][]string, len(p.Roles)),
		Version:       version, Fetched: fetched,
	}
	for office, roles := range p.Roles {
		office = strings.ToUpper(office)
		r.RolesByOffice[office] = append(r.RolesByOffice[office], roles...)
	}
	r.Roles = []string{}
	for office, roles := range r.RolesByOffice {
		r.RolesByOffice[office] = each(roles)
		r.Roles = append(r.Roles, roles...)
	}
	r.Roles = each(r.Roles)
	r.Offices = slices.AppendSeq([]string{}, maps.Keys(r.RolesByOffice))
	slices.Sort(r.Offices)
	r.PrimaryOffice = primary(r.Offices)

	if p.Privileges != nil {
		list := make([]privilege, len(p.Privileges))
		for i, g := range p.Privileges {
			list[i] = privilege(g)
		}
		slices.SortFunc(list, func(a, b privilege) int {
			return strings.Compare(a.ID+"\x00"+string(a.Code)+"\x00"+a.Right, b.ID+"\x00"+string(b.Code)+"\x00"+b.Right)
		})
		var err error
		if r.Privileges, err = json.Marshal(list); err != nil {
			return nil, fmt.Errorf("cannot read the profile: %w", err)
		}
	}
	return r, nil
}

// each is every element once, sorted; never nil.
func each(list []string) []string {
	list = append([]string{}, list...)
	slices.Sort(list)
	return slices.Compact(list)
}

// primary is the only office that is not HQ, else the first of the sorted ones.
func primary(offices []string) string {
	if len(offices) == 0 {
		return ""
	}
	if len(offices) == 2 && slices.Contains(offices, "HQ") {
		return offices[1-slices.Index(offices, "HQ")]
	}
	return offices[0]
}
