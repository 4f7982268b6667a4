package authz

import "time"

// MaxContextHeader is the most bytes the context header may have, however much
// the API's server takes: Tomcat takes 8 KiB for all headers together.
const MaxContextHeader = 6 << 10

// Grant is what a forwarded request carries beyond what the client sent.
type Grant struct {
	Subject   *Subject
	Decision  *Decision
	Context   []byte // the context member of the input document
	RequestID string

	// What of the client's credentials must not be forwarded: a credential that
	// was not the one decided on.
	DropAuthorization bool
	DropCookies       bool
}

// AppendHeader appends the value of the context header: ASCII JSON of at most
// limit bytes, and never more than MaxContextHeader. To fit, ts_privileges and
// then roles are left out, never a constraint; reduced says so. If that is not
// enough the allow cannot be carried out and the error is an ErrObligation.
func (g *Grant) AppendHeader(b []byte, limit int, now time.Time) (_ []byte, reduced bool, err error) {
	start := len(b)
	limit = min(limit, MaxContextHeader)
	for i, user := range [...][]byte{g.Subject.header, g.Subject.brief, g.Subject.least} {
		b = g.appendHeader(b[:start], user, now)
		if len(b)-start <= limit {
			return b, i > 0, nil
		}
	}
	return b[:start], false, Refuse(ErrObligation, "context header of %d bytes is over the limit of %d", len(b)-start, limit)
}

func (g *Grant) appendHeader(b, user []byte, now time.Time) []byte {
	b = append(b, `{"policy":{"allow":`...)
	b = appendBool(b, g.Decision.Allow)
	b = append(b, `,"decision_id":`...)
	b = AppendString(b, g.Decision.ID)
	b = append(b, `},"user":`...)
	b = append(b, user...)
	b = append(b, `,"constraints":`...)
	if g.Decision.Constraints == nil {
		b = append(b, "{}"...)
	} else {
		b = append(b, g.Decision.Constraints...)
	}
	b = append(b, `,"context":`...)
	b = append(b, g.Context...)
	b = append(b, `,"timestamp":"`...)
	b = AppendTime(b, now, 3)
	return append(b, `"}`...)
}
