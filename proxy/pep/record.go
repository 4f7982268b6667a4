package pep

import (
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"

	"headgate/proxy/authz"
	"headgate/proxy/latency"
)

// Recorder writes the decision record, one line of JSON for each request, and
// counts requests. OPA does not see cache hits, so these lines are the audit
// trail.
type Recorder struct {
	log    zerolog.Logger
	inputs bool

	mu     sync.Mutex // guards additions to series
	series atomic.Pointer[map[seriesKey]*series]
}

// NewRecorder writes records to w, which must not drop any. With inputs the input
// document is part of the record (LOG_INPUTS).
func NewRecorder(w io.Writer, inputs bool) *Recorder {
	r := &Recorder{log: zerolog.New(w), inputs: inputs}
	r.series.Store(&map[seriesKey]*series{})
	return r
}

// Record writes and counts one Event. It keeps nothing of it.
func (r *Recorder) Record(e *Event) {
	r.count(e)
	var stamp [32]byte
	line := r.log.Log().
		Bytes("time", authz.AppendTime(stamp[:0], e.Start, 6)).
		Str("event", "decision").
		Str("request_id", e.RequestID).
		Str("method", e.Method).
		Str("route", e.label()).
		Str("resource", e.Resource).
		Str("action", e.Action).
		Str("subject", e.Subject).
		Str("auth_method", string(e.AuthMethod)).
		Strs("offices", e.Offices)
	if d := e.Decision; d != nil {
		line = line.Bool("allow", d.Allow).
			Str("reason", d.Reason).
			Str("decision_id", d.ID).
			Str("opa_decision_id", d.OPAID).
			Str("revision", d.Revision).
			Str("source", string(d.Source)).
			Int64("age_us", e.Start.Add(e.Duration).Sub(d.Asked).Microseconds())
	}
	if e.Reported {
		line = line.Bool("enforced", false)
	}
	if e.Asked {
		line = line.Str("mode", "forward-auth")
	}
	if !e.Fetched.IsZero() {
		line = line.Int64("context_age_ms", e.Start.Sub(e.Fetched).Milliseconds())
	}
	line = line.Int("status", e.Status).
		Int64("identify_us", e.Identify.Microseconds()).
		Int64("context_us", e.Context.Microseconds()).
		Int64("decide_us", e.Decide.Microseconds()).
		Int64("forward_us", e.Forward.Microseconds()).
		Int64("total_us", e.Duration.Microseconds())
	if e.Err != nil && e.Err != errDenied {
		line = line.Str("error", e.Err.Error())
	}
	if r.inputs && e.Input != nil {
		line = line.RawJSON("input", e.Input)
		if d := e.Decision; d != nil && d.Constraints != nil {
			line = line.RawJSON("constraints", d.Constraints)
		}
	}
	line.Send()
}

// label names what was asked for from a closed set.
func (e *Event) label() string {
	switch {
	case e.Endpoint != "":
		return e.Endpoint
	case e.Route != "":
		return e.Route
	}
	return "none"
}

type seriesKey struct {
	method, route string
	status        int
}

// series are the metrics of one kind of request.
type series struct {
	requests *metrics.Counter
	seconds  *metrics.PrometheusHistogram
}

var (
	allowed = decisions("allow")
	denied  = decisions("deny")
	_       = reported("none") // there from the start, so that its rise is seen
	panics  = metrics.NewCounter(`authorizer_proxy_panics_total`)

	identifySeconds = stage("identify")
	contextSeconds  = stage("context")
	decideSeconds   = stage("decide")
	forwardSeconds  = stage("forward")
)

func decisions(verdict string) map[authz.Source]*metrics.Counter {
	m := map[authz.Source]*metrics.Counter{}
	for _, source := range []authz.Source{authz.FromOPA, authz.FromCache, authz.Coalesced} {
		m[source] = metrics.NewCounter(`authorizer_proxy_authorization_decisions_total{decision="` + verdict + `",source="` + string(source) + `"}`)
	}
	return m
}

// reported counts the denies of a route that were forwarded.
func reported(route string) *metrics.Counter {
	return metrics.GetOrCreateCounter(`authorizer_proxy_reported_denies_total{route=` + strconv.Quote(route) + `}`)
}

func stage(name string) *metrics.PrometheusHistogram {
	return latency.Histogram(`authorizer_proxy_stage_duration_seconds{stage="` + name + `"}`)
}

func (r *Recorder) count(e *Event) {
	s := r.of(seriesKey{knownMethod(e.Method), e.label(), e.Status})
	s.requests.Inc()
	s.seconds.Update(e.Duration.Seconds())
	if d := e.Decision; d != nil {
		if d.Allow {
			allowed[d.Source].Inc()
		} else {
			denied[d.Source].Inc()
		}
	}
	if e.Reported {
		reported(e.label()).Inc()
	}
	observe(identifySeconds, e.Identify)
	observe(contextSeconds, e.Context)
	observe(decideSeconds, e.Decide)
	observe(forwardSeconds, e.Forward)
}

func observe(h *metrics.PrometheusHistogram, d time.Duration) {
	if d > 0 {
		h.Update(d.Seconds())
	}
}

// of finds the series of a kind of request. The set is closed: methods, routes of
// the table and statuses.
func (r *Recorder) of(key seriesKey) *series {
	if s, ok := (*r.series.Load())[key]; ok {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.series.Load()
	if s, ok := old[key]; ok {
		return s
	}
	labels := `{method="` + key.method + `",route=` + strconv.Quote(key.route)
	s := &series{
		requests: metrics.GetOrCreateCounter(`authorizer_proxy_http_requests_total` + labels + `,status_code="` + strconv.Itoa(key.status) + `"}`),
		seconds:  duration(`authorizer_proxy_http_request_duration_seconds` + labels + `}`),
	}
	next := make(map[seriesKey]*series, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[key] = s
	r.series.Store(&next)
	return s
}

var (
	durationsMu sync.Mutex
	durations   = map[string]*metrics.PrometheusHistogram{}
)

func duration(name string) *metrics.PrometheusHistogram {
	durationsMu.Lock()
	defer durationsMu.Unlock()
	h, ok := durations[name]
	if !ok {
		h = latency.Histogram(name)
		durations[name] = h
	}
	return h
}

func knownMethod(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return "other"
}
