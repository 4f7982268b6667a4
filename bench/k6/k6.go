// Package k6 gives the Go harness the scenarios of the k6 scripts beside it: both
// read mix.json, so that either measures the same.
package k6

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"headgate/bench/load"
)

//go:embed mix.json
var file []byte

// Data are the calls, the mix and the scenarios.
type Data struct {
	Users     []User              `json:"users"`
	Series    string              `json:"series"`
	PauseMS   int                 `json:"pause_ms"` // after each call
	Calls     map[string]Call     `json:"calls"`
	Mix       []Part              `json:"mix"`
	Quick     Scenario            `json:"quick"`
	Stress    Scenario            `json:"stress"`
	Scenarios map[string]Scenario `json:"scenarios"`
}

// User is a test user with the office it reads at.
type User struct {
	Name   string `json:"name"`
	Office string `json:"office"`
}

// Call is a request, with {office} and {series} to be filled in.
type Call struct {
	Method   string          `json:"method"`
	Path     string          `json:"path"`
	Accept   string          `json:"accept"`
	Token    bool            `json:"token"` // sends the user's token
	Body     json.RawMessage `json:"body"`
	Status   int             `json:"status"`
	Contains string          `json:"contains"`
}

// Part is a call's share of the mix; all shares make 100.
type Part struct {
	Call    string `json:"call"`
	Percent int    `json:"percent"`
}

// Scenario is a constant number of users, or one that grows evenly.
type Scenario struct {
	Call    string `json:"call"` // empty: the mix
	VUs     int    `json:"vus"`
	From    int    `json:"from"`
	To      int    `json:"to"`
	Seconds int    `json:"seconds"`
}

// Read decodes the scenarios.
func Read() (*Data, error) {
	var d Data
	dec := json.NewDecoder(bytes.NewReader(file))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("cannot read mix.json: %w", err)
	}
	return &d, nil
}

// Call makes a call of the data for a user, ready to send. Tokens are by user
// name.
func (d *Data) Call(proxy, name string, u User, tokens map[string]string) *load.Call {
	c := d.Calls[name]
	fill := strings.NewReplacer("{series}", d.Series, "{office}", u.Office).Replace
	call := &load.Call{Name: name, Method: c.Method, URL: proxy + fill(c.Path), Status: c.Status, Contains: c.Contains}
	if c.Accept != "" {
		call.Header = append(call.Header, [2]string{"Accept", c.Accept})
	}
	if c.Token {
		call.Header = append(call.Header, [2]string{"Authorization", "Bearer " + tokens[u.Name]})
	}
	if c.Body != nil {
		call.Header = append(call.Header, [2]string{"Content-Type", "application/json"})
		var body bytes.Buffer
		if err := json.Compact(&body, c.Body); err != nil { // as JSON.stringify writes it
			panic("BUG: a body that was decoded is not JSON: " + err.Error())
		}
		call.Body = []byte(fill(body.String()))
	}
	return call
}

// Mixed yields the n-th request of the mix: any hundred in a row have exactly its
// percentages, and users take turns.
func (d *Data) Mixed(proxy string, tokens map[string]string) func(n int64) *load.Call {
	calls := make([]*load.Call, 0, len(d.Users)*100) // each user's hundred
	for _, u := range d.Users {
		prepared := map[string]*load.Call{}
		for n := range 100 {
			name := d.nth(n)
			if prepared[name] == nil {
				prepared[name] = d.Call(proxy, name, u, tokens)
			}
			calls = append(calls, prepared[name])
		}
	}
	return func(n int64) *load.Call {
		return calls[n%int64(len(d.Users))*100+n%100]
	}
}

// nth spreads the parts of the mix over a hundred calls; mix.js does the same.
func (d *Data) nth(n int) string {
	at := n * 37 % 100
	for _, part := range d.Mix {
		if at < part.Percent {
			return part.Call
		}
		at -= part.Percent
	}
	panic("BUG: the percentages of the mix are less than 100")
}
