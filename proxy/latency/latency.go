// Package latency gives every latency histogram of the proxy the same classic
// buckets, fine enough for a proxy that answers in microseconds and readable by
// stock Prometheus.
package latency

import (
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// From 1 ms on they are those of the earlier proxy, so that its queries hold, and
// every threshold of the alert rules is one of them.
var bounds = []float64{
	25e-6, 50e-6, 100e-6, 250e-6, 500e-6,
	1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10,
}

// Histogram registers a histogram of seconds under the given series name. Call
// it once for a name, in a package variable: a second time panics.
func Histogram(name string) *metrics.PrometheusHistogram {
	return metrics.NewPrometheusHistogramExt(name, bounds)
}

// Since records the time since start.
func Since(h *metrics.PrometheusHistogram, start time.Time) {
	h.Update(time.Since(start).Seconds())
}
