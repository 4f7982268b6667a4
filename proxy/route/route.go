// Package route says what a request means to policy: which resource and action
// it is, which offices it names, which other attributes it states. A table of
// routes in YAML is the only place where this is written down; that of one API is
// built in, any other API is served by a table of its own.
//
// A Table is immutable once loaded and shared by all goroutines. A Match belongs
// to one request at a time and is reused for the next, so that the common path
// allocates nothing; what it holds is valid until it is used again.
//
// The rule of the package: what policy judges must be what the API does. Bytes
// that can be read in two ways are refused, every value that the API might act on
// counts, and where it cannot be told what a request reaches the scope is
// unknown, which policy grants only to those who are allowed everywhere.
package route

import (
	"bytes"
	"slices"
	"unicode/utf8"
	"unsafe"

	"headgate/proxy/authz"
)

const (
	// Unknown is context.route, and the metric label, of a path that no template
	// of the table matches.
	Unknown = "unknown"
	// Root is the resource of the API root, the prefix itself. No segment of a path
	// is empty, so that no other path has it.
	Root = ""

	maxSegments = 16 // of a path; deeper ones match no template
	maxOffices  = 64 // distinct offices of one request
	maxMask     = 256
	maxValue    = 1024     // of any other attribute
	maxKept     = 64 << 10 // bytes of memory that a match keeps for the next request
)

// verb is a method that the API can have. All others are refused: a method is
// part of the question, and the set of questions that clients can invent should
// stay small.
type verb uint8

const (
	get verb = iota
	post
	put
	patch
	del
	options
	verbs
)

var verbNames = [verbs]string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
var verbActions = [verbs]string{"read", "create", "update", "update", "delete", "options"}

// verbOf judges HEAD as GET: what HEAD tells, GET tells too.
func verbOf(method []byte) (verb, bool) {
	if string(method) == "HEAD" {
		return get, true
	}
	for v, name := range verbNames {
		if string(method) == name {
			return verb(v), true
		}
	}
	return 0, false
}

// Table maps requests to what policy reads of them.
type Table struct {
	prefix  string
	root    *node
	routes  []*route // in the order of the file
	actions []string // those that a caller of /authorize may ask about, sorted
}

// node is a position in the tree of templates.
type node struct {
	literal map[string]*node
	any     *node // a {name} segment
	routes  [verbs]*route
	first   *route // one of routes, nil if there is none
}

// route is a line of the table, ready for use.
type route struct {
	line        int // of the file
	verb        verb
	template    string
	resource    string
	subresource string
	action      string
	scope       authz.Scope // if it does not follow from the offices
	names       []string    // of params, sorted
	attributes  []string    // names of further context members, sorted
	query       []*locator
	path        []*locator
	json        *jsonPlan
	xml         []*locator
}

func (r *route) needsBody() bool { return r.json != nil || r.xml != nil }

// kind is what a located value is for.
type kind uint8

const (
	office    kind = iota // an office id
	mask                  // a pattern over office ids
	cursor                // a page cursor that may carry an office
	parameter             // a time-series name, whose second part is the parameter
	unclear               // its presence makes the reach of the request unknown
	param                 // a member of context.params
	attribute             // a further member of the context
)

// source is where a value is found.
type source uint8

const (
	inQuery source = iota
	inPath
	inJSON
	inXML
)

// locator says where a value is found and what it is for.
type locator struct {
	kind   kind
	source source
	name   string // query name, segment name, JSON pointer or XML path, as written
	text   string // the locator as written in the table

	// bounds: the API acts on this office and no other. A value that does not
	// bound is named beside it: it must be allowed too but never stands in.
	bounds    bool
	segment   int      // inPath: index of the segment
	target    int      // param, attribute: index of the name
	layout    layout   // cursor
	steps     []string // inXML: the elements of the path, in lower case
	attribute string   // inXML: the attribute of the last of them, if it is one
	deep      bool     // inXML: the path matches at any depth
}

// Match is what a request means to policy. The zero value is ready for use.
type Match struct {
	Resource string
	Action   string
	Context  authz.Context

	// NeedsBody: the body names what policy must know. Until Body was called the
	// scope is unknown, which is also what to ask policy with for a caller whose
	// body is not worth reading.
	NeedsBody bool

	route   *route
	other   *route // the template matches, its method does not
	buf     []byte // strings of the match are views of it
	found   []finding
	segs    [maxSegments]segment
	values  []string // of params and then attributes, by index; set is parallel
	set     []bool
	params  []authz.Pair
	attrs   []authz.Pair
	offices []string

	parameter  string
	parameters int // distinct ones

	bounded bool // an office or a mask says what the API acts on
	masks   int  // distinct ones
	unclear bool
	paged   bool // a cursor is given: it overrides what else bounds
	pageAll bool // … and one of them names no office
	named   bool // the element of a body array being read names its office
}

// finding is a value with where it was found, for Explain.
type finding struct {
	at    *locator
	value string
}

type segment struct {
	text    []byte // decoded once
	escaped bool
}

func (m *Match) reset() {
	if cap(m.buf) > maxKept {
		m.buf = nil
	}
	m.Resource, m.Action, m.NeedsBody = "", "", false
	m.Context = authz.Context{}
	m.route, m.other = nil, nil
	m.buf, m.found, m.offices = m.buf[:0], m.found[:0], m.offices[:0]
	m.params, m.attrs = m.params[:0], m.attrs[:0]
	m.parameter, m.parameters, m.masks = "", 0, 0
	m.bounded, m.unclear, m.paged, m.pageAll = false, false, false, false
}

// InPrefix reports whether a path is the API's.
func (t *Table) InPrefix(path []byte) bool {
	_, ok := t.rest(path)
	return ok
}

// rest returns what follows the prefix: nothing, or a slash and more. The prefix
// is compared as received: another spelling of it is another path.
func (t *Table) rest(path []byte) ([]byte, bool) {
	n := len(t.prefix)
	if len(path) < n || string(path[:n]) != t.prefix {
		return nil, false
	}
	path = path[n:]
	return path, len(path) == 0 || path[0] == '/'
}

// Match fills m with what the request line says. A refusal is ErrMalformed or
// ErrMethodNotAllowed; m is of no use then. The target must come from ParseTarget
// and stay unchanged during the call only.
func (t *Table) Match(m *Match, method []byte, target Target) error {
	m.reset()
	v, ok := verbOf(method)
	if !ok {
		return authz.Refuse(authz.ErrMethodNotAllowed, "the method is not allowed")
	}
	rest, ok := t.rest(target.Path)
	if !ok {
		return malformed("the path is not the API's")
	}
	segs, deep := m.split(rest)
	s := search{verb: v}
	var r *route
	if !deep {
		if r = s.find(t.root, segs); s.spelled {
			return malformed("the path spells a fixed segment with percent-encoding")
		}
	}
	if target.separators {
		if r == nil && s.other == nil {
			return malformed("the path holds an encoded slash, backslash or semicolon outside an id")
		}
		if err := checkIDs(segs); err != nil {
			return err
		}
	}
	m.Context.Method = verbNames[v]
	switch {
	case r != nil:
		return m.read(r, segs, target.Query)
	case s.other != nil:
		m.other = s.other
		m.Resource, m.Context.Route, m.Context.Subresource = s.other.resource, s.other.template, s.other.subresource
	default:
		m.Context.Route = Unknown
		m.Resource = Root
		if len(segs) > 0 {
			m.Resource = m.keep(segs[0].text)
		}
	}
	m.Action = verbActions[v]
	m.Context.Scope = authz.ScopeUnknown
	return nil
}

// split cuts a path into its segments, decoded once, without a trailing empty
// one. deep is true, and all but the first segments are missing, if it has more
// than any template.
func (m *Match) split(rest []byte) (segs []segment, deep bool) {
	n := 0
	for len(rest) > 1 {
		rest = rest[1:]
		raw := rest
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			raw, rest = rest[:i], rest[i:]
		} else {
			rest = nil
		}
		if n == maxSegments {
			return m.segs[:n], true
		}
		m.segs[n] = segment{text: raw}
		if bytes.IndexByte(raw, '%') >= 0 {
			start := len(m.buf)
			m.buf = appendDecoded(m.buf, raw, false)
			m.segs[n] = segment{text: m.buf[start:], escaped: true}
		}
		n++
	}
	return m.segs[:n], false
}

// search finds the route of a path. Like the API's own router it looks at the
// routes of one method only, so that a fixed segment hides an id segment only if
// it has that method.
type search struct {
	verb    verb
	other   *route // a route of another method with the path's template
	spelled bool   // a fixed segment is spelled with percent-encoding
}

func (s *search) find(n *node, segs []segment) *route {
	if len(segs) == 0 {
		if s.other == nil {
			s.other = n.first
		}
		return n.routes[s.verb]
	}
	if child := n.literal[string(segs[0].text)]; child != nil {
		if segs[0].escaped {
			// Some servers match before they decode and some after.
			s.spelled = true
			return nil
		}
		if r := s.find(child, segs[1:]); r != nil || s.spelled {
			return r
		}
	}
	if n.any != nil {
		return s.find(n.any, segs[1:])
	}
	return nil
}

// checkIDs refuses ids that hold a dot segment for a server that decodes before
// it splits.
func checkIDs(segs []segment) error {
	for i := range segs {
		if !segs[i].escaped {
			continue
		}
		for part := range bytes.FieldsFuncSeq(segs[i].text, isSeparator) {
			if string(part) == "." || string(part) == ".." {
				return malformed("the path holds a dot segment")
			}
		}
	}
	return nil
}

func isSeparator(r rune) bool { return r == '/' || r == '\\' || r == ';' }

// read collects what path and query say to a route.
func (m *Match) read(r *route, segs []segment, query []byte) error {
	m.route = r
	m.Resource, m.Action = r.resource, r.action
	m.Context.Route, m.Context.Subresource = r.template, r.subresource
	m.NeedsBody = r.needsBody()
	n := len(r.names) + len(r.attributes)
	m.values = slices.Grow(m.values[:0], n)[:n]
	m.set = slices.Grow(m.set[:0], n)[:n]
	clear(m.set)
	for _, at := range r.path {
		if err := m.add(at, segs[at.segment].text); err != nil {
			return err
		}
	}
	if err := m.readQuery(r.query, query); err != nil {
		return err
	}
	m.settle()
	return nil
}

func (m *Match) readQuery(locators []*locator, query []byte) error {
	if len(locators) == 0 {
		return nil
	}
	for len(query) > 0 {
		pair := query
		if i := bytes.IndexByte(query, '&'); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			query = nil
		}
		name, value := pair, []byte(nil)
		if i := bytes.IndexByte(pair, '='); i >= 0 {
			name, value = pair[:i], pair[i+1:]
		}
		start := len(m.buf)
		if bytes.IndexByte(name, '%') >= 0 || bytes.IndexByte(name, '+') >= 0 {
			m.buf = appendDecoded(m.buf, name, true)
			name = m.buf[start:]
		}
		for _, at := range locators {
			if string(name) != at.name {
				continue
			}
			from := len(m.buf)
			m.buf = appendDecoded(m.buf, value, true)
			if err := m.add(at, m.buf[from:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// add takes a located value in. The value is copied if it is kept.
func (m *Match) add(at *locator, value []byte) error {
	switch at.kind {
	case office:
		return m.addOffice(at, value)
	case mask:
		if len(value) == 0 || len(value) > maxMask || !utf8.Valid(value) {
			return malformed("%s is not a mask of 1 to %d characters", at, maxMask)
		}
		if m.Context.Mask != string(value) {
			m.masks++
			m.Context.Mask = m.keep(value)
		}
		m.bounded = m.bounded || at.bounds
		m.named = m.named || at.bounds
		m.note(at, value)
	case cursor:
		return m.addCursor(at, value)
	case parameter:
		second, ok := secondPart(value)
		if !ok {
			return nil
		}
		if len(second) > maxValue || !utf8.Valid(second) {
			return malformed("%s is not a name", at)
		}
		if m.parameters == 0 || m.parameter != string(second) {
			m.parameters++
			m.parameter = m.keep(second)
		}
		m.note(at, second)
	case unclear:
		m.unclear = true
		m.note(at, nil)
	case param, attribute:
		if len(value) > maxValue || !utf8.Valid(value) {
			return malformed("%s is not text of at most %d bytes", at, maxValue)
		}
		if m.set[at.target] {
			if m.values[at.target] != string(value) {
				return malformed("%s is given twice, with different values", at)
			}
			return nil
		}
		m.set[at.target], m.values[at.target] = true, m.keep(value)
		m.note(at, value)
	}
	return nil
}

func (m *Match) addOffice(at *locator, value []byte) error {
	if !isOffice(value) {
		return malformed("%s is not an office id", at)
	}
	if at.bounds {
		m.bounded, m.named = true, true
	}
	return m.nameOffice(at, value)
}

// nameOffice adds an office to the list if it is not in it.
func (m *Match) nameOffice(at *locator, value []byte) error {
	var upper [16]byte
	n := copy(upper[:], value)
	for i, c := range upper[:n] {
		if c >= 'a' && c <= 'z' {
			upper[i] = c - ('a' - 'A')
		}
	}
	for _, known := range m.offices {
		if known == string(upper[:n]) {
			m.note(at, upper[:n])
			return nil
		}
	}
	if len(m.offices) == maxOffices {
		return malformed("the request names more than %d offices", maxOffices)
	}
	m.offices = append(m.offices, m.keep(upper[:n]))
	m.note(at, upper[:n])
	return nil
}

func isOffice(value []byte) bool {
	if len(value) == 0 || len(value) > 16 {
		return false
	}
	for _, c := range value {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// secondPart returns the parameter of a time-series name
// (location.parameter.type.interval.duration.version).
func secondPart(name []byte) ([]byte, bool) {
	i := bytes.IndexByte(name, '.')
	if i < 0 {
		return nil, false
	}
	second := name[i+1:]
	if i := bytes.IndexByte(second, '.'); i >= 0 {
		second = second[:i]
	}
	return second, len(second) > 0
}

// settle turns what was found into the context. The scope is the widest that
// any part of the request can have.
func (m *Match) settle() {
	c := &m.Context
	slices.Sort(m.offices)
	c.Offices = m.offices
	if m.masks > 1 {
		// Policy can judge one pattern, not several.
		c.Mask = ""
		m.unclear = true
	}
	bounded := m.bounded
	if m.paged {
		bounded = !m.pageAll
	}
	switch {
	case m.NeedsBody || m.unclear || m.route.scope == authz.ScopeUnknown:
		c.Scope = authz.ScopeUnknown
	case !bounded:
		c.Scope = authz.ScopeNone
	case c.Mask != "":
		c.Scope = authz.ScopeMask
	case len(m.offices) == 1:
		c.Scope = authz.ScopeOne
	default:
		c.Scope = authz.ScopeMany
	}
	m.params, m.attrs = m.params[:0], m.attrs[:0]
	for i, name := range m.route.names {
		if m.set[i] {
			m.params = append(m.params, authz.Pair{Name: name, Value: m.values[i]})
		}
	}
	for i, name := range m.route.attributes {
		switch at := len(m.route.names) + i; {
		case m.set[at]:
			m.attrs = append(m.attrs, authz.Pair{Name: name, Value: m.values[at]})
		case name == parameterName && m.parameters == 1:
			// Several parameters are none: a rule about one must not be
			// satisfied by the other.
			m.attrs = append(m.attrs, authz.Pair{Name: name, Value: m.parameter})
		}
	}
	c.Params, c.Attributes = m.params, m.attrs
}

const parameterName = "parameter"

// note remembers where a value was found, once for equal findings.
func (m *Match) note(at *locator, value []byte) {
	for i := range m.found {
		if f := &m.found[i]; f.at == at && f.value == string(value) {
			return
		}
	}
	if len(m.found) < 2*maxOffices {
		m.found = append(m.found, finding{at, m.keep(value)})
	}
}

// keep copies a value into the match's own memory. Growing it leaves the earlier
// copies where they are, so that strings stay what they were.
func (m *Match) keep(value []byte) string {
	if len(value) == 0 {
		return ""
	}
	start := len(m.buf)
	m.buf = append(m.buf, value...)
	return unsafe.String(&m.buf[start], len(value))
}
