package pdp

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// Explanation tells how a question is answered and what would end the answer.
// Durations are in milliseconds.
type Explanation struct {
	Cache Cached `json:"cache"`
	OPA   Asked  `json:"opa"`
}

// Cached is what the decision cache of this process has for a question.
type Cached struct {
	Key   string `json:"key"`           // that of the question, in hexadecimal
	State string `json:"state"`         // hit; miss, expired, moved, unconfirmed: OPA is asked; off: and the answer is not kept
	Why   string `json:"why,omitempty"` // if it is no hit

	// The entry, if there is one.
	Allow      *bool  `json:"allow,omitempty"`
	Reason     string `json:"reason,omitempty"`
	DecisionID string `json:"decision_id,omitempty"`
	Age        *int64 `json:"age_ms,omitempty"`  // since its question was sent
	Left       *int64 `json:"left_ms,omitempty"` // of its lifetime

	// The policy that this process goes by.
	Epoch    uint64 `json:"epoch"`
	Revision string `json:"revision,omitempty"`
	LeaseAge *int64 `json:"lease_age_ms,omitempty"` // since the poll was sent that last confirmed it
	Lease    int64  `json:"lease_ms"`

	Ends []string `json:"ends,omitempty"` // what ends the reuse of a hit
}

// Asked is what OPA answers to a question now.
type Asked struct {
	Allow       *bool           `json:"allow,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Constraints json.RawMessage `json:"constraints,omitempty"`
	DecisionID  string          `json:"decision_id,omitempty"`
	Revision    string          `json:"revision,omitempty"`
	Lifetime    int64           `json:"lifetime_ms"` // for which the answer could be reused; 0: not at all
	Error       string          `json:"error,omitempty"`
}

// Explain is Decide for whoever asks why. It answers as Decide would now, and asks
// OPA even where the cache has the answer, so that the two can be compared. What
// OPA says is not stored; the question counts as an evaluation of OPA and as
// nothing else.
func (d *Decider) Explain(ctx context.Context, q authz.Question) (authz.Decision, Explanation, error) {
	cached, decision, hit := d.look(ctx, q)
	e := Explanation{Cache: cached}
	a := d.ask(q, d.policy.live.Load(), time.Now().Add(d.cfg.Timeout))
	if a.err != nil {
		e.OPA.Error = a.err.Error()
	} else {
		e.OPA = Asked{
			Allow: &a.decision.Allow, Reason: a.decision.Reason, Constraints: a.decision.Constraints,
			DecisionID: a.decision.ID, Revision: a.decision.Revision, Lifetime: (a.ends - a.asked).Milliseconds(),
		}
	}
	if hit {
		return decision, e, nil
	}
	return a.decision, e, a.err
}

// look tells what the cache has, and the decision if it is a hit.
func (d *Decider) look(ctx context.Context, q authz.Question) (c Cached, decision authz.Decision, hit bool) {
	key := q.Key()
	c = Cached{Key: hex.EncodeToString(key[:]), State: "miss", Why: "nobody asked this lately", Lease: d.cfg.Lease.Milliseconds()}
	e, found := d.entries.Get(key)
	if found {
		now := d.now()
		age, left := (now - e.asked).Milliseconds(), max(0, e.ends-now).Milliseconds()
		decision = e.decision(d.start)
		c.Allow, c.Reason, c.DecisionID, c.Age, c.Left = &decision.Allow, decision.Reason, decision.ID, &age, &left
	}
	live := d.policy.live.Load()
	if live != nil {
		age := d.age(live).Milliseconds()
		c.Epoch, c.Revision, c.LeaseAge = live.number, live.revision, &age
	}
	switch {
	case len(q.Body) > maxCachedInput:
		c.State, c.Why = "off", fmt.Sprintf("the question has %d bytes, and over %d none is cached", len(q.Body), maxCachedInput)
	case live != nil && live.uncached != "":
		c.State, c.Why = "off", live.uncached
	case found:
		switch d.state(ctx, e.term) {
		case fresh:
			c.State, c.Why = "hit", ""
			c.Ends = []string{
				fmt.Sprintf("its lifetime, in %v", (time.Duration(*c.Left) * time.Millisecond).Round(time.Millisecond)),
				fmt.Sprintf("another policy than that of epoch %d, %s", c.Epoch, c.Revision),
				fmt.Sprintf("the lease, when OPA has not confirmed its policy for %v", d.cfg.Lease),
				"any change of the question: another role, office, claim or parameter is another question",
				fmt.Sprintf("eviction, when more than %d decisions are wanted", d.cfg.MaxEntries),
			}
			return c, decision, true
		case expired:
			c.State, c.Why = "expired", "its lifetime has ended"
		case moved:
			c.State, c.Why = "moved", "OPA runs another policy since"
		case unconfirmed:
			c.State, c.Why = "unconfirmed", "OPA did not confirm within the lease which policy it runs"
		}
	}
	return c, decision, false
}

// Trace is what OPA tells of how it came to its answer.
type Trace struct {
	Lines []string `json:"lines"`
	Cut   bool     `json:"cut"` // there is more than is shown
	Error string   `json:"error,omitempty"`
}

const (
	traceTime = 10 * time.Second // tracing is slow
	// A trace of a large policy has tens of thousands of lines.
	maxTraceBytes = 256 << 10
	maxTraceLines = 4000
)

// Trace asks OPA how it answers: with mode "notes" what its trace() calls say,
// with "full" every step. OPA evaluates the question once more for it.
func (d *Decider) Trace(q authz.Question, mode string) Trace {
	deadline := time.Now().Add(traceTime)
	leave, err := d.slots.enter(q.Anonymous, deadline)
	if err != nil {
		return Trace{Lines: []string{}, Error: err.Error()}
	}
	defer leave()
	t, err := d.tracer.trace(q.Body, mode, deadline)
	if err != nil {
		t.Error = err.Error()
	}
	return t
}

// trace asks with OPA's explain parameter and reads no more of the answer than is
// shown. https://www.openpolicyagent.org/docs/rest-api#explanations
func (o *opa) trace(body []byte, mode string, deadline time.Time) (t Trace, err error) {
	t.Lines = []string{}
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	resp.StreamBody = true
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI(o.ask.String() + "&pretty=true&explain=" + mode)
	req.Header.SetContentType("application/json")
	req.SetConnectionClose()
	req.SetBodyRaw(body)
	if err := o.client.DoDeadline(req, resp, deadline); err != nil {
		return t, err
	}
	if resp.StatusCode() != fasthttp.StatusOK {
		return t, fmt.Errorf("OPA answered %d", resp.StatusCode())
	}
	stream, ok := resp.BodyStream().(fasthttp.ReadCloserWithError)
	if !ok {
		return readTrace(bytes.NewReader(resp.Body()))
	}
	t, err = readTrace(stream)
	_ = stream.CloseWithError(errEnough) // the connection goes with it
	return t, err
}

var errEnough = errors.New("no more is read of this answer")

// readTrace reads the lines of the explanation in OPA's answer, up to the limits.
func readTrace(r io.Reader) (t Trace, err error) {
	t.Lines = []string{}
	limited := &io.LimitedReader{R: r, N: maxTraceBytes}
	dec := json.NewDecoder(limited)
	end := func(err error) (Trace, error) {
		if limited.N <= 0 {
			t.Cut = true
			return t, nil
		}
		return t, malformed("%v", err)
	}
	if _, err := dec.Token(); err != nil {
		return end(err)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return end(err)
		}
		if name != "explanation" {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return end(err)
			}
			continue
		}
		if start, err := dec.Token(); err != nil {
			return end(err)
		} else if start != json.Delim('[') {
			return t, nil // null: OPA has nothing to tell
		}
		for dec.More() {
			if len(t.Lines) == maxTraceLines {
				t.Cut = true
				return t, nil
			}
			var line string
			if err := dec.Decode(&line); err != nil {
				return end(err)
			}
			t.Lines = append(t.Lines, line)
		}
		if _, err := dec.Token(); err != nil { // the end of the list
			return end(err)
		}
		return t, nil
	}
	return t, nil
}
