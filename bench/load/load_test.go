package load

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func measure(t *testing.T, o Options, calls ...*Call) *Result {
	t.Helper()
	r, err := Run(t.Context(), o, func(n int64) *Call { return calls[n%int64(len(calls))] })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A closed loop sends each request as it stands, over one connection a worker.
func TestClosedLoop(t *testing.T) {
	var mu sync.Mutex
	connections, targets := map[string]bool{}, map[string]int{}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		connections[r.RemoteAddr] = true
		targets[r.Method+" "+r.RequestURI+" "+r.Header.Get("X-A")]++
		_, _ = w.Write([]byte("fine"))
	})
	r := measure(t, Options{Connections: 4, Requests: 100},
		&Call{Name: "get", URL: s.URL + "/a%2Fb/../c?x=%41+b", Header: [][2]string{{"x-a", "1"}}, Contains: "fine"},
		&Call{Name: "post", Method: "POST", URL: s.URL + "/p", Body: []byte("x")},
	)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if r.Total.Requests != 100 || r.Calls["get"].Requests != 50 || r.Calls["post"].Requests != 50 || r.Total.Latency.TotalCount() != 100 {
		t.Errorf("%+v", r)
	}
	if len(connections) > 4 || targets["GET /a%2Fb/../c?x=%41+b 1"] != 50 || targets["POST /p "] != 50 {
		t.Errorf("%d connections, %v", len(connections), targets)
	}
}

// A call goes to its Unix socket, under the host name of its URL.
func TestSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Host + r.URL.Path)) })}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	r := measure(t, Options{Connections: 2, Requests: 20}, &Call{URL: "http://opa:8181/a", Socket: socket, Contains: "opa:8181/a"})
	if err := r.Err(); err != nil || r.Total.Requests != 20 {
		t.Errorf("%d requests, %v", r.Total.Requests, err)
	}
}

// What is not as wanted is counted, told and kept apart.
func TestVerification(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/deny" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte("body"))
	})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct {
		call Call
		want string // in the error; empty: none
	}{
		{Call{URL: s.URL}, ""},
		{Call{URL: s.URL + "/deny", Status: 403, Contains: "bo"}, ""},
		{Call{URL: s.URL + "/deny"}, "status 403, want 200: body"},
		{Call{URL: s.URL, Contains: "other"}, `"other" is not in the answer`},
		{Call{URL: "http://" + closed.Addr().String()}, "connection refused"},
		{Call{URL: "ftp://x"}, "want an http URL"},
	} {
		r := measure(t, Options{Connections: 1, Requests: 2}, &c.call)
		err := r.Err()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.call, err, c.want)
		}
	}
}

// A server that stalls once makes all requests late that were due meanwhile, and
// an open loop says so.
func TestOpenLoopCountsFromDue(t *testing.T) {
	const stall = 300 * time.Millisecond
	var n atomic.Int64
	s := serve(t, func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 20 {
			time.Sleep(stall)
		}
	})
	r := measure(t, Options{Connections: 1, Rate: 200, Requests: 100}, &Call{URL: s.URL})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	// 60 requests fall due in the stall; a closed loop would see one slow answer.
	late := int64(0)
	for _, bar := range r.Total.Latency.Distribution() {
		if bar.From > (stall / 6).Nanoseconds() {
			late += bar.Count
		}
	}
	if late < 30 {
		t.Errorf("%d late answers", late)
	}
}

// A run ends with its time, and tells of each answer.
func TestDurationAndObserve(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	var seen atomic.Int64
	r := measure(t, Options{Connections: 2, Duration: 100 * time.Millisecond, Think: time.Millisecond, Observe: func(a Answer) {
		if a.Err == nil && a.Status == 200 && !a.End.Before(a.Start) {
			seen.Add(1)
		}
	}}, &Call{URL: s.URL})
	if r.Total.Requests == 0 || seen.Load() != r.Total.Requests {
		t.Errorf("%d observed of %d", seen.Load(), r.Total.Requests)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Requests: 1},
		{Connections: 1},
		{Connections: 1, Requests: 1, Rate: 1, Think: 1},
	} {
		if _, err := Run(t.Context(), o, nil); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if err := (&Result{Total: &Stats{Failed: 1}, Errors: []string{"x"}}).Err(); err == nil || errors.Unwrap(err) != nil {
		t.Error(err)
	}
}
