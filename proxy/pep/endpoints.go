package pep

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// own reports whether the path belongs to this proxy, and which endpoint it names.
func (h *Handler) own(path []byte) (endpoint string, ok bool) {
	rest, ok := strings.CutPrefix(view(path), h.OwnPrefix)
	if !ok {
		return "", false
	}
	switch rest {
	case "/health":
		return "health", true
	case "/ready":
		return "ready", true
	case "/authorize":
		return "authorize", true
	case "/forward-auth":
		return "forward-auth", true
	}
	return "", false
}

func (h *Handler) endpoint(x *exchange, name string) error {
	x.event.Endpoint = name
	if name == "forward-auth" {
		return h.forwardAuth(x)
	}
	if name == "authorize" {
		if x.event.Method != fasthttp.MethodPost {
			return authz.Refuse(authz.ErrMethodNotAllowed, "want POST")
		}
		x.then = (*Handler).authorize
		return nil
	}
	if x.event.Method != fasthttp.MethodGet && x.event.Method != fasthttp.MethodHead {
		return authz.Refuse(authz.ErrMethodNotAllowed, "want GET")
	}
	if name == "health" {
		return x.json(fasthttp.StatusOK, struct {
			Status    string `json:"status"`
			Timestamp string `json:"timestamp"`
			Service   string `json:"service"`
		}{"healthy", timestamp(time.Now()), "authorizer-proxy"})
	}
	ready := h.Ready().public()
	return x.json(ready.HTTPStatus(), ready)
}

// Readiness is the answer of /ready.
type Readiness struct {
	Status     string            `json:"status"`     // ready, degraded or not-ready
	Downstream string            `json:"downstream"` // available or unavailable: the API
	Checks     map[string]string `json:"checks"`     // "ok" or what is wrong
	Timestamp  string            `json:"timestamp"`
}

// NewReadiness judges the checks: without policy or keys nothing can be decided.
// Without Redis or the API the true error is better than no replica at all.
func NewReadiness(opa, keys, redis, upstream error, now time.Time) Readiness {
	r := Readiness{Status: "ready", Downstream: "available", Checks: map[string]string{}, Timestamp: timestamp(now)}
	for name, err := range map[string]error{"redis": redis, "upstream": upstream, "opa": opa, "keys": keys} {
		r.Checks[name] = "ok"
		if err != nil {
			r.Checks[name] = err.Error()
		}
	}
	if upstream != nil {
		r.Downstream = "unavailable"
	}
	switch {
	case opa != nil || keys != nil:
		r.Status = "not-ready"
	case redis != nil || upstream != nil:
		r.Status = "degraded"
	}
	return r
}

// public tells a stranger what is missing, but not where it would be.
func (r Readiness) public() Readiness {
	for name, what := range r.Checks {
		if what != "ok" {
			r.Checks[name] = "unavailable"
		}
	}
	return r
}

// HTTPStatus is 503 when this replica cannot decide.
func (r Readiness) HTTPStatus() int {
	if r.Status == "not-ready" {
		return fasthttp.StatusServiceUnavailable
	}
	return fasthttp.StatusOK
}

func (x *exchange) json(status int, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		panic("BUG: an answer of ours is no JSON: " + err.Error())
	}
	x.answer(status)
	x.rc.Response.Header.SetContentType("application/json")
	x.rc.Response.Header.Set("Cache-Control", "no-store")
	x.rc.Response.SetBodyRaw(b)
	return nil
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
