package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"
)

// maxStatus bounds a status push of OPA, which carries its whole metrics.
const maxStatus = 4 << 20

// admin is the listener for operators and for OPA. It shares nothing with the
// public one, so a flood there leaves it alone.
func (p *proxy) admin() *http.Server {
	mux := http.NewServeMux()
	open := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, h) }
	guarded := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, p.authorized(h)) }
	// On a loopback address whoever reaches these already sits on this machine.
	local := guarded
	if host, _, err := net.SplitHostPort(p.config.AdminAddr); err == nil && loopback(host) {
		local = open
	}

	open("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	open("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := p.readiness()
		answer(w, r.HTTPStatus(), r)
	})
	shown := revisions{shown: map[string]string{}}
	open("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		shown.refresh(p.decider.Status().Revisions)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writeMetrics(w)
	})
	local("GET /metrics/json", func(w http.ResponseWriter, _ *http.Request) {
		shown.refresh(p.decider.Status().Revisions)
		answer(w, http.StatusOK, metricsJSON())
	})
	local("POST /opa/status", p.opaStatus)
	guarded("POST /invalidate", p.invalidate)
	guarded("POST /explain", p.explainer())
	if p.config.AdminPprof {
		local("GET /debug/pprof/", pprof.Index)
		local("GET /debug/pprof/profile", pprof.Profile)
		local("GET /debug/pprof/trace", pprof.Trace)
		local("GET /debug/pprof/symbol", pprof.Symbol)
		local("GET /debug/pprof/cmdline", pprof.Cmdline)
	}
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// authorized lets through who shows ADMIN_TOKEN.
func (p *proxy) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		given, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(p.config.AdminToken))
		switch {
		case p.config.AdminToken == "":
			answer(w, http.StatusForbidden, failure{"Forbidden", "ADMIN_TOKEN is not set, so nobody may do this"})
		case !ok || subtle.ConstantTimeCompare(given[:], want[:]) != 1:
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer(w, http.StatusUnauthorized, failure{"Unauthorized", "want Authorization: Bearer with ADMIN_TOKEN"})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

type failure struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has left
}

// opaStatus takes OPA's status push as a hint to look, never as the truth.
func (p *proxy) opaStatus(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxStatus))
	p.decider.Recheck()
	w.WriteHeader(http.StatusOK)
}

// invalidate makes every replica read a user's context anew.
func (p *proxy) invalidate(w http.ResponseWriter, r *http.Request) {
	var want struct {
		User string `json:"user"`
		All  bool   `json:"all"`
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&want); err != nil || (want.User == "") == !want.All {
		answer(w, http.StatusBadRequest, failure{"Bad Request", `want {"user":"NAME"} or {"all":true}`})
		return
	}
	report, err := p.revoke(r.Context(), want.User, want.All)
	if err != nil {
		p.log.Error().Err(err).Msg("cannot invalidate")
		answer(w, http.StatusServiceUnavailable, failure{"Service Unavailable", err.Error()})
		return
	}
	answer(w, http.StatusOK, report)
}
