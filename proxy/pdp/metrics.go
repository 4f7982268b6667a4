package pdp

import (
	"github.com/VictoriaMetrics/metrics"

	"headgate/proxy/latency"
)

var (
	hits      = metrics.NewCounter(`authorizer_proxy_opa_cache_hits_total`)
	misses    = metrics.NewCounter(`authorizer_proxy_opa_cache_misses_total`)
	coalesced = metrics.NewCounter(`authorizer_proxy_opa_coalesced_total`)
	shed      = metrics.NewCounter(`authorizer_proxy_opa_shed_total`)

	// Why an entry was not served, or an answer not kept.
	bypassLease    = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="lease"}`)
	bypassEpoch    = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="epoch"}`)
	bypassMoved    = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="moved"}`)
	bypassTTL      = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="ttl_0"}`)
	bypassOversize = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="oversize"}`)
	bypassRevision = metrics.NewCounter(`authorizer_proxy_opa_cache_bypass_total{reason="no_revision"}`)

	allowSeconds  = latency.Histogram(`authorizer_proxy_opa_evaluation_duration_seconds{result="allow"}`)
	denySeconds   = latency.Histogram(`authorizer_proxy_opa_evaluation_duration_seconds{result="deny"}`)
	failedSeconds = latency.Histogram(`authorizer_proxy_opa_evaluation_duration_seconds{result="failed"}`)

	evaluationsAllow     = metrics.NewCounter(`authorizer_proxy_opa_evaluations_total{result="allow"}`)
	evaluationsDeny      = metrics.NewCounter(`authorizer_proxy_opa_evaluations_total{result="deny"}`)
	evaluationsMalformed = metrics.NewCounter(`authorizer_proxy_opa_evaluations_total{result="malformed"}`)
	evaluationsFailed    = metrics.NewCounter(`authorizer_proxy_opa_evaluations_total{result="failed"}`)

	epochChanges = metrics.NewCounter(`authorizer_proxy_policy_epoch_changes_total`)
	pollErrors   = metrics.NewCounter(`authorizer_proxy_policy_poll_errors_total`)
)
