package pdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"
)

// row is what a Decider says of its OPA: one row of the table in doc.go.
type row struct {
	ready    string       // why it is not; empty if it is
	revision string       // of decisions
	first    authz.Source // of a question asked before under another policy; empty if there is no decision
	second   authz.Source // and when asked again
	allow    bool
	uncached string
}

// observe asks the same question twice.
func observe(t *testing.T, d *Decider) row {
	t.Helper()
	var r row
	if err := d.Ready(); err != nil {
		r.ready = err.Error()
	}
	r.uncached = d.Status().Uncached
	for _, source := range []*authz.Source{&r.first, &r.second} {
		decision, err := d.Decide(context.Background(), question(1))
		if err != nil && !errors.Is(err, authz.ErrNoDecision) {
			t.Error(err)
		}
		*source, r.revision, r.allow = decision.Source, decision.Revision, decision.Allow
	}
	return r
}

func (r row) is(t *testing.T, name string, want row) {
	t.Helper()
	if r != want {
		t.Errorf("%s\n got %+v\nwant %+v", name, r, want)
	}
}

const (
	byOPA   = authz.FromOPA
	byCache = authz.FromCache
)

// settled makes a Decider for a real OPA that runs revision r1 and has cached an
// allow.
func settled(t *testing.T, o options) (*realOPA, *Decider) {
	t.Helper()
	o.bundles.publish(bundle(t, allowRule, "r1", "cwms"))
	opa := startOPA(t, o)
	d := running(t, opa.address, func(c *Config) { c.Lease = time.Second })
	until(t, "r1 runs", func() bool { return d.Status().Revision == "r1" })
	observe(t, d).is(t, "r1 runs", row{revision: "r1", allow: true, first: byOPA, second: byCache})
	return opa, d
}

// runs waits until a poll has seen the revision.
func runs(t *testing.T, d *Decider, revision string) {
	t.Helper()
	until(t, "polls see "+revision, func() bool { return d.Status().Revision == revision && d.Ready() == nil })
}

func TestRestartedWithOlderBundle(t *testing.T) {
	bundles, persist := newBundleServer(t), t.TempDir()
	opa, d := settled(t, options{bundles: bundles, persist: persist})
	older := t.TempDir()
	if err := os.CopyFS(filepath.Join(older, "copy"), os.DirFS(persist)); err != nil {
		t.Fatal(err)
	}
	bundles.publish(bundle(t, denyRule, "r2", "cwms"))
	runs(t, d, "r2")
	observe(t, d).is(t, "r2 runs", row{revision: "r2", first: byOPA, second: byCache})

	opa.kill()
	bundles.publish(nil)
	if err := errors.Join(os.RemoveAll(persist), os.CopyFS(persist, os.DirFS(filepath.Join(older, "copy")))); err != nil {
		t.Fatal(err)
	}
	opa.start(t)
	runs(t, d, "r1")
	observe(t, d).is(t, "restarted with r1", row{revision: "r1", allow: true, first: byOPA, second: byCache})
}

func TestRestartedWithoutBundle(t *testing.T) {
	bundles := newBundleServer(t)
	opa, d := settled(t, options{bundles: bundles})
	opa.kill()
	bundles.publish(nil)
	opa.start(t)
	until(t, "a poll has seen it", func() bool { return d.Status().Uncached != "" })
	const none = "OPA runs no bundle, so its policy has no revision"
	observe(t, d).is(t, "no bundle", row{ready: "OPA has no policy yet", uncached: none})
	bundles.publish(bundle(t, allowRule, "r1", "cwms"))
	runs(t, d, "r1")
	observe(t, d).is(t, "the bundle is back", row{revision: "r1", allow: true, first: byOPA, second: byCache})
}

func TestEmptyRevision(t *testing.T) {
	bundles := newBundleServer(t)
	_, d := settled(t, options{bundles: bundles})
	bundles.publish(bundle(t, denyRule, "", "cwms"))
	until(t, "a poll has seen it", func() bool { return d.Status().Uncached != "" })
	observe(t, d).is(t, "no revision", row{first: byOPA, second: byOPA, uncached: `bundle "authz" has no revision`})
}

// Roots that do not hold the rule: whoever may write to OPA can change it.
func TestNarrowRoots(t *testing.T) {
	bundles := newBundleServer(t)
	opa, d := settled(t, options{bundles: bundles})
	put := func(rego string, want int) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, opa.address+"/v1/policies/pushed", strings.NewReader(rego))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := opa.client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("PUT of a policy: %s", resp.Status)
		}
	}
	put(denyRule, http.StatusBadRequest) // OPA refuses what a bundle owns
	bundles.publish(bundle(t, "package other\nx := 1\n", "r2", "other"))
	runs(t, d, "r2")
	const narrow = `no bundle has "cwms/authz/decision" under its roots, so the rule can change without a revision`
	observe(t, d).is(t, "the rule is gone", row{uncached: narrow})
	put(denyRule, http.StatusOK)
	observe(t, d).is(t, "pushed", row{revision: "r2", first: byOPA, second: byOPA, uncached: narrow})
	put(allowRule, http.StatusOK)
	observe(t, d).is(t, "pushed anew", row{revision: "r2", allow: true, first: byOPA, second: byOPA, uncached: narrow})
}

// A bundle that OPA cannot activate changes nothing.
func TestFailedActivation(t *testing.T) {
	bundles := newBundleServer(t)
	_, d := settled(t, options{bundles: bundles})
	good := bundle(t, denyRule, "r2", "cwms")
	served := bundles.served.Load()
	bundles.publish(good[:len(good)/2])
	until(t, "OPA has fetched it more than once", func() bool { return bundles.served.Load() > served+1 })
	observe(t, d).is(t, "broken bundle", row{revision: "r1", allow: true, first: byCache, second: byCache})
	bundles.publish(good)
	runs(t, d, "r2")
	observe(t, d).is(t, "good bundle", row{revision: "r2", first: byOPA, second: byCache})
}

// OPA dies while it activates a bundle: hits go on for the rest of the lease,
// then there is no decision; once it is back, its answers are those it runs.
func TestKilledDuringActivation(t *testing.T) {
	bundles := newBundleServer(t)
	opa, d := settled(t, options{bundles: bundles})
	// The larger the bundle, the longer its activation takes.
	var large bytes.Buffer
	large.WriteString(denyRule + "large := {")
	for i := range 20_000 {
		fmt.Fprintf(&large, "\"%d\": [\"%d\"],\n", i, i)
	}
	large.WriteString("}\n")
	next := bundle(t, large.String(), "r2", "cwms")
	served := bundles.served.Load()
	bundles.publish(next)
	until(t, "OPA has fetched it", func() bool { return bundles.served.Load() > served })
	opa.kill()

	until(t, "the lease has run out", func() bool { return d.Status().Age > time.Second })
	got := observe(t, d)
	got.ready, _, _ = strings.Cut(got.ready, " for ")
	got.is(t, "OPA is dead", row{ready: "OPA has not answered"})
	opa.start(t)
	runs(t, d, "r2")
	observe(t, d).is(t, "OPA is back", row{revision: "r2", first: byOPA, second: byCache})
}

// The address of OPA leads to another process with another bundle. The rollback,
// to the bundle of before, makes a new epoch too.
func TestReplaced(t *testing.T) {
	one, two := newBundleServer(t), newBundleServer(t)
	one.publish(bundle(t, allowRule, "r1", "cwms"))
	two.publish(bundle(t, denyRule, "r2", "cwms"))
	first, second := startOPA(t, options{bundles: one}), startOPA(t, options{bundles: two})
	to := make(chan *httputil.ReverseProxy, 1)
	address := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := <-to
		to <- p
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(address.Close)
	point := func(o *realOPA) {
		u, err := url.Parse(o.address)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-to:
		default:
		}
		p := httputil.NewSingleHostReverseProxy(u)
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		p.Transport = transport
		to <- p
	}
	point(first)
	d := running(t, address.URL, func(c *Config) { c.Lease = time.Second })
	runs(t, d, "r1")
	observe(t, d).is(t, "the first", row{revision: "r1", allow: true, first: byOPA, second: byCache})
	point(second)
	runs(t, d, "r2")
	observe(t, d).is(t, "the second", row{revision: "r2", first: byOPA, second: byCache})
	point(first)
	runs(t, d, "r1")
	observe(t, d).is(t, "the first again", row{revision: "r1", allow: true, first: byOPA, second: byCache})
}

// A policy from files has no revision; a bundle from a file has.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	rego, tar := filepath.Join(dir, "policy.rego"), filepath.Join(dir, "bundle.tar.gz")
	err := errors.Join(os.WriteFile(rego, []byte(allowRule), fs.ModePerm), os.WriteFile(tar, bundle(t, allowRule, "r1", "cwms"), fs.ModePerm))
	if err != nil {
		t.Fatal(err)
	}
	f := func(name string, want row, args ...string) {
		t.Helper()
		d := running(t, startOPA(t, options{args: args}).address)
		until(t, "it is ready", func() bool { return d.Ready() == nil })
		observe(t, d).is(t, name, want)
	}
	f("rego", row{allow: true, first: byOPA, second: byOPA, uncached: "OPA runs no bundle, so its policy has no revision"}, rego)
	f("bundle", row{revision: "r1", allow: true, first: byOPA, second: byCache}, "--bundle", tar)
}

// A rule with a time limit of its own: what it allowed until then is not served
// afterwards.
func TestTimeLimitOfPolicy(t *testing.T) {
	bundles := newBundleServer(t)
	bundles.publish(bundle(t, `package cwms.authz
now := time.now_ns()
default decision := {"allow": false}
decision := {"allow": true, "cache": {"ttl_ms": (input.until - now) / 1000000}} if now < input.until
`, "r1", "cwms"))
	opa := startOPA(t, options{bundles: bundles})
	d := running(t, opa.address)
	runs(t, d, "r1")
	limit := time.Now().Add(3 * time.Second)
	q := authz.Question{Body: fmt.Appendf(nil, `{"input":{"until":%d}}`, limit.UnixNano())}
	cached := 0
	for denied := false; !denied; time.Sleep(time.Millisecond) {
		late := time.Now().After(limit)
		decision := decide(t, d, q)
		if late && decision.Allow {
			t.Fatalf("allowed after the limit, from %s", decision.Source)
		}
		if decision.Source == byCache {
			cached++
		}
		denied = !decision.Allow
	}
	if cached < 10 {
		t.Errorf("%d answers from the cache before the limit", cached)
	}
}

// What OPA says of built-ins that fail, of rules that conflict and of rules that
// are not there is no decision; what it denies is a deny.
func TestRealAnswers(t *testing.T) {
	bundles := newBundleServer(t)
	bundles.publish(bundle(t, `package cwms.authz
decision := {"allow": false} if input.case == "deny"
decision := false if input.case == "false"
decision := {"allow": true} if {input.case == "builtin"; io.jwt.decode("x")}
decision := {"allow": true} if input.case == "conflict"
decision := {"allow": false} if input.case == "conflict"
`, "r1", "cwms"))
	d := running(t, startOPA(t, options{bundles: bundles}).address)
	runs(t, d, "r1")
	for name, want := range map[string]string{
		"deny":      "deny",
		"false":     "deny",
		"undefined": "malformed answer of OPA: the rule is undefined",
		"builtin":   "OPA answered 500",
		"conflict":  "OPA answered 500",
	} {
		for range 2 {
			decision, err := d.Decide(context.Background(), authz.Question{Body: fmt.Appendf(nil, `{"input":{"case":%q}}`, name)})
			got := "deny"
			var refusal *authz.Refusal
			switch {
			case errors.As(err, &refusal):
				got = refusal.Cause.Error()
			case decision.Allow:
				got = "allow"
			}
			if got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	}
	if n := d.Status().Entries; n != 2 {
		t.Errorf("%d entries, want the two denies", n)
	}
	// Without input OPA answers with a warning.
	if _, err := d.Decide(context.Background(), authz.Question{Body: []byte(`{}`)}); !errors.Is(err, errMalformed) {
		t.Errorf("without input: %v", err)
	}
}
