// Package openapi holds proxy/openapi.yaml against a running proxy: whatever the
// document says is seen, and whatever is seen the document says. It is a module of
// its own for the sake of the library that reads such documents.
package openapi

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"headgate/bench/stack"
)

// call is a request to an endpoint and the statuses that it may have, of which the
// document must know.
type call struct {
	method, path string
	status       int
	header       []string // "Name: value"
	body         string
}

// watched is a document and what was seen of it.
type watched struct {
	t      *testing.T
	doc    *openapi3.T
	st     *stack.Stack
	client *http.Client
	seen   map[string]bool // "GET /health 200"
}

// base is the listener of a path.
func (w *watched) base(path string) string {
	if w.doc.Paths.Value(path).Servers != nil {
		return w.st.Admin
	}
	return w.st.Proxy
}

func (w *watched) send(c call) (int, http.Header, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), c.method, w.base(c.path)+c.path, strings.NewReader(c.body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, line := range c.header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	res, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, res.Header, body
}

// look sends a request and holds the answer against the document.
func (w *watched) look(c call) {
	w.t.Helper()
	status, header, body := w.send(c)
	what := fmt.Sprintf("%s %s %d", c.method, c.path, status)
	if status != c.status {
		w.t.Errorf("%s: want %d: %s", what, c.status, body)
		return
	}
	op := w.doc.Paths.Value(c.path).GetOperation(c.method)
	if op == nil || op.Responses.Status(status) == nil {
		w.t.Errorf("%s is not in the document", what)
		return
	}
	w.seen[what] = true
	response := op.Responses.Status(status).Value
	for name, h := range response.Headers {
		if h.Value.Required && header.Get(name) == "" {
			w.t.Errorf("%s: %s is missing", what, name)
		}
	}
	if c.method == http.MethodHead {
		return
	}
	if len(response.Content) == 0 {
		if len(body) > 0 {
			w.t.Errorf("%s: the document knows of no body: %s", what, body)
		}
		return
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	media := response.Content.Get(kind)
	if err != nil || media == nil {
		w.t.Errorf("%s: the document does not know %q", what, header.Get("Content-Type"))
		return
	}
	if kind != "application/json" {
		return
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		w.t.Errorf("%s: %v", what, err)
		return
	}
	if err := media.Schema.Value.VisitJSON(value); err != nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

func TestDocument(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromFile("../../proxy/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := stack.New(t, stack.Options{Env: map[string]string{"TRUSTED_PROXIES": "127.0.0.1"}})
	w := &watched{t: t, doc: doc, st: st, client: &http.Client{Timeout: time.Minute}, seen: map[string]bool{}}
	defer w.client.CloseIdleConnections()
	token := "Authorization: Bearer " + st.Tokens["M5HECTEST"]
	admin := "Authorization: Bearer " + st.AdminToken
	question := `{"resource":"offices","action":"read","context":{"x":"` + "%d" + `"}}`

	for _, c := range []call{
		{"GET", "/health", 200, nil, ""},
		{"HEAD", "/health", 200, nil, ""},
		{"GET", "/ready", 200, nil, ""},
		{"HEAD", "/ready", 200, nil, ""},
		{"POST", "/authorize", 200, []string{token}, fmt.Sprintf(question, 1)},
		{"POST", "/authorize", 200, nil, `{"resource":"timeseries","action":"delete"}`},
		{"POST", "/authorize", 400, nil, `{"resource":7}`},
		{"POST", "/authorize", 401, []string{token + "x"}, fmt.Sprintf(question, 1)},
		{"POST", "/authorize", 403, nil, `{"resource":"offices","action":"read","user":{"id":"x"}}`},
		{"GET", "/livez", 200, nil, ""},
		{"GET", "/readyz", 200, nil, ""},
		{"GET", "/metrics", 200, nil, ""},
		{"GET", "/metrics/json", 200, nil, ""},
		{"POST", "/opa/status", 200, nil, `{}`},
		{"POST", "/invalidate", 200, []string{admin}, `{"user":"M5HECTEST"}`},
		{"POST", "/invalidate", 200, []string{admin}, `{"all":true}`},
		{"POST", "/invalidate", 400, []string{admin}, `{}`},
		{"POST", "/invalidate", 401, nil, `{"all":true}`},
		{"POST", "/explain", 200, []string{admin}, `{"method":"GET","target":"/cwms-data/offices"}`},
		{"POST", "/explain", 200, []string{admin}, `{"method":"GET","target":"/cwms-data/timeseries?office=SWT","user":"M5HECTEST"}`},
		{"POST", "/explain", 400, []string{admin}, `{}`},
		{"POST", "/explain", 401, nil, `{}`},
		{"POST", "/explain", 404, []string{admin}, `{"method":"GET","target":"/cwms-data/offices","user":"NOBODY"}`},
		{"POST", "/explain", 413, []string{admin}, `{"method":"` + strings.Repeat("x", 2<<20) + `"}`},
	} {
		w.look(c)
	}
	asked := func(method, uri string, more ...string) []string {
		return append([]string{"X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + uri}, more...)
	}
	for _, method := range methods {
		if doc.Paths.Value("/forward-auth").GetOperation(method) == nil {
			continue
		}
		for status, header := range map[int][]string{
			200: asked("GET", "/cwms-data/offices", token),
			400: asked("GET", "/cwms-data//offices"),
			401: asked("GET", "/cwms-data/offices", token+"x"),
			403: asked("GET", "/cwms-data/timeseries?office=SPK", token),
			404: asked("GET", "/elsewhere"),
			405: asked("CONNECT", "/cwms-data/offices"),
		} {
			w.look(call{method, "/forward-auth", status, header, ""})
		}
	}

	// A method that the document does not know is not allowed.
	for path, item := range doc.Paths.Map() {
		for _, method := range methods {
			head := method == http.MethodHead && (item.Get != nil) // as good as GET
			if item.GetOperation(method) != nil || head {
				continue
			}
			if status, _, body := w.send(call{method: method, path: path, header: []string{admin}}); status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s, want 405", method, path, status, body)
			}
		}
	}

	// Without OPA nothing can be decided, without Redis nobody be revoked.
	if st.RedisServer != nil {
		if err := st.RedisServer.Kill(); err != nil {
			t.Fatal(err)
		}
		w.look(call{"POST", "/invalidate", 503, []string{admin}, `{"user":"M5HECTEST"}`})
	} else {
		w.seen["POST /invalidate 503"] = true
		t.Log("without redis-server it is left out what is said without Redis")
	}
	if err := st.OPAServer.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if status, _, _ := w.send(call{method: "GET", path: "/ready"}); status == 503 || time.Now().After(deadline) {
			break
		}
	}
	w.look(call{"GET", "/ready", 503, nil, ""})
	w.look(call{"HEAD", "/ready", 503, nil, ""})
	w.look(call{"GET", "/readyz", 503, nil, ""})
	w.look(call{"POST", "/authorize", 503, nil, fmt.Sprintf(question, 2)})
	for _, method := range methods {
		if doc.Paths.Value("/forward-auth").GetOperation(method) != nil {
			w.look(call{method, "/forward-auth", 503, asked("GET", "/cwms-data/units"), ""})
		}
	}

	var missing []string
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if what := method + " " + path + " " + status; !w.seen[what] {
					missing = append(missing, what)
				}
			}
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("in the document, but never seen:\n%s", strings.Join(missing, "\n"))
	}
}
