package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// What is frequent is counted well beside any number of names that come once, and
// nothing is lost from the sums.
func TestTallyIsBounded(t *testing.T) {
	tally := newTally()
	const flood = 5 * maxNames
	for i := range flood {
		tally.add(false, fmt.Sprint("once ", i))
		if i%100 == 0 {
			tally.add(true, "often")
		}
	}
	if n := len(tally.counts); n > maxNames {
		t.Errorf("%d names are held", n)
	}
	top := tally.top(1)
	if first := top[0]; first.Name[0] != "often" || first.Count != flood/100 || first.Reported != flood/100 {
		t.Errorf("first is %v", first)
	}
	if rest := top[1]; rest.Count != flood || rest.Reported != 0 {
		t.Errorf("the rest is %v", rest)
	}
}

func TestSpread(t *testing.T) {
	var s spread
	for us := range int64(10_000) {
		s.add(us)
	}
	near := func(got, want int64) bool { return got > want*96/100 && got < want*104/100 }
	if q := s.quantiles(); !near(q.P50, 5000) || !near(q.P95, 9500) || !near(q.P99, 9900) {
		t.Errorf("got %+v", q)
	}
	var none spread
	if q := none.quantiles(); q != (quantiles{}) {
		t.Errorf("of nothing: %+v", q)
	}
}

// A line that is too long, broken or another's is passed over and counted; a log
// that cannot be read to its end is an error and not a short log.
func TestEachRecord(t *testing.T) {
	const record = `{"event":"decision","route":"/a","allow":true}`
	for name, c := range map[string]struct {
		log           string
		read, skipped int
	}{
		"empty":           {"", 0, 0},
		"one":             {record + "\n", 1, 0},
		"without an end":  {record, 1, 0},
		"empty lines":     {"\n\r\n" + record + "\n\n", 1, 0},
		"prefixed":        {"proxy-1 | " + record + "\n", 1, 0},
		"another event":   {`{"event":"start"}` + "\n" + record, 1, 1},
		"wrong types":     {`{"event":"decision","allow":"yes"}` + "\n" + record, 1, 1},
		"half a record":   {record[:20] + "\n" + record, 1, 1},
		"a long line":     {`{"x":"` + strings.Repeat("x", 2*maxRecord) + `"}` + "\n" + record + "\n", 1, 1},
		"a long last one": {record + "\n" + strings.Repeat("x", 2*maxRecord), 1, 1},
	} {
		read := 0
		skipped, err := eachRecord(iotest.OneByteReader(strings.NewReader(c.log)), func(*decisionRecord) { read++ })
		if err != nil || read != c.read || skipped != c.skipped {
			t.Errorf("%s: %d read, %d skipped, %v", name, read, skipped, err)
		}
	}
	broken := io.MultiReader(strings.NewReader(record+"\n"), iotest.ErrReader(errors.New("the disk is gone")))
	if _, err := eachRecord(broken, func(*decisionRecord) {}); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("got %v", err)
	}
}
