package authz

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzAppendString: what is written is ASCII, and reads back as what went in.
func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "SWT", `a"b\c`, "line\nbreak\x00\x1f\x7f", "Nuñez", "\u2028", "\U0001f30a", "\ufffd", "</script>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			t.Skip() // refused before it gets here
		}
		b := AppendString(nil, s)
		mustBeASCII(t, b)
		var back string
		if err := json.Unmarshal(b, &back); err != nil || back != s {
			t.Fatalf("%q became %s, read as %q, %v", s, b, back, err)
		}
	})
}

// FuzzAppendASCII: valid JSON stays the same value.
func FuzzAppendASCII(f *testing.F) {
	for _, s := range []string{`{"a":["é",1.0,null]}`, `"\u00e9😀"`, `{"😀":{"x":-0}}`, "\"\x7f\"", "1E700"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) || !utf8.Valid(raw) {
			t.Skip()
		}
		b := AppendASCII(nil, raw)
		mustBeASCII(t, b)
		if was, is := value(t, raw), value(t, b); !reflect.DeepEqual(was, is) {
			t.Fatalf("%s became %s", raw, b)
		}
	})
}

// value reads JSON with its numbers as written: not all fit a float64.
func value(t *testing.T, raw []byte) (v any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

func mustBeASCII(t *testing.T, b []byte) {
	t.Helper()
	for _, c := range b {
		if c >= 0x7f {
			t.Fatalf("not ASCII: %q", b)
		}
	}
}

// FuzzInput: the document is valid JSON and says what went in, so different
// questions have different bytes. A separator in a value cannot make two alike.
func FuzzInput(f *testing.F) {
	f.Add("M5HECTEST", "water_manager", "SWT", "timeseries", "read", "/timeseries", "parameter", "Elev", "S%")
	f.Add("a\",\"id\":\"b", "r\\", "SPK\"],[\"", "x}", "{", "\n", "office_id", "SWT", "")
	f.Fuzz(func(t *testing.T, id, role, office, resource, action, template, name, value, mask string) {
		for _, s := range []string{id, role, office, resource, action, template, name, value, mask} {
			if !utf8.ValidString(s) {
				t.Skip()
			}
		}
		p := &Principal{Method: JWT, Claims: json.RawMessage(`{"scope":"x"}`)}
		subject := NewSubject(p, User{ID: id, Username: id, Roles: []string{role}, RolesByOffice: map[string][]string{office: {role}}, Offices: []string{office}}, time.Time{})
		in := Input{Subject: subject, Resource: resource, Action: action, Context: Context{
			Method: "GET", Route: template, Params: []Pair{{name, value}}, Offices: []string{office}, Scope: ScopeOne, Mask: mask,
		}}
		q := in.Question(nil)
		mustBeASCII(t, q.Body)
		var doc struct {
			Input struct {
				User struct {
					ID     string              `json:"id"`
					Roles  []string            `json:"roles"`
					Held   map[string][]string `json:"roles_by_office"`
					Claims map[string]string   `json:"claims"`
				} `json:"user"`
				Resource string `json:"resource"`
				Action   string `json:"action"`
				Context  struct {
					Route  string            `json:"route"`
					Params map[string]string `json:"params"`
					Office string            `json:"office_id"`
					Mask   *string           `json:"office_mask"`
				} `json:"context"`
			} `json:"input"`
		}
		if err := json.Unmarshal(q.Body, &doc); err != nil {
			t.Fatalf("%v: %s", err, q.Body)
		}
		got := doc.Input
		if got.User.ID != id || got.User.Roles[0] != role || got.User.Held[office][0] != role || got.User.Claims["scope"] != "x" ||
			got.Resource != resource || got.Action != action || got.Context.Route != template || got.Context.Params[name] != value ||
			got.Context.Office != office || (got.Context.Mask == nil) != (mask == "") || mask != "" && *got.Context.Mask != mask {
			t.Fatalf("%+v is not what went in: %s", got, q.Body)
		}
		if !bytes.Equal(q.Body, append(append([]byte(bodyStart), in.AppendJSON(nil)...), bodyEnd...)) || !json.Valid(q.Context) {
			t.Fatalf("the parts differ: %s", q.Body)
		}
	})
}

// Two questions differ in one thing at a time, and so do their bytes.
func TestDifferentQuestionsDiffer(t *testing.T) {
	base := func() (Principal, User, Input) {
		return Principal{Method: JWT}, User{ID: "a", Username: "b", Roles: []string{"r"}, Offices: []string{"SWT"}},
			Input{Resource: "timeseries", Action: "read", Context: Context{Method: "GET", Offices: []string{"SWT"}, Scope: ScopeOne}}
	}
	seen, keys := map[string]string{}, map[[sha256.Size]byte]string{}
	for name, change := range map[string]func(*Principal, *User, *Input){
		"nothing":             func(*Principal, *User, *Input) {},
		"method of identity":  func(p *Principal, _ *User, _ *Input) { p.Method = Asserted },
		"claims":              func(p *Principal, _ *User, _ *Input) { p.Claims = json.RawMessage(`{"aud":"x"}`) },
		"id":                  func(_ *Principal, u *User, _ *Input) { u.ID = "ab" },
		"name":                func(_ *Principal, u *User, _ *Input) { u.Username = "" },
		"email":               func(_ *Principal, u *User, _ *Input) { u.Email = "a@example.org" },
		"roles":               func(_ *Principal, u *User, _ *Input) { u.Roles = []string{"r", "s"} },
		"role with a comma":   func(_ *Principal, u *User, _ *Input) { u.Roles = []string{"r,s"} },
		"no roles by office":  func(_ *Principal, u *User, _ *Input) { u.RolesByOffice = map[string][]string{} },
		"roles by office":     func(_ *Principal, u *User, _ *Input) { u.RolesByOffice = map[string][]string{"SWT": {"r"}} },
		"offices of the user": func(_ *Principal, u *User, _ *Input) { u.Offices = nil },
		"primary office":      func(_ *Principal, u *User, _ *Input) { u.PrimaryOffice = "SWT" },
		"privileges":          func(_ *Principal, u *User, _ *Input) { u.Privileges = json.RawMessage(`[]`) },
		"attributes":          func(_ *Principal, u *User, _ *Input) { u.Attributes = json.RawMessage(`{}`) },
		"a stated member": func(_ *Principal, u *User, _ *Input) {
			u.Extra = map[string]json.RawMessage{"persona": json.RawMessage(`"x"`)}
		},
		"resource":       func(_ *Principal, _ *User, in *Input) { in.Resource = "levels" },
		"action":         func(_ *Principal, _ *User, in *Input) { in.Action = "create" },
		"request method": func(_ *Principal, _ *User, in *Input) { in.Context.Method = "" },
		"route":          func(_ *Principal, _ *User, in *Input) { in.Context.Route = "/x" },
		"subresource":    func(_ *Principal, _ *User, in *Input) { in.Context.Subresource = "x" },
		"params":         func(_ *Principal, _ *User, in *Input) { in.Context.Params = []Pair{{"x", "y"}} },
		"another office": func(_ *Principal, _ *User, in *Input) { in.Context.Offices = []string{"SPK"} },
		"two offices": func(_ *Principal, _ *User, in *Input) {
			in.Context.Offices, in.Context.Scope = []string{"SPK", "SWT"}, ScopeMany
		},
		"scope":     func(_ *Principal, _ *User, in *Input) { in.Context.Scope = ScopeUnknown },
		"mask":      func(_ *Principal, _ *User, in *Input) { in.Context.Mask = "S" },
		"attribute": func(_ *Principal, _ *User, in *Input) { in.Context.Attributes = []Pair{{"parameter", "Elev"}} },
		"stated": func(_ *Principal, _ *User, in *Input) {
			in.Context.Stated = map[string]json.RawMessage{"x": json.RawMessage("1")}
		},
		"more than is hashed apart": func(_ *Principal, _ *User, in *Input) {
			in.Context.Params = []Pair{{"x", strings.Repeat("y", maxRest)}}
		},
		"stated 1.0": func(_ *Principal, _ *User, in *Input) {
			in.Context.Stated = map[string]json.RawMessage{"x": json.RawMessage("1.0")}
		},
	} {
		p, u, in := base()
		change(&p, &u, &in)
		in.Subject = NewSubject(&p, u, time.Time{})
		q := in.Question(nil)
		if again := in.Question(bytes.Repeat([]byte("z"), 4096)); again.Key() != q.Key() {
			t.Errorf("%s: asked again it has another key", name)
		}
		if other, ok := keys[q.Key()]; ok {
			t.Errorf("%s and %s have one key", name, other)
		}
		keys[q.Key()] = name
		body := string(q.Body)
		if other, ok := seen[body]; ok {
			t.Errorf("%s and %s are one question: %s", name, other, body)
		}
		seen[body] = name
	}
}

// The context header gives up privileges and then roles to fit, never a
// constraint; what fits not even then is an allow that cannot be carried out.
func TestHeaderFits(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long := func(n int) []string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("role number %04d", i))
		}
		return list
	}
	privileges := json.RawMessage(`[` + strings.TrimSuffix(strings.Repeat(`{"ts-group-id":"x"},`, 400), ",") + `]`)
	for _, c := range []struct {
		name              string
		user              User
		constraints       string
		limit             int
		roles, privileged bool
		err               error
	}{
		{"small", User{Roles: []string{"a"}, Privileges: json.RawMessage(`[]`)}, `{}`, 1 << 20, true, true, nil},
		{"many privileges", User{Roles: []string{"a"}, Privileges: privileges}, `{}`, 1 << 20, true, false, nil},
		{"many roles", User{Roles: long(500), Privileges: privileges}, `{}`, 1 << 20, false, false, nil},
		{"many constraints", User{Roles: []string{"a"}}, `{"x":"` + strings.Repeat("x", MaxContextHeader) + `"}`, 1 << 20, false, false, ErrObligation},
		{"little room, some privileges", User{Roles: []string{"a"}, Privileges: json.RawMessage(`[` + strings.Repeat(" ", 500) + `]`)}, `{}`, 500, true, false, nil},
		{"little room, some roles", User{Roles: long(20)}, `{}`, 300, false, false, nil},
		{"no room", User{}, `{}`, 100, false, false, ErrObligation},
		{"less than none", User{}, `{}`, -1, false, false, ErrObligation},
	} {
		c.user.ID, c.user.Username = "Nuñez", "Nuñez"
		g := Grant{
			Subject: NewSubject(&Principal{Method: JWT}, c.user, time.Time{}), Context: []byte(`{}`),
			Decision: &Decision{Allow: true, ID: "d", Constraints: json.RawMessage(c.constraints)},
		}
		b, reduced, err := g.AppendHeader([]byte("before "), c.limit, now)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if err != nil {
			if string(b) != "before " {
				t.Errorf("%s: %q is left", c.name, b)
			}
			continue
		}
		mustBeASCII(t, b)
		var header struct {
			User        map[string]any
			Constraints json.RawMessage
			Timestamp   string
		}
		if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("before ")), &header); err != nil || len(b)-len("before ") > min(c.limit, MaxContextHeader) {
			t.Errorf("%s: %d bytes, %v", c.name, len(b), err)
		}
		_, roles := header.User["roles"]
		_, privileged := header.User["ts_privileges"]
		if reduced != (!roles || !privileged && c.user.Privileges != nil) {
			t.Errorf("%s: reduced is %v", c.name, reduced)
		}
		if roles != c.roles || privileged != c.privileged || string(header.Constraints) != c.constraints || header.Timestamp != "2026-01-02T03:04:05.000Z" {
			t.Errorf("%s: roles %v, privileges %v, constraints %s, at %s", c.name, roles, privileged, header.Constraints, header.Timestamp)
		}
	}
}

// A credential does not show itself, however it is printed.
func TestCredentialIsNeverShown(t *testing.T) {
	p := Principal{Method: APIKey, Credential: Credential{"Authorization", "apikey canary"}}
	j, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(p), fmt.Sprintf("%v %+v %#v %s", p, p, p, p.Credential), string(j)} {
		if strings.Contains(text, "canary") {
			t.Errorf("shown: %s", text)
		}
	}
}
