// Package authz holds the nouns that the stages of a request exchange: a
// Principal is who sent it, a Subject is what is known about them, an Input is
// the question put to policy, a Decision is its answer, a Grant is what the
// upstream is told.
//
// The package does no I/O and imports only the standard library. Stages import
// it and never each other. Everything a stage returns is immutable once
// returned and may be shared between goroutines; the comment of a field says so
// where it is otherwise.
//
// A deny is a value, a failure is an error: no error of this package means
// "policy said no".
package authz

import (
	"errors"
	"fmt"
)

// The kinds of failure, named by what the enforcement point does next. Package
// pep alone maps them to statuses.
var (
	ErrMalformed        = errors.New("malformed request")        // 400
	ErrUnauthenticated  = errors.New("invalid credential")       // 401
	ErrForbidden        = errors.New("forbidden")                // 403, by a rule of the proxy, never by policy
	ErrMethodNotAllowed = errors.New("method not allowed")       // 405
	ErrSlowClient       = errors.New("slow client")              // 408
	ErrBodyTooLarge     = errors.New("body too large")           // 413
	ErrUnsupportedBody  = errors.New("unsupported body")         // 415
	ErrHeaderTooLarge   = errors.New("header too large")         // 431
	ErrNoDecision       = errors.New("no decision")              // 503: policy gave none
	ErrUnavailable      = errors.New("dependency unavailable")   // 503: keys, context or capacity missing
	ErrUpstream         = errors.New("upstream failed")          // 502
	ErrUpstreamTimeout  = errors.New("upstream timed out")       // 504
	ErrObligation       = errors.New("obligation not satisfied") // 500: an allow that cannot be carried out
)

// Refusal is a failure of one of the kinds above with the words that the client
// may read. Cause is for the decision record only and may name internals; it
// never holds a credential.
type Refusal struct {
	Kind    error
	Message string
	Cause   error
}

// Refuse makes a Refusal without a cause.
func Refuse(kind error, format string, args ...any) *Refusal {
	return &Refusal{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Because returns the refusal with its cause set.
func (r *Refusal) Because(cause error) *Refusal {
	r.Cause = cause
	return r
}

func (r *Refusal) Error() string {
	if r.Cause == nil {
		return r.Kind.Error() + ": " + r.Message
	}
	return r.Kind.Error() + ": " + r.Message + ": " + r.Cause.Error()
}

func (r *Refusal) Unwrap() []error {
	if r.Cause == nil {
		return []error{r.Kind}
	}
	return []error{r.Kind, r.Cause}
}
