package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/bench/orders"
	"headgate/bench/stack"
	"headgate/bench/standin"
)

// Another API by configuration alone: at the root of its host, with a route table,
// a policy, an issuer and a context header of its own.

const acme = "/tenants/acme/orders"

func order(tenant, credential string) request {
	return request{method: http.MethodPost, target: "/tenants/" + tenant + "/orders", header: []string{credential, "Content-Type: application/json"}, body: `{"item":"a valve"}`}
}

func TestOrders(t *testing.T) {
	st := stack.New(t, stack.Options{Example: "orders", Env: map[string]string{"DEBUG_HEADERS": "true"}})
	clerk, auditor, other := bearer(st.Tokens["acme-clerk"]), bearer(st.Tokens["acme-auditor"]), bearer(st.Tokens["globex-clerk"])
	mint := func(ask standin.TokenRequest) string { return bearer(token(t, st, ask)) }
	past := int64(-60)

	for _, c := range []struct {
		name   string
		r      request
		status int
		says   string // in the body
	}{
		{"what is public", get("/status"), 200, `"open"`},
		{"a clerk orders", order("acme", clerk), 201, `"by":"acme-clerk"`},
		{"a clerk reads", get(acme+"/1", clerk), 200, `"by":"acme-clerk"`},
		{"an auditor reads", get(acme, auditor), 200, `"id":"1"`},
		{"a token without a tenant's orders", get("/tenants/globex/orders", other), 200, `[]`},
		{"an auditor orders", order("acme", auditor), 403, `"message":"denied"`},
		{"another tenant reads", get(acme+"/1", other), 403, `"message":"denied"`},
		{"another tenant deletes", request{method: http.MethodDelete, target: acme + "/1", header: []string{other}}, 403, `"message":"denied"`},
		{"nobody reads", get(acme), 403, `"message":"denied"`},
		{"another spelling of the tenant", get("/tenants/globex%2f..%2facme/orders", other), 400, ""},
		{"an unknown route", get("/admin", clerk), 403, `"message":"denied"`},
		{"a method that no route has", request{method: http.MethodPut, target: acme, header: []string{clerk}}, 403, `"message":"denied"`},
		{"a bad signature", get("/status", clerk+"x"), 401, ""},
		{"an expired token", get("/status", mint(standin.TokenRequest{User: "acme-clerk", TTL: &past})), 401, ""},
		{"a token for another service", get("/status", mint(standin.TokenRequest{User: "acme-clerk", Claims: map[string]any{"aud": "invoices"}})), 401, ""},
		{"a token without scopes", get(acme, mint(standin.TokenRequest{User: "acme-clerk", Claims: map[string]any{"scope": nil}})), 403, ""},
		{"a scope that only begins so", get(acme, mint(standin.TokenRequest{User: "acme-clerk", Claims: map[string]any{"scope": "orders:readonly"}})), 403, ""},
		{"a clerk deletes", request{method: http.MethodDelete, target: acme + "/1", header: []string{clerk}}, 204, ""},

		// The paths of our own endpoints are the API's; ours are below /-/.
		{"the API's own /health", get("/health", clerk), 403, `"message":"denied"`},
		{"health", get("/-/health"), 200, `"healthy"`},
		{"ready", get("/-/ready"), 200, `"ready"`},
		{"forward-auth", get("/-/forward-auth"), 403, "TRUSTED_PROXIES"},
		{"another service asks", request{method: http.MethodPost, target: "/-/authorize", header: []string{clerk}, body: `{"resource":"orders","action":"delete","context":{"params":{"tenant":"acme"}}}`}, 200, `"allow":true`},
		{"another service asks for another tenant", request{method: http.MethodPost, target: "/-/authorize", header: []string{clerk}, body: `{"resource":"orders","action":"delete","context":{"params":{"tenant":"globex"}}}`}, 200, `"allow":false`},
	} {
		answer, seen := at(t, st, st.Proxy, c.r)
		if answer.status != c.status || !strings.Contains(answer.body, c.says) {
			t.Errorf("%s: %d %s, want %d %s", c.name, answer.status, answer.body, c.status, c.says)
		}
		if forwarded := answer.status < 300 && !strings.HasPrefix(c.r.target, "/-/"); (seen != nil) != forwarded {
			t.Errorf("%s: the API saw %v", c.name, seen)
		}
	}

	// The API hears of its caller in the header that it asked for, and nowhere else.
	_, seen := at(t, st, st.Proxy, get(acme, clerk, "X-Orders-Context: forged", "x_orders_context: forged"))
	if seen == nil || len(seen.Header(orders.ContextHeader)) != 1 {
		t.Fatalf("the API saw %v", seen)
	}
	context := object(t, seen.Header(orders.ContextHeader)[0])
	if user := context["user"].(map[string]any); user["id"] != "acme-clerk" || context["policy"].(map[string]any)["allow"] != true {
		t.Errorf("the API is told %v", context)
	}
	if said := fmt.Sprint(seen.Headers); strings.Contains(said, "forged") || strings.Contains(strings.ToLower(said), "cwms") {
		t.Errorf("the API saw %s", said)
	}

	// Orders are many, questions few: the id is no part of them.
	for _, id := range []string{"7", "8", "9"} {
		send(t, st.Proxy, get(acme+"/"+id, auditor))
	}
	if a := send(t, st.Proxy, get(acme+"/10", auditor)); !strings.Contains(a.header.Get("X-Decision"), "allow; source=cache") {
		t.Errorf("X-Decision: %s", a.header.Get("X-Decision"))
	}

	t.Run("nothing of the first API", func(t *testing.T) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.Replicas[0].PID()))
		if err != nil {
			t.Skipf("the environment of a process cannot be read here: %v", err)
		}
		for pair := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(pair, "=")
			if name != "PWD" && name != "OLDPWD" && strings.Contains(strings.ToLower(name+value), "cwms") {
				t.Errorf("the proxy was started with %s", pair)
			}
		}
		routes, err := os.ReadFile("../orders/routes.yaml")
		policy, err2 := os.ReadFile("../orders/policy/orders/orders.rego")
		text := strings.ReplaceAll(string(routes)+string(policy), "proxy/route/cwms.yaml", "")
		if err != nil || err2 != nil || strings.Contains(strings.ToLower(text), "cwms") {
			t.Errorf("%v %v: %s", err, err2, text)
		}
	})

	t.Run("explain", func(t *testing.T) {
		for _, c := range []struct {
			credential string
			reason     string
			status     int
		}{{clerk, "scope: of the token", 0}, {other, "denied: not the tenant or not the scopes of the token", 403}, {clerk + "x", "", 401}} {
			e, text := explain(t, st, question{Method: "GET", Target: acme + "/7", Headers: []string{c.credential}})
			if e.Answer.Status != c.status || e.Answer.Forwarded != (c.status == 0) {
				t.Errorf("%s", text)
			}
			if c.reason != "" && (e.Decision == nil || e.Decision.Reason != c.reason || !strings.Contains(string(e.Input), `"params":{"tenant":"acme"}`)) {
				t.Errorf("want %s: %s", c.reason, text)
			}
			if c.status == 0 && (e.Forward == nil || e.Forward.Header != orders.ContextHeader) {
				t.Errorf("the header: %s", text)
			}
			if strings.Contains(strings.ToLower(text), "cwms") || strings.Contains(text, strings.TrimPrefix(c.credential, "Authorization: Bearer ")) {
				t.Errorf("%s", text)
			}
		}
	})

	// With claims alone a right ends with its token.
	t.Run("expiry", func(t *testing.T) {
		life := int64(2)
		short := mint(standin.TokenRequest{User: "acme-clerk", TTL: &life})
		if a := send(t, st.Proxy, get(acme, short)); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		await(t, "the token ends", func() bool { return send(t, st.Proxy, get(acme, short)).status == 401 })
	})

	// A bundle is published, and the next answers are by it: now auditors may order,
	// and may not read.
	t.Run("another policy", func(t *testing.T) {
		policy := t.TempDir()
		if err := os.CopyFS(policy, os.DirFS("../orders/policy")); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(policy, "orders", "orders.rego")
		rules, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(rules), `["orders", input.action]`, `["orders", {"create": "read"}[input.action]]`, 1)
		if changed == string(rules) {
			t.Fatal("the policy has no such rule")
		}
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := st.PublishBundle(t.Context(), policy, "-policy", "policy/system", "-entrypoint", "orders/decision"); err != nil {
			t.Fatal(err)
		}
		await(t, "the auditor orders", func() bool { return send(t, st.Proxy, order("acme", auditor)).status == 201 })
		if a := send(t, st.Proxy, get(acme, auditor)); a.status != 403 {
			t.Errorf("the auditor reads: %d %s", a.status, a.body)
		}
	})

	// A new key is in use, the old one gone: it takes as long as the proxy takes to
	// ask for keys again, half a minute at most.
	t.Run("rotation", func(t *testing.T) {
		if os.Getenv("HEADGATE_LONG") == "" {
			t.Skip("HEADGATE_LONG is not set")
		}
		if err := st.Do(t.Context(), http.MethodPost, "/keys/rotate", nil, nil); err != nil {
			t.Fatal(err)
		}
		next := mint(standin.TokenRequest{User: "acme-clerk"})
		for range 2 { // each waits for a while only
			if send(t, st.Proxy, get("/status", next)).status == 200 {
				break
			}
			await(t, "the new key is known, or a while is over", func() bool { return send(t, st.Proxy, get("/status", next)).status == 200 })
		}
		if a := send(t, st.Proxy, get("/status", clerk)); a.status != 401 {
			t.Errorf("a token of the old key: %d", a.status)
		}
	})
}

// With USER_CONTEXT_URL=redis the operator writes what is known of a user beside
// the claims, and takes a right away at once.
func TestOrdersOperator(t *testing.T) {
	st := stack.New(t, stack.Options{Example: "orders", Env: map[string]string{"USER_CONTEXT_URL": "redis"}})
	if st.RedisServer == nil {
		t.Skip("redis-server is not installed")
	}
	clerk, auditor := bearer(st.Tokens["acme-clerk"]), bearer(st.Tokens["acme-auditor"])
	reads := func(credential string) int { return send(t, st.Proxy, get(acme, credential)).status }
	if a, b := reads(clerk), reads(auditor); a != 200 || b != 200 {
		t.Fatalf("before: %d, %d", a, b)
	}
	redis(t, st.Redis, "SET", "user:context:acme-clerk", `{"suspended":true}`)
	await(t, "the clerk is suspended", func() bool { return reads(clerk) == 403 })
	if got := reads(auditor); got != 200 {
		t.Errorf("the auditor: %d", got)
	}
	redis(t, st.Redis, "SET", "user:context:acme-clerk", `{"suspended":false}`)
	await(t, "the clerk is back", func() bool { return reads(clerk) == 200 })
	redis(t, st.Redis, "SET", "user:context:acme-clerk", `{"suspended":`)
	await(t, "what is no JSON is no context", func() bool { return reads(clerk) == 503 })
	redis(t, st.Redis, "DEL", "user:context:acme-clerk")
	await(t, "no context is no suspension", func() bool { return reads(clerk) == 200 })
}
