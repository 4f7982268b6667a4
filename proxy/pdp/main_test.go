package pdp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"headgate/proxy/authz"
)

func TestMain(m *testing.M) {
	// The client's cleaner of idle connections sleeps out its minute after the
	// last connection has been closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"))
}

// hand is a clock that is moved by hand.
type hand struct{ nanos atomic.Int64 }

func (h *hand) now() time.Time          { return time.Unix(1_800_000_000, h.nanos.Load()) }
func (h *hand) advance(d time.Duration) { h.nanos.Add(int64(d)) }

// The bundle that a fake OPA runs unless told otherwise, and an allow of it.
const (
	listR1  = `{"result":{"authz":{"etag":"1","manifest":{"revision":"r1","roots":["cwms"]}}}}`
	listR2  = `{"result":{"authz":{"etag":"2","manifest":{"revision":"r2","roots":["cwms"]}}}}`
	allowR1 = `{"decision_id":"d","provenance":{"bundles":{"authz":{"revision":"r1"}}},"result":{"allow":true}}`
	allowR2 = `{"decision_id":"d","provenance":{"bundles":{"authz":{"revision":"r2"}}},"result":{"allow":true}}`
)

// fakeOPA answers as its handlers say, and counts the questions.
type fakeOPA struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[http.HandlerFunc] // to a question
	list   atomic.Pointer[http.HandlerFunc] // of bundles
}

func body(r *http.Request) []byte {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return b
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

func newFakeOPA(t testing.TB, answer http.HandlerFunc) *fakeOPA {
	f := &fakeOPA{}
	f.answers(answer)
	f.runs(says(listR1))
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+rulePath, func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		// A server notices that its client has left only once it has the body.
		r.Body = io.NopCloser(bytes.NewReader(body(r)))
		(*f.answer.Load())(w, r)
	})
	mux.HandleFunc("GET /v1/data/system/bundles", func(w http.ResponseWriter, r *http.Request) { (*f.list.Load())(w, r) })
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeOPA) answers(h http.HandlerFunc) { f.answer.Store(&h) }
func (f *fakeOPA) runs(h http.HandlerFunc)    { f.list.Store(&h) }

const rulePath = "/v1/data/cwms/authz/decision"

// newDecider makes a Decider for the OPA at address that nothing polls yet.
func newDecider(t testing.TB, address string, change ...func(*Config)) *Decider {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		URL: u, Path: rulePath, Timeout: time.Minute, Poll: 250 * time.Millisecond, Lease: time.Hour,
		AllowTTL: time.Minute, DenyTTL: time.Minute, MaxEntries: 1000, Log: zerolog.Nop(),
	}
	for _, c := range change {
		c(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.opa.client.CloseIdleConnections)
	return d
}

// polled makes a Decider whose policy has been polled once.
func polled(t testing.TB, address string, change ...func(*Config)) *Decider {
	t.Helper()
	d := newDecider(t, address, change...)
	if problem, err := d.poll(); err != nil {
		t.Fatal(problem, err)
	}
	return d
}

// running makes a Decider that polls until the test ends.
func running(t testing.TB, address string, change ...func(*Config)) *Decider {
	t.Helper()
	d := newDecider(t, address, change...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return d
}

func question(n int) authz.Question {
	return authz.Question{Body: fmt.Appendf(nil, `{"input":{"n":%d}}`, n), Offices: []string{"SWT"}}
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// decide asks and fails the test on an error.
func decide(t testing.TB, d *Decider, q authz.Question) authz.Decision {
	t.Helper()
	decision, err := d.Decide(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}
