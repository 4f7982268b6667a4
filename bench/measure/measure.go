// Package measure makes the runs that the page of results is written from. It
// starts the servers, sends the load, and returns a report.Report; how that is
// written down is not its business.
//
// A part of the run measures one or more tables. A part that fails, because an
// answer was wrong or because a proxy left more or fewer decision records than it
// was sent requests, has tables without numbers that say so; the run goes on.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/bench/k6"
	"headgate/bench/report"
	"headgate/bench/stack"
)

// Options say what to measure.
type Options struct {
	Quick bool
	Only  []string // ids of tables; empty: all
	// Target is the URL of a proxy that runs already, and Issuer the issuer of its
	// tokens, which knows the test users. Empty: a stack of our own is started.
	Target, Issuer string
	Command        string    // as it was given, for the report
	Progress       io.Writer // is told what is going on
	// Size overrides the sizes that Quick chooses between; for tests.
	Size *Size
}

// part is a piece of the run.
type part struct {
	name   string
	tables []heading
	needs  need
	run    func(*bench, context.Context) ([]report.Table, error)
}

// heading is what a table is called, whether or not it gets numbers.
type heading struct{ id, title string }

// need is what a part is measured on.
type need int

const (
	anyProxy  need = iota // any proxy that can be reached
	ownStack              // a stack of ours whose profiles take as long as the real API's
	fastStack             // a stack of ours with three replicas, whose profiles take no time
)

// ProfileDelay is how long the reference's API took for a profile.
const profileDelay = 175 * time.Millisecond

var parts = []part{
	{"10 users", []heading{
		{"latency", "Request latency, 10 users"},
		{"cache", "Cache performance"},
		{"resources", "Resource use at 10 users"},
	}, anyProxy, (*bench).tenUsersPart},
	{"cold and warm", []heading{
		{"miss", "What a cache miss costs"},
		{"opa", "Policy evaluation"},
		{"breakdown", "Where the time goes"},
	}, ownStack, (*bench).stagesPart},
	{"growing number of users", []heading{{"load", "Throughput under load"}}, anyProxy, (*bench).rampPart},
	{"direct against proxied", []heading{{"direct", "Direct against proxied"}}, ownStack, (*bench).directPart},
	{"side by side", []heading{
		{"saturation", "Side by side at saturation"},
		{"rate", "Latency at a constant rate"},
	}, ownStack, (*bench).saturationPart},
	{"profile", []heading{{"profile", "What the processor time goes for"}}, ownStack, (*bench).profilePart},
	{"varied URLs", []heading{{"varied", "Varied URLs"}}, ownStack, (*bench).variedPart},
	{"propagation", []heading{{"propagation", "Propagation of a change"}}, fastStack, (*bench).propagationPart},
	{"scale: cores", []heading{{"scale-cores", "Scale: processor cores"}}, fastStack, (*bench).coresPart},
	{"scale: roles", []heading{{"scale-roles", "Scale: roles per user"}}, fastStack, (*bench).rolesPart},
	{"scale: header", []heading{{"scale-header", "Scale: header size"}}, fastStack, (*bench).headerPart},
	{"scale: decisions", []heading{{"scale-decisions", "Scale: cached decisions"}}, fastStack, (*bench).decisionsPart},
	{"scale: users", []heading{{"scale-users", "Scale: number of users"}}, fastStack, (*bench).usersPart},
}

// TableIDs are the names that Options.Only knows.
func TableIDs() (ids []string) {
	for _, p := range parts {
		for _, h := range p.tables {
			ids = append(ids, h.id)
		}
	}
	return ids
}

// bench is a run.
type bench struct {
	Options
	size  Size
	data  *k6.Data
	start time.Time

	kind  need // what st is
	st    *stack.Stack
	front *subject // the proxy under test
	// replicas are all proxies of the stack; the front is the first.
	replicas []*subject
	tokens   map[string]string // by user

	// What budgets are about, by budget; parts leave it here.
	found map[string]float64
}

// Run measures. The error is about a run that could not be made; tables without
// numbers are in the report.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Progress = &lines{w: o.Progress}
	for _, id := range o.Only {
		if !slices.Contains(TableIDs(), id) {
			return nil, fmt.Errorf("there is no table %q: want some of %s", id, strings.Join(TableIDs(), ", "))
		}
	}
	if (o.Target == "") != (o.Issuer == "") {
		return nil, errors.New("a target needs its issuer, and an issuer its target")
	}
	if u, err := url.Parse(o.Target); o.Target != "" && (err != nil || u.Scheme != "http" || u.Host == "") {
		return nil, fmt.Errorf("target %q: want a URL such as http://localhost:3001", o.Target)
	}
	if u, err := url.Parse(o.Issuer); o.Issuer != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return nil, fmt.Errorf("issuer %q: want a URL such as http://localhost:8080/auth/realms/cwms", o.Issuer)
	}
	data, err := k6.Read()
	if err != nil {
		return nil, err
	}
	b := &bench{Options: o, size: full, data: data, start: time.Now(), found: map[string]float64{}}
	if o.Quick {
		b.size = quick
	}
	if o.Size != nil {
		b.size = *o.Size
	}
	r := &report.Report{Started: b.start.UTC().Truncate(time.Second), Quick: o.Quick, Command: o.Command, Target: o.Target, Machine: machine()}
	if busy := loadAverage(); busy > 0.3*float64(r.Machine.Cores) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("something else was using this machine: its load average was %.1f before the run, with %d cores. Absolute figures are worth little; ratios within a table less than usual.", busy, r.Machine.Cores))
	}
	if o.Target != "" {
		r.LeftOut = append(r.LeftOut, "whether there is one decision record for each request: the target's cannot be read")
	}
	defer b.leave()
	for i, p := range parts {
		if !b.wanted(p) {
			continue
		}
		if o.Target != "" && p.needs != anyProxy {
			r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s: needs a stack that the run controls", p.titles()))
			continue
		}
		b.say("[%d/%d] %s", i+1, len(parts), p.name)
		tables, err := b.measure(ctx, p)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			b.say("        void: %v", err)
		}
		dressed := b.dressed(p, tables, err)
		r.Tables = append(r.Tables, dressed...)
		for _, h := range p.tables {
			if b.wantsTable(h) && !slices.ContainsFunc(dressed, func(t report.Table) bool { return t.ID == h.id }) {
				r.LeftOut = append(r.LeftOut, h.title+": needs a stack that the run controls")
			}
		}
	}
	if o.Target == "" {
		if b.st != nil {
			r.Machine.Versions = versions(ctx, b.st)
		}
		r.Budgets = b.budgets(r)
	}
	if len(r.Tables) == 0 {
		return nil, fmt.Errorf("nothing was measured: %s", strings.Join(r.LeftOut, "; "))
	}
	r.Seconds = time.Since(b.start).Seconds()
	return r, nil
}

func (b *bench) wanted(p part) bool {
	return slices.ContainsFunc(p.tables, b.wantsTable)
}

func (b *bench) wantsTable(h heading) bool {
	return len(b.Only) == 0 || slices.Contains(b.Only, h.id)
}

func (p part) titles() string {
	var titles []string
	for _, h := range p.tables {
		titles = append(titles, h.title)
	}
	return strings.Join(titles, "; ")
}

// measure runs a part on what it needs.
func (b *bench) measure(ctx context.Context, p part) ([]report.Table, error) {
	if err := b.enter(ctx, p.needs); err != nil {
		return nil, err
	}
	tables, err := p.run(b, ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		for _, r := range t.Rows {
			if len(r.Values) > len(t.Columns) {
				panic("BUG: table " + t.ID + " has a row longer than its columns")
			}
		}
	}
	return tables, nil
}

// dressed gives the wanted tables of a part their titles and command lines. One
// that came without numbers says why.
func (b *bench) dressed(p part, tables []report.Table, failed error) (all []report.Table) {
	for _, h := range p.tables {
		if !b.wantsTable(h) {
			continue
		}
		t := report.Table{ID: h.id}
		if i := slices.IndexFunc(tables, func(t report.Table) bool { return t.ID == h.id }); i >= 0 {
			t = tables[i]
		} else if failed != nil {
			t.Void = failed.Error()
		} else {
			continue // not to be had from a target that is not ours
		}
		t.Title = h.title
		t.Commands = append([]string{"go run ./bench run --only " + h.id}, t.Commands...)
		all = append(all, t)
	}
	return all
}

// enter makes what a part needs ready.
func (b *bench) enter(ctx context.Context, needs need) error {
	switch {
	case b.Target != "":
		if b.front != nil {
			return nil
		}
		var err error
		if b.tokens, err = grant(ctx, b.Issuer, b.data.Users); err != nil {
			return err
		}
		b.front = &subject{name: "headgate", url: strings.TrimSuffix(b.Target, "/")}
		return nil
	case b.st != nil && (needs == anyProxy || needs == b.kind):
		return nil
	}
	b.leave()
	if needs == anyProxy {
		needs = ownStack
	}
	o := stack.Options{ProfileDelay: profileDelay, Progress: b.Progress}
	if needs == fastStack {
		o = stack.Options{Replicas: 3, Progress: b.Progress}
	}
	b.say("        starting the servers")
	st, err := stack.Start(ctx, o)
	if err != nil {
		return err
	}
	b.st, b.kind, b.tokens = st, needs, st.Tokens
	for i, url := range st.Proxies {
		s, err := proxySubject(ctx, "headgate", url, st.Admins[i], st.Replicas[i])
		if err != nil {
			return err
		}
		b.replicas = append(b.replicas, s)
	}
	b.front = b.replicas[0]
	return nil
}

func (b *bench) leave() {
	if b.st == nil {
		return
	}
	if err := b.st.Stop(); err != nil {
		b.say("        %v", err)
	}
	b.st, b.front, b.replicas = nil, nil, nil
}

// lines lets the run and the servers that it starts tell of their progress at the
// same time.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(text)
}

// say tells of the progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.Progress, "%4.0f s  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}
