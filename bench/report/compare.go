package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// Change is a number that two runs both have.
type Change struct {
	Table, Row, Column string
	Unit               Unit
	Before, After      Value
	Difference         float64 // as a share of Before
	Noise              float64 // how much of it the runs themselves vary by
	Verdict            Verdict
}

// Verdict is what a change means.
type Verdict string

const (
	WithinNoise Verdict = "within noise"
	Improved    Verdict = "better"
	Worsened    Verdict = "worse"
	Changed     Verdict = "changed" // of a number of which no way is better
)

// leastNoise is what the same program differs by between two runs on a quiet
// machine, however steady either run was in itself; unknownNoise is for a number
// of which only one was taken.
const (
	leastNoise   = 0.05
	unknownNoise = 0.15
)

// Compare lists the numbers that both runs have, in the order of the first, and
// what stands against comparing them.
func Compare(a, b *Report) (changes []Change, doubts []string) {
	if a.Machine.CPU != b.Machine.CPU || a.Machine.Cores != b.Machine.Cores {
		doubts = append(doubts, fmt.Sprintf("the machines differ: %s with %d cores, %s with %d cores; only ratios compare",
			a.Machine.CPU, a.Machine.Cores, b.Machine.CPU, b.Machine.Cores))
	}
	if a.Quick != b.Quick {
		doubts = append(doubts, "one run was quick, the other full")
	}
	for i, r := range []*Report{a, b} {
		if void := r.Voided(); len(void) > 0 {
			doubts = append(doubts, fmt.Sprintf("the %s run has no numbers for %s", [...]string{"earlier", "later"}[i], strings.Join(void, ", ")))
		}
	}
	doubts = append(append(doubts, a.Warnings...), b.Warnings...)
	for _, t := range a.Tables {
		other := b.Table(t.ID)
		for _, row := range t.Rows {
			for _, c := range t.Columns {
				before, unit, ok := t.Value(row.Name, c.Name)
				after, _, ok2 := other.Value(row.Name, c.Name)
				if !ok || !ok2 {
					continue
				}
				changes = append(changes, judge(Change{Table: t.ID, Row: row.Name, Column: c.Name, Unit: unit, Before: before, After: after}, c.Better))
			}
		}
	}
	return changes, doubts
}

func judge(c Change, better Better) Change {
	c.Noise = noiseOf(c.Before) + noiseOf(c.After)
	switch {
	case c.Before.Number == c.After.Number:
	case c.Before.Number == 0:
		c.Difference = math.Copysign(math.Inf(1), c.After.Number)
	default:
		c.Difference = (c.After.Number - c.Before.Number) / math.Abs(c.Before.Number)
	}
	switch {
	case math.Abs(c.Difference) <= c.Noise:
		c.Verdict = WithinNoise
	case better == "":
		c.Verdict = Changed
	case (c.Difference < 0) == (better == Less):
		c.Verdict = Improved
	default:
		c.Verdict = Worsened
	}
	return c
}

func noiseOf(v Value) float64 {
	if v.Noise == 0 {
		return unknownNoise / 2
	}
	return max(v.Noise, leastNoise/2)
}

// WriteChanges prints what changed; with all also what is within noise.
func WriteChanges(w io.Writer, changes []Change, doubts []string, all bool) error {
	for _, d := range doubts {
		fmt.Fprintln(w, "beware:", d)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	quiet := 0
	for _, c := range changes {
		if c.Verdict == WithinNoise && !all {
			quiet++
			continue
		}
		difference := fmt.Sprintf("%+.1f %%", c.Difference*100)
		if math.IsInf(c.Difference, 0) {
			difference = "from 0"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s -> %s\t%s (noise %.0f %%)\t%s\n", c.Table, c.Row, c.Column,
			c.Unit.Format(c.Before), c.Unit.Format(c.After), difference, c.Noise*100, c.Verdict)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d numbers compared, %d of them within noise%s\n", len(changes), quiet, strings.Repeat(" (--all lists them)", min(quiet, 1)))
	return err
}
