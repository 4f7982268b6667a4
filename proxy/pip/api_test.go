package pip

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"headgate/proxy/authz"
	"headgate/proxy/cache"
	"headgate/proxy/cache/redistest"
)

// rueidis closes the connection to a cluster's first address some seconds after it
// is no longer needed, and waits for that in a goroutine.
func TestMain(m *testing.M) {
	if os.Getenv(servesProfiles) != "" {
		serveProfiles()
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

// api is the API as far as profiles go, on a real socket.
type api struct {
	*httptest.Server
	calls atomic.Int64

	mu       sync.Mutex
	profiles map[string]string // by Authorization or Cookie, or by path
	status   int               // instead of an answer
	hold     chan struct{}     // a call waits until it is closed, after it has read the profile
	held     chan struct{}     // a call that waits says so
}

func newAPI(t testing.TB) *api {
	a := &api{profiles: map[string]string{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.calls.Add(1)
	key := r.Header.Get("Authorization") + r.Header.Get("Cookie")
	if r.URL.Path != "/user/profile" {
		key += " " + r.URL.Path
	}
	a.mu.Lock()
	profile, status, hold, held := a.profiles[key], a.status, a.hold, a.held
	a.mu.Unlock()
	if hold != nil {
		held <- struct{}{}
		<-hold
	}
	switch {
	case status != 0:
		w.WriteHeader(status)
	case profile == "" && strings.HasPrefix(r.URL.Path, "/users/"):
		w.WriteHeader(http.StatusNotFound)
	case profile == "":
		w.WriteHeader(http.StatusUnauthorized)
	case profile == "403":
		w.WriteHeader(http.StatusForbidden)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, profile)
	}
}

// set gives the owner of a credential a profile.
func (a *api) set(credential, profile string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.profiles[credential] = profile
}

// fail answers every call with a status; 0 ends it.
func (a *api) fail(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

// pause lets every call wait after it has read the profile. calling waits for
// the next call to come so far, resume lets all go on.
func (a *api) pause() (calling, resume func()) {
	hold, held := make(chan struct{}), make(chan struct{}, 1000)
	a.mu.Lock()
	a.hold, a.held = hold, held
	a.mu.Unlock()
	return func() { <-held }, func() {
		a.mu.Lock()
		a.hold = nil
		a.mu.Unlock()
		close(hold)
	}
}

// profileOf is a profile with one role at one office.
func profileOf(name, office, role string) string {
	return fmt.Sprintf(`{"user-name":%q,"roles":{%q:[%q]}}`, name, office, role)
}

// token is the principal of a user's token, at one issuer.
func token(sub, text string) *authz.Principal {
	return &authz.Principal{
		Method: authz.JWT, Issuer: "https://issuer", ID: sub, Name: sub, Alias: sha256.Sum256([]byte("https://issuer::" + sub)),
		Credential: authz.Credential{Header: "Authorization", Value: "Bearer " + text},
	}
}

func key(text string) *authz.Principal {
	return &authz.Principal{
		Method: authz.APIKey, Alias: sha256.Sum256([]byte("apikey\x00" + text)),
		Credential: authz.Credential{Header: "Authorization", Value: "apikey " + text},
	}
}

func cookie(text string) *authz.Principal {
	return &authz.Principal{
		Method: authz.Session, Alias: sha256.Sum256([]byte("session\x00" + text)),
		Credential: authz.Credential{Header: "Cookie", Value: text},
	}
}

// replica is a Source with a connection of its own, as each proxy has one.
func replica(t testing.TB, a *api, url string, change ...func(*Config)) *Source {
	t.Helper()
	var r *cache.Redis
	if url != "" {
		var err error
		if r, err = cache.OpenRedis(cache.RedisConfig{URL: url}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{
		ProfileURL: a.URL + "/user/profile", LookupURL: a.URL + "/users/{name}", ServiceKey: "service",
		Timeout: 10 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		stop()
		run.Wait()
		if r != nil {
			r.Close()
		}
	})
	return s
}

// says is the JSON of p's subject, or the error.
func says(s *Source, p *authz.Principal) string {
	subject, err := s.Subject(context.Background(), p)
	if err != nil {
		return err.Error()
	}
	return string(subject.JSON())
}

// roles are the roles of p's subject, or the error.
func roles(s *Source, p *authz.Principal) string {
	subject, err := s.Subject(context.Background(), p)
	if err != nil {
		return err.Error()
	}
	return strings.Join(subject.Roles, " ")
}

func expect(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	redistest.Eventually(t, what, f)
}
