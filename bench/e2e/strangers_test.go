package e2e

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// Somebody invents API keys, 10,000 a second or as many as this machine can, while
// the API takes its time for profiles. Whoever comes from elsewhere with a key that
// nobody has seen yet is served.
func TestInventedKeysKeepNobodyOut(t *testing.T) {
	st := stack.New(t, stack.Options{})
	const slow = 300 * time.Millisecond // for whatever credential
	if err := st.Do(t.Context(), http.MethodPut, "/fault", map[string]any{"target": "profile", "delay_ms": slow.Milliseconds()}, nil); err != nil {
		t.Fatal(err)
	}
	const strangers = 5
	var keys [strangers]string
	for i := range keys {
		var made struct{ Key string }
		if err := st.Do(t.Context(), http.MethodPost, "/apikeys", map[string]string{"user": "M5HECTEST"}, &made); err != nil {
			t.Fatal(err)
		}
		keys[i] = made.Key
	}
	before, err := st.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	counts := &tally{status: map[int]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	start := time.Now()
	work.Go(func() {
		_, err := load.Run(ctx, load.Options{Connections: 64, Rate: 10_000, Duration: time.Minute, Timeout: deadline, Observe: counts.add},
			func(int64) *load.Call {
				return &load.Call{URL: st.Proxy + reading, Header: [][2]string{{"Authorization", "apikey " + rand.Text() + rand.Text()}}}
			})
		if err != nil {
			t.Error(err)
		}
	})
	refused := func() bool {
		const counter = `authorizer_proxy_strangers_refused_total{limit="address"} `
		a, err := try(st.Admin, get("/metrics"))
		return err == nil && strings.Contains(a.body, counter) && !strings.Contains(a.body, counter+"0")
	}
	await(t, "the address has all the places it may have", refused)
	for i, key := range keys {
		sent := time.Now()
		a, err := tryFrom("127.0.0.2", st.Proxy, get(reading, "Authorization: apikey "+key))
		if err != nil || a.status != http.StatusOK {
			t.Errorf("key %d of another address: %d %s, %v", i, a.status, a.body, err)
		}
		t.Logf("key %d of another address: %v", i, time.Since(sent).Round(time.Millisecond))
	}
	cancel()
	work.Wait()

	took := time.Since(start)
	after, err := st.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	calls := after.ProfileCalls - before.ProfileCalls
	n := 0
	for status, times := range counts.status {
		n += times
		if status != http.StatusUnauthorized && status != http.StatusServiceUnavailable && status != 0 {
			t.Errorf("%d invented keys were answered %d", times, status)
		}
	}
	t.Logf("%d invented keys in %v: %v, %d profile calls", n, took.Round(time.Millisecond), counts.status, calls)
	// One address has eight places at most.
	if most := strangers + 8*(int(took/slow)+1); int(calls) > most {
		t.Errorf("%d profile calls, want %d at most", calls, most)
	}
}
