// Package report holds what a run of the benchmark found, and writes it down: as
// JSON, as Markdown, and as one HTML page that loads nothing. It measures nothing.
//
// A Table is a value: columns with units, rows with numbers and, beside them, the
// figure that the reference proxy published. Whatever is written from it, and what
// Compare says of two runs, comes from that value alone.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Report is one run.
type Report struct {
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Quick    bool      `json:"quick"`
	Command  string    `json:"command"`
	Target   string    `json:"target,omitempty"` // empty: a stack that the run started itself
	Machine  Machine   `json:"machine"`
	Budgets  []Budget  `json:"budgets,omitempty"`
	Tables   []Table   `json:"tables"`
	LeftOut  []string  `json:"left_out,omitempty"` // what was not measured, and why
	Warnings []string  `json:"warnings,omitempty"` // what makes figures worth less
}

// Machine is where the run was made.
type Machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Memory   float64           `json:"memory_bytes"`
	System   string            `json:"system"`
	Load     string            `json:"load_average"` // before the run
	Versions map[string]string `json:"versions"`     // by program
}

// Table is what one question was answered with.
type Table struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	About    string   `json:"about"`              // what was done, in a sentence or two
	Commands []string `json:"commands,omitempty"` // how to do it again
	First    string   `json:"first"`              // heading of the rows' names
	Columns  []Column `json:"columns"`
	Rows     []Row    `json:"rows"`
	Notes    []string `json:"notes,omitempty"`
	Charts   []Chart  `json:"charts,omitempty"`
	Void     string   `json:"void,omitempty"` // why there are no numbers
}

// Column is a kind of number.
type Column struct {
	Name   string `json:"name"`
	Unit   Unit   `json:"unit"`
	Better Better `json:"better,omitempty"`
}

// Better says which way a number should go.
type Better string

const (
	Less Better = "less"
	More Better = "more"
)

// Row is a line of a table.
type Row struct {
	Name      string  `json:"name"`
	Values    []Value `json:"values"` // one for each column; fewer leave the rest empty
	Reference string  `json:"reference,omitempty"`
	Ours      bool    `json:"ours,omitempty"` // of this proxy, among others
}

// Value is a number in its column's unit, or a text in its place.
type Value struct {
	Number float64 `json:"n"`
	Noise  float64 `json:"noise,omitempty"` // half of the spread between slices, as a share of the number; 0: not known
	Text   string  `json:"text,omitempty"`
}

// Of is a plain number.
func Of(n float64) Value { return Value{Number: n} }

// Text is a value that is no number.
func Text(format string, args ...any) Value { return Value{Text: fmt.Sprintf(format, args...)} }

// None is the value of what does not apply.
var None = Value{Text: "–"}

// Budget is a promise with what was measured.
type Budget struct {
	Claim    string `json:"claim"`
	Limit    string `json:"limit"`
	Measured string `json:"measured,omitempty"` // empty: not measured
	Met      bool   `json:"met"`
	Table    string `json:"table"` // where the figure comes from
}

// Verdict is the budget in a word or two.
func (b Budget) Verdict() string {
	switch {
	case b.Measured == "":
		return "not measured"
	case b.Met:
		return "met"
	}
	return "not met"
}

// Table finds a table by its id; nil if the run has none.
func (r *Report) Table(id string) *Table {
	for i := range r.Tables {
		if r.Tables[i].ID == id {
			return &r.Tables[i]
		}
	}
	return nil
}

// Value finds a number; false if the table is void or has none there.
func (t *Table) Value(row, column string) (Value, Unit, bool) {
	if t == nil || t.Void != "" {
		return Value{}, "", false
	}
	for _, r := range t.Rows {
		for i, c := range t.Columns {
			if r.Name == row && c.Name == column && i < len(r.Values) && r.Values[i].Text == "" {
				return r.Values[i], c.Unit, true
			}
		}
	}
	return Value{}, "", false
}

// HasReference reports whether any row has a published figure beside it.
func (t Table) HasReference() bool {
	for _, r := range t.Rows {
		if r.Reference != "" {
			return true
		}
	}
	return false
}

// Cells are the values of a row as text, one for each column.
func (t Table) Cells(r Row) []string {
	cells := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		if i < len(r.Values) {
			cells[i] = c.Unit.Format(r.Values[i])
		}
	}
	return cells
}

// Voided are the ids of the tables without numbers.
func (r *Report) Voided() (ids []string) {
	for _, t := range r.Tables {
		if t.Void != "" {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// Read decodes a report that WriteJSON wrote.
func Read(r io.Reader) (*Report, error) {
	var report Report
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		return nil, fmt.Errorf("this is no report of a run: %w", err)
	}
	return &report, nil
}

// WriteJSON writes the report for programs and for Compare.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}
