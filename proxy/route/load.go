package route

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/proxy/authz"
)

//go:embed cwms.yaml
var builtIn []byte

// Default is the built-in table, for an API served under prefix: a
// path without a trailing slash, empty for an API at the root.
func Default(prefix string) *Table {
	t, err := Load(builtIn, prefix)
	if err != nil {
		panic("BUG: the built-in route table is faulty: " + err.Error())
	}
	return t
}

// Load reads a table. The error joins every fault of the file, each with its line
// and field. The head of the built-in table describes the format.
func Load(yaml []byte, prefix string) (*Table, error) {
	file, err := parser.ParseBytes(yaml, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read route table: %w", err)
	}
	l := &loader{table: &Table{prefix: prefix, root: &node{}}, anchors: map[string]ast.Node{}}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, errors.New("cannot read route table: it must be one YAML document")
	}
	l.file(file.Docs[0].Body)
	if len(l.faults) > 0 {
		slices.SortStableFunc(l.faults, func(a, b fault) int { return a.line - b.line })
		errs := make([]error, 0, len(l.faults))
		for _, f := range l.faults {
			errs = append(errs, f.err)
		}
		return nil, errors.Join(errs...)
	}
	actions := map[string]bool{"create": true, "delete": true, "read": true, "update": true}
	for _, r := range l.table.routes {
		actions[r.action] = true
	}
	l.table.actions = sortedNames(actions)
	return l.table, nil
}

type loader struct {
	table   *Table
	anchors map[string]ast.Node
	faults  []fault

	params   []string // names of segments that policy sees; nil means all
	anywhere []*draft // attributes of every route
}

// fault is what is wrong with a line.
type fault struct {
	line int
	err  error
}

// draft is a locator as written, before a route takes it over, or a setting of
// the route.
type draft struct {
	node    ast.Node
	path    string
	name    string // of the attribute, param or setting
	at      locator
	setting bool
	value   string // of the setting
}

func (l *loader) fault(n ast.Node, field, format string, args ...any) {
	line := lineOf(n)
	l.faults = append(l.faults, fault{line, fmt.Errorf("line %d: %s: %s", line, field, fmt.Sprintf(format, args...))})
}

func lineOf(n ast.Node) int {
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		return tok.Position.Line
	}
	return 0
}

// entry is a member of a mapping.
type entry struct {
	key   string
	at    ast.Node // the key
	value ast.Node
}

// resolve follows anchors and aliases, nil if they lead nowhere.
func (l *loader) resolve(n ast.Node) ast.Node {
	for range maxAliases {
		switch x := n.(type) {
		case *ast.AnchorNode:
			l.anchors[x.Name.String()] = x.Value
			n = x.Value
		case *ast.AliasNode:
			target, ok := l.anchors[x.Value.String()]
			if !ok {
				l.fault(n, "*"+x.Value.String(), "no such anchor before this line")
				return nil
			}
			n = target
		default:
			return n
		}
	}
	l.fault(n, "file", "an anchor stands for itself")
	return nil
}

const maxAliases = 100 // that stand for each other

func (l *loader) mapping(n ast.Node, field string) []entry {
	var values []*ast.MappingValueNode
	switch x := l.resolve(n).(type) {
	case nil, *ast.NullNode:
	case *ast.MappingNode:
		values = x.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{x}
	default:
		l.fault(n, field, "must be a mapping")
	}
	list := make([]entry, 0, len(values))
	for _, v := range values {
		list = append(list, entry{key: text(v.Key), at: v.Key, value: v.Value})
	}
	return list
}

// text is the value of a scalar, whatever YAML takes its type for.
func text(n ast.Node) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	return n.GetToken().Value
}

// scalar reads a text; ok is false, and a fault was told, if it is none.
func (l *loader) scalar(n ast.Node, field string) (s string, ok bool) {
	switch x := l.resolve(n).(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
		if s = text(x); s != "" {
			return s, true
		}
	case nil:
		return "", false
	}
	l.fault(n, field, "must be text")
	return "", false
}

// list reads a list of scalars; one alone stands for a list of it.
func (l *loader) list(n ast.Node, field string) []ast.Node {
	if seq, ok := l.resolve(n).(*ast.SequenceNode); ok {
		return seq.Values
	}
	return []ast.Node{n}
}

func (l *loader) file(n ast.Node) {
	var routes []entry
	for _, e := range l.mapping(n, "file") {
		switch e.key {
		case "params":
			l.params = []string{}
			for _, item := range l.list(e.value, "params") {
				if s, ok := l.scalar(item, "params"); ok {
					l.params = append(l.params, s)
				}
			}
		case "anywhere":
			l.anywhere = l.attributes(e.value, "anywhere")
			l.anywhere = slices.DeleteFunc(l.anywhere, func(d *draft) bool {
				if d.setting || d.at.source != inQuery {
					l.fault(d.node, d.path, "must be a query locator")
					return true
				}
				return false
			})
		case "routes":
			routes = l.mapping(e.value, "routes")
		default:
			l.fault(e.at, e.key, "unknown key; known are params, anywhere, routes")
		}
	}
	for _, e := range routes {
		l.template(e)
	}
	if len(l.table.routes) == 0 && len(l.faults) == 0 {
		l.fault(n, "routes", "the table has no routes")
	}
}

// template reads a path and its methods.
func (l *loader) template(e entry) {
	segments, ok := l.segments(e)
	resource, sub := "", ""
	var methods []entry
	for _, m := range l.mapping(e.value, e.key) {
		field := e.key + "." + m.key
		switch m.key {
		case "resource":
			resource, _ = l.scalar(m.value, field)
		case "subresource":
			sub, _ = l.scalar(m.value, field)
		default:
			methods = append(methods, m)
		}
	}
	if len(methods) == 0 {
		l.fault(e.at, e.key, "has no methods")
	}
	if !ok {
		return
	}
	if resource == "" {
		resource = defaultResource(segments)
		if strings.HasPrefix(resource, "{") {
			l.fault(e.at, e.key, "begins with a named segment: it needs a resource")
		}
	}
	if sub == "" {
		sub = subresource(e.key, resource, segments)
	}
	for _, m := range methods {
		drafts := l.attributes(m.value, e.key+"."+m.key)
		names := strings.Fields(m.key)
		if len(names) == 0 {
			l.fault(m.at, e.key, "a method is empty")
		}
		for _, name := range names {
			v := slices.Index(verbNames[:], name)
			if v < 0 {
				l.fault(m.at, e.key+"."+name, "unknown key; known are resource, subresource and the methods %s", strings.Join(verbNames[:], ", "))
				break
			}
			r := &route{line: lineOf(m.at), verb: verb(v), template: e.key, resource: resource, subresource: sub, action: verbActions[v]}
			l.route(r, segments, m, drafts)
		}
	}
}

func defaultResource(segments []string) string {
	if len(segments) == 0 {
		return Root
	}
	return segments[0]
}

// subresource is the rest of the template after its resource.
func subresource(template, resource string, segments []string) string {
	path := strings.TrimPrefix(template, "/")
	if rest, ok := strings.CutPrefix(path, resource); ok && (rest == "" || rest[0] == '/') {
		return strings.TrimPrefix(rest, "/")
	}
	if len(segments) == 0 {
		return ""
	}
	return strings.Join(segments[1:], "/")
}

func (l *loader) segments(e entry) ([]string, bool) {
	bad := func(format string, args ...any) ([]string, bool) {
		l.fault(e.at, e.key, format, args...)
		return nil, false
	}
	path, ok := strings.CutPrefix(e.key, "/")
	if !ok {
		return bad("a path must begin with a slash")
	}
	if path == "" {
		return nil, true
	}
	segments := strings.Split(path, "/")
	if len(segments) > maxSegments {
		return bad("has more than %d segments", maxSegments)
	}
	seen := map[string]bool{}
	for _, s := range segments {
		name, named := segmentName(s)
		switch {
		case named && !isName(name):
			return bad("%q is not a segment name", s)
		case named && seen[name]:
			return bad("names %s twice", s)
		case named:
			seen[name] = true
		case s == "" || s == "." || s == ".." || strings.ContainsFunc(s, notUnreserved):
			return bad("%q is not a segment; only letters, digits and -._~ stand in a fixed one", s)
		}
	}
	return segments, true
}

func segmentName(s string) (string, bool) {
	if len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}' {
		return s[1 : len(s)-1], true
	}
	return "", false
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return notUnreserved(r) || r == '.' || r == '~' })
}

// notUnreserved reports whether a character is other than the unreserved ones of
// RFC 3986.
func notUnreserved(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("-._~", r)
}

// reserved are the context members that an attribute must not replace.
var reserved = []string{"method", "route", "subresource", "params", "office_id", "offices", "office_scope", "office_mask"}

// attributes reads what a route reads of a request.
func (l *loader) attributes(n ast.Node, field string) (drafts []*draft) {
	for _, e := range l.mapping(n, field) {
		path := field + "." + e.key
		add := func(k kind, bounds bool) {
			drafts = append(drafts, l.locators(e.value, path, e.key, k, bounds)...)
		}
		nested := func(k kind) {
			for _, item := range l.mapping(e.value, path) {
				name := path + "." + item.key
				if !isName(item.key) || k == attribute && slices.Contains(reserved, item.key) {
					l.fault(item.at, name, "is not a name that can be set")
				}
				drafts = append(drafts, l.locators(item.value, name, item.key, k, false)...)
			}
		}
		switch e.key {
		case "office":
			add(office, true)
		case "other-office":
			add(office, false)
		case "mask":
			add(mask, true)
		case "other-mask":
			add(mask, false)
		case "cursor":
			add(cursor, false)
		case "parameter":
			add(parameter, false)
		case "unclear":
			add(unclear, false)
		case "params":
			nested(param)
		case "attributes":
			nested(attribute)
		case "action", "scope":
			if s, ok := l.scalar(e.value, path); ok {
				drafts = append(drafts, &draft{node: e.value, path: path, name: e.key, setting: true, value: s})
			}
		default:
			l.fault(e.at, path, "unknown key; known are action, scope, office, other-office, mask, other-mask, cursor, parameter, unclear, params, attributes")
		}
	}
	return drafts
}

func (l *loader) locators(n ast.Node, path, name string, k kind, bounds bool) (drafts []*draft) {
	for _, item := range l.list(n, path) {
		s, ok := l.scalar(item, path)
		if !ok {
			continue
		}
		at, err := parseLocator(s, k)
		if err != nil {
			l.fault(item, path, "%q %v", s, err)
			continue
		}
		at.bounds = bounds
		drafts = append(drafts, &draft{node: item, path: path, name: name, at: at})
	}
	return drafts
}

// parseLocator reads "query NAME", "path NAME", "json POINTER" and "xml PATH",
// and for cursors "query NAME as LAYOUT".
func parseLocator(s string, k kind) (at locator, err error) {
	at = locator{kind: k, text: s}
	words := strings.Fields(s)
	if k == cursor {
		if len(words) != 4 || words[0] != "query" || words[2] != "as" || layouts[words[3]] == 0 {
			return at, errors.New("is not a cursor: write query NAME as catalog or as users")
		}
		at.source, at.name, at.layout = inQuery, words[1], layouts[words[3]]
		return at, nil
	}
	if len(words) != 2 {
		return at, errors.New("is not a locator: write query NAME, path NAME, json POINTER or xml PATH")
	}
	at.name = words[1]
	switch words[0] {
	case "query":
		at.source = inQuery
	case "path":
		at.source = inPath
	case "json":
		at.source = inJSON
		_, err = parsePointer(at.name)
	case "xml":
		at.source = inXML
		at.steps, at.attribute, at.deep, err = parseXMLPath(at.name)
	default:
		err = errors.New("is not a locator: write query NAME, path NAME, json POINTER or xml PATH")
	}
	return at, err
}

// route puts one line of the table together.
func (l *loader) route(r *route, segments []string, m entry, drafts []*draft) {
	field := r.template + "." + m.key
	read := map[string]bool{}
	params, attributes := map[string]bool{}, map[string]bool{}
	for i, s := range segments {
		name, named := segmentName(s)
		taken := slices.ContainsFunc(drafts, func(d *draft) bool { return !d.setting && d.at.source == inPath && d.at.name == name })
		if named && !taken && (l.params == nil || slices.Contains(l.params, name)) {
			drafts = append(drafts, &draft{node: m.at, path: field, name: name, at: locator{kind: param, source: inPath, name: name, text: "path " + name, segment: i}})
		}
	}
	for _, d := range drafts {
		read[d.at.text] = true
	}
	for _, d := range l.anywhere {
		if !read[d.at.text] {
			copied := *d
			drafts = append(drafts, &copied)
		}
	}
	located := drafts[:0:0]
	for _, d := range drafts {
		switch {
		case d.setting && d.name == "action":
			if r.action = d.value; !isName(r.action) {
				l.fault(d.node, d.path, "is not a name")
			}
		case d.setting:
			if r.scope = authz.Scope(d.value); r.scope != authz.ScopeUnknown {
				l.fault(d.node, d.path, "must be unknown; every other scope follows from the offices")
			}
		default:
			located = append(located, d)
			switch d.at.kind {
			case param:
				params[d.name] = true
			case attribute:
				attributes[d.name] = true
			case parameter:
				attributes[parameterName] = true
			}
		}
	}
	r.names, r.attributes = sortedNames(params), sortedNames(attributes)
	for _, d := range located {
		at := d.at
		switch at.kind {
		case param:
			at.target = slices.Index(r.names, d.name)
		case attribute:
			at.target = len(r.names) + slices.Index(r.attributes, d.name)
		}
		switch at.source {
		case inQuery:
			r.query = append(r.query, &at)
		case inPath:
			if at.segment = slices.Index(segments, "{"+at.name+"}"); at.segment < 0 {
				l.fault(d.node, d.path, "the path has no segment {%s}", at.name)
			}
			r.path = append(r.path, &at)
		case inJSON:
			if r.json == nil {
				r.json = &jsonPlan{}
			}
			if err := r.json.add(&at); err != nil {
				l.fault(d.node, d.path, "%v", err)
			}
		case inXML:
			r.xml = append(r.xml, &at)
		}
	}
	l.plant(r, segments, m)
}

// plant adds a route to the tree.
func (l *loader) plant(r *route, segments []string, m entry) {
	n := l.table.root
	for _, s := range segments {
		if _, named := segmentName(s); named {
			if n.any == nil {
				n.any = &node{}
			}
			n = n.any
			continue
		}
		if n.literal == nil {
			n.literal = map[string]*node{}
		}
		if n.literal[s] == nil {
			n.literal[s] = &node{}
		}
		n = n.literal[s]
	}
	if other := n.routes[r.verb]; other != nil {
		l.fault(m.at, r.template+"."+verbNames[r.verb], "line %d has this route already, as %s", other.line, other.template)
		return
	}
	n.routes[r.verb] = r
	if n.first == nil {
		n.first = r
	}
	l.table.routes = append(l.table.routes, r)
}

func sortedNames(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// String names a locator to the client: "query parameter office".
func (at *locator) String() string {
	switch at.source {
	case inQuery:
		return "query parameter " + at.name
	case inPath:
		return "path segment {" + at.name + "}"
	case inJSON:
		return "JSON member " + at.name
	case inXML:
		return "XML node " + at.name
	}
	panic("BUG: locator source " + strconv.Itoa(int(at.source)))
}
