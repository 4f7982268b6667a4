package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// decisionRecord is what is read of a decision record; package pep writes them.
type decisionRecord struct {
	Event       string          `json:"event"`
	Time        time.Time       `json:"time"`
	Method      string          `json:"method"`
	Route       string          `json:"route"`
	Resource    string          `json:"resource"`
	Action      string          `json:"action"`
	Subject     string          `json:"subject"`
	Offices     []string        `json:"offices"`
	Allow       *bool           `json:"allow"` // nil: there was no decision
	Reason      string          `json:"reason"`
	Constraints json.RawMessage `json:"constraints"` // with LOG_INPUTS only, as is
	Input       json.RawMessage `json:"input"`
	DecisionID  string          `json:"decision_id"`
	Revision    string          `json:"revision"`
	Source      string          `json:"source"`
	Enforced    *bool           `json:"enforced"` // false: a deny that was forwarded
	Status      int             `json:"status"`
	Decide      int64           `json:"decide_us"`
	Forward     int64           `json:"forward_us"`
	Total       int64           `json:"total_us"`
}

// maxRecord is the longest line that is read; no record comes near it.
const maxRecord = 1 << 20

// eachRecord calls f with the decision records of a log and returns how many other
// lines there were. What stands before the record in its line, as log collectors
// write it, is passed over. The record is valid only during the call.
func eachRecord(log io.Reader, f func(*decisionRecord)) (skipped int, err error) {
	r := bufio.NewReaderSize(log, maxRecord)
	for {
		line, err := r.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err != nil && err != io.EOF {
			return skipped, fmt.Errorf("cannot read the log: %w", err)
		}
		switch start := bytes.IndexByte(line, '{'); {
		case len(bytes.TrimSpace(line)) == 0:
		case long || start < 0:
			skipped++
		default:
			var d decisionRecord
			if json.Unmarshal(line[start:], &d) != nil || d.Event != "decision" {
				skipped++
				break
			}
			f(&d)
		}
		if err == io.EOF {
			return skipped, nil
		}
	}
}

// openLog opens a log by its name; - is stdin.
func openLog(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(name)
}

// printJSON writes what a command found for programs.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
