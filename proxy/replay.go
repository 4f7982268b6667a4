package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"headgate/proxy/authz"
	"headgate/proxy/pdp"
)

// exit is an error with an exit status of its own.
type exit struct {
	status int
	err    error // nil: nothing more is said
}

func (e exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

// The statuses of replay, as diff and grep have them.
const (
	flipsFound = 1
	unable     = 2
)

// replayed is what a candidate policy would change.
type replayed struct {
	OPA       string `json:"opa"`
	Revision  string `json:"revision"` // of the candidate
	Records   int    `json:"records"`
	Skipped   int    `json:"skipped_lines"`
	NoInput   int    `json:"records_without_input"`
	Questions int    `json:"questions"`          // different ones, each asked once
	LeftOut   int    `json:"records_left_out"`   // their questions were too many
	Both      int    `json:"answered_both_ways"` // questions that the log has both answers to: the last counts
	Flips     []flip `json:"flips"`
}

// flip is a group of questions that the candidate answers otherwise.
type flip struct {
	Kind      string  `json:"kind"` // allow->deny, deny->allow, constraints, no decision
	Method    string  `json:"method"`
	Route     string  `json:"route"`
	Was       string  `json:"was"` // code of the reason
	Is        string  `json:"is"`  // the same, or what OPA failed with
	Questions int     `json:"questions"`
	Requests  int     `json:"requests"`
	Example   example `json:"example"`
}

// example is one question of a group, the most frequent.
type example struct {
	Subject        string          `json:"subject"`
	Offices        []string        `json:"offices"`
	Requests       int             `json:"requests"`
	DecisionID     string          `json:"decision_id"` // of the recorded answer
	Input          json.RawMessage `json:"input"`
	WasConstraints json.RawMessage `json:"constraints_were,omitempty"`
	IsConstraints  json.RawMessage `json:"constraints_are,omitempty"`
}

const (
	allowToDeny = "allow->deny"
	denyToAllow = "deny->allow"
	constrained = "constraints"
	noDecision  = "no decision"
)

// recorded is a question of the log with the last answer to it.
type recorded struct {
	decisionRecord
	requests int
	both     bool // it was answered both ways
}

// replayCommand asks a candidate OPA what the log's questions would be answered.
func replayCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	c, _, _ := LoadConfig(environ) // faults of other settings are none here
	file, address, path, asJSON := "-", "", c.OPAPath, false
	timeout, concurrency, most := 5*time.Second, 8, 100_000
	rest, err := parseFlags("replay", args, func(f *flag.FlagSet) {
		f.StringVar(&file, "log", file, "the `FILE` of decision records, written with LOG_INPUTS=true; - is stdin")
		f.StringVar(&address, "opa", "", "`URL` of the candidate OPA, also unix:///path/of/socket")
		f.StringVar(&path, "path", path, "the rule that decides, as OPA_POLICY_PATH")
		f.DurationVar(&timeout, "timeout", timeout, "for a question")
		f.IntVar(&concurrency, "concurrency", concurrency, "questions at once")
		f.IntVar(&most, "max", most, "most different questions; each takes its size in memory")
		f.BoolVar(&asJSON, "json", false, "print JSON")
	})
	if err == nil && (len(rest) > 0 || address == "" || concurrency < 1 || most < 1 || timeout <= 0) {
		err = errors.New("want --log FILE --opa URL [--path /v1/data/…] [--timeout 5s] [--concurrency 8] [--max 100000] [--json]")
	}
	if err != nil {
		return exit{unable, err}
	}
	var opa opaURL
	if err := opa.UnmarshalText([]byte(address)); err != nil {
		return exit{unable, fmt.Errorf("--opa %q: %w", address, err)}
	}
	log, err := openLog(file)
	if err != nil {
		return exit{unable, err}
	}
	defer log.Close()
	r := &replayed{OPA: address}
	questions, err := r.read(log, most)
	if err != nil {
		return exit{unable, err}
	}
	if err := r.ask(ctx, opa.url(), path, timeout, concurrency, questions); err != nil {
		return exit{unable, err}
	}
	if asJSON {
		err = printJSON(out, r)
	} else {
		_, err = out.Write(r.text())
	}
	switch {
	case err != nil:
		return exit{unable, err}
	case len(r.Flips) > 0:
		return exit{status: flipsFound}
	}
	return nil
}

// read takes the questions from a log, each once.
func (r *replayed) read(log io.Reader, most int) (questions []*recorded, err error) {
	seen := map[[32]byte]*recorded{}
	r.Skipped, err = eachRecord(log, func(d *decisionRecord) {
		if d.Allow == nil {
			return // nothing was decided, so nothing can flip
		}
		r.Records++
		if d.Input == nil {
			r.NoInput++
			return
		}
		key := sha256.Sum256(d.Input)
		q := seen[key]
		switch {
		case q == nil && len(seen) == most:
			r.LeftOut++
			return
		case q == nil:
			q = &recorded{}
			seen[key] = q
			questions = append(questions, q)
		default:
			q.both = q.both || *q.Allow != *d.Allow
		}
		q.decisionRecord, q.requests = *d, q.requests+1
	})
	switch {
	case err != nil:
		return nil, err
	case r.Records == 0:
		return nil, fmt.Errorf("no decision is in this log (%d other lines)", r.Skipped)
	case len(questions) == 0:
		return nil, fmt.Errorf("none of the %d decisions in this log has its input: set LOG_INPUTS=true at the proxy that writes it", r.Records)
	}
	for _, q := range questions {
		if q.both {
			r.Both++
		}
	}
	r.Questions = len(questions)
	return questions, nil
}

// ask puts every question to the candidate, through the client that the proxy
// itself asks with, so that an answer is read alike.
func (r *replayed) ask(ctx context.Context, opa *url.URL, path string, timeout time.Duration, concurrency int, questions []*recorded) error {
	decider, err := pdp.New(pdp.Config{
		URL: opa, Path: path, Timeout: timeout, MaxEntries: 1, MaxInFlight: concurrency, Log: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		groups = map[[5]string]*flip{}
		failed int
		last   error
		next   = make(chan *recorded)
	)
	for range concurrency {
		wg.Go(func() {
			for q := range next {
				body := slices.Concat([]byte(`{"input":`), q.Input, []byte(`}`))
				decision, err := decider.Decide(ctx, authz.Question{Body: body, Offices: q.Offices})
				mu.Lock()
				if err != nil {
					failed, last = failed+1, err
				} else {
					r.Revision = decision.Revision
				}
				r.note(groups, q, decision, err)
				mu.Unlock()
			}
		})
	}
	for _, q := range questions {
		next <- q
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if failed == len(questions) {
		return fmt.Errorf("the candidate answered no question: %w", last)
	}
	r.Flips = []flip{}
	for _, g := range groups {
		r.Flips = append(r.Flips, *g)
	}
	order := []string{noDecision, allowToDeny, denyToAllow, constrained}
	slices.SortFunc(r.Flips, func(a, b flip) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)), cmp.Compare(b.Requests, a.Requests),
			cmp.Compare(a.Route, b.Route), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Was, b.Was), cmp.Compare(a.Is, b.Is))
	})
	return nil
}

// note puts a question whose answer differs into its group.
func (r *replayed) note(groups map[[5]string]*flip, q *recorded, is authz.Decision, err error) {
	kind, code := "", is.Code()
	switch {
	case err != nil:
		kind, code = noDecision, cause(err)
	case *q.Allow && !is.Allow:
		kind = allowToDeny
	case !*q.Allow && is.Allow:
		kind = denyToAllow
	case is.Allow && q.Constraints != nil && !sameJSON(q.Constraints, is.Constraints):
		kind = constrained
	default:
		return
	}
	was, _, _ := strings.Cut(q.Reason, ":")
	key := [5]string{kind, q.Method, q.Route, was, code}
	g := groups[key]
	if g == nil {
		g = &flip{Kind: kind, Method: q.Method, Route: q.Route, Was: was, Is: code}
		groups[key] = g
	}
	g.Questions++
	g.Requests += q.requests
	// The most frequent; of equals the first by input, so that two runs agree.
	if e := &g.Example; q.requests > e.Requests || q.requests == e.Requests && bytes.Compare(q.Input, e.Input) < 0 {
		*e = example{Subject: q.Subject, Offices: q.Offices, Requests: q.requests, DecisionID: q.DecisionID, Input: q.Input}
		if kind == constrained {
			e.WasConstraints, e.IsConstraints = q.Constraints, is.Constraints
		}
	}
}

// cause is what a failure came from, without the words for clients.
func cause(err error) string {
	var refusal *authz.Refusal
	if errors.As(err, &refusal) && refusal.Cause != nil {
		err = refusal.Cause
	}
	return err.Error()
}

func sameJSON(a, b []byte) bool {
	value := func(raw []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		_ = d.Decode(&v) // both were read as JSON before
		return v
	}
	return bytes.Equal(a, b) || reflect.DeepEqual(value(a), value(b))
}

// text is the outcome for people.
func (r *replayed) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d decisions, %d different questions, asked of %s (%s)\n", r.Records, r.Questions, r.OPA, cmp.Or(r.Revision, "no revision"))
	for _, n := range []struct {
		n    int
		text string
	}{
		{r.Skipped, "other lines were skipped"},
		{r.NoInput, "decisions have no input and were not asked (LOG_INPUTS was not true)"},
		{r.LeftOut, "decisions were left out: their questions are beyond --max"},
		{r.Both, "questions were answered both ways in the log; the last answer counts"},
	} {
		if n.n > 0 {
			fmt.Fprintf(&b, "%d %s\n", n.n, n.text)
		}
	}
	b.WriteString("\n")
	if len(r.Flips) == 0 {
		b.WriteString("No answer changes.\n")
		return b.Bytes()
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHANGE\tREQUESTS\tQUESTIONS\tMETHOD\tROUTE\tWAS\tIS\tFOR EXAMPLE")
	for _, f := range r.Flips {
		who := strings.TrimSpace(f.Example.Subject + " " + strings.Join(f.Example.Offices, " "))
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", f.Kind, f.Requests, f.Questions, printable(f.Method), printable(f.Route), printable(f.Was), printable(f.Is), printable(who))
	}
	w.Flush()
	for _, f := range r.Flips {
		if f.Kind == constrained {
			fmt.Fprintf(&b, "\nconstraints of %s %s for %s\n  were %s\n  are  %s\n", printable(f.Method), printable(f.Route), printable(f.Example.Subject), f.Example.WasConstraints, f.Example.IsConstraints)
		}
	}
	return b.Bytes()
}
