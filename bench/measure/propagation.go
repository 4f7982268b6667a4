package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/bench/load"
	"headgate/bench/report"
	"headgate/bench/stack"
)

// sighting is one answer of a replica.
type sighting struct {
	end   time.Time
	allow bool
}

// watch asks every replica at a constant rate, and keeps what they answered.
type watch struct {
	mu   sync.Mutex
	seen [][]sighting // by replica, as the answers came
	odd  error        // an answer that was neither allow nor deny
	stop func() error
}

// watchRate is that of the budgets.
const watchRate = 300

func (b *bench) watch(ctx context.Context, call func(at string) *load.Call) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{seen: make([][]sighting, len(b.replicas))}
	requests := make([]int64, len(b.replicas))
	errs := make([]error, len(b.replicas))
	var work sync.WaitGroup
	for i, s := range b.replicas {
		c := call(s.url)
		work.Go(func() {
			o := load.Options{Connections: 8, Rate: watchRate, Duration: time.Hour, Observe: func(a load.Answer) {
				w.mu.Lock()
				defer w.mu.Unlock()
				switch a.Status {
				case http.StatusOK, http.StatusForbidden:
					w.seen[i] = append(w.seen[i], sighting{a.End, a.Status == http.StatusOK})
				default:
					w.odd = fmt.Errorf("%s: an answer of status %d: %w", s.name, a.Status, a.Err)
				}
			}}
			var r *load.Result
			if r, errs[i] = load.Run(ctx, o, same(c)); r != nil {
				requests[i] = r.Total.Requests
			}
		})
	}
	w.stop = func() error {
		cancel()
		work.Wait()
		for i, s := range b.replicas {
			if errs[i] == nil {
				errs[i] = s.records.settle(context.WithoutCancel(ctx), requests[i], nil)
			}
			if errs[i] != nil {
				return fmt.Errorf("%s: %w", s.name, errs[i])
			}
		}
		return w.odd
	}
	return w
}

// await returns when every replica has answered so after then, or fails.
func (w *watch) await(ctx context.Context, since time.Time, allow bool) error {
	return until(ctx, "every replica follows", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.odd != nil || !slices.ContainsFunc(w.seen, func(s []sighting) bool {
			return len(s) == 0 || s[len(s)-1].allow != allow || s[len(s)-1].end.Before(since)
		})
	})
}

// until looks every millisecond.
func until(ctx context.Context, what string, condition func() bool) error {
	for end := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(end) {
			return fmt.Errorf("gave up waiting until %s", what)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// change is something that every replica must answer by from then on.
type change struct {
	at    time.Time
	allow bool
}

// lags are, for each change and replica, the time to the first answer by it.
func (w *watch) lags(changes []change) (all []float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, c := range changes {
		for _, seen := range w.seen {
			for _, s := range seen {
				if s.end.After(c.at) && s.allow == c.allow && (n+1 == len(changes) || s.end.Before(changes[n+1].at)) {
					all = append(all, s.end.Sub(c.at).Seconds())
					break
				}
			}
		}
	}
	return all
}

func (b *bench) propagationPart(ctx context.Context) ([]report.Table, error) {
	t := report.Table{
		ID: "propagation", First: "what changes",
		About: fmt.Sprintf("%d replicas are each asked %d times a second at a constant rate while a user's role, or a rule, is taken away and given back. Counted is the time from the command being sent, "+
			"or from OPA answering by the new policy, to the end of each replica's first answer by it. Asking every %.1f ms is part of the figure.", len(b.replicas), watchRate, 1000.0/watchRate),
		Columns: []report.Column{
			{Name: "changes", Unit: report.Count}, {Name: "replicas", Unit: report.Count}, {Name: "p50", Unit: report.Seconds, Better: report.Less},
			{Name: "p99", Unit: report.Seconds, Better: report.Less}, {Name: "max", Unit: report.Seconds, Better: report.Less},
		},
		Notes: []string{"The reference had no way to end a cached user or decision: its figures are the lives of its cache entries."},
	}
	add := func(name, budget, reference string, changes int, lags []float64) error {
		if len(lags) != changes*len(b.replicas) {
			return fmt.Errorf("%s: %d changes were seen %d times by %d replicas", name, changes, len(lags), len(b.replicas))
		}
		p99 := report.Quantile(lags, .99)
		b.found[budget] = max(b.found[budget], p99)
		t.Rows = append(t.Rows, report.Row{Name: name, Reference: reference, Values: []report.Value{
			report.Of(float64(changes)), report.Of(float64(len(b.replicas))), report.Of(report.Quantile(lags, .5)), report.Of(p99), report.Of(report.Quantile(lags, 1)),
		}})
		return nil
	}
	for _, way := range []struct {
		name   string
		revoke func(context.Context, int, string) error
	}{
		{"a user's context, proxy invalidate", func(ctx context.Context, n int, user string) error {
			return b.invalidate(ctx, b.replicas[n%len(b.replicas)].admin, user)
		}},
		{"a user's context, DEL in Redis", func(_ context.Context, _ int, user string) error { return forget(b.st.Redis, user) }},
	} {
		if b.st.Redis == "" {
			t.Notes = append(t.Notes, "redis-server is not installed: a revocation reaches only the replica that is told, and was not measured.")
			break
		}
		lags, err := b.revocations(ctx, way.revoke)
		if err == nil {
			err = add(way.name, "revocation", "30 min", b.size.Revocations, lags)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	files, err := b.twoPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for _, lost := range []bool{false, true} {
		name, budget := "policy, with OPA's status push", "activation"
		if lost {
			name, budget = "policy, every push lost", "lost"
		}
		b.say("        %s: %d activations", name, b.size.Activations)
		b.st.DropStatus(lost)
		lags, err := b.activations(ctx, files)
		if err == nil {
			err = add(name, budget, "5 min", b.size.Activations, lags)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	b.st.DropStatus(false)
	return []report.Table{t}, nil
}

// mixed is a test user whose role is taken and given.
const mixed = "MIXED01"

func (b *bench) revocations(ctx context.Context, revoke func(context.Context, int, string) error) (_ []float64, err error) {
	grant := func(roles ...string) error {
		profile := map[string]any{"roles": map[string]any{"SWT": append(roles, "CWMS Users")}}
		return b.st.Do(ctx, http.MethodPut, "/users/"+mixed, profile, nil)
	}
	if err := grant("water_manager"); err != nil {
		return nil, err
	}
	if err := revoke(ctx, 0, mixed); err != nil {
		return nil, err
	}
	w := b.watch(ctx, func(at string) *load.Call { return b.readOf(at, office, b.tokens[mixed], "Elev") })
	var changes []change
	err = w.await(ctx, time.Now(), true)
	for n := 0; n < b.size.Revocations && err == nil; n++ {
		c := change{allow: n%2 == 1}
		if c.allow {
			err = grant("water_manager")
		} else {
			err = grant()
		}
		c.at = time.Now()
		if err == nil {
			err = revoke(ctx, n, mixed)
		}
		changes = append(changes, c)
		if err == nil {
			err = w.await(ctx, c.at, c.allow)
		}
	}
	if stopped := w.stop(); err == nil {
		err = stopped
	}
	return w.lags(changes), err
}

// forget deletes a user's context as an operator would: DEL user:context:<name>.
func forget(redis, user string) error {
	u, err := url.Parse(redis)
	if err != nil {
		return err
	}
	c, err := net.DialTimeout("tcp", u.Host, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	password, _ := u.User.Password()
	if _, err := fmt.Fprintf(c, "AUTH %s\r\nDEL user:context:%s\r\n", password, strings.ToLower(user)); err != nil {
		return err
	}
	answer := make([]byte, 64)
	text := ""
	for strings.Count(text, "\n") < 2 {
		n, err := c.Read(answer)
		if err != nil {
			return err
		}
		text += string(answer[:n])
	}
	if strings.Contains(text, "-") {
		return fmt.Errorf("the answer of Redis is %q", text)
	}
	return nil
}

// twoPolicies builds the shipped policy and the same without public resources.
func (b *bench) twoPolicies(ctx context.Context) (files [2]string, err error) {
	root, err := stack.Root()
	if err != nil {
		return files, err
	}
	closed := filepath.Join(b.st.Dir(), "closed")
	if err := os.CopyFS(closed, os.DirFS(filepath.Join(root, "opa", "policy"))); err != nil {
		return files, err
	}
	name := filepath.Join(closed, "cwms", "public", "data.json")
	content, err := os.ReadFile(name)
	if err != nil {
		return files, err
	}
	var data map[string]any
	if err := json.Unmarshal(content, &data); err != nil {
		return files, fmt.Errorf("cannot read %q: %w", name, err)
	}
	data["public_read"] = []string{}
	if content, err = json.Marshal(data); err == nil {
		err = os.WriteFile(name, content, 0o600)
	}
	for i, args := range [][]string{nil, {"-policy", closed}} {
		if err == nil {
			files[i] = filepath.Join(b.st.Dir(), fmt.Sprintf("policy%d.tar.gz", i))
			_, err = b.st.BuildBundle(ctx, files[i], args...)
		}
	}
	return files, err
}

// activations publishes two policies in turn. The time counts from when OPA was
// asked the question that it first answered by the new one.
func (b *bench) activations(ctx context.Context, files [2]string) ([]float64, error) {
	question := map[string]any{"input": map[string]any{
		"user": map[string]any{"roles": []string{}, "offices": []string{}}, "resource": "units", "action": "read", "context": map[string]any{},
	}}
	w := b.watch(ctx, func(at string) *load.Call { return &load.Call{URL: at + "/cwms-data/units"} })
	var changes []change
	err := w.await(ctx, time.Now(), true)
	for n := 0; n < b.size.Activations && err == nil; n++ {
		c := change{allow: n%2 == 1}
		if err = b.st.PublishFile(files[(n+1)%2]); err != nil {
			break
		}
		err = until(ctx, "OPA takes up the policy", func() bool {
			var answer struct{ Result bool }
			c.at = time.Now()
			return do(ctx, http.MethodPost, b.st.OPA+"/v1/data/cwms/authz/allow", "", question, &answer) == nil && answer.Result == c.allow
		})
		changes = append(changes, c)
		if err == nil {
			err = w.await(ctx, c.at, c.allow)
		}
	}
	if len(changes)%2 == 1 && err == nil { // leave it as it was
		if err = b.st.PublishFile(files[0]); err == nil {
			err = w.await(ctx, time.Now(), true)
		}
	}
	if stopped := w.stop(); err == nil {
		err = stopped
	}
	return w.lags(changes), err
}
