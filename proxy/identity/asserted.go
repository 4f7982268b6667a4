package identity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"headgate/proxy/authz"
)

// Asserted is the principal that a trusted caller of /authorize describes: a
// JSON object of the members of authz.User by their names in the input document.
// Members that policy of this deployment knows beyond them are passed on; those
// that say how the user was identified are ignored, since we say that.
//
// An error is an authz.ErrMalformed that names every bad member.
func Asserted(user json.RawMessage) (*authz.Principal, error) {
	return asserted(user, authz.Asserted)
}

func asserted(raw []byte, method authz.Method) (*authz.Principal, error) {
	members, err := object(raw)
	if err != nil {
		return nil, authz.Refuse(authz.ErrMalformed, "user must be a JSON object: %s", err)
	}
	d := description{members: members}
	u := authz.User{
		ID:            d.text("id"),
		Username:      d.text("username"),
		Email:         d.text("email"),
		Roles:         d.texts("roles"),
		RolesByOffice: d.rolesByOffice(),
		Offices:       d.offices(),
		PrimaryOffice: d.office("primary_office", d.text("primary_office")),
		Privileges:    d.array("ts_privileges"),
		Attributes:    d.any("attributes"),
	}
	d.take("authenticated")
	d.take("auth_method")
	for name := range d.members {
		if u.Extra == nil {
			u.Extra = make(map[string]json.RawMessage)
		}
		u.Extra[name] = d.canonical(name, d.members[name])
	}
	if u.ID == "" && u.Username == "" {
		d.bad("id", "or user.username must be given")
	}
	if d.faults != nil {
		return nil, authz.Refuse(authz.ErrMalformed, "%s", strings.Join(sorted(d.faults), "; "))
	}
	u.ID = cmp.Or(u.ID, u.Username)
	u.Username = cmp.Or(u.Username, u.ID)
	for office, roles := range u.RolesByOffice {
		u.Offices = append(u.Offices, office)
		u.Roles = append(u.Roles, roles...)
	}
	u.Offices = sorted(u.Offices)
	u.Roles = sorted(u.Roles)
	if u.PrimaryOffice == "" {
		u.PrimaryOffice = primaryOf(u.Offices)
	}
	return &authz.Principal{Method: method, Alias: aliasOf(method, raw), User: &u}, nil
}

// primaryOf is the only office that is not HQ, where everybody has some role,
// else the first.
func primaryOf(offices []string) string {
	if len(offices) == 0 {
		return ""
	}
	other := slices.DeleteFunc(slices.Clone(offices), func(o string) bool { return o == "HQ" })
	if len(other) == 1 {
		return other[0]
	}
	return offices[0]
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// description is a user object that is being read: members taken are removed,
// faults are collected.
type description struct {
	members map[string]json.RawMessage
	faults  []string
}

func (d *description) bad(name, fault string) {
	d.faults = append(d.faults, fmt.Sprintf("user.%s %s", name, fault))
}

// take removes a member and returns it; null counts as absent.
func (d *description) take(name string) json.RawMessage {
	raw := d.members[name]
	delete(d.members, name)
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	return raw
}

func (d *description) text(name string) string {
	raw := d.take(name)
	if raw == nil {
		return ""
	}
	s, err := text(raw)
	if err != nil {
		d.bad(name, "must be a string")
	}
	return s
}

func (d *description) texts(name string) []string {
	return d.textsOf(name, d.take(name))
}

func (d *description) textsOf(name string, raw json.RawMessage) []string {
	if raw == nil {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || raw[0] != '[' {
		d.bad(name, "must be an array of strings")
		return nil
	}
	texts := make([]string, len(list))
	for i, raw := range list {
		s, err := text(raw)
		if err != nil || s == "" {
			d.bad(fmt.Sprintf("%s[%d]", name, i), "must be a string that is not empty")
		}
		texts[i] = s
	}
	return sorted(texts)
}

// office is an office in upper case; an empty one is left out, not bad.
func (d *description) office(name, office string) string {
	for _, c := range office {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') || len(office) > 16 {
			d.bad(name, "must be an office: 1 to 16 letters or digits")
			break
		}
	}
	return strings.ToUpper(office)
}

func (d *description) offices() []string {
	offices := d.texts("offices")
	for i, office := range offices {
		offices[i] = d.office("offices", office)
	}
	return offices
}

func (d *description) rolesByOffice() map[string][]string {
	raw := d.take("roles_by_office")
	if raw == nil {
		return nil
	}
	members, err := object(raw)
	if err != nil {
		d.bad("roles_by_office", "must be an object of arrays of strings")
		return nil
	}
	roles := make(map[string][]string, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		office := d.office("roles_by_office", name)
		if _, twice := roles[office]; twice || office == "" {
			d.bad("roles_by_office", "must name each office once")
		}
		roles[office] = d.textsOf("roles_by_office."+office, members[name])
	}
	return roles
}

func (d *description) array(name string) json.RawMessage {
	raw := d.take(name)
	if raw != nil && raw[0] != '[' {
		d.bad(name, "must be an array")
		return nil
	}
	return d.canonical(name, raw)
}

func (d *description) any(name string) json.RawMessage {
	return d.canonical(name, d.take(name))
}

func (d *description) canonical(name string, raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	b, err := appendCanonical(nil, raw, maxDepth)
	if err != nil {
		d.bad(name, "cannot be passed on: "+err.Error())
	}
	return b
}
