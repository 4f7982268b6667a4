package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// rounds is how often a right is given and taken: 500 with HEADGATE_LONG=1.
func rounds() int {
	if os.Getenv("HEADGATE_LONG") != "" {
		return 500
	}
	return 24
}

// sighting is one answer of a replica, by what the user may do at that moment.
type sighting struct {
	start, end time.Time
	allow      bool
}

// A right is taken and given again while the user comes to three replicas by
// token, by API key and by session, open loop. Deleting the user's context, or
// telling one proxy, is seen by all; after a deny there is no allow.
func TestRevocationIsSeenByEveryReplica(t *testing.T) {
	st := stack.New(t, stack.Options{Replicas: 3})
	const user = "MIXED01"
	roles := func(roles ...string) {
		t.Helper()
		// Without the role "CWMS Users" the API knows no profile of a key.
		profile := map[string]any{"user-name": user, "roles": map[string]any{"SWT": append(roles, "CWMS Users")}}
		if err := st.Do(t.Context(), http.MethodPut, "/users/"+user, profile, nil); err != nil {
			t.Fatal(err)
		}
	}
	roles("water_manager")
	var key struct{ Key string }
	var cookie struct{ Cookie string }
	for path, into := range map[string]any{"/apikeys": &key, "/sessions": &cookie} {
		if err := st.Do(t.Context(), http.MethodPost, path, map[string]string{"user": user}, into); err != nil {
			t.Fatal(err)
		}
	}
	credentials := [][2]string{{"Authorization", "Bearer " + st.Tokens[user]}, {"Authorization", "apikey " + key.Key}, {"Cookie", cookie.Cookie}}

	var mu sync.Mutex
	seen := make([][]sighting, len(st.Proxies)*len(credentials))
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for r, proxy := range st.Proxies {
		var calls []*load.Call
		for _, c := range credentials {
			calls = append(calls, &load.Call{URL: proxy + reading, Header: [][2]string{c}})
		}
		work.Go(func() {
			_, err := load.Run(ctx, load.Options{Connections: 6, Rate: 300, Duration: 5 * time.Minute, Timeout: deadline, Observe: func(a load.Answer) {
				mu.Lock()
				defer mu.Unlock()
				who := r*len(credentials) + slices.Index(calls, a.Call)
				switch {
				case a.Status == http.StatusOK || a.Status == http.StatusForbidden:
					seen[who] = append(seen[who], sighting{a.Start, a.End, a.Status == http.StatusOK})
				case ctx.Err() == nil:
					t.Errorf("an answer of status %d: %v", a.Status, a.Err)
				}
			}}, func(n int64) *load.Call { return calls[n%int64(len(calls))] })
			if err != nil {
				t.Error(err)
			}
		})
	}
	// everywhere reports whether every replica has answered every credential so
	// since then.
	everywhere := func(since time.Time, allow bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range seen {
				if len(s) == 0 || s[len(s)-1].allow != allow || s[len(s)-1].start.Before(since) {
					return false
				}
			}
			return true
		}
	}
	await(t, "a first allow everywhere", everywhere(time.Now(), true))

	type change struct {
		at    time.Time
		allow bool
	}
	var changes []change
	for n := range rounds() {
		allow := n%2 == 1
		if allow {
			roles("water_manager")
		} else {
			roles()
		}
		if n%4 < 2 {
			redis(t, st.Redis, "DEL", "user:context:"+strings.ToLower(user))
		} else {
			invalidate(t, st, n%len(st.Admins), user)
		}
		changes = append(changes, change{time.Now(), allow})
		await(t, fmt.Sprintf("round %d is seen everywhere", n), everywhere(changes[n].at, allow))
	}
	cancel()
	work.Wait()

	// A replica is asked every 3.3 ms, a credential at it every 10 ms: the first new
	// answer is counted by replica, an old answer after a new one by credential.
	var first, late []time.Duration
	byReplica := map[[2]int]time.Duration{}
	for who, s := range seen {
		slices.SortFunc(s, func(a, b sighting) int { return a.start.Compare(b.start) })
		for n, c := range changes {
			until := time.Now()
			if n+1 < len(changes) {
				until = changes[n+1].at.Add(-time.Millisecond)
			}
			var turned time.Time
			worst := time.Duration(0)
			for _, a := range s {
				switch {
				case a.start.Before(c.at) || a.end.After(until):
				case a.allow == c.allow && turned.IsZero():
					turned = a.end
					at := [2]int{who / len(credentials), n}
					if d, ok := byReplica[at]; !ok || a.end.Sub(c.at) < d {
						byReplica[at] = a.end.Sub(c.at)
					}
				case a.allow != c.allow && !turned.IsZero() && a.start.After(turned):
					t.Errorf("replica %d: round %d: the old answer again, %v after the new one", who/len(credentials), n, a.start.Sub(turned))
				case a.allow != c.allow:
					worst = max(worst, a.start.Sub(c.at))
				}
			}
			late = append(late, worst)
		}
	}
	first = slices.Collect(maps.Values(byReplica))
	t.Logf("%d changes at %d replicas by 3 credentials: first answer by the new context p50 %v, p99 %v, max %v; latest start of an old answer p99 %v, max %v",
		len(changes), len(st.Proxies), quantile(first, .5), quantile(first, .99), quantile(first, 1), quantile(late, .99), quantile(late, 1))
}

func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[int(q*float64(len(list)-1))]
}

// invalidate tells one proxy, as `proxy invalidate` does.
func invalidate(t *testing.T, st *stack.Stack, replica int, user string) {
	t.Helper()
	body := fmt.Sprintf(`{"user":%q}`, user)
	a := send(t, st.Admins[replica], request{method: http.MethodPost, target: "/invalidate", header: []string{bearer(st.AdminToken)}, body: body})
	if a.status != http.StatusOK {
		t.Fatalf("/invalidate: %d %s", a.status, a.body)
	}
}

// redis sends one command and returns the first line of the answer.
func redis(t *testing.T, at string, command ...string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialTimeout("tcp", u.Host, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	password, _ := u.User.Password()
	auth := []string{"AUTH", password}
	if name := u.User.Username(); name != "" {
		auth = []string{"AUTH", name, password}
	}
	lines := bufio.NewReader(c)
	var line string
	for _, words := range [][]string{auth, command} {
		var b bytes.Buffer
		fmt.Fprintf(&b, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
		}
		if _, err := c.Write(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if line, err = lines.ReadString('\n'); err != nil || strings.HasPrefix(line, "-") {
			t.Fatalf("redis answers %q, %v to %s", line, err, words[0])
		}
	}
	return strings.TrimSpace(line)
}
