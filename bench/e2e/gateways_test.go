package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// gateway is a server that keeps its place before the API and asks the proxy. Its
// configuration is that of proxy/forward-auth, with other addresses.
type gateway struct {
	name  string
	files []string // the first is the one it is given
	args  func(dir, file string) []string
}

var gateways = []gateway{
	{"nginx", []string{"nginx.conf"}, func(dir, file string) []string { return []string{"-p", dir, "-c", file, "-g", "daemon off;"} }},
	{"caddy", []string{"Caddyfile"}, func(_, file string) []string {
		return []string{"run", "--config", file, "--adapter", "caddyfile"}
	}},
	{"haproxy", []string{"haproxy.cfg", "headgate.lua"}, func(_, file string) []string { return []string{"-db", "-f", file} }},
}

// start runs the gateway before the API of a stack, until the test ends, and
// returns its URL.
func (g gateway) start(t *testing.T, st *stack.Stack) string {
	t.Helper()
	path, err := exec.LookPath(g.name)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + g.name); err != nil {
			t.Skipf("%s is not installed: it is left out", g.name)
		}
	}
	address := freeAddress(t)
	dir := t.TempDir()
	addresses := strings.NewReplacer("127.0.0.1:8000", address, "127.0.0.1:3001", hostOf(t, st.Proxy), "127.0.0.1:7001", hostOf(t, st.API))
	for _, name := range g.files {
		shipped, err := os.ReadFile(filepath.Join("../../proxy/forward-auth", name))
		if err != nil {
			t.Fatal(err)
		}
		text := addresses.Replace(string(shipped))
		if g.name == "nginx" {
			// Not the folders of the package, which belong to another user.
			text = strings.Replace(text, "\nhttp {", "\nhttp {\n client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;", 1)
			if os.Getuid() == 0 {
				text = "user root;\n" + text
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close() // the process has its own copy
	cmd := exec.Command(path, g.args(dir, filepath.Join(dir, g.files[0]))...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, said, said
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		if text, err := os.ReadFile(said.Name()); t.Failed() && err == nil {
			t.Logf("---- %s ----\n%s", g.name, text)
		}
	})
	await(t, g.name+" listens", func() bool {
		select {
		case <-ended:
			text, _ := os.ReadFile(said.Name())
			t.Fatalf("%s ended: %s", g.name, text)
		default:
		}
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "http://" + address
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := stack.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func hostOf(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// gatewayStack trusts one address only, so that others are strangers.
func gatewayStack(t *testing.T) *stack.Stack {
	return stack.New(t, stack.Options{Env: map[string]string{"TRUSTED_PROXIES": "127.0.0.1"}})
}

// at sends a request to a server in front of the API and returns the answer, and
// what the API saw of it: nil if nothing.
func at(t *testing.T, st *stack.Stack, base string, r request) (reply, *standin.Seen) {
	t.Helper()
	if err := st.Do(t.Context(), http.MethodDelete, "/seen", nil, nil); err != nil {
		t.Fatal(err)
	}
	answer := send(t, base, r)
	seen, err := st.Seen(t.Context(), 2)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(seen) > 1:
		t.Fatalf("%s %s: the API saw it more than once", r.method, r.target)
	case len(seen) == 0:
		return answer, nil
	}
	return answer, &seen[0]
}

// told is what the API learns of the caller, without what differs from request to
// request.
func told(t *testing.T, seen *standin.Seen) map[string]any {
	t.Helper()
	contexts := seen.Header("x-cwms-auth-context")
	if len(contexts) != 1 {
		t.Fatalf("%d context headers: %q", len(contexts), seen.Headers)
	}
	context := object(t, contexts[0])
	delete(context, "timestamp")
	delete(context["policy"].(map[string]any), "decision_id")
	return map[string]any{
		"context": context, "authorization": seen.Header("Authorization"), "cookies": strings.Join(seen.Header("Cookie"), "; "),
		"request": seen.Method + " " + seen.Target, "body": seen.BodySHA256,
		"forwarded": strings.Join(seen.Header("X-Forwarded-For"), ", "), "ids": len(seen.Header("X-Request-Id")),
	}
}

// asked are the requests whose answers are compared: identities, and offices where
// they can be told without the body.
func asked(t *testing.T, st *stack.Stack) map[string]request {
	t.Helper()
	all := map[string]request{}
	users := mismatchUsers(t, st)
	for _, m := range mismatches {
		if m.body == "" {
			r := request{method: m.method, target: "/cwms-data" + m.target}
			if m.user != "" {
				r = r.with(users[m.user])
			}
			all[m.name] = r
		}
	}
	for _, c := range loadCases(t) {
		if c.Kind != "opa" && c.Kind != "authorize" && strings.HasPrefix(c.Path, "/cwms-data") && !strings.HasPrefix(c.Credential, "x-test-user") && (len(c.Body) == 0 || string(c.Body) == "null") {
			all[c.ID] = request{method: c.Method, target: strings.ReplaceAll(c.Path, "<cursor with search office SPK>", cursor), header: c.credentials(t, st)}
		}
	}
	good := st.Tokens["M5HECTEST"]
	var key struct{ Key string }
	var session struct{ Cookie string }
	for path, answer := range map[string]any{"/apikeys": &key, "/sessions": &session} {
		if err := st.Do(t.Context(), http.MethodPost, path, map[string]string{"user": "M5HECTEST"}, answer); err != nil {
			t.Fatal(err)
		}
	}
	past := int64(-60)
	for name, header := range map[string][]string{
		"nobody":                         nil,
		"a token":                        {bearer(good)},
		"a large token":                  {bearer(token(t, st, standin.TokenRequest{User: "M5HECTEST", Claims: map[string]any{"groups": strings.Repeat("a", 5000)}}))},
		"a scheme in any case":           {"Authorization: bEaReR " + good},
		"a bad signature":                {bearer(good + "x")},
		"an expired token":               {bearer(token(t, st, standin.TokenRequest{User: "M5HECTEST", TTL: &past}))},
		"alg none":                       {bearer(token(t, st, standin.TokenRequest{User: "M5HECTEST", Alg: "none"}))},
		"a key":                          {"Authorization: apikey " + key.Key},
		"a key that is none":             {"Authorization: apikey ak1_0123456789abcdef0123456789abcdef"},
		"a session":                      {"Cookie: theme=dark; " + session.Cookie},
		"a session that is none":         {"Cookie: JSESSIONIDSSO=0123456789ABCDEF"},
		"a servlet's cookie":             {"Cookie: theme=dark; JSESSIONID=0123456789ABCDEF"},
		"a scheme that is none of ours":  {"Authorization: Basic dXNlcjpwYXNz", "Cookie: theme=dark"},
		"a session beside a token":       {"Cookie: theme=dark; " + session.Cookie, bearer(good)},
		"two tokens":                     {bearer(good), bearer(st.Tokens["HECADMIN"])},
		"a context of one's own":         {"X-Cwms-Auth-Context: {}", bearer(good)},
		"a user of one's own":            {`x-test-user: {"id":"x","roles":["system_admin"]}`},
		"a session from another site":    {"Cookie: " + session.Cookie, "Origin: https://elsewhere.example.org"},
		"a stated path and method":       {"X-Forwarded-Uri: /cwms-data/offices", "X-Forwarded-Method: GET", bearer(good)},
		"a stated path and method twice": {"X-Forwarded-Uri: /cwms-data/offices", "X-Forwarded-Uri: /cwms-data/units", "X-Forwarded-Method: GET", "X-Forwarded-Method: HEAD"},
	} {
		for what, target := range map[string]string{"reads": reading, "reads elsewhere": strings.Replace(reading, "SWT", "SPK", 1), "reads what is public": "/cwms-data/offices"} {
			all[name+" "+what] = get(target, header...)
		}
		all[name+" deletes"] = request{method: http.MethodDelete, target: "/cwms-data/timeseries/A.Flow.Inst.1Hour.0.Rev?office=SWT", header: header}
	}
	return all
}

// Behind a gateway that asks, each request gets the answer that it gets from the
// proxy itself, and the API learns the same of its caller.
func TestGateways(t *testing.T) {
	st := gatewayStack(t)
	requests := asked(t, st)
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			base := g.start(t, st)
			for name, r := range requests {
				direct, want := at(t, st, st.Proxy, r)
				answer, got := at(t, st, base, r)
				if answer.status != direct.status || (got == nil) != (want == nil) {
					t.Errorf("%s: %s %s: %d %s, forwarded %v; the proxy itself: %d %s, forwarded %v", name, r.method, r.target,
						answer.status, answer.body, got != nil, direct.status, direct.body, want != nil)
					continue
				}
				if want != nil {
					if a, b := told(t, got), told(t, want); !reflect.DeepEqual(a, b) {
						t.Errorf("%s: the API learns\n%v\nfrom the proxy itself\n%v", name, a, b)
					}
					continue
				}
				if answer.header.Get("X-Request-Id") == "" && answer.status == http.StatusBadRequest {
					continue // the gateway itself would not have it
				}
				for _, header := range []string{"WWW-Authenticate", "Cache-Control"} {
					if a, b := answer.header.Get(header), direct.header.Get(header); a != b {
						t.Errorf("%s: %s is %q, of the proxy itself %q", name, header, a, b)
					}
				}
				if body := object(t, answer.body); body["incidentIdentifier"] == "" || body["incidentIdentifier"] != answer.header.Get("X-Request-Id") {
					t.Errorf("%s: %s with id %q", name, answer.body, answer.header.Get("X-Request-Id"))
				}
			}
			if t.Failed() {
				return
			}
			g.withoutBody(t, st, base)
			g.hostile(t, st, base)
		})
	}
	recordedAs(t, st, "forward-auth")
}

// withoutBody: what only a body tells is unknown, so only who is allowed everywhere
// passes; the body reaches the API as it is.
func (g gateway) withoutBody(t *testing.T, st *stack.Stack, base string) {
	users := mismatchUsers(t, st)
	for _, c := range []struct {
		user   string
		header string
		status int
	}{{"spk", "Expect: none", 403}, {"admin", "X-A: b", 200}, {"admin", "X-Long: " + strings.Repeat("a", 4000), 200}} {
		r := request{method: http.MethodPost, target: "/cwms-data/timeseries", body: `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SPK","values":[]}`}
		r = r.with(users[c.user], "Content-Type: "+jsonType)
		if !strings.HasPrefix(c.header, "Expect") {
			r = r.with(c.header)
		}
		answer, seen := at(t, st, base, r)
		if answer.status != c.status || (seen != nil) != (c.status == 200) {
			t.Errorf("a body of %s: %d %s", c.user, answer.status, answer.body)
		}
		if seen != nil {
			if sent := told(t, seen); sent["request"] != "POST /cwms-data/timeseries" || seen.BodyLen != int64(len(r.body)) {
				t.Errorf("the API saw %v", seen)
			}
		}
	}
	// In chunks it is a body, too.
	c, err := net.DialTimeout("tcp", hostOf(t, base), deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	fmt.Fprintf(c, "POST /cwms-data/timeseries HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n{\"office-id\":\"SPK\"}\r\n0\r\n\r\n", users["admin"], jsonType)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("a body in chunks: %s", res.Status)
	}
}

// hostile: what a client says beside its request is not heard, by us or by the API.
func (g gateway) hostile(t *testing.T, st *stack.Stack, base string) {
	user := bearer(st.Tokens["M5HECTEST"])
	for _, header := range []string{
		"Connection: X-Cwms-Auth-Context", "Connection: close, x-cwms-auth-context, authorization",
		"X-Cwms-Auth-Context: forged", "X-CWMS-AUTH-CONTEXT: forged\r\nx-cwms-auth-context: forged",
		"X_Cwms_Auth_Context: forged", "x.cwms.auth.context: forged", "X-Cwms--Auth-Context: forged",
		"X-Original-Url: /forged", "X-Rewrite-Url: /forged", "X-Http-Method-Override: FORGED",
		"X-Forwarded-Prefix: /forged", "Forwarded: for=forged", "X-Forwarded-For: forged", "X-Real-Ip: forged", "Remote-User: forged",
		"X-Request-Id: forged", "X-Authorize-Secret: forged", "X-Test-User: forged",
		"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
	} {
		answer, seen := at(t, st, base, get(reading, user, header))
		switch {
		case seen == nil && answer.status != http.StatusBadRequest:
			t.Errorf("%s: %d %s", header, answer.status, answer.body)
		case seen != nil:
			if all, err := json.Marshal(seen.Headers); err != nil || strings.Contains(strings.ToLower(string(all)), "forged") {
				t.Errorf("%s: the API saw %s, %v", header, all, err)
			}
			if told(t, seen); len(seen.Header("Authorization")) != 1 || len(seen.Header("Upgrade")) > 0 {
				t.Errorf("%s: the API saw %q", header, seen.Headers)
			}
		}
	}
}

// recordedAs: decisions for gateways are in the records, and say so.
func recordedAs(t *testing.T, st *stack.Stack, mode string) {
	t.Helper()
	if err := st.Replicas[0].Stop(deadline); err != nil {
		t.Error(err)
	}
	f, err := os.Open(st.Replicas[0].OutFile())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r struct {
			Mode, Route, Method string
			Allow               *bool
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Mode == mode && r.Allow != nil && strings.HasPrefix(r.Route, "/") {
			n++
		}
	}
	if n < 100 {
		t.Errorf("%d decisions with mode %s in the records", n, mode)
	}
}

// An outage of the proxy is none of the client's: 503, from every gateway.
func TestGatewaysWithoutProxy(t *testing.T) {
	st := gatewayStack(t)
	if err := st.Replicas[0].Stop(deadline); err != nil {
		t.Fatal(err)
	}
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			answer, seen := at(t, st, g.start(t, st), get("/cwms-data/offices"))
			if want := 503; answer.status != want || seen != nil || answer.header.Get("Retry-After") == "" {
				t.Errorf("%d %v %s, want %d", answer.status, answer.header, answer.body, want)
			}
		})
	}
}

// Who is not trusted may not ask, and what it says of method and path of its own
// requests is not heard.
func TestForwardAuthOfStrangers(t *testing.T) {
	st := gatewayStack(t)
	stranger := func(r request) (answer reply, seen int) {
		t.Helper()
		if err := st.Do(t.Context(), http.MethodDelete, "/seen", nil, nil); err != nil {
			t.Fatal(err)
		}
		c, err := (&net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", hostOf(t, st.Proxy))
		if err != nil {
			t.Skipf("another loopback address cannot be used here: %v", err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(deadline))
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n\r\n", r.method, r.target, strings.Join(r.header, "\r\n"))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		list, err := st.Seen(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		return reply{res.StatusCode, res.Header, string(body)}, len(list)
	}
	says := []string{"X-Forwarded-Method: GET", "X-Forwarded-Uri: /cwms-data/offices", "X-Forwarded-Host: h", "X-Original-Url: /cwms-data/offices", "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1"}
	for _, c := range []struct {
		target string
		status int
	}{
		{"/forward-auth", 403},
		{strings.Replace(reading, "SWT", "SPK", 1), 403},
		{reading, 200},
	} {
		answer, seen := stranger(get(c.target, append(says, bearer(st.Tokens["M5HECTEST"]))...))
		if answer.status != c.status || (seen == 1) != (c.status == 200) || answer.header.Get("X-Cwms-Auth-Context") != "" {
			t.Errorf("%s: %d %s, forwarded %d times", c.target, answer.status, answer.body, seen)
		}
	}
	if answer := send(t, st.Proxy, get("/forward-auth", says[:2]...)); answer.status != 200 || answer.header.Get("X-Cwms-Auth-Context") == "" {
		t.Errorf("a gateway: %d %s", answer.status, answer.body)
	}
}
