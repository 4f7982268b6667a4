package pdp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/proxy/authz"
)

func TestNewRefuses(t *testing.T) {
	for _, path := range []string{
		"", "/v1/data/", "/v1/data", "/v0/data/a/b", "cwms/authz/decision",
		"/v1/data/a/b/",   // OPA redirects
		"/v1/data/a/b?c",  // the query is ours
		"/v1/data/a%2Fb",  // server and authorizer of OPA have read these differently
		"/v1/data/a b",    //
		"/v1/data/a/b#c",  //
		"//v1/data/a/b",   //
		"/v1/policies/ab", // no decision
	} {
		if _, err := New(Config{URL: &url.URL{Scheme: "http", Host: "opa"}, Path: path, MaxEntries: 1}); err == nil {
			t.Errorf("path %q is taken", path)
		}
	}
}

func TestParseReply(t *testing.T) {
	const no = -1 * time.Nanosecond // policy says nothing about the life
	f := func(body string, want reply) {
		t.Helper()
		got, err := parseReply([]byte(body))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", body, got, err, want)
		}
	}
	f(`{"result":true}`, reply{allow: true, life: no})
	f(`{"result":false}`, reply{life: no})
	f(`{"result": true ,"decision_id":"d"}`, reply{allow: true, life: no, id: "d"})
	f(`{"result":{"allow":true}}`, reply{allow: true, life: no})
	f(`{"result":{"allow":false,"reason":"office: not yours"}}`, reply{reason: "office: not yours", life: no})
	f(`{"result":{"allow":false,"reason":null,"constraints":null,"cache":null}}`, reply{life: no})
	f(`{"result":{"allow":true,"constraints":{"allowed_offices":["SWT"]}}}`, reply{allow: true, life: no, constraints: json.RawMessage(`{"allowed_offices":["SWT"]}`)})
	f(`{"result":{"allow":true,"unknown":{"allow":false}},"metrics":{}}`, reply{allow: true, life: no})

	// the life: 0 is never, nothing is the operator's, a fraction counts
	f(`{"result":{"allow":true,"cache":{}}}`, reply{allow: true, life: no})
	f(`{"result":{"allow":true,"cache":{"ttl_ms":0}}}`, reply{allow: true})
	f(`{"result":{"allow":true,"cache":{"ttl_ms":1500}}}`, reply{allow: true, life: 1500 * time.Millisecond})
	f(`{"result":{"allow":true,"cache":{"ttl_ms":0.5}}}`, reply{allow: true, life: 500 * time.Microsecond})
	f(`{"result":{"allow":true,"cache":{"ttl_ms":6.048e8}}}`, reply{allow: true, life: 7 * 24 * time.Hour})

	// the revision: one bundle's own, or all of them by name
	f(`{"result":true,"provenance":{}}`, reply{allow: true, life: no})
	f(`{"result":true,"provenance":{"revision":"r"}}`, reply{allow: true, life: no, revision: "r"})
	f(`{"result":true,"provenance":{"bundles":{"a":{"revision":"r"}}}}`, reply{allow: true, life: no, revision: "r"})
	f(`{"result":true,"provenance":{"bundles":{"a":{}}}}`, reply{allow: true, life: no})
	f(`{"result":true,"provenance":{"bundles":{"b":{"revision":"s"},"a":{"revision":"r"}}}}`, reply{allow: true, life: no, revision: "a=r,b=s"})
}

// Every one of these is no decision.
var malformedReplies = map[string]string{
	"undefined":                `{}`,
	"undefined, with the rest": `{"decision_id":"d","provenance":{"bundles":{"authz":{"revision":"r1"}}}}`,
	"null":                     `{"result":null}`,
	"a string":                 `{"result":"true"}`,
	"a number":                 `{"result":1}`,
	"a list":                   `{"result":[true]}`,
	"an empty object":          `{"result":{}}`,
	"allow is a number":        `{"result":{"allow":1}}`,
	"allow is a string":        `{"result":{"allow":"true"}}`,
	"allow is null":            `{"result":{"allow":null}}`,
	"allow is elsewhere":       `{"allow":true}`,
	"negative life":            `{"result":{"allow":true,"cache":{"ttl_ms":-1}}}`,
	"life in nanoseconds":      `{"result":{"allow":true,"cache":{"ttl_ms":60000000000}}}`,
	"life is a string":         `{"result":{"allow":true,"cache":{"ttl_ms":"5"}}}`,
	"cache is a number":        `{"result":{"allow":true,"cache":5}}`,
	"reason is an object":      `{"result":{"allow":true,"reason":{}}}`,
	"constraints are a list":   `{"result":{"allow":true,"constraints":[]}}`,
	"constraints are a string": `{"result":{"allow":true,"constraints":"all"}}`,
	"a warning":                `{"result":{"allow":true},"warning":{"code":"api_usage_warning","message":"'input' key missing from the request"}}`,
	"truncated":                `{"result":{"allow":true}`,
	"two documents":            `{"result":true}{"result":true}`,
	"HTML":                     `<html><body>Welcome</body></html>`,
	"a list at the top":        `[{"result":true}]`,
	"null at the top":          `null`,
	"nothing":                  ``,
}

func TestParseReplyRefuses(t *testing.T) {
	for name, body := range malformedReplies {
		if got, err := parseReply([]byte(body)); !errors.Is(err, errMalformed) || !reflect.DeepEqual(got, reply{}) {
			t.Errorf("%s: %s\n got %+v, %v", name, body, got, err)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	for _, body := range malformedReplies {
		f.Add([]byte(body))
	}
	f.Add([]byte(allowR1))
	f.Add([]byte(`{"result":{"allow":true,"constraints":{"é\ud83d\ude00":"` + "\x7f\xff" + `"},"cache":{"ttl_ms":1}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseReply(body)
		if err != nil {
			if !errors.Is(err, errMalformed) || !reflect.DeepEqual(r, reply{}) {
				t.Fatalf("got %+v, %v", r, err)
			}
			return
		}
		if !json.Valid(body) || r.life > maxLife*time.Millisecond || r.life < -1 {
			t.Fatalf("got %+v", r)
		}
		// What goes to the upstream is one object, ASCII, and means the same.
		c := constraints(r.constraints, nil)
		if !json.Valid(c) || c[0] != '{' || bytes.ContainsFunc(c, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			t.Fatalf("constraints %q", c)
		}
		if r.constraints == nil {
			return
		}
		var got, want any
		if err := errors.Join(json.Unmarshal(c, &got), json.Unmarshal(r.constraints, &want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("constraints %q became %q, %v", r.constraints, c, err)
		}
	})
}

func TestParseBundles(t *testing.T) {
	const noRevision, narrow = `bundle "a" has no revision`, `no bundle has "cwms/authz/decision" under its roots, so the rule can change without a revision`
	f := func(body string, want bundles) {
		t.Helper()
		got, err := parseBundles([]byte(body), "cwms/authz/decision")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", body, got, err, want)
		}
	}
	one := func(manifest string) string { return `{"result":{"a":{"etag":"e","manifest":` + manifest + `}}}` }
	a := func(revision, uncached string, loaded bool) bundles {
		return bundles{revision: revision, tag: fmt.Sprintf(`"a"=%q "e"`, revision), loaded: loaded, uncached: uncached, revisions: map[string]string{"a": revision}}
	}

	// no bundle
	f(`{}`, bundles{uncached: "OPA runs no bundle, so its policy has no revision"})
	f(`{"result":{}}`, bundles{uncached: "OPA runs no bundle, so its policy has no revision"})

	// roots: they cover the rule, or the rule can change behind the revision's back
	f(one(`{"revision":"r"}`), a("r", "", true))
	f(one(`{"revision":"r","roots":[""]}`), a("r", "", true))
	f(one(`{"revision":"r","roots":["cwms"]}`), a("r", "", true))
	f(one(`{"revision":"r","roots":["x","cwms/authz"]}`), a("r", "", true))
	f(one(`{"revision":"r","roots":["cwms/authz/decision"]}`), a("r", "", true))
	f(one(`{"revision":"r","roots":["cwms/authz/decision/more"]}`), a("r", narrow, false))
	f(one(`{"revision":"r","roots":["cwms/auth"]}`), a("r", narrow, false))
	f(one(`{"revision":"r","roots":[]}`), a("r", narrow, false))

	// revisions
	f(one(`{"revision":"","roots":["cwms"]}`), a("", noRevision, true))
	f(one(`{}`), a("", noRevision, true))
	f(`{"result":{"b":{"manifest":{"revision":"s","roots":["cwms"]}},"a":{"etag":"e","manifest":{"revision":"r","roots":["x"]}}}}`,
		bundles{revision: "a=r,b=s", tag: `"a"="r" "e";"b"="s" ""`, loaded: true, revisions: map[string]string{"a": "r", "b": "s"}})
	f(`{"result":{"b":{"manifest":{"revision":"s","roots":["cwms"]}},"a":{"etag":"e","manifest":{}}}}`,
		bundles{revision: "a=,b=s", tag: `"a"="" "e";"b"="s" ""`, loaded: true, uncached: noRevision, revisions: map[string]string{"a": "", "b": "s"}})
}

func FuzzParseBundles(f *testing.F) {
	f.Add([]byte(listR1), []byte(listR2))
	f.Add([]byte(`{"result":{"a\"=":{}}}`), []byte(`{"result":{"a":{"etag":"=\""}}}`))
	f.Add([]byte(`{}`), []byte(`<html>`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, err := parseBundles(a, "cwms/authz/decision")
		if err != nil {
			return
		}
		if x.uncached == "" && (!x.loaded || x.revision == "" || x.tag == "") {
			t.Fatalf("cached without a revision: %+v", x)
		}
		// Equal tags are equal bundles.
		y, err := parseBundles(b, "cwms/authz/decision")
		if err == nil && x.tag == y.tag && !reflect.DeepEqual(x.revisions, y.revisions) {
			t.Fatalf("%q stands for %v and for %v", x.tag, x.revisions, y.revisions)
		}
	})
}

// TestNoDecision asks an OPA that answers badly, twice each time: nothing is
// kept of the first answer.
func TestNoDecision(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"status 500": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, allowR1)
		},
		"status 404": http.NotFound,
		"status 204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, rulePath+"/", http.StatusMovedPermanently)
		},
		"connection closed in the middle": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(allowR1)+1))
			fmt.Fprint(w, allowR1)
		},
		"nothing at all": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"100 MB":         func(w http.ResponseWriter, _ *http.Request) { hundredMB(w) },
		"100 MB, announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000000")
			hundredMB(w)
		},
	}
	counted := map[string]func() uint64{"malformed": evaluationsMalformed.Get, "failed": evaluationsFailed.Get}
	try := func(name, kind string, answer http.HandlerFunc) {
		t.Run(name, func(t *testing.T) {
			f := newFakeOPA(t, answer)
			d := polled(t, f.URL, func(c *Config) {
				if name == "nothing at all" {
					c.Timeout = 500 * time.Millisecond // long enough for the good answer at the end
				}
			})
			before := counted[kind]()
			for range 2 {
				got, err := d.Decide(context.Background(), question(1))
				if !errors.Is(err, authz.ErrNoDecision) || !reflect.DeepEqual(got, authz.Decision{}) {
					t.Errorf("got %+v, %v", got, err)
				}
			}
			if n := f.asked.Load(); n != 2 {
				t.Errorf("asked %d times, want 2", n)
			}
			until(t, "both are counted", func() bool { return counted[kind]() == before+2 })
			if n := d.Status().Entries; n != 0 {
				t.Errorf("%d entries", n)
			}
			// And it is a matter of the answer alone.
			f.answers(says(allowR1))
			if !decide(t, d, question(1)).Allow {
				t.Error("denied")
			}
		})
	}
	for name, body := range malformedReplies {
		try(name, "malformed", says(body))
	}
	for name, answer := range answers {
		try(name, "failed", answer)
	}
}

func hundredMB(w http.ResponseWriter) {
	chunk := []byte(strings.Repeat(" ", 100_000))
	for range 1000 {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// An answer that is too large is not read, whether or not it says so.
func TestLargeAnswerTakesNoMemory(t *testing.T) {
	f := newFakeOPA(t, func(w http.ResponseWriter, _ *http.Request) { hundredMB(w) })
	d := polled(t, f.URL)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := d.Decide(context.Background(), question(1)); !errors.Is(err, authz.ErrNoDecision) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 8 {
		t.Errorf("%d MB allocated", n)
	}
}

// listener gives its connections to the test.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, err
}

// end closes every connection, with a FIN or a RST.
func (l *listener) end(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if c != nil {
			if reset {
				c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
	}
	l.conns = nil
}

// When OPA is restarted, every connection that is kept is dead; no question
// fails of it, nor is one lost that OPA never answers.
func TestDeadConnections(t *testing.T) {
	for name, reset := range map[string]bool{"closed": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			const conns = 20
			all := make(chan struct{})
			var arrived sync.WaitGroup
			arrived.Add(conns)
			srv, l := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				select {
				case <-all:
				default:
					arrived.Done()
					<-all
				}
				fmt.Fprint(w, allowR1)
			})
			d := newDecider(t, srv)
			var asked sync.WaitGroup
			for i := range conns {
				asked.Go(func() { decide(t, d, question(i)) })
			}
			arrived.Wait()
			close(all)
			asked.Wait()
			if n := d.opa.client.IdleConnsCount(); n != conns {
				t.Fatalf("%d idle connections, want %d", n, conns)
			}
			l.end(reset)
			for i := range conns {
				decide(t, d, question(i))
			}
		})
	}
}

func serve(t *testing.T, h http.HandlerFunc) (address string, l *listener) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = &listener{Listener: inner}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return "http://" + inner.Addr().String(), l
}

// A timeout is not retried: whoever is slow is not helped by more.
func TestTimeoutIsNotRetried(t *testing.T) {
	f := newFakeOPA(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	d := newDecider(t, f.URL, func(c *Config) { c.Timeout = 200 * time.Millisecond })
	for range 3 {
		if _, err := d.Decide(context.Background(), question(1)); !errors.Is(err, authz.ErrNoDecision) {
			t.Error(err)
		}
	}
	until(t, "the flights have ended", func() bool { return d.Status().InFlight == 0 })
	if n := f.asked.Load(); n > 3 { // on a busy machine a question may not get there in time
		t.Errorf("asked %d times, want 3", n)
	}
}

// What is sent is the question's bytes and nothing that slows OPA down.
func TestRequest(t *testing.T) {
	var got struct {
		uri, body string
		header    http.Header
	}
	f := newFakeOPA(t, func(w http.ResponseWriter, r *http.Request) {
		got.uri, got.body, got.header = r.RequestURI, string(body(r)), r.Header
		fmt.Fprint(w, allowR1)
	})
	decide(t, newDecider(t, f.URL), question(7))
	want := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"17"}}
	if got.uri != rulePath+"?provenance=true&strict-builtin-errors=true" || got.body != `{"input":{"n":7}}` || !reflect.DeepEqual(got.header, want) {
		t.Errorf("got %+v", got)
	}
}
