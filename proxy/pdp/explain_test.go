package pdp

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"
)

// An explanation answers as Decide would, says what there is, and leaves the cache
// and its counts as they were.
func TestExplain(t *testing.T) {
	clock := &hand{}
	f := newFakeOPA(t, says(allowR1))
	d := polled(t, f.URL, func(c *Config) { c.Now, c.Lease = clock.now, time.Second })
	state := func(name string, q authz.Question, want string) Explanation {
		t.Helper()
		before := [2]uint64{hits.Get(), misses.Get()}
		decision, e, err := d.Explain(t.Context(), q)
		if err != nil || e.Cache.State != want || (want == "hit") != (decision.Source == authz.FromCache) {
			t.Errorf("%s: %+v from %s, %v; want %s", name, e.Cache, decision.Source, err, want)
		}
		if before != [2]uint64{hits.Get(), misses.Get()} {
			t.Errorf("%s: counted as a hit or miss", name)
		}
		return e
	}
	state("never asked", question(1), "miss")
	if e := state("not stored", question(1), "miss"); e.OPA.Lifetime != 60_000 || !*e.OPA.Allow || e.OPA.Revision != "r1" {
		t.Errorf("OPA: %+v", e.OPA)
	}
	if n := d.entries.Len(); n != 0 {
		t.Errorf("%d entries", n)
	}

	decide(t, d, question(1))
	clock.advance(300 * time.Millisecond)
	e := state("asked", question(1), "hit")
	if c := e.Cache; *c.Age != 300 || *c.Left != 59_700 || *c.LeaseAge != 300 || c.Lease != 1000 || c.Epoch != 1 || c.Revision != "r1" || !*c.Allow || len(c.Ends) == 0 {
		t.Errorf("%+v", c)
	}
	if e.Cache.Key == state("another", question(2), "miss").Cache.Key {
		t.Error("two questions have one key")
	}
	large := authz.Question{Body: []byte(`{"input":"` + strings.Repeat("x", maxCachedInput) + `"}`)}
	state("large", large, "off")

	// OPA denies now, without another revision: a hit is what a request would get,
	// and what OPA says now stands beside it.
	f.answers(says(strings.Replace(allowR1, "true", "false", 1)))
	if e := state("OPA changed its mind", question(1), "hit"); *e.OPA.Allow {
		t.Error("OPA was not asked")
	}
	// OPA is away: the hit still counts, and the rest is no decision.
	f.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	if e := state("OPA fails", question(1), "hit"); e.OPA.Error == "" || e.OPA.Allow != nil {
		t.Errorf("OPA: %+v", e.OPA)
	}
	if _, _, err := d.Explain(t.Context(), question(2)); statusKind(err) != authz.ErrNoDecision {
		t.Errorf("got %v", err)
	}

	f.answers(says(allowR2))
	f.runs(says(listR2))
	if problem, err := d.poll(); err != nil {
		t.Fatal(problem, err)
	}
	state("another policy", question(1), "moved")
}

func statusKind(err error) error {
	if refusal, ok := err.(*authz.Refusal); ok {
		return refusal.Kind
	}
	return err
}

// A trace is cut where it is too long, and read no further.
func TestReadTrace(t *testing.T) {
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"line %d",`, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for name, c := range map[string]struct {
		answer string
		lines  int
		cut    bool
		bad    bool
	}{
		"notes":             {`{"decision_id":"d","explanation":["a","b"],"result":{}}`, 2, false, false},
		"after the result":  {`{"result":{"explanation":["no"]},"explanation":["a"]}`, 1, false, false},
		"none":              {`{"result":true}`, 0, false, false},
		"null":              {`{"explanation":null,"result":true}`, 0, false, false},
		"too many lines":    {`{"explanation":[` + lines(maxTraceLines+1) + `]`, maxTraceLines, true, false},
		"too many bytes":    {`{"explanation":["a","` + strings.Repeat("x", maxTraceBytes) + `"]}`, 1, true, false},
		"not JSON":          {`<html>`, 0, false, true},
		"it breaks off":     {`{"explanation":["a"`, 1, false, true},
		"not lines":         {`{"explanation":[{"op":"enter"}]}`, 0, false, true},
		"no object":         {`[]`, 0, false, false},
		"nothing":           {``, 0, false, true},
		"it is not a list":  {`{"explanation":{"a":1}}`, 0, false, false},
		"a huge first part": {`{"metrics":"` + strings.Repeat("x", maxTraceBytes) + `"}`, 0, true, false},
	} {
		got, err := readTrace(strings.NewReader(c.answer))
		if len(got.Lines) != c.lines || got.Cut != c.cut || (err != nil) != c.bad {
			t.Errorf("%s: %d lines, cut %v, %v", name, len(got.Lines), got.Cut, err)
		}
	}
}

// A real OPA tells by notes and in full, and also over a Unix socket.
func TestTraceOfARealOPA(t *testing.T) {
	rule := filepath.Join(t.TempDir(), "policy.rego")
	if err := os.WriteFile(rule, []byte("package cwms.authz\ndecision := {\"allow\": true} if trace(\"looked at n\")\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := startOPA(t, options{unix: true, args: []string{rule}})
	d := newDecider(t, o.address)
	t.Cleanup(d.tracer.client.CloseIdleConnections)
	notes := d.Trace(question(1), "notes")
	if notes.Error != "" || !strings.Contains(strings.Join(notes.Lines, "\n"), "looked at n") {
		t.Errorf("notes: %+v", notes)
	}
	if full := d.Trace(question(1), "full"); full.Error != "" || len(full.Lines) <= len(notes.Lines) {
		t.Errorf("full: %+v", full)
	}
	o.kill()
	if gone := d.Trace(question(1), "full"); gone.Error == "" || gone.Lines == nil {
		t.Errorf("OPA is gone: %+v", gone)
	}
}
