package pip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache/redistest"
)

// The same must hold with and without Redis.
func everywhere(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("redis", func(t *testing.T) { test(t, redistest.Start(t).URL()) })
	t.Run("process", func(t *testing.T) { test(t, "") })
}

func TestSubjectOfEachCredential(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url)
		profile := `{"user-name":"M5HECTEST","principal":"https://issuer::sub-1","email":"m5@example.test","cac-auth":true,
			"roles":{"swt":["CWMS Users","All Users","CWMS Users"],"HQ":["water_manager"]},
			"ts-group-privileges":[{"ts-group-code":18,"ts-group-id":"b","privilege":"none"},
				{"ts-group-code":17,"ts-group-id":"a","privilege":"read","embargo-hours":72}]}`
		for _, credential := range []string{"Bearer t1", "apikey k1", "JSESSIONIDSSO=c1"} {
			a.set(credential, profile)
		}
		json := func(method string) string {
			return `{"id":"M5HECTEST","username":"M5HECTEST","email":"m5@example.test","authenticated":true,"auth_method":"` + method + `",` +
				`"roles":["All Users","CWMS Users","water_manager"],"roles_by_office":{"HQ":["water_manager"],"SWT":["All Users","CWMS Users"]},` +
				`"offices":["HQ","SWT"],"primary_office":"SWT",` +
				`"ts_privileges":[{"ts_group_code":17,"ts_group_id":"a","privilege":"read","embargo_hours":72},{"ts_group_code":18,"ts_group_id":"b","privilege":"none"}]}`
		}
		for range 3 { // the second and third time are warm
			expect(t, "token", says(s, token("sub-1", "t1")), json("jwt"))
			expect(t, "key", says(s, key("k1")), json("api_key"))
			expect(t, "cookie", says(s, cookie("JSESSIONIDSSO=c1")), json("session"))
		}
		// A context in Redis is used for whoever turns out to be its user.
		if n := a.calls.Load(); n != 3 {
			t.Errorf("%d profile calls for 3 credentials", n)
		}
	})
}

func TestSubjectWithoutACall(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "")
	expect(t, "nobody", says(s, &authz.Principal{Method: authz.None}), string(authz.AnonymousSubject.JSON()))
	user := &authz.User{ID: "u", Username: "u", Roles: []string{"r"}}
	for _, method := range []authz.Method{authz.Asserted, authz.Test} {
		expect(t, string(method), says(s, &authz.Principal{Method: method, User: user}),
			`{"id":"u","username":"u","authenticated":true,"auth_method":"`+string(method)+`","roles":["r"],"offices":[]}`)
	}
	if n := a.calls.Load(); n != 0 {
		t.Errorf("%d profile calls", n)
	}
}

func TestPrimaryOffice(t *testing.T) {
	for offices, want := range map[string]string{
		"": "", "HQ": "HQ", "SPK": "SPK", "HQ SPK": "SPK", "CWB HQ": "CWB", "HQ SPK SWT": "HQ", "SPK SWT": "SPK",
	} {
		expect(t, offices, primary(strings.Fields(offices)), want)
	}
}

// What the API says decides.
func TestAnswersOfTheAPI(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url)
		kind := func(p *authz.Principal, want error) {
			t.Helper()
			if _, err := s.Subject(t.Context(), p); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		nobody := `{"id":"%s","username":"%[1]s","authenticated":true,"auth_method":"%s","roles":[],"roles_by_office":{},"offices":[]}`

		kind(token("a", "unknown"), authz.ErrUnauthenticated)
		kind(key("unknown"), authz.ErrUnauthenticated)
		optional := cookie("JSESSIONID=unknown")
		optional.Optional = true
		expect(t, "a servlet session that the API does not know", says(s, optional), string(authz.AnonymousSubject.JSON()))
		calls := a.calls.Load()
		kind(token("a", "unknown"), authz.ErrUnauthenticated)
		kind(key("unknown"), authz.ErrUnauthenticated)
		says(s, optional)
		if n := a.calls.Load() - calls; n != 0 {
			t.Errorf("%d calls for what was refused a moment ago", n)
		}

		a.set("Bearer no rights", "403")
		a.set("apikey no rights", "403")
		expect(t, "token without rights", says(s, token("sub-2", "no rights")), fmt.Sprintf(nobody, "sub-2", "jwt"))
		p := key("no rights")
		expect(t, "key without rights", says(s, p), fmt.Sprintf(nobody, fmt.Sprintf("api_key:%x", p.Alias[:6]), "api_key"))

		for name, profile := range map[string]string{
			"no name": `{"roles":{"SPK":["a"]}}`, "null": `null`, "not JSON": `<html>`, "truncated": `{"user-name":"A"`,
			"wrong type": `{"user-name":7}`, "a name like a claim": `{"user-name":"!A"}`, "a control character": `{"user-name":"A\u0000"}`,
			"huge":              `{"user-name":"A","email":"` + strings.Repeat("x", maxProfile) + `"}`,
			"another's":         `{"user-name":"A","principal":"https://issuer::somebody else"}`,
			"of another issuer": `{"user-name":"A","principal":"https://other::` + "a" + `"}`,
		} {
			a.set("Bearer "+name, profile)
			kind(token("a", name), authz.ErrUnavailable)
		}
		for _, status := range []int{500, 502, 503, 404, 302, 204, 429} {
			a.fail(status)
			kind(token("b", fmt.Sprint(status)), authz.ErrUnavailable)
		}
		a.fail(0)
		a.set("Bearer good", profileOf("B", "SPK", "r"))
		expect(t, "failures are not remembered", roles(s, token("b", "good")), "r")
	})
}

func TestOneCallForAllWhoWait(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	a.set("Bearer t", profileOf("U", "SPK", "r"))
	replicas := []*Source{replica(t, a, server.URL()), replica(t, a, server.URL()), replica(t, a, server.URL())}
	calling, resume := a.pause()

	// The one who asks first leaves.
	first, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := replicas[0].Subject(first, token("u", "t"))
		left <- err
	}()
	calling()
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if got := roles(replicas[i%3], token("u", "t")); got != "r" {
				t.Errorf("got %q", got)
			}
		})
	}
	leave()
	if err := <-left; !errors.Is(err, authz.ErrUnavailable) {
		t.Errorf("the one who left got %v", err)
	}
	resume()
	wg.Wait()
	if n := a.calls.Load(); n != 1 {
		t.Errorf("%d profile calls", n)
	}
}

func TestCallsAreBounded(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "", func(c *Config) { c.MaxCalls = 4 })
	a.set("Bearer t", profileOf("U", "SPK", "r"))
	calling, resume := a.pause()
	var wg sync.WaitGroup
	ask := func(p *authz.Principal) {
		wg.Go(func() { s.Subject(context.Background(), p) })
	}
	// Keys that nobody has vouched for may take two of four places.
	ask(key("1"))
	ask(key("2"))
	calling()
	calling()
	if _, err := s.Subject(t.Context(), key("3")); !errors.Is(err, authz.ErrUnavailable) {
		t.Errorf("a third key: %v", err)
	}
	ask(token("u", "1"))
	ask(token("v", "2"))
	calling()
	calling()
	if _, err := s.Subject(t.Context(), token("w", "3")); !errors.Is(err, authz.ErrUnavailable) {
		t.Errorf("a fifth call: %v", err)
	}
	resume()
	wg.Wait()
	expect(t, "afterwards", roles(s, token("u", "t")), "r")
	if n := a.calls.Load(); n != 5 {
		t.Errorf("%d profile calls", n)
	}
}

// An address alone gets half of the places of strangers; who comes from another is
// served, and so is a verified user.
func TestNoAddressTakesAllPlaces(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "") // 32 calls, 16 of them for strangers
	calling, resume := a.pause()
	var wg sync.WaitGroup
	from := func(p *authz.Principal, address string) *authz.Principal {
		p.From = netip.MustParseAddr(address)
		return p
	}
	served := func(p *authz.Principal) {
		wg.Go(func() { s.Subject(context.Background(), p) })
		calling()
	}
	refused := func(p *authz.Principal) {
		t.Helper()
		if _, err := s.Subject(t.Context(), p); !errors.Is(err, authz.ErrUnavailable) || !errors.Is(err, errCrowded) {
			t.Errorf("%v: %v", p.From, err)
		}
	}
	before := strangersCrowded.Get()
	for i := range 8 {
		served(from(key(fmt.Sprint("a", i)), "192.0.2.1"))
	}
	refused(from(key("a8"), "192.0.2.1"))
	for i := range 4 {
		served(from(cookie(fmt.Sprint("JSESSIONIDSSO=b", i)), "192.0.2.2"))
	}
	refused(from(key("b4"), "192.0.2.2"))
	served(from(key("c"), "192.0.2.3"))
	served(from(token("u", "t"), "192.0.2.1"))
	if n := strangersCrowded.Get() - before; n != 2 {
		t.Errorf("%d counted", n)
	}
	resume()
	wg.Wait()
	if free, of := s.calls.strangers.free, s.calls.strangers.of; free != 16 || len(of) != 0 {
		t.Errorf("afterwards %d free, %v", free, of)
	}
}

// Two tokens of one user may differ in their claims; two users whose names differ
// in case are two users; who was renamed is who they are now.
func TestRightContexts(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url)
		a.set("Bearer 1", profileOf("U", "SPK", "r"))
		one, two := token("u", "1"), token("u", "1")
		one.Claims, two.Claims = []byte(`{"scope":"a"}`), []byte(`{"scope":"b"}`)
		for range 3 {
			for _, p := range []*authz.Principal{one, two} {
				if got := says(s, p); !strings.Contains(got, `"claims":`+string(p.Claims)) {
					t.Errorf("claims %s in %s", p.Claims, got)
				}
			}
		}
		a.set("Bearer big", profileOf("BOB", "SPK", "big"))
		a.set("Bearer small", profileOf("bob", "SPK", "small"))
		for range 3 {
			expect(t, "BOB", roles(s, token("BOB", "big")), "big")
			expect(t, "bob", roles(s, token("bob", "small")), "small")
		}

		a.set("Bearer r", profileOf("OLD", "SPK", "old"))
		expect(t, "before", roles(s, token("x", "r")), "old")
		a.set("Bearer r", profileOf("NEW", "SPK", "new"))
		if _, err := s.Invalidate(t.Context(), "OLD"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new name is found", func() bool { return roles(s, token("x", "r")) == "new" })
		if _, err := s.Invalidate(t.Context(), "NEW"); err != nil {
			t.Fatal(err)
		}
		a.set("Bearer r", profileOf("NEW", "SPK", "newer"))
		eventually(t, "it can be revoked by it", func() bool { return roles(s, token("x", "r")) == "newer" })
	})
}

func TestGuessableKeysStayInTheProcess(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s := replica(t, a, server.URL())
	a.set("apikey 1234", profileOf("U", "SPK", "r"))
	p := key("1234")
	p.Guessable = true
	for range 3 {
		expect(t, "the user", roles(s, p), "r")
	}
	if n := a.calls.Load(); n != 1 {
		t.Errorf("%d profile calls", n)
	}
	if keys := server.Do("keys", "*"); strings.Contains(keys, fmt.Sprintf("%x", p.Alias)) || !strings.Contains(keys, "user:context:u") {
		t.Errorf("Redis holds %q", keys)
	}
	a.set("apikey 1234", profileOf("U", "SPK", "less"))
	server.Do("del", "user:context:u")
	eventually(t, "its context is revoked as any other", func() bool { return roles(s, p) == "less" })
}

// What stands in Redis is for operators too.
func TestWhatStandsInRedis(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s := replica(t, a, server.URL())
	a.set("Bearer t", profileOf("M5HECTEST", "SWT", "r"))
	a.set("apikey k", profileOf("M5HECTEST", "SWT", "r"))
	roles(s, token("sub", "t"))
	roles(s, key("k"))

	p := token("sub", "t")
	expect(t, "alias", server.Do("get", fmt.Sprintf("user:alias:%x", p.Alias)), "M5HECTEST")
	got := server.Do("get", "user:context:m5hectest")
	prefix := `{"id":"M5HECTEST","username":"M5HECTEST","roles":["r"],"offices":["SWT"],"primary_office":"SWT","roles_by_office":{"SWT":["r"]},"v":2,"run_id":"`
	if !strings.HasPrefix(got, prefix) {
		t.Errorf("got %s\nwant %s…", got, prefix)
	}
	for key, most := range map[string]time.Duration{
		"user:context:m5hectest":                     30 * time.Minute,
		fmt.Sprintf("user:alias:%x", p.Alias):        30 * time.Minute,
		fmt.Sprintf("user:alias:%x", key("k").Alias): time.Minute,
		"user:known:m5hectest":                       32 * time.Minute,
	} {
		left, _ := time.ParseDuration(server.Do("pttl", key) + "ms")
		if left <= most-10*time.Second || left > most {
			t.Errorf("%s lives for %v, want %v", key, left, most)
		}
	}
	if keys := strings.Fields(server.Do("keys", "*")); len(keys) != 4 {
		t.Errorf("Redis holds %q", keys)
	}
}

func TestContextsThatAreNotUsed(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s := replica(t, a, server.URL())
	p := token("sub", "t")
	a.set("Bearer t", `{"user-name":"U","principal":"https://issuer::sub","roles":{"SPK":["good"]}}`)
	expect(t, "first", roles(s, p), "good")
	good := server.Do("get", "user:context:u")
	for name, change := range map[string][2]string{
		"another version":   {`"v":2`, `"v":3`},
		"another user":      {`"username":"U"`, `"username":"u"`},
		"another principal": {`issuer::sub`, `issuer::other`},
		"another process":   {`"run_id":"`, `"run_id":"x`},
		"too old":           {`"fetched_at":"20`, `"fetched_at":"19`},
		"not JSON":          {`{`, `[`},
	} {
		bad := strings.Replace(strings.Replace(good, `"good"`, `"bad"`, -1), change[0], change[1], 1)
		server.Do("set", "user:context:u", bad)
		eventually(t, name+" is read anew", func() bool {
			expect(t, name, roles(s, p), "good")
			return !strings.Contains(server.Do("get", "user:context:u"), `"bad"`)
		})
	}
}

func TestVerifiedClaimsAlone(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "", func(c *Config) { c.ProfileURL = NoProfile })
	p := token("sub", "t")
	p.Name, p.Claims = "joe", []byte(`{"groups":["a"]}`)
	for range 2 {
		expect(t, "token", says(s, p), `{"id":"sub","username":"joe","authenticated":true,"auth_method":"jwt","roles":[],"offices":[],"claims":{"groups":["a"]}}`)
	}
	if _, err := s.Subject(t.Context(), key("k")); !errors.Is(err, authz.ErrUnauthenticated) {
		t.Errorf("a key that nobody can vouch for: %v", err)
	}
	if n := a.calls.Load(); n != 0 {
		t.Errorf("%d profile calls", n)
	}
}

func TestContextsWrittenByAnOperator(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	s := replica(t, a, server.URL(), func(c *Config) { c.ProfileURL = RedisProfile })
	p := token("Sub", "t")
	base := `{"id":"Sub","username":"Sub","authenticated":true,"auth_method":"jwt","roles":[],"offices":[]`
	expect(t, "nothing written", says(s, p), base+`}`)
	server.Do("set", "user:context:Sub", `{ "team": "é" }`)
	eventually(t, "it is seen", func() bool { return says(s, p) == base+`,"attributes":{"team":"\u00e9"}}` })
	server.Do("set", "user:context:Sub", `[1, 2]`)
	eventually(t, "a change is seen", func() bool { return says(s, p) == base+`,"attributes":[1,2]}` })
	server.Do("set", "user:context:Sub", `oops`)
	eventually(t, "what is not JSON is no context", func() bool { _, err := s.Subject(t.Context(), p); return errors.Is(err, authz.ErrUnavailable) })
	server.Do("del", "user:context:Sub")
	eventually(t, "the deletion is seen", func() bool { return says(s, p) == base+`}` })
	server.Kill()
	eventually(t, "without Redis nobody can be asked", func() bool { _, err := s.Subject(t.Context(), p); return errors.Is(err, authz.ErrUnavailable) })
}

func TestConfigFaults(t *testing.T) {
	for _, cfg := range []Config{
		{ProfileURL: RedisProfile}, // and no Redis
		{ProfileURL: "http://x", Life: time.Minute, RefreshAfter: time.Hour},
		{ProfileURL: "http://x", LookupURL: "http://x/users"},
	} {
		if _, err := New(cfg, nil); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestWarmSubjectAllocatesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, url string) {
		a := newAPI(t)
		s := replica(t, a, url)
		a.set("Bearer t", profileOf("U", "SPK", "r"))
		p := token("u", "t")
		roles(s, p)
		if n := testing.AllocsPerRun(1000, func() { s.Subject(context.Background(), p) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
