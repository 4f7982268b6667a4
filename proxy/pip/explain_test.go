package pip

import (
	"errors"
	"strings"
	"testing"

	"headgate/proxy/authz"
	"headgate/proxy/cache/redistest"
)

// An explanation says what Subject would, from where it would, and leaves nothing
// behind: not in Redis, not in the process, not among the refusals.
func TestExplainTellsWhatSubjectDoesAndKeepsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url)
		a.set("Bearer t", profileOf("M5HECTEST", "SWT", "r"))
		a.set("apikey k", profileOf("M5HECTEST", "SWT", "r"))
		a.set("apikey no rights", "403")
		kept := "redis"
		if url == "" {
			kept = "process"
		}
		explain := func(name string, p *authz.Principal, source string) Explanation {
			t.Helper()
			got, x, err := s.Explain(t.Context(), p)
			if x.Source != source {
				t.Errorf("%s: from %+v, want %s", name, x, source)
			}
			other, otherErr := (*authz.Subject)(nil), error(nil)
			if source != "api" { // else the look below would be the first
				other, otherErr = s.Subject(t.Context(), p)
				if (err == nil) != (otherErr == nil) || err == nil && string(got.JSON()) != string(other.JSON()) {
					t.Errorf("%s: explained %v %v, is %v %v", name, got, err, other, otherErr)
				}
			}
			return x
		}
		for range 2 { // the second time nothing has changed
			explain("unknown", token("m5", "t"), "api")
			explain("unknown key", key("k"), "api")
			explain("bad key", key("bad"), "api")
			explain("key without rights", key("no rights"), "api")
		}
		if s.Users() != 0 || s.refused.Len() != 0 || s.names.Len() != 0 || s.own.contexts.Len() != 0 {
			t.Errorf("kept %d users, %d refusals, %d names, %d contexts", s.Users(), s.refused.Len(), s.names.Len(), s.own.contexts.Len())
		}
		if s.redis != nil {
			if err := s.redis.Keys(t.Context(), "", func(keys []string) error {
				if len(keys) > 0 {
					t.Errorf("left in Redis: %q", keys)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}

		expect(t, "now they come", roles(s, token("m5", "t")), "r")
		x := explain("known", token("m5", "t"), "process")
		if x.User != "M5HECTEST" || x.Age == nil || len(x.Ends) < 2 {
			t.Errorf("%+v", x)
		}
		calls := a.calls.Load()
		if _, _, x, err := s.ExplainUser(t.Context(), "m5hectest"); err != nil || x.Source != kept || x.User != "M5HECTEST" {
			t.Errorf("by name: %+v, %v", x, err)
		}
		if n := a.calls.Load() - calls; n != 0 {
			t.Errorf("%d calls for what is known", n)
		}
		if _, err := s.Subject(t.Context(), key("bad")); err == nil {
			t.Error("a bad key is good")
		}
		explain("refused a moment ago", key("bad"), "refusal")
		explain("nobody", &authz.Principal{Method: authz.None}, "none")

		if _, err := s.Invalidate(t.Context(), "M5HECTEST"); err != nil {
			t.Fatal(err)
		}
		explain("revoked", token("m5", "t"), "api")
	})
}

// Another replica finds in Redis what the first one put there, and a user by name
// whom nobody has asked for with the service key.
func TestExplainFromRedisAndByName(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	first, second := replica(t, a, server.URL(), func(c *Config) { c.ServiceKey = "" }), replica(t, a, server.URL())
	a.set("Bearer t", profileOf("M5HECTEST", "SWT", "r"))
	expect(t, "the first replica", roles(first, token("m5", "t")), "r")
	for range 2 {
		subject, x, err := second.Explain(t.Context(), token("m5", "t"))
		if err != nil || x.Source != "redis" || subject.ID != "M5HECTEST" || second.Users() != 0 {
			t.Errorf("%+v, %v", x, err)
		}
	}
	a.set("apikey service /users/OTHER", profileOf("OTHER", "SPK", "r"))
	p, subject, x, err := second.ExplainUser(t.Context(), "OTHER")
	if err != nil || x.Source != "api" || subject.ID != "OTHER" || subject.Method != authz.JWT || p.Credential != (authz.Credential{}) {
		t.Errorf("%+v %+v, %v", subject, x, err)
	}
	for who, s := range map[string]*Source{"with a service key": second, "without": first} {
		if _, _, _, err := s.ExplainUser(t.Context(), "TYPO"); !errors.Is(err, ErrNoUser) {
			t.Errorf("%s: %v", who, err)
		}
	}
	found := 0
	if err := first.redis.Keys(t.Context(), contextPrefix, func(keys []string) error { found += len(keys); return nil }); err != nil || found != 1 {
		t.Errorf("%d contexts in Redis, %v", found, err)
	}

	// While another fetches, or where what stands there is of no use, it is not waited for.
	for value, note := range map[string]string{newClaim(): "just reading", `{"v":1}`: "unusable", "junk": "unusable"} {
		if err := first.redis.Set(t.Context(), contextPrefix+"m5hectest", value, markLife); err != nil {
			t.Fatal(err)
		}
		_, x, err := second.Explain(t.Context(), token("m5", "t"))
		if err != nil || x.Source != "api" || !strings.Contains(x.Note, note) {
			t.Errorf("%s: %+v, %v", value, x, err)
		}
	}
	server.Kill()
	_, x, err = second.Explain(t.Context(), token("m5", "t"))
	if err != nil || x.Source != "api" {
		t.Errorf("without Redis: %+v, %v", x, err)
	}
}
