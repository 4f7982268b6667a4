package pip

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"headgate/proxy/cache/redistest"
)

func TestPrewarm(t *testing.T) {
	everywhere(t, func(t *testing.T, redis string) {
		a := newAPI(t)
		s := replica(t, a, redis)
		lookUp := func(name, profile string) { a.set("apikey service /users/"+name, profile) }
		lookUp("A", `{"user-name":"A","principal":"https://issuer::a","roles":{"SPK":["r"]}}`)
		lookUp("B C", `{"user-name":"B C","principal":"https://issuer::b","roles":{"SPK":["r"]}}`) // a name that must be escaped
		lookUp("KEY", profileOf("KEY", "SPK", "r"))                                                // never linked to a token
		lookUp("D", profileOf("E", "SPK", "r"))                                                    // somebody else
		var steps []int
		got, err := s.Prewarm(t.Context(), []string{"A", "B C", "KEY", "D", "NOBODY"}, func(done, of int) { steps = append(steps, done, of) })
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Failed) == 2 {
			expect(t, "D", got.Failed[0].Err.Error(), `the API answered for the user "E" when asked for "D"`)
			expect(t, "NOBODY", got.Failed[1].Err.Error(), errNoUser.Error())
		}
		for i := range got.Failed {
			got.Failed[i].Err = nil
		}
		want := Warming{Warmed: 2, NotWarmable: []string{"KEY"}, Failed: []Failure{{User: "D"}, {User: "NOBODY"}}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
		expect(t, "progress", fmt.Sprint(steps), "[1 5 2 5 3 5 4 5 5 5]")

		calls := a.calls.Load()
		expect(t, "A", roles(s, token("a", "t1")), "r")
		expect(t, "B C", roles(s, token("b", "t2")), "r")
		if n := a.calls.Load() - calls; n != 0 {
			t.Errorf("%d profile calls for warm users", n)
		}
	})
}

// Another replica finds done what the first has done.
func TestPrewarmTwice(t *testing.T) {
	server := redistest.Start(t)
	a := newAPI(t)
	a.set("apikey service /users/A", `{"user-name":"A","principal":"https://issuer::a","roles":{"SPK":["r"]}}`)
	for range 2 {
		got, err := replica(t, a, server.URL()).Prewarm(t.Context(), []string{"A"}, nil)
		if want := (Warming{Warmed: 1}); !reflect.DeepEqual(got, want) || err != nil {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if n := a.calls.Load(); n != 1 {
		t.Errorf("%d look-ups", n)
	}
}

func TestPrewarmStops(t *testing.T) {
	a := newAPI(t)
	s := replica(t, a, "")
	ctx, stop := context.WithCancel(t.Context())
	users := make([]string, 1000)
	for i := range users {
		users[i] = fmt.Sprint("U", i)
	}
	got, err := s.Prewarm(ctx, users, func(done, _ int) {
		if done == 3 {
			stop()
		}
	})
	if err != context.Canceled || len(got.Failed) > 3+prewarmers {
		t.Errorf("%d done, %v", len(got.Failed), err)
	}
	none := replica(t, a, "", func(c *Config) { c.ServiceKey = "" })
	if _, err := none.Prewarm(t.Context(), users, nil); err == nil {
		t.Error("users were looked up without a service key")
	}
}

// FuzzProfile feeds profiles to the parser: it must not panic, and what it accepts
// must survive Redis and be fit for a question to policy.
func FuzzProfile(f *testing.F) {
	f.Add(`{"user-name":"A","roles":{"spk":["b","a","b"]},"ts-group-privileges":[{"ts-group-code":1,"ts-group-id":"x"}]}`)
	f.Add(`{"user-name":"A","roles":null,"principal":"i::s"}`)
	f.Add(`{"user-name":"\ud800"}`)
	s := &Source{cfg: Config{Life: never}}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := parse([]byte(body), time.Now())
		if err != nil {
			return
		}
		r.RunID = "run"
		p := token("sub", "t")
		back := s.read(r.encode(), r.Username, "run", p)
		if !r.of(p) {
			return
		}
		if back == nil {
			t.Fatalf("%q is not read back: %s", body, r.encode())
		}
		e := entry{user: back.user()}
		if !json.Valid(e.subject(p).JSON()) {
			t.Fatalf("%q gives %s", body, e.subject(p).JSON())
		}
	})
}
