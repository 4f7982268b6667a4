package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"headgate/bench/stack"
)

// api is an API whose answers a test writes. It knows users by token, by the API
// key "key-of-the-user-NAME" and by the session cookie "session-NAME".
type api struct {
	addr  string
	roles map[string]string // of users, JSON by office

	mu       sync.Mutex
	requests []received
	answers  map[string]http.HandlerFunc // by path
}

// received is a request that came with a decision.
type received struct {
	method, target string
	header         http.Header
	body           string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{
		roles: map[string]string{
			"HECADMIN":  `{"HQ":["system_admin"]}`,
			"M5HECTEST": `{"SWT":["All Users","CWMS Users","TS ID Creator"],"HQ":["water_manager"]}`,
			// Water is managed at SWT only.
			"APICOLLECTOR": `{"SWT":["CWMS Users","water_manager"]}`,
			"L1HECTEST":    `{"SPL":["All Users"],"HQ":["public_user"]}`,
		},
		answers: map[string]http.HandlerFunc{},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.addr = l.Addr().String()
	s := &http.Server{Handler: a}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return a
}

// before starts a stack in front of the API.
func (a *api) before(t *testing.T, env map[string]string) *stack.Stack {
	t.Helper()
	env["UPSTREAM_URL"] = "http://" + a.addr + "/cwms-data"
	return stack.New(t, stack.Options{Env: env})
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/cwms-data/user/profile" && r.Header.Get("X-Cwms-Auth-Context") == "" {
		a.profile(w, r)
		return
	}
	a.mu.Lock()
	answer := a.answers[r.URL.Path]
	a.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it was cut
	}
	a.mu.Lock()
	a.requests = append(a.requests, received{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
	a.mu.Unlock()
	io.WriteString(w, "ok")
}

func (a *api) profile(w http.ResponseWriter, r *http.Request) {
	credential := r.Header.Get("Authorization")
	name, key := strings.CutPrefix(credential, "apikey key-of-the-user-")
	if session, err := r.Cookie("JSESSIONIDSSO"); err == nil && credential == "" {
		name, key = strings.CutPrefix(session.Value, "session-")
	}
	if !key {
		var claims struct {
			Name string `json:"preferred_username"`
		}
		if parts := strings.Split(credential, "."); len(parts) == 3 {
			payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
			_ = json.Unmarshal(payload, &claims)
		}
		name = strings.ToUpper(claims.Name)
	}
	roles := a.roles[name]
	if roles == "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	fmt.Fprintf(w, `{"user-name":%q,"email":"zoë@例.test","roles":%s}`, name, roles)
}

// on answers a path below the prefix.
func (a *api) on(path string, answer http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers["/cwms-data"+path] = answer
}

// seen takes what was received since the last call.
func (a *api) seen() []received {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.requests
	a.requests = nil
	return all
}
