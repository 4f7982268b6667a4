package pep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// record is what an Event looks like as a line, as JSON reads it.
func record(t *testing.T, inputs bool, e Event) map[string]any {
	t.Helper()
	var b bytes.Buffer
	NewRecorder(&b, inputs).Record(&e)
	if n := strings.Count(b.String(), "\n"); n != 1 || !strings.HasSuffix(b.String(), "\n") {
		t.Errorf("%d lines: %q", n, b.String())
	}
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, b.String())
	}
	return line
}

func TestRecord(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	d := allow()
	d.Asked = start.Add(-time.Millisecond)
	e := Event{
		Start: start, RequestID: "id", Method: "GET", Route: "/items", Resource: "items", Action: "read",
		Subject: "alice", AuthMethod: authz.JWT, Fetched: start.Add(-time.Second), Offices: []string{"SPK", "SWT"},
		Input: []byte(`{"user":{}}`), Decision: &d, Status: 200,
		Identify: 1000, Context: 2000, Decide: 3000, Forward: 4000, Duration: 10000,
	}
	want := func(changes ...any) map[string]any {
		m := map[string]any{
			"time": "2026-01-02T02:04:05.000006Z", "event": "decision", "request_id": "id", "method": "GET", "route": "/items",
			"resource": "items", "action": "read", "subject": "alice", "auth_method": "jwt", "offices": []any{"SPK", "SWT"},
			"allow": true, "reason": "ok: fine", "decision_id": "d1", "opa_decision_id": "o1", "revision": "r1", "source": "cache",
			"age_us": 1010.0, "context_age_ms": 1000.0, "status": 200.0,
			"identify_us": 1.0, "context_us": 2.0, "decide_us": 3.0, "forward_us": 4.0, "total_us": 10.0,
		}
		for i := 0; i < len(changes); i += 2 {
			if changes[i+1] == nil {
				delete(m, changes[i].(string))
			} else {
				m[changes[i].(string)] = changes[i+1]
			}
		}
		return m
	}
	with := func(change func(*Event)) Event {
		c := e
		change(&c)
		return c
	}
	denied := deny()
	denied.Asked = start
	for _, c := range []struct {
		name   string
		inputs bool
		event  Event
		want   map[string]any
	}{
		{"allowed", false, e, want()},
		{"with its input", true, e, want("input", map[string]any{"user": map[string]any{}}, "constraints", map[string]any{"a": 1.0})},
		{"denied", false, with(func(e *Event) { e.Decision, e.Status, e.Err = &denied, 403, errDenied }),
			want("allow", false, "reason", "embargo: too young", "decision_id", "d2", "opa_decision_id", "o2", "source", "opa", "age_us", 10.0, "status", 403.0)},
		{"denied and forwarded", false, with(func(e *Event) { e.Decision, e.Reported = &denied, true }),
			want("allow", false, "reason", "embargo: too young", "decision_id", "d2", "opa_decision_id", "o2", "source", "opa", "age_us", 10.0, "enforced", false)},
		{"no decision", false, with(func(e *Event) {
			e.Decision, e.Status = nil, 503
			e.Err = authz.Refuse(authz.ErrNoDecision, "no").Because(errors.New("time-out"))
		}), want("allow", nil, "reason", nil, "decision_id", nil, "opa_decision_id", nil, "revision", nil, "source", nil, "age_us", nil,
			"status", 503.0, "error", "no decision: no: time-out")},
		{"our own endpoint", false, Event{Start: start, RequestID: "id", Method: "GET", Endpoint: "health", Status: 200},
			want("route", "health", "resource", "", "action", "", "subject", "", "auth_method", "", "offices", []any{},
				"allow", nil, "reason", nil, "decision_id", nil, "opa_decision_id", nil, "revision", nil, "source", nil, "age_us", nil, "context_age_ms", nil,
				"identify_us", 0.0, "context_us", 0.0, "decide_us", 0.0, "forward_us", 0.0, "total_us", 0.0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := record(t, c.inputs, c.event); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

// A record stays one line of JSON whatever strings are in it.
func TestRecordOfHostileStrings(t *testing.T) {
	for _, s := range []string{"\n{\"event\":\"forged\"}", `","allow":true,"x":"`, "\x00\x1f\x7f", "\xff\xfe", "</script>\u2028", strings.Repeat("x", 1<<16)} {
		line := record(t, false, Event{
			Method: s, Route: s, Resource: s, Action: s, Subject: s, Offices: []string{s}, Err: errors.New(s),
			Decision: &authz.Decision{Reason: s, ID: s, OPAID: s, Revision: s, Source: authz.FromOPA},
		})
		if line["event"] != "decision" || line["allow"] != false || len(line) != 24 {
			t.Errorf("%q gives %v", s, line)
		}
	}
}

// Labels come from closed sets: whatever clients invent, the number of series does
// not grow.
func TestSeries(t *testing.T) {
	r := NewRecorder(io.Discard, false)
	invented, known := r.of(seriesKey{"other", "none", 405}).requests, r.of(seriesKey{"GET", "unknown", 200}).requests
	before := [...]uint64{invented.Get(), known.Get()}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 250 {
				r.Record(&Event{Method: fmt.Sprint("M", i), Resource: fmt.Sprint(i), Action: fmt.Sprint(i), Subject: fmt.Sprint(i), Status: 405})
			}
			r.Record(&Event{Method: "GET", Route: "unknown", Status: 200})
		})
	}
	wg.Wait()
	if n := len(*r.series.Load()); n != 2 {
		t.Errorf("%d series", n)
	}
	if got := [...]uint64{invented.Get() - before[0], known.Get() - before[1]}; got != [...]uint64{1000, 4} {
		t.Errorf("counted %d", got)
	}
	var b bytes.Buffer
	metrics.WritePrometheus(&b, false)
	if !strings.Contains(b.String(), `authorizer_proxy_http_requests_total{method="other",route="none",status_code="405"} `) {
		t.Error("no such series")
	}
}

func TestSeriesAreMadeOnce(t *testing.T) {
	r := NewRecorder(io.Discard, false)
	var wg sync.WaitGroup
	counted := make([]*metrics.Counter, 8)
	for i := range counted {
		wg.Go(func() {
			for status := 200; status < 240; status++ {
				counted[i] = r.of(seriesKey{"GET", "/once", status}).requests
			}
		})
	}
	wg.Wait()
	if n := len(*r.series.Load()); n != 40 {
		t.Errorf("%d series", n)
	}
	for _, c := range counted {
		if c != counted[0] {
			t.Error("a series was made twice")
		}
	}
}

// What proves an identity is in no record, no answer and no metric, whichever way
// a request ends.
func TestNoSecretIsTold(t *testing.T) {
	const canary = "CANARY"
	lines := []string{
		"Authorization: Bearer CANARY-token", "Cookie: JSESSIONID=CANARY-cookie; a=CANARY-other", "X-Authorize-Secret: CANARY-secret",
		"X-Test-User: CANARY-user", "Proxy-Authorization: Basic CANARY-proxy",
	}
	body := `{"office":"SWT","x":"CANARY-body"}`
	requests := []string{
		get("/api/items?office=SWT&apikey=CANARY-query", lines...),
		get("/api/items/CANARY-id?office=SWT", lines...),
		get("/nowhere/CANARY-path", lines...),
		request("POST", "/api/items", body, lines...),
		request("POST", "/api/items", body+"}", lines...),
		request("POST", "/api/files", body, append(lines, "Expect: 100-continue")...),
		request("POST", "/authorize", `{"resource":"items","action":"read","jwt_token":"CANARY-token"}`, lines...),
		request("POST", "/authorize", `{"resource":"items","action":"read","jwt_token":"CANARY-other","CANARY":1,"CANARY":2}`, lines...),
		get("/api/items", append(lines, "Authorization: Bearer CANARY-second")...),
		get("/api/items", append(lines, "Broken CANARY-line: x")...),
		get("/api/items", append(lines, "Content-Length: CANARY")...),
		get("/api/items", "Authorization: Bearer CANARY\x01"),
		get("/api/items", "Transfer-Encoding: CANARY"),
		request("POST", "/api/items", "", append(lines, "Transfer-Encoding: chunked")...) + "1\r\n{\r\n0\r\nX: CANARY\x01\r\n\r\n",
		request("POST", "/api/items", "", append(lines, "Transfer-Encoding: chunked")...) + "CANARY\r\n",
		get("/api/items", append(lines, "X: "+strings.Repeat("CANARY", 4<<10))...),
		get("/api/%zzCANARY", lines...),
		"GET /api/items HTTP/1.1 CANARY\r\nHost: h\r\n\r\n",
		"CANARY\r\n\r\n",
	}
	identify := func(_ context.Context, c authz.Credentials) (*authz.Principal, error) {
		if c.Authorization == nil {
			return &authz.Principal{Method: authz.None}, nil
		}
		return &authz.Principal{
			Method: authz.JWT, ID: "alice",
			Credential: authz.Credential{Header: "Authorization", Value: string(c.Authorization)},
		}, nil
	}
	for name, with := range map[string]func(*Handler){
		"allowed": func(*Handler) {},
		"denied":  deciding(deny()),
		"failed":  failing("subject", authz.Refuse(authz.ErrUnavailable, "down").Because(errors.New("down"))),
		"panics": func(h *Handler) {
			h.Forward = func(rc *fasthttp.RequestCtx, _ *authz.Grant) error { panic(fmt.Sprintf("%v", rc.Request.Header.Len())) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var log bytes.Buffer
			recorder := NewRecorder(&log, true)
			f := serve(t, func(h *Handler) {
				with(h)
				h.Identify = identify
				h.Token = func(context.Context, string) (*authz.Principal, error) { return token("alice") }
				h.DebugHeaders = true
				h.Record = func(e *Event) {
					mu.Lock()
					defer mu.Unlock()
					recorder.Record(e)
				}
			})
			for _, raw := range requests {
				a := f.send(t, raw)
				if strings.Contains(a.body+fmt.Sprint(a.header), canary) {
					t.Errorf("%.60q is answered with %v %v", raw, a, a.header)
				}
			}
			until(t, func() bool { return f.InFlight() == 0 })
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, canary) {
					t.Errorf("recorded: %s", line)
				}
			}
		})
	}
	var b bytes.Buffer
	metrics.WritePrometheus(&b, false)
	if strings.Contains(b.String(), canary) {
		t.Error("a metric tells it")
	}
}

// flaky fails as often as told, after part of a write.
type flaky struct {
	mu    sync.Mutex
	fails int
	b     bytes.Buffer
}

func (w *flaky) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails != 0 {
		w.fails--
		n := len(p) / 2
		w.b.Write(p[:n])
		return n, errors.New("no space left")
	}
	return w.b.Write(p)
}

func (w *flaky) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

type dead struct{}

func (dead) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestBuffered(t *testing.T) {
	t.Run("a record is written soon, and all of them at Close", func(t *testing.T) {
		w := &flaky{}
		b := NewBuffered(w)
		_, _ = b.Write([]byte("one\n"))
		until(t, func() bool { return w.String() == "one\n" })
		_, _ = b.Write([]byte("two\n"))
		if err := b.Close(); err != nil || w.String() != "one\ntwo\n" {
			t.Errorf("got %q, %v", w.String(), err)
		}
	})
	t.Run("what could not be written is kept, in order", func(t *testing.T) {
		before := recordErrors.Get()
		w := &flaky{fails: 3}
		b := NewBuffered(w)
		var want strings.Builder
		for i := range 20000 {
			line := fmt.Sprintf("record %d\n", i)
			want.WriteString(line)
			if _, err := b.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil || w.String() != want.String() {
			t.Errorf("%d bytes of %d, %v", len(w.String()), want.Len(), err)
		}
		if n := recordErrors.Get() - before; n != 3 {
			t.Errorf("%d errors counted", n)
		}
	})
	t.Run("a full buffer makes its writers wait", func(t *testing.T) {
		w := &flaky{fails: -1}
		b := NewBuffered(w)
		record := bytes.Repeat([]byte("x"), 64<<10)
		var written sync.WaitGroup
		const records = 64 // four times what the buffer holds
		for range 4 {
			written.Go(func() {
				for range records / 4 {
					if _, err := b.Write(record); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { written.Wait(); close(done) }()
		until(t, func() bool { return len(w.String()) > 0 && b.Stuck() > 0 })
		select {
		case <-done:
			t.Error("nobody waited")
		default:
		}
		w.mu.Lock()
		w.fails = 0
		w.mu.Unlock()
		<-done
		if err := b.Close(); err != nil || b.Stuck() != 0 {
			t.Errorf("%v, stuck for %v", err, b.Stuck())
		}
		if n := len(w.String()); n != records*len(record) {
			t.Errorf("%d bytes of %d", n, records*len(record))
		}
	})
	t.Run("while one writes a piece, others do not wait for the target", func(t *testing.T) {
		r, w := io.Pipe() // writing waits for a reader
		b := NewBuffered(w)
		line := bytes.Repeat([]byte("x"), bufferFlush)
		first := make(chan struct{})
		go func() {
			_, _ = b.Write(line)
			close(first)
		}()
		until(t, func() bool { return b.Stuck() > 0 })
		if n, err := b.Write([]byte("y")); n != 1 || err != nil {
			t.Error(n, err)
		}
		read := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(r)
			read <- all
		}()
		<-first
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = w.Close()
		if all := <-read; string(all) != string(line)+"y" {
			t.Errorf("%d bytes came", len(all))
		}
	})
	t.Run("a target that fails for good does not hold up the stop", func(t *testing.T) {
		b := NewBuffered(dead{})
		waiting := make(chan error, 1)
		go func() {
			for {
				if _, err := b.Write(bytes.Repeat([]byte("x"), bufferMax)); err != nil {
					waiting <- err
					return
				}
			}
		}()
		until(t, func() bool { return b.held() >= bufferMax })
		if err := b.Close(); err == nil {
			t.Error("Close does not tell")
		}
		if err := <-waiting; err == nil {
			t.Error("Write does not tell")
		}
	})
}
