package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// TestSoak runs for as long as HEADGATE_SOAK says, such as 20m, with up to
// HEADGATE_SOAK_RATE requests a second (1000): mixed methods and sizes, clients that
// read slowly, clients that reset, and an API that restarts. Every answer is checked
// to be the one to its request. What the program holds is printed every ten seconds,
// and must be back where it was when the load is over.
func TestSoak(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("HEADGATE_SOAK"))
	if err != nil {
		t.Skip("runs for long: set HEADGATE_SOAK=20m")
	}
	rate := 1000.0
	if s := os.Getenv("HEADGATE_SOAK_RATE"); s != "" {
		if rate, err = strconv.ParseFloat(s, 64); err != nil {
			t.Fatal(err)
		}
	}
	api := startEchoing(t)
	st := stack.New(t, stack.Options{Env: map[string]string{"UPSTREAM_URL": "http://" + api.addr + "/cwms-data"}})
	admin := [2]string{"Authorization", "Bearer " + st.Tokens["HECADMIN"]}
	if a := send(t, st.Proxy, get("/cwms-data/large/0", "Authorization: "+admin[1])); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	idle := holds(t, st)
	t.Logf("idle       %v", idle)

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var counts tallies
	var work sync.WaitGroup
	work.Go(func() {
		_, err := load.Run(ctx, load.Options{Connections: 64, Rate: rate, Duration: duration + time.Minute, Timeout: deadline, Observe: func(a load.Answer) {
			counts.add(ctx, api, a)
		}}, func(n int64) *load.Call { return soaked(st.Proxy, admin, n) })
		if err != nil {
			t.Error(err)
		}
	})
	for range 4 {
		work.Go(func() { counts.slow.Add(readSlowly(ctx, st.Proxy, admin)) })
		work.Go(func() { counts.resets.Add(reset(ctx, st.Proxy, admin)) })
	}
	work.Go(func() { api.restarts(ctx) })

	var early held
	began := time.Now()
	for tick := time.NewTicker(10 * time.Second); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-tick.C:
			now := holds(t, st)
			if early.rss == 0 && time.Since(began) > duration/4 {
				early = now
			}
			t.Logf("%-10v %v; %v", time.Since(began).Round(time.Second), now, &counts)
		}
	}
	work.Wait()
	t.Logf("the load is over: %v; %d clients read slowly, %d left in the middle", &counts, counts.slow.Load(), counts.resets.Load())
	if n := counts.wrong.Load(); n > 0 {
		t.Errorf("%d wrong answers, such as %v", n, counts.first.Load())
	}

	// Idle connections to the API end by themselves, so do those of clients.
	var last held
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		if last = holds(t, st); last.goroutines <= idle.goroutines+8 && last.files <= idle.files+8 && last.clients <= 1 {
			break
		}
	}
	t.Logf("afterwards %v", last)
	if last.goroutines > idle.goroutines+8 || last.files > idle.files+8 || last.clients > 1 || last.inFlight > 0 {
		t.Errorf("before it was %v", idle)
	}
	if early.rss > 0 && last.rss > early.rss+early.rss/2 {
		t.Errorf("after a quarter of the time it was %v", early)
	}
}

// held is what the program holds.
type held struct {
	rss                                             int64
	goroutines, files, clients, upstreams, inFlight int
}

func (h held) String() string {
	return fmt.Sprintf("%d MB, %d goroutines, %d files, %d clients, %d connections to the API, %d requests", h.rss>>20, h.goroutines, h.files, h.clients, h.upstreams, h.inFlight)
}

func holds(t *testing.T, st *stack.Stack) held {
	t.Helper()
	metrics := scrape(t, st)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", st.Replicas[0].PID()))
	if err != nil {
		t.Fatal(err)
	}
	return held{
		rss: memory(t, st, "VmRSS"), files: len(files),
		goroutines: int(sum(metrics, "authorizer_proxy_go_goroutines ")),
		clients:    int(sum(metrics, "authorizer_proxy_active_connections ")),
		upstreams:  int(sum(metrics, "authorizer_proxy_upstream_connections ")),
		inFlight:   int(sum(metrics, "authorizer_proxy_requests_in_flight ")),
	}
}

// tallies count answers.
type tallies struct {
	right, away, wrong, unanswered atomic.Int64
	slow, resets                   atomic.Int64
	first                          atomic.Value // text of the first wrong answer
}

func (c *tallies) String() string {
	return fmt.Sprintf("%d right, %d while the API restarted, %d wrong, %d unanswered", c.right.Load(), c.away.Load(), c.wrong.Load(), c.unanswered.Load())
}

func (c *tallies) add(ctx context.Context, api *echoing, a load.Answer) {
	switch {
	case a.Err == nil:
		c.right.Add(1)
	case ctx.Err() != nil:
		// The load ends in the middle of a request.
	case api.away(a.Start) && (a.Status == 502 || a.Status == 503 || a.Status == 504):
		c.away.Add(1)
	case api.away(a.Start) && a.Status == 0:
		c.unanswered.Add(1) // an answer that the API broke off
	default:
		c.wrong.Add(1)
		c.first.CompareAndSwap(nil, fmt.Sprintf("%s %s: %d, %v", a.Call.Method, a.Call.URL, a.Status, a.Err))
	}
}

var pad = bytes.Repeat([]byte("0123456789abcdef"), 64<<10)

// soaked is the request of that number.
func soaked(base string, who [2]string, n int64) *load.Call {
	c := &load.Call{Method: http.MethodGet, URL: fmt.Sprintf("%s/cwms-data/large/%d?size=1600", base, n), Header: [][2]string{who}}
	c.Contains = fmt.Sprintf("GET /cwms-data/large/%d?size=1600 0\n", n)
	body := func(method string, size int) {
		c.Method, c.Body = method, pad[:size]
		c.Contains = fmt.Sprintf("%s /cwms-data/large/%d?size=1600 %d\n", method, n, size)
	}
	switch n % 50 {
	case 0, 1, 2, 3:
		c.URL = fmt.Sprintf("%s/cwms-data/large/%d?size=100000", base, n)
		c.Contains = fmt.Sprintf("GET /cwms-data/large/%d?size=100000 0\n", n)
	case 4:
		c.URL = fmt.Sprintf("%s/cwms-data/large/%d?size=1000000&chunked", base, n)
		c.Contains = fmt.Sprintf("GET /cwms-data/large/%d?size=1000000&chunked 0\n", n)
	case 5, 6:
		c.Method, c.Contains = http.MethodHead, ""
	case 7, 8, 9, 10:
		body(http.MethodPost, 3000)
	case 11, 12:
		body(http.MethodPut, 200_000)
	case 13:
		body(http.MethodPatch, 1_000_000)
	case 14:
		body(http.MethodDelete, 0)
	case 15:
		c.Body, c.Method = []byte(fmt.Sprintf(`{"office-id":"SWT","name":"L%d"}`, n)), http.MethodPost
		c.URL = fmt.Sprintf("%s/cwms-data/locations?n=%d", base, n)
		c.Header = [][2]string{who, {"Content-Type", "application/json"}}
		c.Contains = fmt.Sprintf("POST /cwms-data/locations?n=%d %d\n", n, len(c.Body))
	case 16:
		c.Header, c.Status, c.Contains = nil, http.StatusForbidden, "incidentIdentifier"
	case 17:
		c.Header, c.Status, c.Contains = [][2]string{{"Authorization", "Bearer x"}}, http.StatusUnauthorized, "incidentIdentifier"
	case 18:
		c.URL, c.Status, c.Contains = fmt.Sprintf("%s/cwms-data/../large/%d", base, n), http.StatusBadRequest, "incidentIdentifier"
	case 19:
		c.URL, c.Header, c.Contains = base+"/health", nil, "healthy"
	}
	return c
}

// readSlowly downloads at a crawl, one after the other, and counts them.
func readSlowly(ctx context.Context, base string, who [2]string) (n int64) {
	for ctx.Err() == nil {
		func() {
			c, err := net.DialTimeout("tcp", strings.TrimPrefix(base, "http://"), deadline)
			if err != nil {
				return
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			fmt.Fprintf(c, "GET /cwms-data/large/slow?size=4000000 HTTP/1.1\r\nHost: h\r\n%s: %s\r\nConnection: close\r\n\r\n", who[0], who[1])
			piece := make([]byte, 64<<10)
			for {
				if _, err := io.ReadAtLeast(c, piece, 1); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
		n++
	}
	return n
}

// reset leaves in the middle: of a header, of a body, of an answer.
func reset(ctx context.Context, base string, who [2]string) (n int64) {
	head := fmt.Sprintf(" HTTP/1.1\r\nHost: h\r\n%s: %s\r\n", who[0], who[1])
	for ; ctx.Err() == nil; n++ {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(base, "http://"), deadline)
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(deadline))
		switch n % 4 {
		case 0:
			io.WriteString(c, "GET /cwms-data/large/x"+head)
		case 1:
			io.WriteString(c, "PUT /cwms-data/large/x"+head+"Content-Length: 1000000\r\n\r\n")
			c.Write(pad[:100_000])
		case 2:
			io.WriteString(c, "GET /cwms-data/large/x?size=4000000"+head+"\r\n")
			io.CopyN(io.Discard, c, 100_000)
		case 3:
			io.WriteString(c, "PUT /cwms-data/large/x"+head+"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
			io.CopyN(io.Discard, c, 20)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		time.Sleep(20 * time.Millisecond)
	}
	return n
}

// echoing is an API that says what it was asked, and can be restarted.
type echoing struct {
	addr string

	mu     sync.Mutex
	server *http.Server
	gone   [][2]time.Time // when it was away
}

func startEchoing(t *testing.T) *echoing {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echoing{addr: l.Addr().String()}
	e.serve(l)
	t.Cleanup(func() { e.server.Close() })
	return e
}

func (e *echoing) serve(l net.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server = &http.Server{Handler: e, IdleTimeout: 20 * time.Second}
	go e.server.Serve(l)
}

func (e *echoing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/cwms-data/user/profile" {
		io.WriteString(w, `{"user-name":"HECADMIN","roles":{"HQ":["system_admin"]}}`)
		return
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	said := fmt.Sprintf("%s %s %d\n", r.Method, r.RequestURI, n)
	size, _ := strconv.Atoi(r.URL.Query().Get("size"))
	if !r.URL.Query().Has("chunked") {
		w.Header().Set("Content-Length", strconv.Itoa(len(said)+size))
	}
	io.WriteString(w, said)
	for size > 0 {
		n, err := w.Write(pad[:min(size, len(pad))])
		if err != nil {
			return
		}
		size -= n
	}
}

// restarts ends the API every fifteen seconds, with whatever is in flight, and
// starts it again half a second later.
func (e *echoing) restarts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(15 * time.Second):
		}
		e.mu.Lock()
		e.gone = append(e.gone, [2]time.Time{time.Now()})
		e.mu.Unlock()
		_ = e.server.Close()
		time.Sleep(500 * time.Millisecond)
		l, err := net.Listen("tcp", e.addr)
		for err != nil {
			time.Sleep(10 * time.Millisecond)
			l, err = net.Listen("tcp", e.addr)
		}
		e.serve(l)
		e.mu.Lock()
		e.gone[len(e.gone)-1][1] = time.Now()
		e.mu.Unlock()
	}
}

// away reports whether the API was away while a request was under way that began
// then and ends now.
func (e *echoing) away(start time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.gone {
		if g[1].IsZero() || !g[1].Before(start.Add(-time.Second)) {
			return true
		}
	}
	return false
}
