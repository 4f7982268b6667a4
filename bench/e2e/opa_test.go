package e2e

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headgate/bench/stack"
)

// An OPA whose answer is no decision costs 503 each time it is asked: never an
// allow, never a deny, and nothing of it is kept.
func TestAnswersOfOPAThatAreNoDecision(t *testing.T) {
	var answer atomic.Pointer[func(http.ResponseWriter)]
	var asked atomic.Int64
	done := make(chan struct{})
	opa := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // the poll: one bundle that never changes
			io.WriteString(w, `{"result":{"b":{"manifest":{"revision":"r1","roots":["cwms"]},"etag":"e"}}}`)
			return
		}
		asked.Add(1)
		(*answer.Load())(w)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go opa.Serve(l)
	defer opa.Close()
	defer close(done)

	st := stack.New(t, stack.Options{Env: map[string]string{"OPA_URL": "http://" + l.Addr().String(), "OPA_TIMEOUT": "300"}})
	text := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status); io.WriteString(w, body) }
	}
	for name, give := range map[string]func(http.ResponseWriter){
		"empty object":  text(200, `{}`),
		"null":          text(200, `{"result":null}`),
		"a string":      text(200, `{"result":"true"}`),
		"allow is 1":    text(200, `{"result":{"allow":1}}`),
		"no allow":      text(200, `{"result":{}}`),
		"a warning":     text(200, `{"result":true,"warning":{"code":"api_usage_warning"}}`),
		"negative life": text(200, `{"result":{"allow":true,"cache":{"ttl_ms":-1}}}`),
		"truncated":     text(200, `{"result":{"allow":tr`),
		"HTML with 200": text(200, `<html>welcome</html>`),
		"500":           text(500, `{"code":"internal_error"}`),
		"100 MB": func(w http.ResponseWriter) {
			io.WriteString(w, `{"result":"`)
			for range 100 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
					return
				}
			}
		},
		"nothing for 10 s": func(http.ResponseWriter) {
			select {
			case <-done:
			case <-time.After(10 * time.Second):
			}
		},
	} {
		answer.Store(&give)
		for range 2 {
			before := asked.Load()
			r := send(t, st.Proxy, get("/cwms-data/offices"))
			if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || r.header.Get("X-Request-Id") == "" {
				t.Errorf("%s: %d %v %s, want 503 with Retry-After", name, r.status, r.header, r.body)
			}
			if asked.Load() == before {
				t.Errorf("%s: answered without asking OPA", name)
			}
		}
	}
	// And then the truth, as a bare boolean: limited to the offices asked for.
	good := text(200, `{"result":true,"provenance":{"bundles":{"b":{"revision":"r1"}}}}`)
	answer.Store(&good)
	if r := send(t, st.Proxy, get("/cwms-data/offices")); r.status != http.StatusOK {
		t.Errorf("a boolean allow: %d %s", r.status, r.body)
	}
}
