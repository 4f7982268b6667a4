package pep

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"headgate/proxy/authz"
)

func ask(body string, lines ...string) string { return request("POST", "/authorize", body, lines...) }

// The answer of /authorize, and the question that policy was asked.
func TestAuthorize(t *testing.T) {
	const (
		alice   = `{"id":"alice","username":"alice","authenticated":true,"auth_method":"jwt","roles":[],"offices":["SWT"],"primary_office":"SWT"}`
		nobody  = `{"id":"anonymous","username":"anonymous","authenticated":false,"auth_method":"none","roles":[],"roles_by_office":{},"offices":[]}`
		allowed = `{"decision":{"allow":true,"decision_id":"d1","reason":"ok: fine"},"user":`
		denied  = `{"decision":{"allow":false,"decision_id":"d2","reason":"embargo: too young"},"user":`
		header  = `{"id":"alice","username":"alice","roles":[],"offices":["SWT"],"primary_office":"SWT"}`
		guest   = `{"id":"anonymous","username":"anonymous","roles":[],"offices":[],"primary_office":""}`
	)
	for _, c := range []struct {
		name   string
		with   func(*Handler)
		raw    string
		answer string // without the timestamp
		asked  string // the input document
	}{
		{"nobody", nil, ask(`{"resource":"items","action":"read"}`),
			allowed + guest + `,"constraints":{"a":1}`,
			`{"user":` + nobody + `,"resource":"items","action":"read","context":{"offices":[],"office_scope":"none","office_mask":null}}`},
		{"a token in the body", nil, ask(`{"resource":"items","action":"read","context":{"office_id":"swt","x":[1, 2]},"jwt_token":"alice"}`),
			allowed + header + `,"constraints":{"a":1}`,
			`{"user":` + alice + `,"resource":"items","action":"read","context":{"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null,"x":[1,2]}}`},
		{"a token in the header", nil, ask(`{"resource":"items","action":"read"}`, bearer),
			allowed + header + `,"constraints":{"a":1}`,
			`{"user":` + alice + `,"resource":"items","action":"read","context":{"offices":[],"office_scope":"none","office_mask":null}}`},
		{"the same token in both", nil, ask(`{"resource":"items","action":"read","jwt_token":"alice"}`, "Authorization: bearer  alice"),
			allowed + header + `,"constraints":{"a":1}`,
			`{"user":` + alice + `,"resource":"items","action":"read","context":{"offices":[],"office_scope":"none","office_mask":null}}`},
		{"nulls are absent", nil, ask(`{"resource":"items","action":"read","context":null,"jwt_token":null,"user":null}`, bearer),
			allowed + header + `,"constraints":{"a":1}`,
			`{"user":` + alice + `,"resource":"items","action":"read","context":{"offices":[],"office_scope":"none","office_mask":null}}`},
		{"denied", deciding(deny()), ask(`{"resource":"items","action":"delete"}`, bearer), denied + header + `,"constraints":{}`, ""},
		{"denied, reported only", func(h *Handler) { deciding(deny())(h); h.Report = true },
			ask(`{"resource":"items","action":"delete"}`, bearer), denied + header + `,"constraints":{}`, ""},
		{"a session", nil, ask(`{"resource":"items","action":"read"}`, "Cookie: JSESSIONID=x"),
			allowed + strings.ReplaceAll(header, "alice", "JSESSIONID=x") + `,"constraints":{"a":1}`, ""},
		{"an asserted user", nil, ask(`{"resource":"items","action":"read","user":{}}`, "X-Authorize-Secret: s3cret"),
			allowed + `{"id":"{}","username":"asserted","roles":[],"offices":[],"primary_office":""},"constraints":{"a":1}`,
			`{"user":{"id":"{}","username":"asserted","authenticated":true,"auth_method":"asserted","roles":[],"offices":[]},` +
				`"resource":"items","action":"read","context":{"offices":[],"office_scope":"none","office_mask":null}}`},
		{"members that are not ours", nil, ask(`{"resource":"items","action":"read","Resource":"other","x":{}}`, bearer),
			allowed + header + `,"constraints":{"a":1}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var input string
			f := serve(t, func(h *Handler) {
				if c.with != nil {
					c.with(h)
				}
				decide := h.Decide
				h.Decide = func(ctx context.Context, q authz.Question) (authz.Decision, error) {
					input = string(q.Input())
					return decide(ctx, q)
				}
			})
			a := f.send(t, c.raw)
			before, after, _ := strings.Cut(a.body, `,"timestamp":"`)
			if a.status != 200 || before != c.answer || len(after) != len(`2006-01-02T15:04:05.000Z"}`) || !json.Valid([]byte(a.body)) {
				t.Errorf("got  %v\nwant %s", a, c.answer)
			}
			if c.asked != "" && input != c.asked {
				t.Errorf("asked %s\nwant  %s", input, c.asked)
			}
			if e := f.the(t, a); e.Endpoint != "authorize" || e.Resource != "items" || e.Decision == nil || e.Reported {
				t.Errorf("Event %+v", e)
			}
		})
	}
}

func TestAuthorizeRefuses(t *testing.T) {
	const items = `{"resource":"items","action":"read"`
	for _, c := range []struct {
		name    string
		raw     string
		status  int
		message string // its parts
	}{
		{"no body", ask("", "Content-Length: 0"), 400, "the body is no JSON object"},
		{"no JSON", ask("hello"), 400, "the body is no JSON object"},
		{"half an object", ask(items), 400, "the body is no JSON object"},
		{"a list", ask(`[1]`), 400, "the body is no JSON object"},
		{"null", ask(`null`), 400, "the body is no JSON object"},
		{"two objects", ask(items + `}{}`), 400, "the body is no JSON object"},
		{"a member twice", ask(items + `,"action":"delete"}`), 400, "a member twice"},
		{"text that is no UTF-8", ask("{\"resource\":\"\xff\",\"action\":\"read\"}"), 400, "no UTF-8"},
		{"half a character", ask(`{"resource":"a\ud800","action":"read"}`), 400, "no UTF-8"},
		{"a number beyond all", ask(items + `,"context":{"x":[1e999999]}}`), 400, "exponent"},
		{"no resource", ask(`{"action":"read"}`), 400, "resource must be"},
		{"a resource of another type", ask(`{"resource":5,"action":"read"}`), 400, "resource must be"},
		{"no action", ask(`{"resource":"items"}`), 400, "action must be"},
		{"another action", ask(`{"resource":"items","action":"steal"}`), 400, "action must be"},
		{"a context of another type", ask(items + `,"context":[]}`), 400, "context must be"},
		{"a context with a member twice", ask(items + `,"context":{"office_id":"SWT","office_id":"SPK"}}`), 400, "context must be"},
		{"a token of another type", ask(items + `,"jwt_token":5}`), 400, "jwt_token must be"},
		{"a user of another type", ask(items+`,"user":"root"}`, "X-Authorize-Secret: s3cret"), 400, "user must be"},
		{"everything wrong", ask(`{"resource":5,"action":"x","context":5,"jwt_token":5,"user":5}`), 400,
			"context must be|jwt_token must be|user must be|resource must be|action must be"},
		{"wrong in the context", ask(`{"resource":"","action":"x","context":{"office_id":5,"office_mask":5}}`), 400,
			"resource must be|action must be|context.office_id must|context.office_mask must"},
		{"too long", ask(items + `,"x":"` + strings.Repeat("x", 8<<10) + `"}`), 400, "over 8192 bytes"},
		{"too long, chunked", ask("", "Transfer-Encoding: chunked") + "2001\r\n" + strings.Repeat(" ", 8193) + "\r\n0\r\n\r\n", 400, "over 8192 bytes"},
		{"a bad token", ask(items + `,"jwt_token":"bad"}`), 401, "the token has expired"},
		{"a bad token in the header", ask(items+`}`, "Authorization: Bearer bad"), 401, "the token has expired"},
		{"two tokens that differ", ask(items+`,"jwt_token":"alice"}`, "Authorization: Bearer bob"), 400, "differ"},
		{"a token and a key", ask(items+`,"jwt_token":"alice"}`, "Authorization: apikey alice"), 400, "differ"},
		{"a user and a token", ask(items+`,"jwt_token":"alice","user":{}}`, "X-Authorize-Secret: s3cret"), 400, "user and jwt_token"},
		{"a user without the secret", ask(items + `,"user":{}}`), 403, "X-Authorize-Secret"},
		{"a user with another secret", ask(items+`,"user":{}}`, "X-Authorize-Secret: s3cre"), 403, "X-Authorize-Secret"},
		{"a user with two secrets", ask(items+`,"user":{}}`, "X-Authorize-Secret: s3cret", "X-Authorize-Secret: s3cret"), 400, "twice"},
		{"GET", get("/authorize"), 405, "want POST"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, func(h *Handler) {
				h.Decide = func(context.Context, authz.Question) (authz.Decision, error) {
					t.Error("policy was asked")
					return deny(), nil
				}
			})
			a := f.send(t, c.raw)
			if a.status != c.status {
				t.Errorf("got %v, want %d", a, c.status)
			}
			for part := range strings.SplitSeq(c.message, "|") {
				if !strings.Contains(a.body, part) {
					t.Errorf("%s does not say %q", a.body, part)
				}
			}
			f.the(t, a)
		})
	}
}

// Without a secret nobody may assert a user: not even with an empty one.
func TestAuthorizeWithoutSecret(t *testing.T) {
	f := serve(t, func(h *Handler) { h.AuthorizeSecret = "" })
	if a := f.send(t, ask(`{"resource":"items","action":"read","user":{}}`, "X-Authorize-Secret:")); a.status != 403 {
		t.Errorf("got %v", a)
	}
}

func FuzzReadQuestion(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `{"resource":"items","action":"read","context":{"office_id":"SWT"},"jwt_token":"t","user":{}}`,
		`{"resource":"a","resource":"b"}`, `{"resource":1,"action":[],"context":"x","jwt_token":{},"user":[]}`, `{"a":{"b":`, "{\"resource\":\"\xff\"}",
		`{"resource":"items"} x`, `{"re\u0073ource":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		q, faults, err := readQuestion(body)
		var members map[string]any
		lax := json.Unmarshal(body, &members)
		if err != nil {
			return
		}
		if lax != nil || members == nil {
			t.Fatalf("accepted what is no object: %q", body)
		}
		// What was read is what any reader of JSON reads.
		str := func(name string) string { s, _ := members[name].(string); return s }
		if q.Resource != str("resource") || q.Action != str("action") || q.Token != str("jwt_token") {
			t.Fatalf("%q was read as %+v", body, q)
		}
		context, isObject := members["context"].(map[string]any)
		if !isObject && members["context"] != nil && faults == nil {
			t.Fatalf("context of %q is not found fault with", body)
		}
		for name, raw := range q.Context {
			var value any
			if err := json.Unmarshal(raw, &value); err != nil || !reflect.DeepEqual(value, context[name]) {
				t.Fatalf("%q: context.%s is %s, %v", body, name, raw, err)
			}
		}
		_, isUser := members["user"].(map[string]any)
		if (q.User != nil && !isUser && faults == nil) || (isUser && q.User == nil) {
			t.Fatalf("user of %q is %s, faults %v", body, q.User, faults)
		}
	})
}
