package authz

import (
	"encoding/json"
	"strings"
	"time"
)

// Source says where this copy of a decision came from.
type Source string

const (
	FromOPA   Source = "opa"       // asked for this request
	FromCache Source = "cache"     // reused
	Coalesced Source = "coalesced" // asked by an equal question that was in flight
)

// Decision is policy's answer. The zero Decision denies.
type Decision struct {
	Allow       bool
	Reason      string          // "<code>: <text>", from policy; empty if it gave none
	Constraints json.RawMessage // one ASCII object for the upstream; never nil on an allow
	ID          string          // OPA's decision_id, or ours if it gave none
	OPAID       string          // OPA's decision_id as it appears in its own log; empty without
	Revision    string          // bundle revision the decision was made from; empty without
	Asked       time.Time       // when the question was sent: the age counts from here
	Source      Source
}

// Code is the reason's stable code, the part before the colon.
func (d *Decision) Code() string {
	code, _, _ := strings.Cut(d.Reason, ":")
	return code
}
