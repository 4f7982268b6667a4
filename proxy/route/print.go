package route

import (
	"cmp"
	"fmt"
	"io"
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

// Explain writes what a match found: the parts of the question, then each
// attribute with the locator that gave it. A dash stands where there is nothing.
func (m *Match) Explain(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(tw, "%s\t%s\n", name, cmp.Or(value, "-")) }
	c := &m.Context
	line("resource", m.Resource)
	line("action", m.Action)
	line("method", c.Method)
	line("route", c.Route)
	line("subresource", c.Subresource)
	line("offices", strings.Join(c.Offices, " "))
	line("office_scope", string(c.Scope)+m.because())
	line("office_mask", c.Mask)
	for _, p := range c.Params {
		line("params."+p.Name, p.Value)
	}
	for _, a := range c.Attributes {
		line(a.Name, a.Value)
	}
	if len(m.found) > 0 {
		fmt.Fprintln(tw)
	}
	for _, f := range m.found {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", m.route.attributeName(f.at), cmp.Or(f.value, "-"), f.at.text)
	}
	return tw.Flush()
}

// because tells why the scope is unknown.
func (m *Match) because() string {
	switch {
	case m.Context.Scope != authz.ScopeUnknown:
		return ""
	case m.route == nil && m.other == nil:
		return " (no route has this path)"
	case m.route == nil:
		return " (no route has this path with this method)"
	case m.NeedsBody:
		return " (the body was not read)"
	case m.route.scope == authz.ScopeUnknown:
		return " (by the route table)"
	default:
		return " (the request does not tell)"
	}
}
