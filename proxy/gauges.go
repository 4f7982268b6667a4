package main

import (
	"fmt"
	"sync"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"
)

// gauges registers what is read from the stages at the moment of a scrape.
func (p *proxy) gauges(server *fasthttp.Server) {
	gauge := func(name string, f func() float64) { metrics.NewGauge(metricPrefix+name, f) }
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge("active_connections", func() float64 { return float64(server.GetOpenConnectionsCount()) })
	gauge("requests_in_flight", func() float64 { return float64(p.handler.InFlight()) })
	gauge("inspected_body_bytes", func() float64 { return float64(p.handler.Bodies.Held()) })
	gauge("inspected_body_limit_bytes", func() float64 { return float64(p.handler.Bodies.Total) })
	gauge("record_write_stuck_seconds", func() float64 { return p.records.Stuck().Seconds() })
	gauge("upstream_connections", func() float64 { return float64(p.forward.Open()) })
	gauge("opa_questions_in_flight", func() float64 { return float64(p.decider.Status().InFlight) })
	gauge("opa_questions_waiting", func() float64 { return float64(p.decider.Status().Waiting) })
	gauge("opa_questions_limit", func() float64 { return float64(p.decider.Status().Limit) })
	gauge("opa_cache_entries", func() float64 { return float64(p.decider.Status().Entries) })
	gauge("ready", func() float64 { return truth(p.undecidable() == nil) })
	gauge("policy_epoch", func() float64 { return float64(p.decider.Status().Epoch) })
	gauge("policy_lease_age_seconds", func() float64 { return p.decider.Status().Age.Seconds() })
	gauge("policy_lease_seconds", func() float64 { return p.config.PolicyLease.Seconds() })
	gauge("keys_age_seconds", func() float64 { return p.verifier.KeysAge().Seconds() })
	gauge("redis_degraded", func() float64 { return truth(p.redis != nil && p.redis.Away()) })
	gauge("user_context_tracking", func() float64 { return truth(p.users.Tracking()) })
	gauge("user_context_oldest_served_seconds", func() float64 { return p.users.OldestServed().Seconds() })
	gauge("revocation_lag_bound_seconds", func() float64 { return p.users.RevocationLag().Seconds() })
	gauge("user_contexts", func() float64 { return float64(p.users.Users()) })
	gauge("credentials_cached", func() float64 { return float64(p.verifier.Cached()) })
	gauge("keys_generation", func() float64 { return float64(p.verifier.Generation()) })
	gauge("enforce_report", func() float64 { return truth(p.config.Enforce == "report") })
	gauge("tls_certificate_expires_seconds", func() float64 { return p.certificate.expires() })
	gauge(fmt.Sprintf(`build_info{version=%q}`, version()), func() float64 { return 1 })
}

// revisions keeps one opa_revision_info series for each bundle that OPA runs.
type revisions struct {
	mu    sync.Mutex
	shown map[string]string // series by bundle
}

// refresh is called before a scrape is written.
func (r *revisions) refresh(now map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for bundle, series := range r.shown {
		if seriesOf(bundle, now[bundle]) != series {
			metrics.UnregisterMetric(series)
			delete(r.shown, bundle)
		}
	}
	for bundle, revision := range now {
		if _, ok := r.shown[bundle]; !ok {
			series := seriesOf(bundle, revision)
			metrics.NewGauge(series, func() float64 { return 1 })
			r.shown[bundle] = series
		}
	}
}

func seriesOf(bundle, revision string) string {
	return fmt.Sprintf("authorizer_proxy_opa_revision_info{bundle=%q,revision=%q}", bundle, revision)
}
