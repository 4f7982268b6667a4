package pep

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// warm is the request path with stages that cost nothing, and a usual request.
func warm(t testing.TB) (*Handler, *fasthttp.RequestCtx) {
	alice := &authz.Principal{Method: authz.JWT, ID: "alice"}
	subject := authz.NewSubject(alice, authz.User{ID: "alice", Username: "alice", Offices: []string{"SWT"}, PrimaryOffice: "SWT"}, asked)
	decision := allow()
	decision.Asked = time.Now()
	h := stages()
	h.Identify = func(context.Context, authz.Credentials) (*authz.Principal, error) { return alice, nil }
	h.Subject = func(context.Context, *authz.Principal) (*authz.Subject, error) { return subject, nil }
	h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { return decision, nil }
	h.Forward = func(*fasthttp.RequestCtx, *authz.Grant) error { return nil }
	h.Record = NewRecorder(io.Discard, false).Record

	rc := &fasthttp.RequestCtx{}
	raw := get("/api/items?office=SWT&begin=2026-01-01T00:00:00Z&end=2026-01-02T00:00:00Z", "Accept: application/json;version=2",
		"Accept-Encoding: gzip, deflate", "User-Agent: bench", "Cookie: theme=dark; lang=en", "Authorization: Bearer "+strings.Repeat("t", 900))
	if err := rc.Request.Header.Read(bufio.NewReader(strings.NewReader(raw))); err != nil {
		t.Fatal(err)
	}
	return h, rc
}

// allocations is the budget of a warm request in this package, its record
// included.
const allocations = 0

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h, rc := warm(t)
	got := testing.AllocsPerRun(1000, func() {
		h.Handle(rc)
		rc.Response.Reset()
	})
	t.Logf("%v allocations for a warm request", got)
	if got > allocations {
		t.Errorf("%v allocations, want %d", got, allocations)
	}
}

func BenchmarkHandle(b *testing.B) {
	h, rc := warm(b)
	b.ReportAllocs()
	for b.Loop() {
		h.Handle(rc)
		rc.Response.Reset()
	}
}

// The same without writing the record.
func BenchmarkHandleUnrecorded(b *testing.B) {
	h, rc := warm(b)
	h.Record = func(*Event) {}
	b.ReportAllocs()
	for b.Loop() {
		h.Handle(rc)
		rc.Response.Reset()
	}
}

func BenchmarkHead(b *testing.B) {
	_, rc := warm(b)
	var h head
	b.ReportAllocs()
	for b.Loop() {
		if err := h.read(rc.Request.Header.RawHeaders()); err != nil {
			b.Fatal(err)
		}
	}
}
