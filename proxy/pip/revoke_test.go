package pip

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
	"headgate/proxy/cache/redistest"
)

// One deletion by name is seen by every replica and for every credential.
func TestRevocation(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	users := []*authz.Principal{token("u", "t"), key("k"), cookie("JSESSIONIDSSO=c")}
	give := func(role string) {
		for _, p := range users {
			a.set(p.Credential.Value, profileOf("M5HECTEST", "SWT", role))
		}
	}
	replicas := []*Source{replica(t, a, server.URL()), replica(t, a, server.URL()), replica(t, a, server.URL())}
	everyone := func(what string) {
		t.Helper()
		for i, s := range replicas {
			for _, p := range users {
				eventually(t, fmt.Sprintf("%s is seen by replica %d with %s", what, i, p.Method), func() bool { return roles(s, p) == what })
			}
		}
	}
	give("first")
	everyone("first")

	give("second")
	server.Do("del", "user:context:m5hectest")
	everyone("second")

	give("third")
	got, err := replicas[1].Invalidate(t.Context(), "M5hecTest")
	if want := (Revocation{Contexts: 1}); got != want || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	everyone("third")

	give("fourth")
	got, err = replicas[2].InvalidateAll(t.Context())
	if want := (Revocation{Contexts: 1}); got != want || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	everyone("fourth")

	got, err = replicas[0].Invalidate(t.Context(), "nobody")
	if want := (Revocation{}); got != want || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	server.Kill()
	if _, err = replicas[0].Invalidate(t.Context(), "m5hectest"); !errors.Is(err, cache.ErrAway) {
		t.Errorf("without Redis: %v", err)
	}
}

func TestRevocationInTheProcess(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "")
	p := token("u", "t")
	a.set("Bearer t", profileOf("U", "SPK", "old"))
	expect(t, "first", roles(s, p), "old")
	a.set("Bearer t", profileOf("U", "SPK", "new"))
	expect(t, "warm", roles(s, p), "old")
	if got, err := s.Invalidate(t.Context(), "u"); got != (Revocation{Contexts: 1}) || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	expect(t, "at once", roles(s, p), "new")
	if got, err := s.InvalidateAll(t.Context()); got != (Revocation{Contexts: 1}) || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}

	// While the API is asked.
	a.set("Bearer t", profileOf("U", "SPK", "older"))
	calling, resume := a.pause()
	got := make(chan string)
	go func() { got <- roles(s, p) }()
	calling()
	a.set("Bearer t", profileOf("U", "SPK", "newest"))
	if _, err := s.Invalidate(t.Context(), "U"); err != nil {
		t.Fatal(err)
	}
	resume()
	expect(t, "the answer that was on its way is not used", <-got, "newest")
}

// A fetch that was under way when its user was revoked brings nothing back,
// whatever was known about the user.
func TestRevocationOvertakesAFetch(t *testing.T) {
	for _, test := range []struct {
		name   string
		before func(s *Source, server *redistest.Server) // what has happened to the user
		revoke func(t *testing.T, s *Source, server *redistest.Server)
	}{
		{"a user never seen, invalidated", nil, invalidate},
		{"all users", nil, func(t *testing.T, s *Source, _ *redistest.Server) {
			if _, err := s.InvalidateAll(t.Context()); err != nil {
				t.Error(err)
			}
		}},
		{"a known user, invalidated", known, invalidate},
		{"a known user, deleted", known, func(t *testing.T, _ *Source, server *redistest.Server) {
			server.Do("del", "user:context:u") // the claim
		}},
		{"another credential of a present user, deleted", present, func(t *testing.T, _ *Source, server *redistest.Server) {
			if n := server.Do("del", "user:context:u"); n != "1" {
				t.Errorf("deleted %s", n)
			}
		}},
		{"another credential of a present user, invalidated", present, invalidate},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Start(t)
			a := newAPI(t)
			s, other := replica(t, a, server.URL()), replica(t, a, server.URL())
			p := token("u", "t")
			a.set("Bearer t", profileOf("U", "SPK", "old"))
			a.set("apikey k", profileOf("U", "SPK", "old"))
			if test.before != nil {
				test.before(s, server)
			}
			calling, resume := a.pause()
			got := make(chan string)
			go func() { got <- roles(s, p) }()
			calling()
			a.set("Bearer t", profileOf("U", "SPK", "new"))
			a.set("apikey k", profileOf("U", "SPK", "new"))
			test.revoke(t, other, server)
			resume()
			expect(t, "the one who waited", <-got, "new")
			expect(t, "another replica", roles(other, p), "new")
			expect(t, "another credential", roles(other, key("k")), "new")
		})
	}
}

// known lets Redis know the name behind the token, but no context.
func known(_ *Source, server *redistest.Server) {
	server.Do("set", aliasKey(token("u", "t")), "U")
}

// present lets the context be there, read with another credential.
func present(s *Source, _ *redistest.Server) { roles(s, key("k")) }

func invalidate(t *testing.T, s *Source, _ *redistest.Server) {
	if _, err := s.Invalidate(t.Context(), "U"); err != nil {
		t.Error(err)
	}
}

func TestRevocationOvertakesARefresh(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s, other := replica(t, a, server.URL(), soon), replica(t, a, server.URL())
	p := token("u", "t")
	a.set("Bearer t", profileOf("U", "SPK", "old"))
	expect(t, "first", roles(s, p), "old")
	calling, resume := a.pause()
	expect(t, "warm", roles(s, p), "old")
	calling() // the refresh has read the old profile
	a.set("Bearer t", profileOf("U", "SPK", "new"))
	server.Do("del", "user:context:u")
	resume()
	eventually(t, "the new profile is used", func() bool { return roles(other, p) == "new" })
	eventually(t, "and here", func() bool { return roles(s, p) == "new" })
	for range 100 {
		expect(t, "still", roles(s, p)+roles(other, p), "newnew")
	}
}

var interleavings = flag.Int64("interleavings", 1000, "random meetings of fetches, refreshes and revocations to try")

// A right that was taken away never comes back, whatever meets whatever: requests
// with credentials known and unknown, at two replicas, before, during and after a
// bare DEL of a context that is there or an invalidation in any state.
func TestRevokedRightsNeverComeBack(t *testing.T) {
	server := redistest.Start(t)
	var rights sync.Map // user -> *atomic.Bool: has the right
	standIn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "apikey "), "/")
		right, ok := rights.Load(user)
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		role := "without"
		if right.(*atomic.Bool).Load() {
			role = "with"
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // the answer is old before it arrives
		fmt.Fprint(w, profileOf(user, "SPK", role))
	}))
	t.Cleanup(standIn.Close)
	a := &api{Server: standIn}
	change := func(c *Config) { c.MaxCalls = 1000 }
	sources := []*Source{
		replica(t, a, server.URL(), change), replica(t, a, server.URL(), change),
		replica(t, a, server.URL(), change, soon), replica(t, a, server.URL(), change, soon),
	}
	operator, err := cache.OpenRedis(cache.RedisConfig{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operator.Close)

	var next, bare atomic.Int64
	before := overtaken.Get()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := next.Add(1); n <= *interleavings; n = next.Add(1) {
				user := fmt.Sprint("USER", n)
				right := new(atomic.Bool)
				right.Store(true)
				rights.Store(user, right)
				if meet(t, user, right, sources, operator) {
					bare.Add(1)
				}
				rights.Delete(user)
			}
		})
	}
	wg.Wait()
	overtook := overtaken.Get() - before
	t.Logf("%d interleavings, %d of them with a bare DEL, %d fetches overtaken", *interleavings, bare.Load(), overtook)
	if overtook == 0 {
		t.Error("nothing ever met")
	}
}

// meet is one meeting. It reports whether a bare DEL was tried.
func meet(t *testing.T, user string, right *atomic.Bool, sources []*Source, operator *cache.Redis) bool {
	ctx := context.Background()
	pair := sources[:2] // without refreshes, or with one for every request
	if rand.N(2) == 0 {
		pair = sources[2:]
	}
	credential := func() *authz.Principal {
		switch rand.N(3) {
		case 0:
			return token(user, user)
		case 1:
			return key(user + "/1")
		}
		return key(user + "/2")
	}
	for range rand.N(3) { // what is known beforehand
		roles(pair[rand.N(2)], credential())
	}
	var wg sync.WaitGroup
	for range 1 + rand.N(3) { // who is on the way
		wg.Go(func() {
			time.Sleep(rand.N(time.Millisecond))
			roles(pair[rand.N(2)], credential())
		})
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	right.Store(false)
	bare := rand.N(2) == 0
	if bare {
		// Only a context that is there can be revoked by a bare DEL.
		v, err := operator.Get(ctx, "user:context:"+strings.ToLower(user))
		there := err == nil && v[0].Text != "" && !isClaim(v[0].Text)
		was, err := operator.Delete(ctx, "user:context:"+strings.ToLower(user))
		if err != nil || !was || !there {
			bare = false
		}
	}
	if !bare {
		eventually(t, "the revocation is made", func() bool { _, err := pair[rand.N(2)].Invalidate(ctx, user); return err == nil })
	}
	for _, s := range pair {
		wg.Go(func() {
			seen := false
			for i := 0; i < 20 || !seen; i++ {
				got := roles(s, credential())
				switch {
				case got == "without":
					seen = true
				case got != "with":
					t.Errorf("%s: %s", user, got)
					return
				case seen:
					t.Errorf("%s: a right came back (bare DEL: %v)", user, bare)
					return
				}
				if i > 10_000 {
					t.Errorf("%s: the right is still there (bare DEL: %v)", user, bare)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, s := range pair { // whatever was on the way has arrived
		if got := roles(s, credential()); got != "without" {
			t.Errorf("%s: %s at the end (bare DEL: %v)", user, got, bare)
		}
	}
	return bare
}
