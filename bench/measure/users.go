package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"headgate/bench/k6"
	"headgate/bench/load"
	"headgate/bench/report"
)

// grant gets a token for each user by the password grant; the password of a test
// user is its name.
func grant(ctx context.Context, issuer string, users []k6.User) (map[string]string, error) {
	tokens := map[string]string{}
	for _, u := range users {
		form := url.Values{"grant_type": {"password"}, "client_id": {"cwms"}, "username": {u.Name}, "password": {u.Name}}
		res, err := http.PostForm(issuer+"/protocol/openid-connect/token", form)
		if err != nil {
			return nil, fmt.Errorf("no token for %s: %w", u.Name, err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		var answer struct {
			Token string `json:"access_token"`
		}
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil || answer.Token == "" {
			return nil, fmt.Errorf("no token for %s: %s %.200s", u.Name, res.Status, text)
		}
		tokens[u.Name] = answer.Token
	}
	return tokens, ctx.Err()
}

// mint has the stand-in make tokens for the users in their order.
func (b *bench) mint(ctx context.Context, users []string) ([]string, error) {
	calls := make([]*load.Call, len(users))
	index := make(map[*load.Call]int, len(users))
	for i, u := range users {
		calls[i] = &load.Call{Method: http.MethodPost, URL: b.st.Control + "/tokens", Body: fmt.Appendf(nil, `{"user":%q}`, u), Contains: `"token"`}
		index[calls[i]] = i
	}
	tokens := make([]string, len(users))
	var mu sync.Mutex
	var failed error
	err := each(ctx, calls, func(a load.Answer) {
		var answer struct{ Token string }
		err := json.Unmarshal(a.Body, &answer)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = err
		}
		tokens[index[a.Call]] = answer.Token
	})
	if err == nil {
		err = failed
	}
	return tokens, err
}

// each sends every call once and wants all answers to be right.
func each(ctx context.Context, calls []*load.Call, see func(load.Answer)) error {
	if len(calls) == 0 {
		return nil
	}
	r, err := load.Run(ctx, load.Options{Connections: 8, Requests: int64(len(calls)), Observe: see}, func(n int64) *load.Call { return calls[n] })
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.Err()
}

// putUsers makes users that manage water and read at SWT, with further roles.
func (b *bench) putUsers(ctx context.Context, users []string, roles []string) error {
	at := map[string][]string{"HQ": {"water_manager"}, "SWT": append([]string{"All Users", "CWMS Users"}, roles...)}
	body, err := json.Marshal(map[string]any{"roles": at})
	if err != nil {
		return err
	}
	calls := make([]*load.Call, len(users))
	for i, u := range users {
		calls[i] = &load.Call{Method: http.MethodPut, URL: b.st.Control + "/users/" + u, Body: body, Status: http.StatusNoContent}
	}
	return each(ctx, calls, nil)
}

// Series is the read that everything is measured with, and reader is who makes it.
const (
	timeseries = "/cwms-data/timeseries"
	reader     = "M5HECTEST"
	office     = "SWT"
)

// read is the warm authorized GET with an answer of 1.6 KB.
func (b *bench) read(at string) *load.Call {
	return b.data.Call(at, timeseries, k6.User{Name: reader, Office: office}, b.tokens)
}

// readOf is a read of a series whose parameter is one of many, so that each is
// another question to policy.
func (b *bench) readOf(at, office, token, parameter string) *load.Call {
	return &load.Call{
		Name: timeseries, URL: fmt.Sprintf("%s%s?name=KEYS.%s.Inst.1Hour.0.Ccp-Rev&office=%s", at, timeseries, parameter, office),
		Header:   [][2]string{{"Accept", "application/json;version=2"}, {"Authorization", "Bearer " + token}},
		Contains: `"values":`,
	}
}

func same(c *load.Call) func(int64) *load.Call { return func(int64) *load.Call { return c } }

// cycle takes turns, with an offset that goes on over slices if the caller keeps
// it.
func cycle(calls []*load.Call) func(int64) *load.Call {
	return func(n int64) *load.Call { return calls[n%int64(len(calls))] }
}

// overSlices makes one value of a number of each slice.
func overSlices(slices []slice, of func(slice) float64) report.Value {
	var all []float64
	for _, s := range slices {
		all = append(all, of(s))
	}
	return report.Median(all)
}

// merged adds up the answers of slices, of one row or, with an empty name, of all.
func merged(slices []slice, row string) *load.Stats {
	var all *load.Stats
	for _, s := range slices {
		stats := s.Total
		if row != "" {
			stats = s.Calls[row]
		}
		if stats == nil {
			continue
		}
		if all == nil {
			all = load.NewStats()
		}
		all.Add(stats)
	}
	return all
}

// latency makes a value of a latency of all slices, with the spread of that of
// each as its noise.
func latency(slices []slice, row string, of func(*load.Stats) float64) report.Value {
	v := overSlices(slices, func(s slice) float64 {
		if row != "" {
			return of(s.Calls[row])
		}
		return of(s.Total)
	})
	v.Number = of(merged(slices, row))
	return v
}

func mean(s *load.Stats) float64 { return s.Mean().Seconds() }

func quantile(q float64) func(*load.Stats) float64 {
	return func(s *load.Stats) float64 { return s.Quantile(q).Seconds() }
}
