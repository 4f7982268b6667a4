package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// explained is what these tests read of an explanation.
type explained struct {
	Identity struct {
		Method  string `json:"method"`
		Assumed bool   `json:"assumed"`
		Error   string `json:"error"`
	} `json:"identity"`
	Context struct {
		Source string `json:"source"`
		User   string `json:"user"`
	} `json:"context"`
	Route struct {
		Resource string              `json:"resource"`
		Found    []map[string]string `json:"found"`
	} `json:"route"`
	Input json.RawMessage `json:"input"`
	Cache struct {
		Key   string   `json:"key"`
		State string   `json:"state"`
		ID    string   `json:"decision_id"`
		Left  int64    `json:"left_ms"`
		Ends  []string `json:"ends"`
	} `json:"cache"`
	OPA struct {
		Allow    bool   `json:"allow"`
		Reason   string `json:"reason"`
		Revision string `json:"revision"`
		Error    string `json:"error"`
	} `json:"opa"`
	Decision *struct {
		Allow    bool   `json:"allow"`
		Reason   string `json:"reason"`
		Source   string `json:"source"`
		Revision string `json:"revision"`
		Enforced bool   `json:"enforced"`
	} `json:"decision"`
	Forward *struct {
		Header string          `json:"header"`
		Value  json.RawMessage `json:"value"`
	} `json:"forward"`
	Answer struct {
		Forwarded bool   `json:"forwarded"`
		Status    int    `json:"status"`
		Body      string `json:"body"`
	} `json:"answer"`
	Trace *struct {
		Lines []string `json:"lines"`
	} `json:"trace"`
}

type question struct {
	Method  string   `json:"method"`
	Target  string   `json:"target"`
	Headers []string `json:"headers,omitempty"`
	Body    string   `json:"body,omitempty"`
	User    string   `json:"user,omitempty"`
	Trace   string   `json:"trace,omitempty"`
}

// explain asks an admin listener why, and returns what came back, too.
func explain(t *testing.T, st *stack.Stack, q question) (e explained, text string) {
	t.Helper()
	answer := askWhy(t, st, q)
	if answer.status != http.StatusOK {
		t.Fatalf("%+v: %d %s", q, answer.status, answer.body)
	}
	if err := json.Unmarshal([]byte(answer.body), &e); err != nil {
		t.Fatal(err)
	}
	return e, answer.body
}

func askWhy(t *testing.T, st *stack.Stack, q any, header ...string) reply {
	t.Helper()
	b, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if header == nil {
		header = []string{bearer(st.AdminToken)}
	}
	return send(t, st.Admin, request{method: http.MethodPost, target: "/explain", header: header, body: string(b)})
}

// Every case is explained as it is answered: forwarded or not, and if not with the
// same status and message.
func TestExplainAgreesWithWhatIsAnswered(t *testing.T) {
	st := sharedStack(t)
	for _, c := range loadCases(t) {
		if c.Kind == "opa" || c.Kind == "authorize" {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			q := question{Method: c.Method, Target: strings.ReplaceAll(c.Path, "<cursor with search office SPK>", cursor), Headers: c.credentials(t, st)}
			if len(c.Body) > 0 && string(c.Body) != "null" {
				q.Body = string(c.Body)
				q.Headers = append(q.Headers, "Content-Type: application/json")
			}
			if err := st.Do(t.Context(), http.MethodDelete, "/seen", nil, nil); err != nil {
				t.Fatal(err)
			}
			e, text := explain(t, st, q)
			seen, err := st.Seen(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(seen) > 0 {
				t.Errorf("an explanation reached the API: %v", seen)
			}
			answer := send(t, st.Proxy, request{method: q.Method, target: q.Target, header: q.Headers, body: q.Body})
			if seen, err = st.Seen(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if e.Answer.Forwarded != (len(seen) > 0) {
				t.Errorf("explained as forwarded: %v, was: %v; %s", e.Answer.Forwarded, len(seen) > 0, text)
			}
			if !e.Answer.Forwarded && (e.Answer.Status != answer.status || message(e.Answer.Body) != message(answer.body)) {
				t.Errorf("explained as %d %s, was %d %s", e.Answer.Status, e.Answer.Body, answer.status, answer.body)
			}
			for _, h := range q.Headers {
				if _, secret, _ := strings.Cut(h, " "); strings.HasPrefix(h, "Authorization") && strings.Contains(text, secret) {
					t.Errorf("the credential is in the explanation: %s", text)
				}
			}
		})
	}
}

func message(body string) string {
	var answer struct{ Message string }
	_ = json.Unmarshal([]byte(body), &answer)
	return answer.Message
}

// What an explanation says before and after the request came, by credential and by
// name: the same question, a miss and then a hit. It stores nothing, counts as no
// request and leaves no record.
func TestExplainBeforeAndAfter(t *testing.T) {
	st := stack.New(t, stack.Options{})
	const secret = "canary-in-a-body-and-a-header"
	var key struct{ Key string }
	var session struct{ Cookie string }
	for path, into := range map[string]any{"/apikeys": &key, "/sessions": &session} {
		if err := st.Do(t.Context(), http.MethodPost, path, map[string]string{"user": "M5HECTEST"}, into); err != nil {
			t.Fatal(err)
		}
	}
	q := question{Method: http.MethodGet, Target: reading}
	with := func(header ...string) question { q := q; q.Headers = header; return q }
	token := with(bearer(st.Tokens["M5HECTEST"]))
	before := counts(t, st)
	var first explained
	for range 2 {
		e, _ := explain(t, st, token)
		if e.Context.Source != "api" || e.Cache.State != "miss" || !e.Answer.Forwarded || e.Decision.Source != "opa" || e.OPA.Revision != st.Revision {
			t.Errorf("before: %+v", e)
		}
		if e.Forward.Header != "x-cwms-auth-context" || !strings.Contains(string(e.Forward.Value), `"M5HECTEST"`) {
			t.Errorf("header %s: %s", e.Forward.Header, e.Forward.Value)
		}
		first = e
	}
	if got := redis(t, st.Redis, "EXISTS", "user:context:m5hectest"); got != ":0" {
		t.Errorf("an explanation stored a context: %s", got)
	}
	if after := counts(t, st); after != before {
		t.Errorf("counted: %v, before %v", after, before)
	}
	if size := records(t, st); size != 0 {
		t.Errorf("%d bytes of records", size)
	}

	answer := send(t, st.Proxy, get(reading, token.Headers...))
	if answer.status != http.StatusOK {
		t.Fatalf("%d %s", answer.status, answer.body)
	}
	e, _ := explain(t, st, token)
	if e.Context.Source != "process" || e.Cache.State != "hit" || e.Cache.Left <= 0 || len(e.Cache.Ends) == 0 || e.Decision.Source != "cache" {
		t.Errorf("after: %+v", e)
	}
	if e.Cache.Key != first.Cache.Key || string(e.Input) != string(first.Input) {
		t.Errorf("another question: %s, before %s", e.Input, first.Input)
	}
	named := q
	named.User = "m5hectest"
	if e, _ = explain(t, st, named); !e.Identity.Assumed || e.Context.Source != "redis" || e.Context.User != "M5HECTEST" || e.Cache.State != "hit" {
		t.Errorf("by name: %+v", e)
	}
	for name, q := range map[string]question{
		"key": with("Authorization: apikey "+key.Key, "X-Canary: "+secret), "session": with("Cookie: " + session.Cookie + "; other=" + secret),
		"token": with(token.Headers[0], "X-Canary: "+secret), "body": {Method: http.MethodPost, Target: "/cwms-data/locations?canary=" + secret,
			Headers: append([]string{"Content-Type: application/json"}, token.Headers...), Body: `{"office-id":"SWT","name":"` + secret + `"}`, Trace: "full"},
	} {
		e, text := explain(t, st, q)
		if !e.Answer.Forwarded {
			t.Errorf("%s: %s", name, text)
		}
		for what, s := range map[string]string{
			"token": st.Tokens["M5HECTEST"], "key": key.Key, "cookie": strings.TrimPrefix(session.Cookie, "JSESSIONIDSSO="), "admin token": st.AdminToken,
			"authorize secret": st.AuthorizeSecret, "Redis": st.Redis, "header, query or body": secret,
		} {
			if strings.Contains(text, s) {
				t.Errorf("%s: the %s is in the explanation: %s", name, what, text)
			}
		}
	}
}

// counts are the metrics that requests move.
func counts(t *testing.T, st *stack.Stack) string {
	t.Helper()
	series := object(t, send(t, st.Admin, get("/metrics/json", bearer(st.AdminToken))).body)
	sum := map[string]float64{}
	for name, v := range series {
		for _, counter := range []string{
			"authorizer_proxy_http_requests_total", "authorizer_proxy_authorization_decisions_total", "authorizer_proxy_opa_cache_hits_total",
			"authorizer_proxy_opa_cache_misses_total", "authorizer_proxy_opa_cache_entries", "authorizer_proxy_user_contexts",
		} {
			if strings.HasPrefix(name, counter) && !strings.Contains(name, "/ready") && !strings.Contains(name, `"ready"`) && !strings.Contains(name, `"health"`) {
				sum[counter] += v.(float64)
			}
		}
	}
	return fmt.Sprint(sum)
}

// records is the size of the decision records of proxied requests so far.
func records(t *testing.T, st *stack.Stack) (size int) {
	t.Helper()
	content, err := os.ReadFile(st.Replicas[0].OutFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if !strings.Contains(line, `"route":"health"`) && !strings.Contains(line, `"route":"ready"`) {
			size += len(line)
		}
	}
	return size
}

// Who may not ask, and what cannot be explained, is told why.
func TestExplainRefusals(t *testing.T) {
	st := sharedStack(t)
	good := question{Method: http.MethodGet, Target: reading}
	for name, c := range map[string]struct {
		ask    any
		header []string
		status int
		says   string
	}{
		"no token":          {good, []string{"X: y"}, 401, "ADMIN_TOKEN"},
		"a user's token":    {good, []string{bearer(st.Tokens["HECADMIN"])}, 401, "ADMIN_TOKEN"},
		"a prefix of it":    {good, []string{bearer(st.AdminToken[:8])}, 401, "ADMIN_TOKEN"},
		"not JSON":          {"hello", nil, 400, "method"},
		"unknown member":    {map[string]any{"method": "GET", "target": "/", "token": "x"}, nil, 400, "headers"},
		"nothing":           {question{}, nil, 400, "method: want"},
		"a second line":     {question{Method: "GET", Target: "/ HTTP/1.1\r\nX: y"}, nil, 400, "target: want"},
		"in a header":       {question{Method: "GET", Target: "/", Headers: []string{"X: y\r\nZ: a"}}, nil, 400, "headers[0]: want"},
		"user and token":    {question{Method: "GET", Target: "/", User: "A", Headers: []string{"Authorization: Bearer x"}}, nil, 400, "user and a credential"},
		"a dot for a user":  {question{Method: "GET", Target: "/", User: ".."}, nil, 400, "user: want"},
		"an odd trace":      {question{Method: "GET", Target: "/", Trace: "all"}, nil, 400, "trace: want"},
		"an unknown user":   {question{Method: "GET", Target: reading, User: "NO SUCH USER"}, nil, 404, "NO SUCH USER"},
		"more than is read": {question{Method: "GET", Target: "/", Body: strings.Repeat("x", 2<<20)}, nil, 413, "1048576"},
	} {
		answer := askWhy(t, st, c.ask, c.header...)
		if answer.status != c.status || !strings.Contains(message(answer.body), c.says) {
			t.Errorf("%s: %d %s, want %d with %q", name, answer.status, answer.body, c.status, c.says)
		}
	}
	if got := redis(t, st.Redis, "EXISTS", "user:context:no such user"); got != ":0" {
		t.Errorf("a typo made a context: %s", got)
	}
}
