package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/bench/stack"
)

// acase is a line of opa/cases/reference.jsonl, the cases that policy and proxy share.
type acase struct {
	ID          string          `json:"id"`
	Kind        string          `json:"kind"`
	User        string          `json:"user"`
	Roles       []string        `json:"roles"`
	Offices     []string        `json:"offices"`
	Credential  string          `json:"credential"`
	Method      string          `json:"method"`
	Path        string          `json:"path"`
	Body        json.RawMessage `json:"body"`
	Expect      string          `json:"expect"`
	Status      any             `json:"status"`
	Constraints map[string]any  `json:"expect_constraints"`
	Persona     string          `json:"persona"`
	Shift       string          `json:"shift"`
	Timezone    string          `json:"timezone"`
}

func loadCases(t *testing.T) (cases []acase) {
	t.Helper()
	f, err := os.Open("../../opa/cases/reference.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c acase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		cases = append(cases, c)
	}
	return cases
}

func TestReferenceCases(t *testing.T) {
	st := sharedStack(t)
	for _, c := range loadCases(t) {
		t.Run(c.ID, func(t *testing.T) {
			if attached && strings.HasPrefix(c.Credential, "x-test-user") {
				t.Skip("left out: test users are for a loopback address alone")
			}
			switch c.Kind {
			case "opa":
				c.askOPA(t, st)
			case "authorize":
				c.askAuthorize(t, st)
			default:
				c.askProxy(t, st)
			}
		})
	}
}

// askProxy sends the case through the proxy: a deny is never forwarded.
func (c *acase) askProxy(t *testing.T, st *stack.Stack) {
	if err := st.Do(t.Context(), http.MethodDelete, "/seen", nil, nil); err != nil {
		t.Fatal(err)
	}
	r := request{method: c.Method, target: strings.ReplaceAll(c.Path, "<cursor with search office SPK>", cursor), header: c.credentials(t, st)}
	if len(c.Body) > 0 && string(c.Body) != "null" {
		r.body = string(c.Body)
		r.header = append(r.header, "Content-Type: application/json")
	}
	answer := send(t, st.Proxy, r)
	seen, err := st.Seen(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if forwarded := len(seen) > 0; forwarded != (c.Expect == "allow") && c.Path != "/authorize" && c.Path != "/cwms-data/user/profile" {
		t.Errorf("forwarded: %v, want %s; the answer was %d %s", forwarded, c.Expect, answer.status, answer.body)
	}
	if !c.accepts(answer.status) {
		t.Errorf("status %d, want %v (%s): %s", answer.status, c.Status, c.Expect, answer.body)
	}
}

// accepts reads the status of a case: a number, some of them in words, or what
// follows from allow and deny.
func (c *acase) accepts(status int) bool {
	switch want := c.Status.(type) {
	case float64:
		return status == int(want)
	case string:
		if rest, not := strings.CutPrefix(want, "not "); not {
			return rest != fmt.Sprint(status)
		}
		return strings.Contains(want, fmt.Sprint(status))
	}
	if c.Expect == "allow" {
		// The API knows nothing of test users and refuses them by itself.
		return status != http.StatusForbidden && status < 500 && (status != http.StatusUnauthorized || c.Credential == "x-test-user (test mode only)")
	}
	return status == http.StatusForbidden || status == http.StatusBadRequest
}

func (c *acase) credentials(t *testing.T, st *stack.Stack) []string {
	switch {
	case strings.HasPrefix(c.Credential, "bearer"):
		return []string{bearer(st.Tokens[strings.ToUpper(c.User)])}
	case strings.HasPrefix(c.Credential, "apikey"):
		var answer struct{ Key string }
		if err := st.Do(t.Context(), http.MethodPost, "/apikeys", map[string]string{"user": strings.ToUpper(c.User)}, &answer); err != nil {
			t.Fatal(err)
		}
		return []string{"Authorization: apikey " + answer.Key}
	case strings.HasPrefix(c.Credential, "x-test-user"):
		user := map[string]any{"id": c.User, "username": c.User, "roles": c.Roles, "offices": c.Offices}
		if c.Persona != "" {
			user["persona"] = c.Persona
		}
		if c.Shift != "" {
			hour := time.Now().UTC().Hour()
			if strings.Contains(c.Shift, "outside") {
				hour += 2
			}
			user["shift_start"], user["shift_end"], user["timezone"] = hour%24, (hour+1)%24, c.Timezone
		}
		b, err := json.Marshal(user)
		if err != nil {
			t.Fatal(err)
		}
		return []string{"x-test-user: " + string(b)}
	}
	return nil
}

// cursor is a page of the catalog that was made for another office.
var cursor = base64.StdEncoding.EncodeToString([]byte("SPK/Folsom.Elev.Inst.1Hour.0.Rev||SPK||.*"))

func (c *acase) askAuthorize(t *testing.T, st *stack.Stack) {
	body := string(c.Body)
	for user, token := range st.Tokens {
		body = strings.ReplaceAll(body, "<token of "+strings.ToLower(user)+">", token)
	}
	r := request{method: http.MethodPost, target: "/authorize", header: []string{"Content-Type: application/json"}, body: body}
	if strings.Contains(body, `"user"`) {
		r = r.with("X-Authorize-Secret: " + st.AuthorizeSecret)
	}
	answer := send(t, st.Proxy, r)
	if answer.status != http.StatusOK {
		t.Fatalf("status %d: %s", answer.status, answer.body)
	}
	var got struct {
		Decision    struct{ Allow bool }
		Constraints map[string]any
	}
	if err := json.Unmarshal([]byte(answer.body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Decision.Allow != (c.Expect == "allow") {
		t.Errorf("want %s, got %s", c.Expect, answer.body)
	}
	for name, want := range c.Constraints {
		if have := got.Constraints[name]; !same(have, want) {
			t.Errorf("constraint %s is %v, want %v", name, have, want)
		}
	}
}

// same compares constraints: null and {} are equal, lists of names are sets.
func same(have, want any) bool {
	if empty(have) && empty(want) {
		return true
	}
	a, ok := have.([]any)
	b, ok2 := want.([]any)
	if ok && ok2 {
		return reflect.DeepEqual(sorted(a), sorted(b))
	}
	return reflect.DeepEqual(have, want)
}

func empty(v any) bool {
	m, ok := v.(map[string]any)
	return v == nil || ok && len(m) == 0
}

func sorted(list []any) (out []string) {
	for _, v := range list {
		out = append(out, fmt.Sprint(v))
	}
	slices.Sort(out)
	return out
}

// askOPA puts the case to OPA itself, as its clients beside the proxy do.
func (c *acase) askOPA(t *testing.T, st *stack.Stack) {
	body := string(c.Body)
	now := time.Now()
	for text, at := range map[string]time.Time{
		"<now+1d>": now.Add(24 * time.Hour), "<now-1d>": now.Add(-24 * time.Hour),
		"<now-167h>": now.Add(-167 * time.Hour), "<now-169h>": now.Add(-169 * time.Hour), "<now>": now,
	} {
		body = strings.ReplaceAll(body, `"`+text+`"`, fmt.Sprint(at.UnixNano()))
	}
	if strings.Contains(body, "<now") {
		t.Fatalf("a placeholder is not known: %s", body)
	}
	answer := send(t, st.OPA, request{method: c.Method, target: c.Path, header: []string{"Content-Type: application/json"}, body: body})
	var got struct{ Result *bool }
	if err := json.Unmarshal([]byte(answer.body), &got); err != nil || got.Result == nil {
		t.Fatalf("%v: %s", err, answer.body)
	}
	if *got.Result != (c.Expect == "allow") {
		t.Errorf("allow is %v, want %s", *got.Result, c.Expect)
	}
}
