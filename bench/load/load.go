// Package load sends requests to a server and measures the answers.
//
// A closed loop has a number of connections that each send, wait for the answer,
// think, and send again, as k6 does: it measures what so many users get. An open
// loop sends at a constant rate whether answers come or not, and counts the
// latency of each request from the moment it was due: a server that stalls is
// charged with everything that waited meanwhile, which a closed loop would not
// notice (coordinated omission).
//
// Every answer is verified. A run is bounded by time, by count, or by its
// context, and owns its connections: one for each worker, kept alive, closed at
// the end. A request is sent once, whatever happens to it.
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"
)

// Call is a request and what a right answer is. It must not change while a run
// uses it.
type Call struct {
	Name   string // row of the results
	Method string // empty means GET
	URL    string // http://HOST:PORT/…, sent as it stands
	Socket string // path of a Unix socket to send it to; empty: to the URL's host
	Header [][2]string
	Body   []byte

	Status   int    // zero means 200
	Contains string // must be in the answer's body
}

// Options bound a run. One of Duration and Requests must be set.
type Options struct {
	Connections int           // and workers
	Rate        float64       // requests per second of an open loop; zero means a closed loop
	Think       time.Duration // pause after each answer of a closed loop
	Duration    time.Duration
	Requests    int64
	Timeout     time.Duration // of one request; zero means 10 s
	// Observe is told of each answer, by many goroutines at once. The body is
	// valid during the call only.
	Observe func(Answer)
}

// Answer is one answer as a worker saw it.
type Answer struct {
	Call   *Call
	Start  time.Time // when it was sent or, in an open loop, due
	End    time.Time
	Status int // zero without an answer
	Body   []byte
	Err    error // why the answer is not right; nil when it is
}

// Stats are the results of one row.
type Stats struct {
	Requests int64
	Failed   int64
	Latency  *hdrhistogram.Histogram // nanoseconds, of all answers that came, right or not
}

// Quantile is the latency that a share q of the answers did not exceed; q is
// between 0 and 1.
func (s *Stats) Quantile(q float64) time.Duration {
	return time.Duration(s.Latency.ValueAtQuantile(q * 100))
}

// Mean is the mean latency.
func (s *Stats) Mean() time.Duration { return time.Duration(s.Latency.Mean()) }

// Max is the longest latency.
func (s *Stats) Max() time.Duration { return time.Duration(s.Latency.Max()) }

// NewStats are the results of nothing yet.
func NewStats() *Stats {
	// Two digits are enough to compare latencies, and keep a histogram at 40 KB.
	return &Stats{Latency: hdrhistogram.New(1, int64(10*time.Minute), 2)}
}

func (s *Stats) record(d time.Duration) {
	s.Requests++
	_ = s.Latency.RecordValue(max(1, d.Nanoseconds())) // its range is far beyond any time-out
}

// Add adds the results of another row.
func (s *Stats) Add(o *Stats) {
	s.Requests += o.Requests
	s.Failed += o.Failed
	s.Latency.Merge(o.Latency)
}

// Result is what a run measured.
type Result struct {
	Elapsed time.Duration
	Total   *Stats
	Calls   map[string]*Stats // by Call.Name
	Errors  []string          // the first few failures
	// Late is how long after they were due requests of an open loop were sent by
	// workers that had nothing else to do: the generator's own part of the latency.
	Late *Stats
}

// Rate is the throughput in requests per second.
func (r *Result) Rate() float64 { return float64(r.Total.Requests) / r.Elapsed.Seconds() }

// Err is an error if any answer was not right.
func (r *Result) Err() error {
	if r.Total.Failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d answers were not right, such as: %s", r.Total.Failed, r.Total.Requests, r.Errors[0])
}

const keptErrors = 10

// Run sends the calls that next yields for the request numbers 0, 1, 2 …, in no
// certain order and by many goroutines at once. Failed answers are counted in
// the result; the error is about a run that could not be made.
func Run(ctx context.Context, o Options, next func(n int64) *Call) (*Result, error) {
	switch {
	case o.Connections < 1:
		return nil, errors.New("a run needs a connection")
	case o.Duration <= 0 && o.Requests <= 0:
		return nil, errors.New("a run needs a bound: a duration or a number of requests")
	case o.Rate > 0 && o.Think > 0:
		return nil, errors.New("an open loop does not think")
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	r := run{Options: o, next: next, start: time.Now()}
	workers := make([]*worker, o.Connections)
	var wg sync.WaitGroup
	for i := range workers {
		w := &worker{run: &r, conns: map[string]*conn{}, prepared: map[*Call]*fasthttp.Request{}, calls: map[string]*Stats{}, late: NewStats()}
		workers[i] = w
		wg.Go(func() { w.work(ctx) })
	}
	wg.Wait()
	result := &Result{Elapsed: time.Since(r.start), Total: NewStats(), Calls: map[string]*Stats{}, Late: NewStats()}
	for _, w := range workers {
		result.Late.Add(w.late)
		for name, stats := range w.calls {
			if result.Calls[name] == nil {
				result.Calls[name] = NewStats()
			}
			result.Calls[name].Add(stats)
			result.Total.Add(stats)
		}
		if room := keptErrors - len(result.Errors); room > 0 {
			result.Errors = append(result.Errors, w.errors[:min(room, len(w.errors))]...)
		}
	}
	return result, nil
}

type run struct {
	Options
	next   func(n int64) *Call
	start  time.Time
	number atomic.Int64 // of the next request
}

// worker is one connection (one for each host, where calls name several) with
// results of its own, which are added up at the end.
type worker struct {
	*run
	conns    map[string]*conn // by address or path
	prepared map[*Call]*fasthttp.Request
	response fasthttp.Response
	calls    map[string]*Stats
	late     *Stats
	errors   []string
}

func (w *worker) work(ctx context.Context) {
	defer func() {
		for _, c := range w.conns {
			c.Close()
		}
	}()
	for ctx.Err() == nil {
		n := w.number.Add(1) - 1
		if w.Requests > 0 && n >= w.Requests {
			return
		}
		start := time.Now()
		if w.Rate > 0 {
			due := w.start.Add(time.Duration(float64(n) / w.Rate * float64(time.Second)))
			if early := due.Sub(start); early > 0 {
				if !sleep(ctx, early-fine) {
					return
				}
				for rest := time.Until(due); rest > 0; rest = time.Until(due) {
					fineSleep(rest)
				}
				w.late.record(time.Since(due))
			}
			start = due
		}
		w.send(w.next(n), start)
		if w.Think > 0 && !sleep(ctx, w.Think) {
			return
		}
	}
}

// fine is what is left of a pause for a clock better than that of a timer, which
// may be a millisecond late where the process has nothing else to do.
const fine = 1500 * time.Microsecond

// sleep reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *worker) send(c *Call, start time.Time) {
	stats := w.calls[c.Name]
	if stats == nil {
		stats = NewStats()
		w.calls[c.Name] = stats
	}
	a := Answer{Call: c, Start: start}
	req, err := w.prepare(c)
	if err == nil {
		err = w.exchange(c, req)
	}
	a.End = time.Now()
	if err == nil {
		a.Status, a.Body = w.response.StatusCode(), w.response.Body()
		stats.record(a.End.Sub(start))
		err = c.verify(a.Status, a.Body)
	} else {
		stats.Requests++
	}
	if a.Err = err; err != nil {
		stats.Failed++
		if len(w.errors) < keptErrors {
			w.errors = append(w.errors, fmt.Sprintf("%s: %v", c.Name, err))
		}
	}
	if w.Observe != nil {
		w.Observe(a)
	}
}

// verify compares an answer with what the call wants.
func (c *Call) verify(status int, body []byte) error {
	want := c.Status
	if want == 0 {
		want = fasthttp.StatusOK
	}
	if status != want {
		return fmt.Errorf("status %d, want %d: %.200s", status, want, body)
	}
	if !bytes.Contains(body, []byte(c.Contains)) {
		return fmt.Errorf("%q is not in the answer: %.200s", c.Contains, body)
	}
	return nil
}

// Calls that are sent again and again are prepared once; more different ones
// than these are prepared each time.
const preparedMax = 256

func (w *worker) prepare(c *Call) (*fasthttp.Request, error) {
	if req := w.prepared[c]; req != nil {
		return req, nil
	}
	req := new(fasthttp.Request)
	if err := c.write(req); err != nil {
		return nil, err
	}
	if len(w.prepared) < preparedMax {
		w.prepared[c] = req
	}
	return req, nil
}

// conn is a kept connection. A client of fasthttp would retry, pool and clean up
// behind our back.
type conn struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

// exchange sends a call and reads the answer into w.response.
func (w *worker) exchange(call *Call, req *fasthttp.Request) error {
	network, address := "tcp", string(req.Header.Host())
	if call.Socket != "" {
		network, address = "unix", call.Socket
	}
	c := w.conns[address]
	if c == nil {
		dialled, err := net.DialTimeout(network, address, w.Timeout)
		if err != nil {
			return err
		}
		c = &conn{dialled, bufio.NewReaderSize(dialled, 16<<10), bufio.NewWriter(dialled)}
		w.conns[address] = c
	}
	w.response.Reset()
	w.response.SkipBody = req.Header.IsHead()
	err := c.SetDeadline(time.Now().Add(w.Timeout))
	if err == nil {
		err = req.Write(c.w)
	}
	if err == nil {
		err = c.w.Flush()
	}
	if err == nil {
		err = w.response.Read(c.r)
	}
	if err != nil || w.response.ConnectionClose() {
		c.Close()
		delete(w.conns, address)
	}
	return err
}

func (c *Call) write(req *fasthttp.Request) error {
	rest, ok := strings.CutPrefix(c.URL, "http://")
	host, _, _ := strings.Cut(rest, "/")
	if !ok || host == "" {
		return fmt.Errorf("cannot call %q: want an http URL", c.URL)
	}
	if c.Method != "" {
		req.Header.SetMethod(c.Method)
	}
	req.Header.DisableNormalizing()
	req.Header.SetHost(host)
	// Not by way of a URI, which would tidy the path up.
	req.Header.SetRequestURI("/" + strings.TrimPrefix(rest[len(host):], "/"))
	for _, h := range c.Header {
		req.Header.Add(h[0], h[1])
	}
	if c.Body != nil {
		req.SetBody(c.Body)
	}
	return nil
}
