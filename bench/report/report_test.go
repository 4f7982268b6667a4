package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files, and what is made from bench/results/results.json")

// sample is a report with everything that a report may have.
func sample() *Report {
	return &Report{
		Started: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Seconds: 61.5, Quick: true, Command: `go run ./bench run --quick --only "a<b>"`,
		Machine:  Machine{CPU: "Some CPU", Cores: 2, Memory: 8 << 30, System: "Linux", Load: "0.1 0.2 0.3", Versions: map[string]string{"OPA": "1.2.3", "Go": "1.26"}},
		Warnings: []string{"it was noisy & <loud>"},
		Budgets: []Budget{
			{Claim: "cheap", Limit: "at most 1.25 ×", Measured: "1.10 ×", Met: true, Table: "one"},
			{Claim: "fast | early", Limit: "at most 10 ms", Measured: "12.0 ms", Table: "one"},
			{Claim: "small", Limit: "at most 64 MiB", Table: "two"},
		},
		Tables: []Table{
			{
				ID: "one", Title: "First & best", About: "What <was> done.", Commands: []string{"go run ./bench run --only one"}, First: "proxy",
				Columns: []Column{{"latency", Seconds, Less}, {"throughput", Rate, More}, {"hit rate", Share, More}, {"memory", Bytes, Less}, {"ratio", Ratio, ""}},
				Rows: []Row{
					{Name: "headgate", Ours: true, Reference: "12 ms", Values: []Value{{Number: 0.000123, Noise: 0.031}, Of(12345.6), Of(0.99999), Of(5 << 20), Of(1)}},
					{Name: "a|b", Values: []Value{Text("< 1 µs"), None}},
				},
				Notes: []string{"A note."},
				Charts: []Chart{
					{Title: "Lines", Says: "It grows.", X: Axis{Label: "users", Unit: Count, Log: true}, Y: Axis{Label: "latency", Unit: Seconds},
						Lines: []Line{{Name: "headgate", Ours: true, Points: [][2]float64{{1, 0.001}, {1000, 0.002}}}, {Name: "<other>", Points: [][2]float64{{1, 0.0005}, {1000, 0.004}}}}},
					{Title: "Nines", Says: "Rare.", X: Axis{Label: "share", Nines: true}, Y: Axis{Label: "latency", Unit: Seconds, Log: true},
						Lines: []Line{{Name: "headgate", Points: [][2]float64{{0, 0.0001}, {.5, 0.0002}, {.99, 0.003}, {.999, 0.02}}}}},
					{Title: "Bars", Says: "Parts.", X: Axis{Label: "time", Unit: Seconds}, Legend: []string{"verify", "forward"},
						Bars: []Bar{{Name: "warm", Parts: []float64{0.00001, 0.0001}}, {Name: "cold", Parts: []float64{0.0001, 0.0001}}, {Name: "another", Parts: []float64{0.0003}, Other: true}}},
				},
			},
			{ID: "two", Title: "Second", About: "Failed.", First: "row", Void: "headgate: 99 decision records for 100 requests",
				Columns: []Column{{"latency", Seconds, Less}}, Rows: []Row{{Name: "secret", Values: []Value{Of(4242)}}}},
		},
		LeftOut: []string{"Third: needs a stack that the run controls"},
	}
}

// Whatever is written looks as it did; `go test ./bench/report -update` takes the
// present look for right.
func TestGolden(t *testing.T) {
	r := sample()
	for name, write := range map[string]func(io.Writer) error{"sample.json": r.WriteJSON, "sample.md": r.WriteMarkdown, "sample.html": r.WriteHTML} {
		golden(t, filepath.Join("testdata", name), write)
	}
}

func golden(t *testing.T, file string, write func(io.Writer) error) {
	t.Helper()
	var got bytes.Buffer
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file)
	switch {
	case err == nil && bytes.Equal(want, got.Bytes()):
	case *update:
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what is written now (%v): look at the difference that `just docs` makes", file, err)
	}
}

// The page is well-formed down to the strictness of XML, every link within it
// leads somewhere, and it loads nothing.
func TestPageStandsAlone(t *testing.T) {
	var page bytes.Buffer
	if err := sample().WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	ids, links := map[string]bool{}, []string{}
	for dec := xml.NewDecoder(&page); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch element.Name.Local {
		case "script", "link", "img", "iframe", "object", "image", "use", "base":
			t.Errorf("the page has an element %q", element.Name.Local)
		}
		for _, a := range element.Attr {
			switch a.Name.Local {
			case "id":
				ids[a.Value] = true
			case "href", "src":
				links = append(links, a.Value)
			}
		}
	}
	for _, link := range links {
		if !strings.HasPrefix(link, "#") || !ids[link[1:]] {
			t.Errorf("a link to %q", link)
		}
	}
	if found := regexp.MustCompile(`url\(|@import|https?://[^"]*`).FindAllString(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""), -1); found != nil {
		t.Errorf("the page may load %q", found)
	}
	for _, want := range []string{"prefers-color-scheme: dark", "@media print", "it was noisy &amp; &lt;loud&gt;", "&lt;other&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

// A table whose run is void shows its reason and not one number, wherever it is
// written, and nobody else reads numbers from it.
func TestVoidTableHasNoNumbers(t *testing.T) {
	r := sample()
	var md, page bytes.Buffer
	if err := errors.Join(r.WriteMarkdown(&md), r.WriteHTML(&page)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"Markdown": md.String(), "HTML": page.String()} {
		if !strings.Contains(text, "99 decision records for 100 requests") || strings.Contains(text, "4,242") || strings.Contains(text, "secret") {
			t.Errorf("%s of a void table:\n%s", name, text)
		}
	}
	if _, _, ok := r.Table("two").Value("secret", "latency"); ok {
		t.Error("a void table gives a number")
	}
	if got := r.Voided(); !reflect.DeepEqual(got, []string{"two"}) {
		t.Errorf("void: %q", got)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(strings.NewReader(`{"tables":[],"surprise":1}`)); err == nil {
		t.Error("an unknown member is accepted")
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit Unit
		n    float64
		want string
	}{
		{Seconds, 0, "0"}, {Seconds, 420e-9, "420 ns"}, {Seconds, 12.34e-6, "12.3 µs"}, {Seconds, 0.0012, "1.20 ms"}, {Seconds, 2, "2.00 s"}, {Seconds, -0.0005, "-500 µs"},
		{Share, 0.9999, "99.99 %"}, {Share, 0.999999, "99.99 %"}, {Share, 1, "100 %"}, {Share, 0, "0 %"}, {Share, 0.123, "12.3 %"},
		{Rate, 26000, "26,000 /s"}, {Rate, 96.61, "96.6 /s"}, {Bytes, 100, "100 B"}, {Bytes, 64 << 20, "64.0 MiB"}, {Bytes, 1536, "1.50 KiB"},
		{Ratio, 1.234, "1.23 ×"}, {Count, 1234567, "1,234,567"}, {Count, 100000, "100,000"}, {CPU, 7.6, "7.60 s"}, {Cores, 1.5, "1.50"},
	} {
		if got := c.unit.Format(Of(c.n)); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.n, c.unit, got, c.want)
		}
	}
}

func TestStatistics(t *testing.T) {
	samples := func(n int) (s []float64) {
		for i := n; i > 0; i-- {
			s = append(s, float64(i))
		}
		return s
	}
	for _, c := range []struct {
		n           int
		q, quantile float64
	}{{100, .5, 50}, {100, .99, 99}, {100, 1, 100}, {100, 0, 1}, {1, .99, 1}, {3, .5, 2}, {4, .5, 2}, {1000, .999, 999}} {
		if got := Quantile(samples(c.n), c.q); got != c.quantile {
			t.Errorf("quantile %v of 1 to %d is %v, want %v", c.q, c.n, got, c.quantile)
		}
	}
	if !math.IsNaN(Quantile(nil, .5)) {
		t.Error("a quantile of nothing")
	}
	if got := Median([]float64{12, 10, 8}); got.Number != 10 || math.Abs(got.Noise-.2) > 1e-9 {
		t.Errorf("%+v", got)
	}
	if got := Median([]float64{4, 2}); got.Number != 3 {
		t.Errorf("%+v", got)
	}
	if got := Median(nil); got.Text == "" {
		t.Errorf("%+v", got)
	}
	if got := Mean([]float64{1, 2, 6}); got != 3 {
		t.Error(got)
	}
}

func TestCompare(t *testing.T) {
	run := func(values ...Value) *Report {
		r := sample()
		r.Warnings, r.Tables = nil, r.Tables[:1]
		r.Tables[0].Rows = []Row{{Name: "headgate", Values: values}}
		return r
	}
	steady := func(n float64) Value { return Value{Number: n, Noise: .01} }
	for _, c := range []struct {
		name          string
		before, after []Value // latency, throughput, hit rate, memory, ratio
		want          []Verdict
	}{
		{"the same", []Value{steady(1)}, []Value{steady(1)}, []Verdict{WithinNoise}},
		{"less than any run is steady", []Value{steady(1)}, []Value{steady(1.04)}, []Verdict{WithinNoise}},
		{"more latency", []Value{steady(1)}, []Value{steady(1.1)}, []Verdict{Worsened}},
		{"less latency", []Value{steady(1)}, []Value{steady(.8)}, []Verdict{Improved}},
		{"more throughput", []Value{None, steady(100)}, []Value{None, steady(150)}, []Verdict{Improved}},
		{"a noisy run", []Value{{Number: 1, Noise: .3}}, []Value{steady(1.3)}, []Verdict{WithinNoise}},
		{"noise that is not known", []Value{Of(1)}, []Value{Of(1.14)}, []Verdict{WithinNoise}},
		{"far beyond it", []Value{Of(1)}, []Value{Of(2)}, []Verdict{Worsened}},
		{"from nothing", []Value{Of(0)}, []Value{Of(1)}, []Verdict{Worsened}},
		{"no way is better", []Value{None, None, None, None, steady(1)}, []Value{None, None, None, None, steady(2)}, []Verdict{Changed}},
		{"only one has it", []Value{steady(1), steady(1)}, []Value{steady(1)}, []Verdict{WithinNoise}},
	} {
		changes, doubts := Compare(run(c.before...), run(c.after...))
		var got []Verdict
		for _, change := range changes {
			got = append(got, change.Verdict)
		}
		if !reflect.DeepEqual(got, c.want) || doubts != nil {
			t.Errorf("%s: %q, %q; want %q", c.name, got, doubts, c.want)
		}
	}

	other := run(steady(1))
	other.Machine.CPU, other.Tables[0].Void, other.Quick = "Another", "broken", !other.Quick
	changes, doubts := Compare(run(steady(1)), other)
	if len(changes) != 0 || len(doubts) != 3 || !strings.Contains(doubts[0], "Another") || !strings.Contains(doubts[1], "quick") || !strings.Contains(doubts[2], "the later run has no numbers for one") {
		t.Errorf("%v, %q", changes, doubts)
	}

	var text bytes.Buffer
	changes, doubts = Compare(run(steady(0.001), steady(100)), run(steady(0.002), steady(101)))
	if err := WriteChanges(&text, changes, doubts, false); err != nil {
		t.Fatal(err)
	}
	want := "one  headgate  latency  1.00 ms -> 2.00 ms  +100.0 % (noise 5 %)  worse\n2 numbers compared, 1 of them within noise (--all lists them)\n"
	if text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
}

// Axes have round ticks that span their numbers.
func TestAxes(t *testing.T) {
	for _, c := range []struct {
		axis   Axis
		values []float64
		zero   bool
		ticks  []float64
	}{
		{Axis{}, []float64{3, 97}, true, []float64{0, 20, 40, 60, 80, 100}},
		{Axis{}, []float64{5, 50}, false, []float64{10, 20, 30, 40, 50}},
		{Axis{Log: true}, []float64{1, 100_000}, false, []float64{1, 10, 100, 1000, 10_000, 100_000}},
		{Axis{Log: true}, []float64{3, 14}, false, []float64{2, 5, 10, 20}},
		{Axis{Nines: true}, []float64{0, .999}, false, []float64{0, .5, .9, .99, .999}},
		{Axis{Unit: Count}, []float64{1, 2}, false, []float64{1, 2}},
		{Axis{}, []float64{0, 0}, true, []float64{0}},
		{Axis{}, nil, true, []float64{0, .2, .4, .6, .8, 1}},
	} {
		s := c.axis.scale(c.values, 0, 100, c.zero)
		if len(s.ticks) != len(c.ticks) {
			t.Errorf("%+v of %v: ticks %v, want %v", c.axis, c.values, s.ticks, c.ticks)
			continue
		}
		for i := range c.ticks {
			if math.Abs(s.ticks[i]-c.ticks[i]) > 1e-9*math.Abs(c.ticks[i]) {
				t.Errorf("%+v of %v: ticks %v, want %v", c.axis, c.values, s.ticks, c.ticks)
			}
		}
		for _, v := range c.values {
			if at := s.at(v); at < -1e-6 || at > 100+1e-6 || math.IsNaN(at) {
				t.Errorf("%+v of %v: %v is at %v", c.axis, c.values, v, at)
			}
		}
	}
}

const (
	digestStart = "<!-- results: generated by `just docs` -->\n"
	digestEnd   = "<!-- end of results -->\n"
)

// What bench/results holds, and the digest in the README, are made from its
// results.json.
func TestREADMEResults(t *testing.T) {
	var r *Report
	results := filepath.Join("..", "results")
	f, err := os.Open(filepath.Join(results, "results.json"))
	switch {
	case err == nil:
		r, err = Read(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(results, "results.md"), r.WriteMarkdown)
		golden(t, filepath.Join(results, "results.html"), r.WriteHTML)
	case !errors.Is(err, os.ErrNotExist):
		t.Fatal(err)
	}
	const file = "../../README.md"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(content), digestStart)
	_, after, ok2 := strings.Cut(rest, digestEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no results between %q and %q", file, digestStart, digestEnd)
	}
	golden(t, file, func(w io.Writer) error {
		_, err := io.WriteString(w, before+digestStart+Digest(r)+digestEnd+after)
		return err
	})
}

// Every row of the digest is found in a full run's tables, or it would silently
// be missing.
func TestDigestRows(t *testing.T) {
	r := &Report{}
	for _, d := range digestRows {
		if r.Table(d.table) == nil {
			r.Tables = append(r.Tables, Table{ID: d.table})
		}
		table := r.Table(d.table)
		row := Row{Name: d.row}
		for _, c := range d.columns {
			table.Columns = append(table.Columns, Column{Name: c, Unit: Seconds})
			for len(row.Values) < len(table.Columns)-1 {
				row.Values = append(row.Values, None)
			}
			row.Values = append(row.Values, Of(1))
		}
		table.Rows = append(table.Rows, row)
	}
	text := Digest(r)
	for _, d := range digestRows {
		if !strings.Contains(text, d.what) {
			t.Errorf("no %q in\n%s", d.what, text)
		}
	}
	if text := Digest(nil); !strings.Contains(text, "go run ./bench run") {
		t.Error(text)
	}
}

func TestVerdict(t *testing.T) {
	met, missed := Budget{Claim: "a", Limit: "at most 1", Measured: "1", Met: true}, Budget{Claim: "b", Limit: "at most 2", Measured: "3"}
	unknown := Budget{Claim: "c", Limit: "more than 4"}
	for want, budgets := range map[string][]Budget{
		"No budget was measured.":   nil,
		"All of 2 budgets are met.": {met, met},
		"Of 3 budgets 1 are met. Not: b: 3 (at most 2); c: not measured (more than 4).": {met, missed, unknown},
	} {
		if got := (&Report{Budgets: budgets}).verdict(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
