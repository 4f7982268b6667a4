package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// flips is how often policy changes under load: 200 with HEADGATE_LONG=1.
func flips() int {
	if os.Getenv("HEADGATE_LONG") != "" {
		return 200
	}
	return 12
}

// A rule flips between allow and deny under load, open loop. Every answer must be
// that of a policy which OPA ran within the lease before it, with OPA's status
// push and with every push lost; none may fail.
func TestPolicyFlipsUnderLoad(t *testing.T) {
	st := stack.New(t, stack.Options{})
	files := flippedBundles(t, st)
	for _, lost := range []bool{false, true} {
		st.DropStatus(lost)
		first := flip(t, st, files)
		t.Logf("status pushes lost: %v; %d activations; from what OPA answers by to the first answer of the proxy by it: p50 %v, p99 %v, max %v",
			lost, len(first), quantile(first, .5), quantile(first, .99), quantile(first, 1))
	}
}

// lease is the proxies' default POLICY_LEASE.
const lease = time.Second

// flip publishes the bundles in turn and returns, for each activation, the time
// from the first answer of OPA by it to the first answer of the proxy by it.
func flip(t *testing.T, st *stack.Stack, files [2]string) (first []time.Duration) {
	t.Helper()
	type said struct {
		at    time.Time
		allow bool
	}
	var mu sync.Mutex
	var answers []said
	call := &load.Call{URL: st.Proxy + "/cwms-data/units"}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		_, err := load.Run(ctx, load.Options{Connections: 16, Rate: 300, Duration: 5 * time.Minute, Timeout: deadline, Observe: func(a load.Answer) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.Status == http.StatusOK || a.Status == http.StatusForbidden:
				answers = append(answers, said{a.Start, a.Status == http.StatusOK})
			case ctx.Err() == nil:
				t.Errorf("an answer of status %d: %v", a.Status, a.Err)
			}
		}}, func(int64) *load.Call { return call })
		if err != nil {
			t.Error(err)
		}
	})

	// What OPA itself answers, asked without a pause: the truth, and when it was so.
	// Left is when a policy was last heard, Came when the next was first heard.
	type change struct{ left, came time.Time }
	var changes []change
	allowed := true
	for n := range flips() {
		if err := st.PublishFile(files[(n+1)%2]); err != nil {
			t.Fatal(err)
		}
		left := time.Now()
		await(t, fmt.Sprintf("activation %d", n), func() bool {
			asked := time.Now()
			r, err := try(st.OPA, request{method: http.MethodPost, target: "/v1/data/cwms/authz/allow",
				header: []string{"Content-Type: application/json"},
				body:   `{"input":{"user":{"roles":[],"offices":[]},"resource":"units","action":"read","context":{}}}`})
			if err != nil {
				return false
			}
			if now := strings.Contains(r.body, "true"); now != allowed {
				return true
			}
			left = asked
			return false
		})
		allowed = !allowed
		changes = append(changes, change{left, time.Now()})
		// The proxy must follow; it has its lease for it.
		await(t, "the proxy follows", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(answers) > 0 && answers[len(answers)-1].allow == allowed && answers[len(answers)-1].at.After(changes[n].came)
		})
	}
	cancel()
	work.Wait()

	for n, c := range changes {
		now := n%2 == 1 // the flips start from allow
		until := time.Now()
		if n+1 < len(changes) {
			until = changes[n+1].left
		}
		var followed time.Time
		for _, a := range answers {
			switch {
			case a.at.Before(c.came), !a.at.Before(until):
			case a.allow == now && (followed.IsZero() || a.at.Before(followed)):
				followed = a.at
			case a.allow != now && a.at.After(c.came.Add(lease)):
				t.Errorf("an answer of the policy before, sent %v after OPA had left it", a.at.Sub(c.came))
			}
		}
		first = append(first, max(0, followed.Sub(c.came)))
	}
	return first
}

// flippedBundles builds the shipped policy, and the same without public resources.
func flippedBundles(t *testing.T, st *stack.Stack) (files [2]string) {
	t.Helper()
	closed := policyWith(t, "cwms/public/data.json", func(data map[string]any) { data["public_read"] = []string{} })
	for i, args := range [][]string{nil, {"-policy", closed}} {
		files[i] = filepath.Join(t.TempDir(), fmt.Sprintf("%d.tar.gz", i))
		if _, err := st.BuildBundle(t.Context(), files[i], args...); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// policyWith is a copy of the shipped policy with one file of data changed.
func policyWith(t *testing.T, file string, change func(map[string]any)) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../opa/policy")); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data := object(t, string(content))
	change(data)
	if content, err = json.Marshal(data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
