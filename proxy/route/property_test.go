package route

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"

	"headgate/proxy/authz"
)

// The property: for a random request of any route, the offices, the scope, the
// mask and the parameter are those that a straightforward reading of the table
// and of the request finds, or the request is refused. That reading shares no
// code with the package: the table by a YAML library, the query by net/url, the
// body as a whole document in memory.

// line is a route as the YAML library reads it.
type line struct {
	template, method string
	attributes       map[string]any
}

func naiveTable(t *testing.T) (lines []line) {
	var doc struct {
		Params   []string                             `yaml:"params"`
		Anywhere map[string]any                       `yaml:"anywhere"`
		Routes   map[string]map[string]map[string]any `yaml:"routes"`
	}
	// resource and subresource are text beside the methods; they are not judged here.
	plain := strings.Builder{}
	for l := range strings.Lines(string(builtIn)) {
		if !strings.HasPrefix(l, "    resource:") {
			plain.WriteString(l)
		}
	}
	if err := yaml.Unmarshal([]byte(plain.String()), &doc); err != nil {
		t.Fatal(err)
	}
	for template, methods := range doc.Routes {
		for names, attributes := range methods {
			for _, method := range strings.Fields(names) {
				lines = append(lines, line{template, method, attributes})
			}
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return strings.Compare(a.template+" "+a.method, b.template+" "+b.method) })
	return lines
}

func (l line) locators(attribute string) (list []string) {
	switch v := l.attributes[attribute].(type) {
	case string:
		list = append(list, v)
	case []any:
		for _, s := range v {
			list = append(list, s.(string))
		}
	}
	return list
}

// sent is a random request with what it was made of.
type sent struct {
	line
	segments map[string]string // by name, decoded
	query    string
	json     string
	xml      string
}

func (s *sent) body() string { return s.json + s.xml }

// values finds what the locators of an attribute say.
func (s *sent) values(t *rapid.T, attribute string) (found []string) {
	for _, at := range s.locators(attribute) {
		words := strings.Fields(at)
		switch words[0] {
		case "path":
			found = append(found, s.segments[words[1]])
		case "query":
			q, err := url.ParseQuery(s.query)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, q[words[1]]...)
		case "json":
			for _, v := range naivePointer(s.document(t), strings.Split(words[1], "/")[1:]) {
				found = append(found, fmt.Sprint(v))
			}
		case "xml":
			if s.xml == "" {
				continue
			}
			var doc xmlNode
			if err := xml.Unmarshal([]byte(s.xml), &doc); err != nil {
				t.Fatal(err)
			}
			found = append(found, naiveXML(&doc, strings.Split(words[1], "/")[1:])...)
		}
	}
	return found
}

func (s *sent) document(t *rapid.T) (doc any) {
	if s.json == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(s.json), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// expect is the straightforward reading, in the words of Match.summary.
func (s *sent) expect(t *rapid.T) (offices []string, scope authz.Scope, mask, parameter string) {
	seen := map[string]bool{}
	name := func(values []string) {
		for _, v := range values {
			seen[strings.ToUpper(v)] = true
		}
	}
	acts := s.values(t, "office")
	masks := s.values(t, "mask")
	bounded := len(acts)+len(masks) > 0
	masks = append(masks, s.values(t, "other-mask")...)
	slices.Sort(masks)
	masks = slices.Compact(masks)
	name(acts)
	name(s.values(t, "other-office"))
	if q, err := url.ParseQuery(s.query); err == nil {
		name(q["office"])
	}
	unknown := len(s.values(t, "unclear")) > 0 || s.attributes["scope"] == "unknown" || len(masks) > 1
	for _, pointer := range s.locators("office") {
		array, rest, ok := strings.Cut(strings.TrimPrefix(pointer, "json "), "/*/")
		if list, isList := s.document(t).([]any); ok && isList && array == "" {
			for _, element := range list {
				if len(naivePointer(element, strings.Split(rest, "/"))) == 0 {
					unknown = true
				}
			}
		}
	}
	switch {
	case unknown:
		scope = authz.ScopeUnknown
	case !bounded:
		scope = authz.ScopeNone
	case len(masks) > 0:
		scope = authz.ScopeMask
	case len(seen) == 1:
		scope = authz.ScopeOne
	default:
		scope = authz.ScopeMany
	}
	if len(masks) == 1 {
		mask = masks[0]
	}
	parameters := map[string]bool{}
	for _, v := range s.values(t, "parameter") {
		if parts := strings.Split(v, "."); len(parts) > 1 && parts[1] != "" {
			parameters[parts[1]] = true
		}
	}
	if len(parameters) == 1 {
		parameter = sortedNames(parameters)[0]
	}
	return sortedNames(seen), scope, mask, parameter
}

var (
	anOffice = rapid.SampledFrom([]string{"SPK", "SWT", "spk", "Swt", "CWMS", "NWDM", "LRL7"})
	aName    = rapid.SampledFrom([]string{"A.Flow.Inst.1Hour.0.x", "B.Elev.Ave", "plain", "a/b.Code-X%.y", "é.Temp.z", "A..B", ""})
)

// spell percent-encodes a text in one of the ways that mean the same.
func spell(t *rapid.T, s string, path bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		plain := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-._~*", c) >= 0
		switch {
		case plain && rapid.IntRange(0, 9).Draw(t, "encode") > 0:
			b.WriteByte(c)
		case c == ' ' && !path:
			b.WriteByte('+')
		default:
			fmt.Fprintf(&b, rapid.SampledFrom([]string{"%%%02x", "%%%02X"}).Draw(t, "hex"), c)
		}
	}
	return b.String()
}

func (l line) draw(t *rapid.T) (*sent, string) {
	s := &sent{line: l, segments: map[string]string{}}
	var path strings.Builder
	path.WriteString("/cwms-data")
	for segment := range strings.SplitSeq(strings.TrimPrefix(l.template, "/"), "/") {
		value := segment
		if name, named := segmentName(segment); named {
			value = "x " + aName.Draw(t, "id")
			for _, at := range l.locators("office") {
				if at == "path "+name {
					value = anOffice.Draw(t, "office")
				}
			}
			s.segments[name] = value
			value = spell(t, value, true)
		}
		path.WriteString("/" + value)
	}
	target := strings.TrimSuffix(path.String(), "/")
	s.query = l.drawQuery(t)
	if s.query != "" {
		target += "?" + s.query
	}
	hasJSON, hasXML := false, false
	for attribute := range l.attributes {
		for _, at := range l.locators(attribute) {
			hasJSON = hasJSON || strings.HasPrefix(at, "json ")
			hasXML = hasXML || strings.HasPrefix(at, "xml ")
		}
	}
	switch {
	case hasXML && (!hasJSON || rapid.Bool().Draw(t, "xml")):
		s.xml = drawXML(t, 0)
	case hasJSON:
		s.json = drawJSON(t, 0)
	}
	return s, target
}

// drawQuery mixes the parameters of the route, look-alikes of them and others.
func (l line) drawQuery(t *rapid.T) string {
	names := []string{"OFFICE", "office_id", "off ice", "unit", "office"}
	for attribute := range l.attributes {
		for _, at := range l.locators(attribute) {
			if words := strings.Fields(at); words[0] == "query" && attribute != "cursor" {
				names = append(names, words[1], words[1])
			}
		}
	}
	slices.Sort(names)
	var pairs []string
	for range rapid.IntRange(0, 4).Draw(t, "pairs") {
		name := rapid.SampledFrom(names).Draw(t, "name")
		value := anOffice.Draw(t, "value")
		if name == "name" || strings.HasSuffix(name, "-id") && !strings.Contains(name, "office") {
			value = aName.Draw(t, "value")
		}
		pairs = append(pairs, spell(t, name, false)+"="+spell(t, value, false))
	}
	return strings.Join(pairs, "&")
}

var members = []string{"office-id", "office-id", "Office-Id", "name", "id", "location", "project-id", "assigned-locations", "assigned-time-series", "spec", "bounding-office-id", "office", "values", "stream-location-node", "basin-id", "location-category"}

func drawJSON(t *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 9).Draw(t, "kind")
	switch {
	case depth > 3 || kind == 0 && depth > 0:
		return rapid.SampledFrom([]string{"1.5e3", "true", "null", `"x"`, "[]", "{}"}).Draw(t, "scalar")
	case kind < 3:
		var items []string
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, drawJSON(t, depth+1))
		}
		return "[" + strings.Join(items, " , ") + "]"
	}
	var items []string
	used := map[string]bool{}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		name := rapid.SampledFrom(members).Draw(t, "member")
		office := strings.Contains(strings.ToLower(name), "office")
		if used[name] && !office {
			continue // of two equal members the naive reading sees the last only
		}
		used[name] = true
		value := ""
		switch {
		case office:
			value = rapid.SampledFrom([]string{`"SPK"`, `"swt"`, `"\u0053PK"`, "null"}).Draw(t, "office")
		case name == "name":
			b, err := json.Marshal(aName.Draw(t, "series"))
			if err != nil {
				t.Fatal(err)
			}
			value = string(b)
		default:
			value = drawJSON(t, depth+1)
		}
		spelled, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		if rapid.IntRange(0, 5).Draw(t, "escape") == 0 {
			spelled = []byte(strings.Replace(string(spelled), "e", `\u0065`, 1))
		}
		items = append(items, string(spelled)+rapid.SampledFrom([]string{":", " :\n\t"}).Draw(t, "colon")+value)
	}
	return "{" + strings.Join(items, ",") + "}"
}

func drawXML(t *rapid.T, depth int) string {
	name := rapid.SampledFrom([]string{"timeseries", "ratings", "rating-spec", "p:x"}).Draw(t, "element")
	attr := ""
	if rapid.Bool().Draw(t, "attribute") {
		attr = fmt.Sprintf(" %s='%s'", rapid.SampledFrom([]string{"office-id", "Office-ID", "office"}).Draw(t, "attr"), anOffice.Draw(t, "office"))
	}
	inner := ""
	for range rapid.IntRange(0, 3-depth).Draw(t, "children") {
		switch rapid.IntRange(0, 3).Draw(t, "child") {
		case 0:
			text := anOffice.Draw(t, "office")
			switch rapid.IntRange(0, 3).Draw(t, "spelling") {
			case 0:
				text = "<![CDATA[" + text[:1] + "]]>" + text[1:]
			case 1:
				text = fmt.Sprintf("&#%d;&#x%x;%s", text[0], text[1], text[2:])
			}
			tags := rapid.SampledFrom([][2]string{{"<office-id>", "</office-id>"}, {"<q:Office-Id\t>", "</q:Office-Id\n>"}, {"<office-id a = '&gt;' >", "</office-id >"}}).Draw(t, "tags")
			inner += tags[0] + text + tags[1]
		case 1:
			inner += "<name>" + strings.ReplaceAll(aName.Draw(t, "series"), "%", "&#37;") + "</name>"
		case 2:
			inner += "<!-- <office-id>LRL</office-id> -->text "
		default:
			inner += drawXML(t, depth+1)
		}
	}
	return "<" + name + attr + ">" + inner + "</" + name + ">"
}

func TestOfficesAreThoseOfAStraightforwardReading(t *testing.T) {
	lines := naiveTable(t)
	if len(lines) != len(table.routes) {
		t.Fatalf("the YAML library reads %d routes, the package %d", len(lines), len(table.routes))
	}
	judged, asked := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s, target := rapid.SampledFrom(lines).Draw(t, "route").draw(t)
		contentType := "application/json"
		if s.xml != "" {
			contentType = "application/xml"
		}
		asked++
		var m Match
		if table.ask(&m, request{s.method, target, contentType, s.body()}) != nil {
			return
		}
		judged++
		if m.Context.Route != s.template {
			t.Fatalf("%s %s: route %s, want %s", s.method, target, m.Context.Route, s.template)
		}
		offices, scope, mask, parameter := s.expect(t)
		want := fmt.Sprintf("%v %s mask=%q parameter=%q", offices, scope, mask, parameter)
		found := ""
		for _, a := range m.Context.Attributes {
			found += a.Value
		}
		if got := fmt.Sprintf("%v %s mask=%q parameter=%q", m.Context.Offices, m.Context.Scope, m.Context.Mask, found); got != want {
			t.Fatalf("%s %s %s\n got %s\nwant %s", s.method, target, s.body(), got, want)
		}
	})
	if judged*2 < asked {
		t.Errorf("of %d random requests only %d were not refused", asked, judged)
	}
}
