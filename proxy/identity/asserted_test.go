package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"
)

func TestAssertedUser(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     authz.User
	}{
		{"everything", `{"id":"m5","username":"M5HECTEST","email":"m5@example.mil","roles":["b","a","b"],
			"roles_by_office":{"hq":["water_manager"],"SWT":["a"]},"offices":["swt","SPK"],"primary_office":"swt",
			"ts_privileges":[{"b":1,"a":"é"}],"attributes":{"z":1,"y":[ ]},"persona":"dam_operator","shift_start":6.0,
			"nested":{"b":[{"d":1e3,"c":null}],"a":true}}`,
			authz.User{
				ID: "m5", Username: "M5HECTEST", Email: "m5@example.mil",
				Roles:         []string{"a", "b", "water_manager"},
				RolesByOffice: map[string][]string{"HQ": {"water_manager"}, "SWT": {"a"}},
				Offices:       []string{"HQ", "SPK", "SWT"}, PrimaryOffice: "SWT",
				Privileges: json.RawMessage(`[{"a":"\u00e9","b":1}]`),
				Attributes: json.RawMessage(`{"y":[],"z":1}`),
				Extra: map[string]json.RawMessage{
					"persona":     json.RawMessage(`"dam_operator"`),
					"shift_start": json.RawMessage(`6.0`),
					"nested":      json.RawMessage(`{"a":true,"b":[{"c":null,"d":1e3}]}`),
				},
			}},
		{"a name is enough", `{"username":"m5"}`, authz.User{ID: "m5", Username: "m5"}},
		{"an id is enough", `{"id":"m5"}`, authz.User{ID: "m5", Username: "m5"}},
		{"null is absent", `{"id":"m5","email":null,"roles":null,"roles_by_office":null,"offices":null,"ts_privileges":null}`,
			authz.User{ID: "m5", Username: "m5"}},
		{"who it is we say", `{"id":"m5","authenticated":false,"auth_method":"jwt"}`, authz.User{ID: "m5", Username: "m5"}},
		{"the only office that is not HQ", `{"id":"m5","offices":["HQ","SPK"]}`,
			authz.User{ID: "m5", Username: "m5", Offices: []string{"HQ", "SPK"}, PrimaryOffice: "SPK"}},
		{"else the first", `{"id":"m5","offices":["SWT","SPK"]}`,
			authz.User{ID: "m5", Username: "m5", Offices: []string{"SPK", "SWT"}, PrimaryOffice: "SPK"}},
		{"names have case", `{"id":"m5","ID":"x"}`,
			authz.User{ID: "m5", Username: "m5", Extra: map[string]json.RawMessage{"ID": json.RawMessage(`"x"`)}}},
	} {
		p, err := Asserted(json.RawMessage(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !reflect.DeepEqual(*p.User, c.want) || p.Method != authz.Asserted {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, *p.User, c.want)
		}
		if doc := authz.NewSubject(p, *p.User, time.Time{}).JSON(); !json.Valid(doc) {
			t.Errorf("%s: the question would be %s", c.name, doc)
		}
	}
}

func TestAssertedUserRefused(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{``, "user must be a JSON object: not valid JSON"},
		{`null`, "user must be a JSON object: not an object"},
		{`"m5"`, "user must be a JSON object: not an object"},
		{`[]`, "user must be a JSON object: not an object"},
		{`{"id":"m5"} x`, "user must be a JSON object: not valid JSON"},
		{`{"id":"a","id":"b"}`, "user must be a JSON object: two members of one name"},
		{"{\"id\":\"\xff\"}", "user must be a JSON object: a string is not valid UTF-8"},
		{`{"\udc00":1}`, "user must be a JSON object: a string is not valid UTF-8"},
		{`{}`, "user.id or user.username must be given"},
		{`{"id":""}`, "user.id or user.username must be given"},
		{`{"id":"\ud800"}`, "user.id must be a string; user.id or user.username must be given"},
		{`{"id":1,"username":"a","email":[],"roles":"x","roles_by_office":[],"offices":{},"primary_office":7,"ts_privileges":{}}`,
			"user.email must be a string; user.id must be a string; user.offices must be an array of strings; " +
				"user.primary_office must be a string; user.roles must be an array of strings; " +
				"user.roles_by_office must be an object of arrays of strings; user.ts_privileges must be an array"},
		{`{"id":"a","roles":["x",null,"",3]}`, "user.roles[1] must be a string that is not empty; " +
			"user.roles[2] must be a string that is not empty; user.roles[3] must be a string that is not empty"},
		{`{"id":"a","offices":["S/T"]}`, "user.offices must be an office: 1 to 16 letters or digits"},
		{`{"id":"a","offices":["ABCDEFGHIJKLMNOPQ"]}`, "user.offices must be an office: 1 to 16 letters or digits"},
		{`{"id":"a","roles_by_office":{"swt":[],"SWT":[]}}`, "user.roles_by_office must name each office once"},
		{`{"id":"a","roles_by_office":{"":[]}}`, "user.roles_by_office must name each office once"},
		{`{"id":"a","roles_by_office":{"SWT":"x"}}`, "user.roles_by_office.SWT must be an array of strings"},
		{`{"id":"a","x":{"y":1,"y":2}}`, "user.x cannot be passed on: two members of one name"},
		{`{"id":"a","x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, "user.x cannot be passed on: nested deeper than 32"},
	} {
		p, err := Asserted(json.RawMessage(c.in))
		var r *authz.Refusal
		if p != nil || !errors.Is(err, authz.ErrMalformed) || !errors.As(err, &r) || r.Message != c.want {
			t.Errorf("%s:\ngot  %v, %v\nwant %s", c.in, p, err, c.want)
		}
	}
}

func TestTestUsers(t *testing.T) {
	v, err := New(Config{None: true, TestUsers: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := v.Verify(context.Background(), authz.Credentials{
		TestUser:      []byte(`{"id":"m5","offices":["swt"]}`),
		Authorization: []byte("apikey " + key268),
		Cookie:        []byte("JSESSIONIDSSO=a"),
	})
	if err != nil || p.Method != authz.Test || p.User.ID != "m5" || p.Credential != (authz.Credential{}) {
		t.Errorf("got %+v, %v", p, err)
	}
	if _, err := v.Verify(context.Background(), authz.Credentials{TestUser: []byte(`{"id":1}`)}); !errors.Is(err, authz.ErrMalformed) {
		t.Errorf("got %v", err)
	}
	if p, err := v.Verify(context.Background(), authz.Credentials{}); err != nil || !p.Anonymous() {
		t.Errorf("without the header: %v, %v", p, err)
	}
}

// FuzzAsserted: an accepted user gives a valid ASCII document, and is the same
// user when read from that document again.
func FuzzAsserted(f *testing.F) {
	for _, s := range []string{
		`{"id":"m5","roles":["a"],"offices":["swt","HQ"],"roles_by_office":{"hq":["b"]}}`,
		`{"username":"é","x":{"b":[1,2.50,{"a":null}]},"ts_privileges":[],"attributes":"\ud83d\ude00"}`,
		`{"id":"a","claims":{"x":1},"":""}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Asserted(raw)
		if err != nil {
			if !errors.Is(err, authz.ErrMalformed) {
				t.Fatalf("unexpected %v", err)
			}
			return
		}
		doc := authz.NewSubject(p, *p.User, time.Time{}).JSON()
		if !json.Valid(doc) || bytes.ContainsFunc(doc, func(r rune) bool { return r >= 0x7f }) {
			t.Fatalf("%s became %s", raw, doc)
		}
		again, err := Asserted(doc)
		if err != nil {
			t.Fatalf("%s became %s: %v", raw, doc, err)
		}
		if twice := authz.NewSubject(again, *again.User, time.Time{}).JSON(); !bytes.Equal(doc, twice) {
			t.Errorf("%s became %s, then %s", raw, doc, twice)
		}
	})
}

func BenchmarkAsserted(b *testing.B) {
	user := json.RawMessage(`{"id":"damop001","username":"damop001","roles":["dam_operator"],"offices":["SWT"],` +
		`"persona":"dam_operator","shift_start":6,"shift_end":18,"timezone":"America/Chicago"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Asserted(user); err != nil {
			b.Fatal(err)
		}
	}
}
