package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// summary is a decision log in numbers.
type summary struct {
	Records int        `json:"records"`
	Skipped int        `json:"skipped_lines"`
	From    *time.Time `json:"from,omitempty"`
	To      *time.Time `json:"to,omitempty"`

	Allowed    int            `json:"allowed"`
	Denied     int            `json:"denied"`
	Reported   int            `json:"would_be_denied"`     // denied by policy, and forwarded: ENFORCE=report
	Undecided  int            `json:"without_decision"`    // refused before one, or there was none
	ByStatus   map[string]int `json:"without_by_status"`   // these, by what was answered
	Sources    map[string]int `json:"decisions_by_source"` // opa, cache, coalesced
	Latency    latencies      `json:"latency"`
	ByReason   []count        `json:"denies_by_reason"`
	ByRoute    []count        `json:"denies_by_route"`
	BySubject  []count        `json:"denies_by_subject"`
	ByOffice   []count        `json:"denies_by_office"`
	ByQuestion []count        `json:"denies"` // who was denied what, and why
}

// count is how often something was denied.
type count struct {
	Name     []string `json:"name"`
	Count    int      `json:"count"`
	Reported int      `json:"of_which_forwarded"`
}

// latencies are in microseconds, to within 3 %.
type latencies struct {
	Total  quantiles `json:"total_us"`
	Own    quantiles `json:"without_api_us"`
	Decide quantiles `json:"decide_us"`
}

type quantiles struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
}

// reportCommand summarises a decision log.
func reportCommand(_ context.Context, args, _ []string, out io.Writer) error {
	file, top, asJSON := "-", 20, false
	rest, err := parseFlags("report", args, func(f *flag.FlagSet) {
		f.StringVar(&file, "log", file, "the `FILE` of decision records; - is stdin")
		f.IntVar(&top, "top", top, "how many lines of each table")
		f.BoolVar(&asJSON, "json", false, "print JSON")
	})
	if err == nil && (len(rest) > 0 || top < 1) {
		err = fmt.Errorf("want [--log FILE] [--top N] [--json], N 1 or more")
	}
	if err != nil {
		return err
	}
	log, err := openLog(file)
	if err != nil {
		return err
	}
	defer log.Close()
	s, err := summarise(log, top)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(out, s)
	}
	_, err = out.Write(s.text(top))
	return err
}

// summarise reads a log once, in bounded memory.
func summarise(log io.Reader, top int) (*summary, error) {
	s := &summary{ByStatus: map[string]int{}, Sources: map[string]int{}}
	var total, own, decide spread
	reasons, routes, subjects, offices, questions := newTally(), newTally(), newTally(), newTally(), newTally()
	var err error
	s.Skipped, err = eachRecord(log, func(d *decisionRecord) {
		s.Records++
		if at := d.Time; !at.IsZero() {
			if s.From == nil || at.Before(*s.From) {
				s.From = &at
			}
			if s.To == nil || at.After(*s.To) {
				s.To = &at
			}
		}
		total.add(d.Total)
		own.add(d.Total - d.Forward)
		if d.Allow == nil {
			s.Undecided++
			s.ByStatus[fmt.Sprint(d.Status)]++
			return
		}
		decide.add(d.Decide)
		s.Sources[d.Source]++
		if *d.Allow {
			s.Allowed++
			return
		}
		reported := d.Enforced != nil && !*d.Enforced
		if reported {
			s.Reported++
		} else {
			s.Denied++
		}
		code, _, _ := strings.Cut(d.Reason, ":")
		code = cmp.Or(code, "no reason")
		where := strings.Join(d.Offices, " ")
		reasons.add(reported, code)
		routes.add(reported, d.Method, d.Route)
		subjects.add(reported, d.Subject)
		offices.add(reported, cmp.Or(where, "none named"))
		questions.add(reported, d.Subject, d.Method, d.Route, where, code)
	})
	s.Latency = latencies{total.quantiles(), own.quantiles(), decide.quantiles()}
	s.ByReason, s.ByRoute, s.BySubject, s.ByOffice, s.ByQuestion = reasons.top(top), routes.top(top), subjects.top(top), offices.top(top), questions.top(top)
	return s, err
}

// maxNames is how many names a tally holds at most. When it is full it forgets the
// rarer half, so what is frequent is counted well, however many others there are.
const maxNames = 20_000

type tally struct {
	counts map[string]*count
	others count
}

func newTally() *tally {
	return &tally{counts: map[string]*count{}, others: count{Name: []string{"all others"}}}
}

func (t *tally) add(reported bool, name ...string) {
	key := strings.Join(name, "\x00")
	c := t.counts[key]
	if c == nil {
		if len(t.counts) == maxNames {
			t.forget(t.top(maxNames)[maxNames/2:])
		}
		c = &count{Name: slices.Clone(name)}
		t.counts[key] = c
	}
	c.Count++
	if reported {
		c.Reported++
	}
}

func (t *tally) forget(rare []count) {
	for _, c := range rare {
		if key := strings.Join(c.Name, "\x00"); t.counts[key] != nil {
			t.others.Count, t.others.Reported = t.others.Count+c.Count, t.others.Reported+c.Reported
			delete(t.counts, key)
		}
	}
}

// top are the n most frequent, and one for all others if there are more.
func (t *tally) top(n int) []count {
	list := make([]count, 0, len(t.counts))
	for _, c := range t.counts {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), slices.Compare(a.Name, b.Name))
	})
	others := t.others
	if len(list) > n {
		for _, c := range list[n:] {
			others.Count, others.Reported = others.Count+c.Count, others.Reported+c.Reported
		}
		list = list[:n]
	}
	if others.Count > 0 {
		list = append(list, others)
	}
	return list
}

// spread counts values in buckets that grow by 5 %.
type spread struct {
	buckets map[int]int
	n       int
}

func (s *spread) add(us int64) {
	if s.buckets == nil {
		s.buckets = map[int]int{}
	}
	s.n++
	s.buckets[int(math.Log(float64(max(us, 1)))/math.Log(1.05))]++
}

func (s *spread) quantiles() quantiles {
	return quantiles{s.at(.50), s.at(.95), s.at(.99)}
}

func (s *spread) at(q float64) int64 {
	left := int(math.Ceil(q * float64(s.n)))
	for _, b := range slices.Sorted(maps.Keys(s.buckets)) {
		if left -= s.buckets[b]; left <= 0 {
			return int64(math.Round(math.Pow(1.05, float64(b)+.5)))
		}
	}
	return 0
}

// text is the summary for people.
func (s *summary) text(top int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d records", s.Records)
	if s.From != nil {
		fmt.Fprintf(&b, ", %s to %s", s.From.Format(time.RFC3339), s.To.Format(time.RFC3339))
	}
	if s.Skipped > 0 {
		fmt.Fprintf(&b, "; %d other lines were skipped", s.Skipped)
	}
	b.WriteString("\n\n")
	if s.Records == 0 {
		b.WriteString("No decision record is in this log.\n")
		return b.Bytes()
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	share := func(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(of, 1))) }
	line := func(name string, n int, more string) {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", name, n, share(n, s.Records), more)
	}
	line("allowed", s.Allowed, "")
	line("denied", s.Denied, "")
	if s.Reported > 0 {
		line("would be denied", s.Reported, "forwarded, by ENFORCE=report")
	}
	var statuses []string
	for _, status := range slices.Sorted(maps.Keys(s.ByStatus)) {
		statuses = append(statuses, fmt.Sprintf("%s: %d", status, s.ByStatus[status]))
	}
	line("without decision", s.Undecided, strings.Join(statuses, ", "))
	w.Flush()
	decided := s.Records - s.Undecided
	var sources []string
	for _, source := range slices.Sorted(maps.Keys(s.Sources)) {
		sources = append(sources, fmt.Sprintf("%s %d (%s)", source, s.Sources[source], share(s.Sources[source], decided)))
	}
	if sources != nil {
		fmt.Fprintf(&b, "\ndecisions from %s\n", strings.Join(sources, ", "))
	}
	b.WriteString("\n")
	fmt.Fprintln(w, "latency\tp50\tp95\tp99")
	for _, l := range []struct {
		name string
		q    quantiles
	}{{"whole request", s.Latency.Total}, {"without the API", s.Latency.Own}, {"decision", s.Latency.Decide}} {
		us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\n", l.name, us(l.q.P50), us(l.q.P95), us(l.q.P99))
	}
	w.Flush()
	if s.Denied+s.Reported == 0 {
		b.WriteString("\nNothing was denied.\n")
		return b.Bytes()
	}
	for _, table := range []struct {
		head string
		rows []count
	}{
		{"reason", s.ByReason}, {"method\troute", s.ByRoute}, {"subject", s.BySubject}, {"offices", s.ByOffice},
		{"subject\tmethod\troute\toffices\treason", s.ByQuestion},
	} {
		fmt.Fprintf(w, "\ndenied\tforwarded\t%s\n", table.head)
		for _, c := range table.rows {
			name := slices.Clone(c.Name)
			for i := range name {
				name[i] = cmp.Or(printable(name[i]), "-")
			}
			fmt.Fprintf(w, "%d\t%d\t%s\n", c.Count, c.Reported, strings.Join(name, "\t"))
		}
		w.Flush()
	}
	return b.Bytes()
}

// printable keeps what a client chose from moving the cursor of a terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
