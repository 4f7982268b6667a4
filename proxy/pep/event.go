package pep

import (
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// Event is the one record of a request. Stages fill it, finish passes it to
// Record. Its strings are valid only during that call.
type Event struct {
	Start     time.Time
	RequestID string
	Method    string
	Route     string // template of the route table; closed set
	Resource  string
	Action    string
	Endpoint  string // our own endpoint; empty for proxied requests
	Asked     bool   // a gateway asked about it and forwards it itself

	Match *route.Match // all that the route table says of it; nil if it was not asked

	Subject    string
	AuthMethod authz.Method
	Fetched    time.Time // when the user's context was read from its source
	Offices    []string
	Input      []byte // the input document

	Decision *authz.Decision // nil if there was none
	Reported bool            // denied, but forwarded: ENFORCE=report

	Status int
	Err    error

	Identify, Context, Decide, Forward, Duration time.Duration
}
