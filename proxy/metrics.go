package main

import (
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/VictoriaMetrics/metrics"
)

// metricPrefix begins the name of every series.
const metricPrefix = "authorizer_proxy_"

// families says what each family of series counts; the table of
// bench/observe/README.md is made from it. Names that the earlier proxy had are kept. Of the runtime and the process
// there are more, authorizer_proxy_go_… and authorizer_proxy_process_…, as
// VictoriaMetrics/metrics documents them.
var families = []struct{ name, help string }{
	{"http_requests_total", "Requests answered, by method, route of the route table and status."},
	{"http_request_duration_seconds", "Time from the first byte of a request to the last of its answer."},
	{"stage_duration_seconds", "Time in one stage of a request: identify, context, decide, forward (the API's time is part of it)."},
	{"requests_in_flight", "Requests that were read and are not answered."},
	{"active_connections", "Open connections of clients."},
	{"connections_limit", "Most connections of clients served at once."},
	{"connections_refused_total", "Connections turned away, by limit: in total, or of one address."},
	{"inspected_body_bytes", "Memory held by request bodies that are read for their attributes."},
	{"inspected_body_limit_bytes", "Most of it, BODY_INSPECT_TOTAL."},
	{"authorization_decisions_total", "Decisions of requests, by verdict and source: OPA, the cache, or an equal question in flight."},
	{"reported_denies_total", "Requests that policy denied and ENFORCE=report forwarded."},
	{"enforce_report", "1 if denied requests are forwarded (ENFORCE=report)."},
	{"opa_cache_hits_total", "Decisions found in the cache."},
	{"opa_cache_misses_total", "Decisions not found in it."},
	{"opa_cache_bypass_total", "Decisions that could not come from the cache or go there, by reason."},
	{"opa_cache_entries", "Decisions in the cache."},
	{"opa_coalesced_total", "Questions that waited for the answer to an equal one."},
	{"opa_evaluation_duration_seconds", "Time of one question to OPA, by result."},
	{"opa_evaluations_total", "Questions to OPA, by result; malformed is an answer that is no decision, failed is none at all."},
	{"opa_questions_in_flight", "Questions that OPA is asked now."},
	{"opa_questions_waiting", "Questions that wait until fewer are in flight."},
	{"opa_questions_limit", "Most questions in flight; as many again may wait."},
	{"opa_shed_total", "Questions turned away because the queue was full."},
	{"opa_revision_info", "1 for each bundle and revision that OPA runs."},
	{"policy_epoch", "Number of the present policy as this process counts; each change begins another."},
	{"policy_epoch_changes_total", "Changes of policy seen."},
	{"policy_lease_age_seconds", "Time since OPA last confirmed its policy; below 0 if it never did."},
	{"policy_lease_seconds", "Age at which cached decisions are no longer used, POLICY_LEASE."},
	{"policy_poll_errors_total", "Polls of OPA's policy that failed."},
	{"ready", "1 if this replica can decide: policy confirmed, signing keys loaded, not stopping."},
	{"keys_age_seconds", "Time since the issuer last confirmed its signing keys; tokens are refused with 503 beyond 24 h."},
	{"keys_generation", "Number of different sets of keys seen."},
	{"keys_refreshes_total", "Reads of the issuer's keys, by result."},
	{"token_cache_hits_total", "Credentials verified before."},
	{"token_cache_misses_total", "Credentials verified anew."},
	{"credentials_cached", "Verified credentials in memory."},
	{"credentials_refused_total", "Credentials answered with 401, by reason."},
	{"strangers_refused_total", "Keys and sessions turned away unasked, since too many unknown ones came from their address."},
	{"cache_hits_total", "User contexts found in Redis or in its copy in this process."},
	{"cache_misses_total", "User contexts not found there."},
	{"cache_operation_duration_seconds", "Time of one operation of Redis that went over the network."},
	{"api_call_duration_seconds", "Time of one call that the proxy makes to the API for itself."},
	{"api_calls_total", "Such calls, by result; shed ones were not made, since too many were under way."},
	{"user_contexts", "Users whose context is kept in this process."},
	{"user_context_oldest_served_seconds", "Age of the oldest context used since the last scrape."},
	{"user_context_tracking", "1 if Redis pushes deletions to this process."},
	{"user_context_unusable_total", "Contexts found and not used, such as those of another Redis process."},
	{"user_context_mismatched_total", "Profiles that name another principal than the token that asked for them."},
	{"user_context_overtaken_total", "Profiles thrown away because the user was revoked while they were read."},
	{"user_context_refreshes_total", "Background refreshes of contexts, by result; ended ones found that the credential no longer works."},
	{"user_context_revocations_total", "Revocations seen."},
	{"user_context_panics_total", "Bugs met while a context was read."},
	{"revocation_lag_bound_seconds", "Longest that a revocation can go unseen as things are now, even if every message about it is lost."},
	{"redis_degraded", "1 if Redis is configured and away."},
	{"upstream_connections", "Open connections to the API."},
	{"upstream_dials_total", "Connections to the API begun."},
	{"upstream_failures_total", "Requests that the API did not answer as it should, by kind."},
	{"upstream_retries_total", "Requests sent again on another connection; never a write."},
	{"upstream_client_gone_total", "Requests whose client left before the answer was complete."},
	{"upstream_large_header_refused_total", "Answers of 400, 413, 414 and 431 of the API to a header of more than 8 KiB: UPSTREAM_HEADER_MAX may be too high."},
	{"context_header_reduced_total", "Context headers without ts_privileges, or without roles too, since there was no room."},
	{"record_write_errors_total", "Failed attempts to write decision records; none is dropped."},
	{"record_write_stuck_seconds", "Time for which decision records have been kept from their target; soon requests will wait for it."},
	{"tls_certificate_expires_seconds", "When the certificate of the public listener ends, in Unix time; 0 without TLS."},
	{"tls_reload_failures_total", "Changed files of certificates that could not be read, by file; the last good ones stay in use."},
	{"panics_total", "Requests answered with 500 because of a bug."},
	{"build_info", "1, with the version of this program."},
}

var helpOf = func() map[string]string {
	m := map[string]string{}
	for _, f := range families {
		m[metricPrefix+f.name] = f.help
	}
	return m
}()

// writeMetrics writes all series in Prometheus's text format.
func writeMetrics(w io.Writer) {
	metrics.ExposeMetadata(true)
	var all bytes.Buffer
	metrics.WritePrometheus(&all, true)
	metrics.WriteFDMetrics(&all)
	var out bytes.Buffer
	for line := range strings.Lines(all.String()) {
		comment := ""
		for _, c := range []string{"# HELP ", "# TYPE "} {
			if rest, ok := strings.CutPrefix(line, c); ok {
				comment, line = c, rest
			}
		}
		// The library names the series of the runtime and the process by itself.
		if !strings.HasPrefix(line, metricPrefix) {
			line = metricPrefix + line
		}
		if comment == "# HELP " { // the library leaves the text out
			help, ok := helpOf[strings.TrimSpace(line)]
			if !ok {
				continue
			}
			line = strings.TrimSpace(line) + " " + help + "\n"
		}
		out.WriteString(comment)
		out.WriteString(line)
	}
	_, _ = w.Write(out.Bytes()) // who scrapes has left
}

// metricsJSON is /metrics as one JSON object: series to value.
func metricsJSON() map[string]float64 {
	var text bytes.Buffer
	writeMetrics(&text)
	all := map[string]float64{}
	for line := range strings.Lines(text.String()) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil && v-v == 0 {
			all[line[:i]] = v
		}
	}
	return all
}
