package authz

import (
	"crypto/sha256"
	"encoding/json"
)

// Scope says which offices a request reaches; it is context.office_scope.
type Scope string

const (
	ScopeOne     Scope = "one"     // exactly one office is named
	ScopeMany    Scope = "many"    // several are named
	ScopeMask    Scope = "mask"    // a pattern stands for offices
	ScopeNone    Scope = "none"    // no office is named
	ScopeUnknown Scope = "unknown" // what is reached cannot be told from the request
)

// Input is the question put to policy. It holds nothing that differs between
// equal questions: no clock, no request id, no raw path or query.
type Input struct {
	Subject  *Subject
	Resource string
	Action   string
	Context  Context
}

// Context is what the request says beside resource and action.
type Context struct {
	Method      string   // request method; HEAD counts as GET. Empty for /authorize
	Route       string   // template of the route table; empty for /authorize
	Subresource string   // rest of the template after the resource
	Params      []Pair   // named segments and attributes, sorted by name
	Offices     []string // every office named, upper case, sorted, each once
	Scope       Scope
	Mask        string // office pattern; empty without
	Attributes  []Pair // data_source, parameter …, sorted by name; only those the request states

	// Stated is the context a caller of /authorize gave, without the members
	// above: a map of member name to valid JSON.
	Stated map[string]json.RawMessage
}

// Pair is a named value.
type Pair struct{ Name, Value string }

// Question is an Input as it is put to policy. Body is the exact body sent to
// OPA and, hashed, the key of the decision cache: nothing that policy sees can be
// missing from the key. The slices share one buffer and are valid until the
// buffer's owner reuses it.
type Question struct {
	Body      []byte
	Context   []byte // the context member within Body
	Anonymous bool
	Offices   []string // every office named: what a bare boolean allow is limited to

	user *[sha256.Size]byte // of the user member; nil if Body was not made from an Input
	rest int                // where in Body the user member ends
}

// maxRest is the most of a question behind its user member that Key takes apart
// from it, in bytes.
const maxRest = 1 << 10

// Key is what the answer is kept under: questions with equal keys have equal
// bodies. It is the SHA-256 of Body, in which the SHA-256 of the user member, known
// with the subject, stands for the user member; users with hundreds of roles would
// otherwise pay for each of them in every request.
func (q *Question) Key() [sha256.Size]byte {
	rest := q.Body[q.rest:]
	if q.user == nil || len(rest) > maxRest {
		return sha256.Sum256(q.Body)
	}
	var b [sha256.Size + maxRest]byte
	copy(b[:], q.user[:])
	n := copy(b[sha256.Size:], rest)
	return sha256.Sum256(b[:sha256.Size+n])
}

// Input is the input document within Body.
func (q *Question) Input() []byte {
	return q.Body[len(bodyStart) : len(q.Body)-len(bodyEnd)]
}

const (
	bodyStart = `{"input":`
	bodyEnd   = `}`
)

// Question writes the input into buf, from its start.
func (in *Input) Question(buf []byte) Question {
	buf = append(buf[:0], bodyStart...)
	buf = in.appendUser(buf)
	rest := len(buf)
	buf = in.appendHead(buf)
	start := len(buf)
	buf = in.Context.AppendJSON(buf)
	end := len(buf)
	buf = append(buf, '}')
	buf = append(buf, bodyEnd...)
	return Question{
		Body: buf, Context: buf[start:end], Anonymous: !in.Subject.Authenticated, Offices: in.Context.Offices,
		user: &in.Subject.digest, rest: rest,
	}
}

// AppendJSON appends the input document. Equal questions give equal bytes and
// different questions different ones; the bytes are ASCII.
func (in *Input) AppendJSON(b []byte) []byte {
	b = in.appendUser(b)
	b = in.appendHead(b)
	b = in.Context.AppendJSON(b)
	return append(b, '}')
}

func (in *Input) appendUser(b []byte) []byte {
	b = append(b, `{"user":`...)
	return append(b, in.Subject.input...)
}

func (in *Input) appendHead(b []byte) []byte {
	b = append(b, `,"resource":`...)
	b = AppendString(b, in.Resource)
	b = append(b, `,"action":`...)
	b = AppendString(b, in.Action)
	return append(b, `,"context":`...)
}

// AppendJSON appends the context member of the input document.
func (c *Context) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	if c.Method != "" {
		b = append(b, `"method":`...)
		b = AppendString(b, c.Method)
		b = append(b, `,"route":`...)
		b = AppendString(b, c.Route)
		b = append(b, `,"subresource":`...)
		b = AppendString(b, c.Subresource)
		b = append(b, `,"params":{`...)
		b = appendPairs(b, c.Params, 0)
		b = append(b, `},`...)
	}
	if len(c.Offices) == 1 && c.Scope == ScopeOne {
		b = append(b, `"office_id":`...)
		b = AppendString(b, c.Offices[0])
		b = append(b, ',')
	}
	b = append(b, `"offices":`...)
	b = AppendStrings(b, c.Offices)
	b = append(b, `,"office_scope":`...)
	b = AppendString(b, string(c.Scope))
	b = append(b, `,"office_mask":`...)
	if c.Mask == "" {
		b = append(b, "null"...)
	} else {
		b = AppendString(b, c.Mask)
	}
	b = appendPairs(b, c.Attributes, 1)
	for _, name := range sortedKeys(c.Stated) {
		b = appendRaw(b, name, c.Stated[name])
	}
	return append(b, '}')
}

func appendPairs(b []byte, pairs []Pair, before int) []byte {
	for i := range pairs {
		b = comma(b, i+before)
		b = AppendString(b, pairs[i].Name)
		b = append(b, ':')
		b = AppendString(b, pairs[i].Value)
	}
	return b
}
