package pip

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache/redistest"
)

// soon lets contexts be due for a refresh as soon as they are used again.
func soon(c *Config) { c.RefreshAfter = time.Nanosecond }

// Nobody waits for a refresh, and one replica makes it for all.
func TestRefresh(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	a.set("Bearer t", profileOf("U", "SPK", "old"))
	p := token("u", "t")
	replicas := []*Source{replica(t, a, server.URL(), soon), replica(t, a, server.URL(), soon), replica(t, a, server.URL(), soon)}
	expect(t, "first", roles(replicas[0], p), "old")

	calling, resume := a.pause()
	a.set("Bearer t", profileOf("U", "SPK", "new"))
	before := a.calls.Load()
	for range 100 {
		for _, s := range replicas {
			expect(t, "while the API is asked", roles(s, p), "old")
		}
	}
	calling()
	if n := a.calls.Load() - before; n != 1 {
		t.Errorf("%d profile calls", n)
	}
	resume()
	for _, s := range replicas {
		eventually(t, "the new context is used", func() bool { return roles(s, p) == "new" })
	}
}

// Answers decide in the background as they do in a request.
func TestRefreshAnswers(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url, soon)
		begin := func(text string) *authz.Principal {
			t.Helper()
			a.set("Bearer "+text, profileOf(text, "SPK", "old"))
			p := token(text, text)
			expect(t, text, roles(s, p), "old")
			return p
		}
		is := func(p *authz.Principal, kind error) func() bool {
			return func() bool { _, err := s.Subject(context.Background(), p); return errors.Is(err, kind) }
		}

		p := begin("withdrawn")
		a.set("Bearer withdrawn", "")
		eventually(t, "401 ends the credential", is(p, authz.ErrUnauthenticated))

		p = begin("powerless")
		a.set("Bearer powerless", "403")
		eventually(t, "403 ends the rights", func() bool {
			return says(s, p) == `{"id":"powerless","username":"powerless","authenticated":true,"auth_method":"jwt","roles":[],"roles_by_office":{},"offices":[]}`
		})

		p = begin("renamed")
		a.set("Bearer renamed", profileOf("other", "SPK", "new"))
		eventually(t, "another name is another context", func() bool { return says(s, p) != "" && roles(s, p) == "new" })

		// The service credential is used when the caller's own has ended.
		p = begin("expired")
		p.Expires = time.Now().Add(-time.Second)
		a.set("Bearer expired", "")
		a.set("apikey service /users/expired", profileOf("expired", "SPK", "new"))
		eventually(t, "the service credential helps", func() bool { return roles(s, p) == "new" })
		a.set("apikey service /users/expired", profileOf("someone", "SPK", "newer"))
		expect(t, "an answer for another user is refused", roles(s, p), "new")
	})
}

// A failing API does not take away what is known, until its life is over.
func TestRefreshFails(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url, soon, func(c *Config) { c.Life = 5 * time.Second })
		a.set("Bearer t", profileOf("U", "SPK", "old"))
		p := token("u", "t")
		expect(t, "first", roles(s, p), "old")
		a.fail(500)
		calls := a.calls.Load()
		for a.calls.Load() == calls {
			expect(t, "while the API fails", roles(s, p), "old")
		}
		eventually(t, "its life ends", func() bool { _, err := s.Subject(t.Context(), p); return errors.Is(err, authz.ErrUnavailable) })
	})
}

// The alias of a key is asked for again before its minute is over.
func TestRefreshOfAKey(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s := replica(t, a, server.URL())
	a.set("apikey k", profileOf("U", "SPK", "r"))
	p := key("k")
	alias := fmt.Sprintf("user:alias:%x", p.Alias)
	expect(t, "first", roles(s, p), "r")
	server.Do("pexpire", alias, "15000")
	eventually(t, "it lives longer", func() bool {
		expect(t, "meanwhile", roles(s, p), "r")
		left, _ := time.ParseDuration(server.Do("pttl", alias) + "ms")
		return left > 50*time.Second
	})
	if n := a.calls.Load(); n != 2 {
		t.Errorf("%d profile calls", n)
	}

	server.Do("pexpire", alias, "1")
	a.set("apikey k", "")
	eventually(t, "a key that is withdrawn ends with its alias", func() bool {
		_, err := s.Subject(t.Context(), p)
		return errors.Is(err, authz.ErrUnauthenticated)
	})
}
