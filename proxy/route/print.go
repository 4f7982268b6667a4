package route

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"headgate/proxy/authz"
)

// Print writes the table, a route a line: method, template, resource, action and
// what is read of a request.
func (t *Table) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "METHOD\tPATH\tRESOURCE\tACTION\tREADS")
	for _, r := range t.routes {
		fmt.Fprintf(tw, "%s\t%s%s\t%s\t%s\t%s\n", verbNames[r.verb], t.prefix, r.template, r.resource, r.action, r.reads())
	}
	return tw.Flush()
}

// reads lists the attributes of a route with their locators.
func (r *route) reads() string {
	var names []string
	places := map[string][]string{}
	add := func(at *locator) {
		name := r.attributeName(at)
		if places[name] == nil {
			names = append(names, name)
		}
		places[name] = append(places[name], at.text)
	}
	r.each(add)
	parts := make([]string, 0, len(names)+1)
	if r.scope != "" {
		parts = append(parts, "scope="+string(r.scope))
	}
	for _, name := range names {
		parts = append(parts, name+"="+strings.Join(places[name], "|"))
	}
	return strings.Join(parts, " ")
}

// each calls f with every locator of a route.
func (r *route) each(f func(*locator)) {
	for _, list := range [...][]*locator{r.path, r.query, r.json.locators(), r.xml} {
		for _, at := range list {
			f(at)
		}
	}
}

func (r *route) attributeName(at *locator) string {
	beside := ""
	if !at.bounds {
		beside = "other-"
	}
	switch at.kind {
	case office:
		return beside + "office"
	case mask:
		return beside + "mask"
	case cursor:
		return "cursor"
	case parameter:
		return parameterName
	case unclear:
		return "unclear"
	case param:
		return "params." + r.names[at.target]
	case attribute:
		return r.attributes[at.target-len(r.names)]
	}
	panic("BUG: a locator of no kind")
}

// Explanation is what a match found, for whoever asks why: the parts of the
// question, and each value with the locator that gave it.
type Explanation struct {
	Resource    string            `json:"resource"`
	Action      string            `json:"action"`
	Method      string            `json:"method"`
	Route       string            `json:"route"`
	Subresource string            `json:"subresource"`
	Offices     []string          `json:"offices"`
	Scope       authz.Scope       `json:"office_scope"`
	Because     string            `json:"because,omitempty"` // why the scope is unknown
	Mask        string            `json:"office_mask,omitempty"`
	Params      map[string]string `json:"params,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	Found       []Found           `json:"found"`
}

// Found is a value of a request and where it stood.
type Found struct {
	Attribute string `json:"attribute"`
	Value     string `json:"value"`
	At        string `json:"at"` // the locator, as in the route table
}

// Explain tells what a match found. It keeps nothing of the match's memory.
func (m *Match) Explain() Explanation {
	c := &m.Context
	e := Explanation{
		Resource: strings.Clone(m.Resource), Action: m.Action, Method: c.Method, Route: c.Route, Subresource: strings.Clone(c.Subresource),
		Offices: []string{}, Scope: c.Scope, Because: m.because(), Mask: strings.Clone(c.Mask),
		Params: named(c.Params), Attributes: named(c.Attributes), Found: []Found{},
	}
	for _, office := range c.Offices {
		e.Offices = append(e.Offices, strings.Clone(office))
	}
	for _, f := range m.found {
		e.Found = append(e.Found, Found{m.route.attributeName(f.at), strings.Clone(f.value), f.at.text})
	}
	return e
}

func named(pairs []authz.Pair) map[string]string {
	values := make(map[string]string, len(pairs))
	for _, p := range pairs {
		values[p.Name] = strings.Clone(p.Value)
	}
	return values
}

// Print writes the explanation for people. A dash stands where there is nothing.
func (e *Explanation) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(tw, "%s\t%s\n", name, cmp.Or(value, "-")) }
	line("resource", e.Resource)
	line("action", e.Action)
	line("method", e.Method)
	line("route", e.Route)
	line("subresource", e.Subresource)
	line("offices", strings.Join(e.Offices, " "))
	scope := string(e.Scope)
	if e.Because != "" {
		scope += " (" + e.Because + ")"
	}
	line("office_scope", scope)
	line("office_mask", e.Mask)
	for _, name := range slices.Sorted(maps.Keys(e.Params)) {
		line("params."+name, e.Params[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.Attributes)) {
		line(name, e.Attributes[name])
	}
	if len(e.Found) > 0 {
		fmt.Fprintln(tw)
	}
	for _, f := range e.Found {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Attribute, cmp.Or(f.Value, "-"), f.At)
	}
	return tw.Flush()
}

// because tells why the scope is unknown.
func (m *Match) because() string {
	switch {
	case m.Context.Scope != authz.ScopeUnknown:
		return ""
	case m.route == nil && m.other == nil:
		return "no route has this path"
	case m.route == nil:
		return "no route has this path with this method"
	case m.NeedsBody:
		return "the body was not read"
	case m.route.scope == authz.ScopeUnknown:
		return "by the route table"
	default:
		return "the request does not tell"
	}
}
