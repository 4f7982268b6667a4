package pip

import (
	"github.com/VictoriaMetrics/metrics"

	"headgate/proxy/latency"
)

var (
	hits   = metrics.NewCounter(`authorizer_proxy_cache_hits_total{cache="user_context"}`)
	misses = metrics.NewCounter(`authorizer_proxy_cache_misses_total{cache="user_context"}`)

	readSeconds  = latency.Histogram(`authorizer_proxy_cache_operation_duration_seconds{cache="user_context",operation="read"}`)
	storeSeconds = latency.Histogram(`authorizer_proxy_cache_operation_duration_seconds{cache="user_context",operation="store"}`)

	callSeconds  = latency.Histogram(`authorizer_proxy_api_call_duration_seconds{call="profile"}`)
	callsOK      = metrics.NewCounter(`authorizer_proxy_api_calls_total{call="profile",result="ok"}`)
	callsRefused = metrics.NewCounter(`authorizer_proxy_api_calls_total{call="profile",result="refused"}`)
	callsFailed  = metrics.NewCounter(`authorizer_proxy_api_calls_total{call="profile",result="failed"}`)
	callsShed    = metrics.NewCounter(`authorizer_proxy_api_calls_total{call="profile",result="shed"}`)

	// Callers nobody has vouched for who were told to come again.
	strangersShed    = metrics.NewCounter(`authorizer_proxy_strangers_refused_total{limit="total"}`)
	strangersCrowded = metrics.NewCounter(`authorizer_proxy_strangers_refused_total{limit="address"}`)

	// Why a context that was found was not used.
	unusable = metrics.NewCounter(`authorizer_proxy_user_context_unusable_total`)
	// Profiles that name another principal than the token that asked for them.
	mismatched = metrics.NewCounter(`authorizer_proxy_user_context_mismatched_total`)
	// Fetches that were thrown away because their user was revoked meanwhile.
	overtaken = metrics.NewCounter(`authorizer_proxy_user_context_overtaken_total`)

	refreshedOK     = metrics.NewCounter(`authorizer_proxy_user_context_refreshes_total{result="ok"}`)
	refreshedEnded  = metrics.NewCounter(`authorizer_proxy_user_context_refreshes_total{result="ended"}`)
	refreshedFailed = metrics.NewCounter(`authorizer_proxy_user_context_refreshes_total{result="failed"}`)

	panics = metrics.NewCounter(`authorizer_proxy_user_context_panics_total`)

	revocations = metrics.NewCounter(`authorizer_proxy_user_context_revocations_total`)
)
