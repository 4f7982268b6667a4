package route

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"

	"headgate/proxy/authz"
)

func jsonValid(b []byte) bool { return json.Valid(b) }

// nested is a JSON array in an array, n deep.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestBody(t *testing.T) {
	const ok = "timeseries create /timeseries [SPK] one"
	for _, c := range []struct{ name, contentType, body, want string }{
		// The type decides.
		{"version", "application/json;version=2", `{"office-id":"SPK"}`, ok},
		{"charset", `Application/JSON; charset="UTF-8"`, `{"office-id":"SPK"}`, ok},
		{"structured syntax", "application/vnd.x+json", `{"office-id":"SPK"}`, ok},
		{"text/xml", "text/xml", `<t><office-id>SPK</office-id></t>`, ok},
		{"no type, JSON", "", ` {"office-id":"SPK"}`, ok},
		{"no type, XML", "", `<t><office-id>SPK</office-id></t>`, ok},
		{"no type, neither", "", `office-id=SPK`, "unsupported body"},
		{"form", "application/x-www-form-urlencoded", `{"office-id":"SPK"}`, "unsupported body"},
		{"text", "text/plain", `{"office-id":"SPK"}`, "unsupported body"},
		{"two types", "application/json, application/xml", `{"office-id":"SPK"}`, "unsupported body"},
		{"another charset", "application/json; charset=utf-16", `{"office-id":"SPK"}`, "unsupported body"},
		{"another charset later", "application/json; charset=utf-8; charset=utf-7", `{"office-id":"SPK"}`, "unsupported body"},
		{"JSON said to be XML", "application/xml", `{"office-id":"SPK"}`, "malformed request"},
		{"empty", "application/json", " \n", "malformed request"},

		// JSON names are unescaped and compared without case; two are one too many.
		{"case", "application/json", `{"OFFICE-Id":"SPK"}`, ok},
		{"escaped name", "application/json", `{"\u006fffice\u002did":"SPK"}`, ok},
		{"escaped value", "application/json", `{"office-id":"\u0053PK"}`, ok},
		{"every escape", "application/json", `{"office-id":"SPK","name":"A.\"\\\/\b\f\n\r\t\u00e9\ud83c\udf0a.x"}`, ok + " parameter=\"\\/\b\f\n\r\té🌊"},
		{"null is absent", "application/json", `{"office-id":null}`, "timeseries create /timeseries [] none"},
		{"another depth", "application/json", `{"a":{"office-id":"SPK"},"b":[{"office-id":"SPK"}]}`, "timeseries create /timeseries [] none"},
		{"not an object", "application/json", `[{"office-id":"SPK"}]`, "timeseries create /timeseries [] none"},
		{"scalar", "application/json", `"office-id"`, "timeseries create /timeseries [] none"},
		{"twice", "application/json", `{"office-id":"SPK","office-id":"SPK"}`, "malformed request"},
		{"twice by case", "application/json", `{"office-id":"SPK","Office-Id":"SWT"}`, "malformed request"},
		{"twice by escape", "application/json", `{"office-id":"SPK","office\u002Did":"SWT"}`, "malformed request"},
		{"twice by null", "application/json", `{"office-id":null,"office-id":"SWT"}`, "malformed request"},
		{"an office that is a number", "application/json", `{"office-id":1}`, "malformed request"},
		{"an office that is a list", "application/json", `{"office-id":["SPK"]}`, "malformed request"},
		{"an office that is an object", "application/json", `{"office-id":{}}`, "malformed request"},
		{"an empty office", "application/json", `{"office-id":""}`, "malformed request"},
		{"an office with a space", "application/json", `{"office-id":"SPK "}`, "malformed request"},
		{"half a surrogate pair", "application/json", `{"name":"A.\ud800.x","office-id":"SPK"}`, "malformed request"},

		// JSON that is none.
		{"trailing data", "application/json", `{"office-id":"SPK"}{"office-id":"SWT"}`, "malformed request"},
		{"trailing comma", "application/json", `{"office-id":"SPK",}`, "malformed request"},
		{"comment", "application/json", `{"office-id":"SPK"/**/}`, "malformed request"},
		{"single quotes", "application/json", `{'office-id':'SPK'}`, "malformed request"},
		{"bare name", "application/json", `{office-id:"SPK"}`, "malformed request"},
		{"cut", "application/json", `{"office-id":"SPK"`, "malformed request"},
		{"byte order mark", "application/json", "\ufeff" + `{"office-id":"SPK"}`, "malformed request"},
		{"UTF-16", "application/json", "{\x00\"\x00a\x00\"\x00:\x001\x00}\x00", "malformed request"},
		{"not UTF-8", "application/json", "{\"x\":\"\xff\",\"office-id\":\"SPK\"}", "malformed request"},
		{"a name that is not UTF-8", "application/json", "{\"\xff\":1,\"office-id\":\"SPK\"}", "malformed request"},
		{"as deep as allowed", "application/json", `{"x":` + nested(maxDepth-1) + `,"office-id":"SPK"}`, ok},
		{"too deep", "application/json", `{"x":` + nested(maxDepth) + `,"office-id":"SPK"}`, "malformed request"},

		// XML.
		{"declaration", "application/xml", `<?xml version="1.0" encoding="utf-8" standalone='yes'?><t><office-id>SPK</office-id></t>`, ok},
		{"prefix", "application/xml", `<c:t xmlns:c="x"><c:office-id>SPK</c:office-id></c:t>`, ok},
		{"case", "application/xml", `<T><Office-ID>SPK</Office-ID></T>`, ok},
		{"character reference", "application/xml", `<t><office-id>&#83;PK</office-id></t>`, ok},
		{"CDATA", "application/xml", `<t><office-id><![CDATA[SPK]]></office-id></t>`, ok},
		{"comment beside", "application/xml", `<!-- a --><t><office-id>SPK</office-id><!-- b --></t>`, ok},
		{"two elements both count", "application/xml", `<t><office-id>SPK</office-id><office-id>SWT</office-id></t>`, "timeseries create /timeseries [SPK SWT] many"},
		{"another depth", "application/xml", `<t><x><office-id>SPK</office-id></x></t>`, "timeseries create /timeseries [] none"},
		{"comment within", "application/xml", `<t><office-id>NWD<!-- -->M</office-id></t>`, "malformed request"},
		{"element within", "application/xml", `<t><office-id>NWD<b>M</b></office-id></t>`, "malformed request"},
		{"instruction within", "application/xml", `<t><office-id>NWD<?a?>M</office-id></t>`, "malformed request"},
		{"empty element", "application/xml", `<t><office-id/></t>`, "malformed request"},
		{"document type", "application/xml", `<!DOCTYPE t [<!ENTITY o "SPK">]><t><office-id>&o;</office-id></t>`, "malformed request"},
		{"unknown entity", "application/xml", `<t><office-id>&o;</office-id></t>`, "malformed request"},
		{"encoding", "application/xml", `<?xml version="1.0" encoding="ISO-8859-1"?><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"encoding, oddly spaced", "application/xml", `<?xml version="1.0" encoding = "UTF-7"?><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"XML 1.1", "application/xml", `<?xml version="1.1"?><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"late declaration", "application/xml", ` <?xml version="1.0"?><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"two roots", "application/xml", `<t><office-id>SPK</office-id></t><t><office-id>SWT</office-id></t>`, "malformed request"},
		{"trailing text", "application/xml", `<t><office-id>SPK</office-id></t>x`, "malformed request"},
		{"no root", "application/xml", `<!-- -->`, "malformed request"},
		{"cut", "application/xml", `<t><office-id>SPK</office-id>`, "malformed request"},
		{"wrong end", "application/xml", `<t><office-id>SPK</t></office-id>`, "malformed request"},
		{"not UTF-8", "application/xml", "<t><x>\xff</x><office-id>SPK</office-id></t>", "malformed request"},
		{"too deep", "application/xml", strings.Repeat("<a>", maxDepth+1) + strings.Repeat("</a>", maxDepth+1), "malformed request"},
		{"as deep as allowed, XML", "application/xml", "<t>" + strings.Repeat("<a>", maxDepth-1) + strings.Repeat("</a>", maxDepth-1) + "<office-id>SPK</office-id></t>", ok},
		{"white space in tags", "application/xml", "<t \n><office-id\t>SPK</office-id\r\n></t >\n", ok},
		{"the five entities", "application/xml", `<t a="&lt;&quot;"><x>]]&gt;&amp;&apos;</x><office-id>SPK</office-id></t>`, ok},
		{"text of several lines", "application/xml", "<t><name>A.a\rb\r\nc<![CDATA[&d;\r]]>&#13;.x</name><office-id>SPK</office-id></t>", ok + " parameter=a\nb\nc&d;\n\r"},
		{"text beyond ASCII", "application/xml", `<t a="é"><name>A.&#xe9;ü&#127754;.x</name><office-id>SPK</office-id></t>`, ok + " parameter=éü🌊"},
		{"a prefix of a prefix", "application/xml", `<a:b:t/>`, "malformed request"},
		{"no prefix before the colon", "application/xml", `<:t/>`, "malformed request"},
		{"no name behind the colon", "application/xml", `<t:/>`, "malformed request"},
		{"a name beyond ASCII", "application/xml", `<tä/>`, "malformed request"},
		{"a name that begins with a digit", "application/xml", `<1t/>`, "malformed request"},
		{"instruction", "application/xml", `<?xml-stylesheet href="x"?><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"instruction behind", "application/xml", `<t><office-id>SPK</office-id></t><?a?>`, "malformed request"},
		{"byte order mark, XML", "application/xml", "\ufeff<t><office-id>SPK</office-id></t>", "malformed request"},
		{"CDATA outside", "application/xml", `<![CDATA[ ]]><t><office-id>SPK</office-id></t>`, "malformed request"},
		{"reference outside", "application/xml", `&#32;<t><office-id>SPK</office-id></t>`, "malformed request"},
		{"a NUL in a text", "application/xml", "<t><x>\x00</x><office-id>SPK</office-id></t>", "malformed request"},
		{"a control in a comment", "application/xml", "<t><!--\x01--><office-id>SPK</office-id></t>", "malformed request"},
		{"a control in CDATA", "application/xml", "<t><![CDATA[\x1f]]><office-id>SPK</office-id></t>", "malformed request"},
		{"no character", "application/xml", "<t><x>\ufffe</x><office-id>SPK</office-id></t>", "malformed request"},
		{"reference to NUL", "application/xml", `<t><x>&#0;</x><office-id>SPK</office-id></t>`, "malformed request"},
		{"reference to half a pair", "application/xml", `<t><x>&#xd800;</x><office-id>SPK</office-id></t>`, "malformed request"},
		{"reference beyond Unicode", "application/xml", `<t><x>&#x110000;</x><office-id>SPK</office-id></t>`, "malformed request"},
		{"reference without end", "application/xml", `<t><x>&amp</x><office-id>SPK</office-id></t>`, "malformed request"},
		{"end of CDATA in a text", "application/xml", `<t><x>]]></x><office-id>SPK</office-id></t>`, "malformed request"},
		{"comment with two dashes", "application/xml", `<t><!-- -- --><office-id>SPK</office-id></t>`, "malformed request"},
		{"comment without end", "application/xml", `<t><office-id>SPK</office-id></t><!-- `, "malformed request"},
		{"attribute without quotes", "application/xml", `<t a=1><office-id>SPK</office-id></t>`, "malformed request"},
		{"attribute without value", "application/xml", `<t a><office-id>SPK</office-id></t>`, "malformed request"},
		{"attributes that touch", "application/xml", `<t a="1"b="2"><office-id>SPK</office-id></t>`, "malformed request"},
		{"tag in an attribute", "application/xml", `<t a="<"><office-id>SPK</office-id></t>`, "malformed request"},
		{"any attribute twice", "application/xml", `<t a="1" a="2"><office-id>SPK</office-id></t>`, "malformed request"},
		{"tag without end", "application/xml", `<t><office-id>SPK</office-id></t`, "malformed request"},
		{"a text without end", "application/xml", `<t><office-id>SPK`, "malformed request"},
		{"a name that is a book", "application/xml", `<t><office-id>SPK</office-id><name>A.` + strings.Repeat("x", maxKept) + `</name></t>`, "malformed request"},
	} {
		if got := table.meaning(request{"POST", "/cwms-data/timeseries", c.contentType, c.body}); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	if got := table.meaning(request{"POST", "/cwms-data/measurements", "application/json", `[{"id":{"office-id":"SWT"},"ID":{"office-id":"SPK"}}]`}); got != "malformed request" {
		t.Errorf("the object that holds the office twice: %s", got)
	}
	// A route reads the forms it has locators for.
	if got := table.meaning(request{"POST", "/cwms-data/measurements", "application/xml", `<a/>`}); got != "unsupported body" {
		t.Errorf("XML where JSON is read: %s", got)
	}
	if got := table.meaning(request{"POST", "/cwms-data/ratings", "application/xml", `<r><a office-id="SPK" Office-ID="SWT"/></r>`}); got != "malformed request" {
		t.Errorf("an attribute twice: %s", got)
	}
	const attributes = "ratings create /ratings "
	for _, c := range []struct{ name, body, want string }{
		{"attributes at any depth", `<r><a office-id='SPK'/><b><c x:Office-Id="&#83;WT"></c></b></r>`, attributes + "[SPK SWT] many"},
		{"with two prefixes", `<r><a x:office-id="SPK" y:office-id="SWT"/></r>`, "malformed request"},
		{"on two lines", "<r><a office-id=\"SPK\n\"/></r>", "malformed request"},
		{"as many as allowed", "<r office-id='SPK'" + manyAttributes(maxAttributes-1) + "/>", attributes + "[SPK] one"},
		{"one more", "<r office-id='SPK'" + manyAttributes(maxAttributes) + "/>", "malformed request"},
	} {
		if got := table.meaning(request{"POST", "/cwms-data/ratings", "application/xml", c.body}); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func manyAttributes(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " a%d=''", i)
	}
	return b.String()
}

func TestBodyWithContentEncoding(t *testing.T) {
	for encoding, want := range map[string]error{"": nil, "identity": nil, "gzip": authz.ErrUnsupportedBody, "Identity, br": authz.ErrUnsupportedBody} {
		var m Match
		target, _ := ParseTarget([]byte("/cwms-data/timeseries"))
		if err := table.Match(&m, []byte("POST"), target); err != nil {
			t.Fatal(err)
		}
		err := table.Body(&m, []byte(asJSON), []byte(encoding), []byte(`{"office-id":"SPK"}`))
		if refusal, ok := err.(*authz.Refusal); (want != nil) != ok || ok && refusal.Kind != want {
			t.Errorf("Content-Encoding %q: %v", encoding, err)
		}
	}
}

// plans are the shapes of pointers that there are.
var plans = []string{"/office-id", "/**/office-id", "/*/id/office-id", "/a/*/office-id"}

func planFor(t testing.TB, pointer string) *jsonPlan {
	at := &locator{kind: office, source: inJSON, name: pointer, bounds: true}
	p := &jsonPlan{}
	if err := p.add(at); err != nil {
		t.Fatal(err)
	}
	return p
}

// The scanner accepts nothing that encoding/json refuses, refuses valid JSON only
// for a reason of its own, and finds every office that is there.
func FuzzJSON(f *testing.F) {
	for i, seed := range []string{
		`{"office-id":"SPK","values":[["2026-01-01",1.5e-3,0],[null,true,-0]]}`, `{"Office\u002dId":"S\u0050K"}`, `[{"id":{"office-id":"SPK"}},{}]`,
		`{"a":[{"office-id":"SPK"},{"office-id":null}]}`, `{"x":"\ud83c\udf0a\ud800","y":"é"}`, `{"office-id":"A","office-id":"B"}`, `01`, `1.`, `-`, `1e`, `"\x"`, "\"\x01\"", `{"a":1,}`, `nul`, `[1 2]`,
	} {
		f.Add([]byte(seed), i)
	}
	f.Fuzz(func(t *testing.T, body []byte, which int) {
		pointer := plans[uint(which)%uint(len(plans))]
		var m Match
		err := m.scanJSON(planFor(t, pointer), body)
		valid := json.Valid(body)
		if err == nil && !valid {
			t.Fatalf("%q is not JSON but accepted", body)
		}
		if err != nil {
			if valid && strings.Contains(err.Error(), "is not valid JSON") {
				t.Fatalf("%q is JSON but refused: %v", body, err)
			}
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var doc any
		if err := dec.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for _, v := range naivePointer(doc, strings.Split(pointer, "/")[1:]) {
			if s, ok := v.(string); ok {
				want[strings.ToUpper(s)] = true
			}
		}
		sameOffices(t, body, m.offices, want)
	})
}

// naivePointer finds the values at a pointer in a document that is in memory.
func naivePointer(doc any, steps []string) (found []any) {
	if len(steps) == 0 {
		if doc == nil {
			return nil
		}
		return []any{doc}
	}
	if steps[0] == "**" {
		found = naivePointer(doc, steps[1:])
		switch doc := doc.(type) {
		case map[string]any:
			for _, v := range doc {
				found = append(found, naivePointer(v, steps)...)
			}
		case []any:
			for _, v := range doc {
				found = append(found, naivePointer(v, steps)...)
			}
		}
		return found
	}
	switch doc := doc.(type) {
	case map[string]any:
		for name, v := range doc {
			if strings.EqualFold(name, steps[0]) {
				found = append(found, naivePointer(v, steps[1:])...)
			}
		}
	case []any:
		if steps[0] == "*" {
			for _, v := range doc {
				found = append(found, naivePointer(v, steps[1:])...)
			}
		}
	}
	return found
}

func sameOffices(t *testing.T, input []byte, got []string, want map[string]bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%q: found %v, want %v", input, got, want)
	}
	for _, office := range got {
		if !want[office] {
			t.Fatalf("%q: found %v, want %v", input, got, want)
		}
	}
}

// xmlNode is an element in memory.
type xmlNode struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []xmlNode  `xml:",any"`
}

// naiveXML finds the values at a path in a document that is in memory.
func naiveXML(n *xmlNode, steps []string) (found []string) {
	if steps[0] == "**" {
		for i := range n.Nodes {
			found = append(found, naiveXML(&n.Nodes[i], steps)...)
		}
		steps = steps[1:]
		if attr, ok := strings.CutPrefix(steps[0], "@"); ok {
			return append(found, naiveAttr(n, attr)...)
		}
	}
	if steps[0] != "*" && !strings.EqualFold(steps[0], n.XMLName.Local) {
		return found
	}
	if len(steps) == 1 {
		return append(found, n.Text)
	}
	if attr, ok := strings.CutPrefix(steps[1], "@"); ok {
		return append(found, naiveAttr(n, attr)...)
	}
	for i := range n.Nodes {
		found = append(found, naiveXML(&n.Nodes[i], steps[1:])...)
	}
	return found
}

func naiveAttr(n *xmlNode, name string) (found []string) {
	for _, a := range n.Attrs {
		if strings.EqualFold(a.Name.Local, name) {
			found = append(found, a.Value)
		}
	}
	return found
}

// The scanner accepts nothing that encoding/xml refuses as a document, and finds
// every office that is there.
func FuzzXML(f *testing.F) {
	for i, seed := range []string{
		`<t><office-id>SPK</office-id></t>`, `<?xml version="1.0"?><r><a office-id="SPK"/><b><c office-id='SWT'/></b></r>`, `<a:t xmlns:a="x"><a:office-id>S&#80;K</a:office-id></a:t>`,
		`<t><office-id>S<!-- -->PK</office-id></t>`, `<!DOCTYPE t><t/>`, `<t><office-id><![CDATA[SPK]]></office-id></t>`, `<t></u>`, `<t/><t/>`,
		`<r a="]]>" b='"'><x c = "&#x9;"/>]] ></r >`, "<t>\r\n<![CDATA[]]]]><![CDATA[>]]></t>", `<t xmlns:office-id="SPK" p:office-id="SWT"/>`, `<t><office-id>&#32;</office-id></t>`,
		"<?xml version = '1.0'\tstandalone=\"no\" ?>\n<!----><t/>", `<T><Office-Id>a</Office-Id></T>`, `<t><!-->--></t>`, `<t:office-id office-id="&quot;"/>`,
	} {
		f.Add([]byte(seed), i)
	}
	paths := []string{"/*/office-id", "/**/@office-id", "/**/office-id", "/*/@office-id"}
	f.Fuzz(func(t *testing.T, body []byte, which int) {
		path := paths[uint(which)%uint(len(paths))]
		at, err := parseLocator("xml "+path, office)
		if err != nil {
			t.Fatal(err)
		}
		var m Match
		if m.scanXML([]*locator{&at}, body) != nil {
			return
		}
		var doc xmlNode
		dec := xml.NewDecoder(bytes.NewReader(body))
		if err := dec.Decode(&doc); err != nil {
			t.Fatalf("%q is accepted, but encoding/xml refuses it: %v", body, err)
		}
		for {
			if tok, err := dec.Token(); err == io.EOF {
				break
			} else if _, element := tok.(xml.StartElement); err != nil || element {
				t.Fatalf("%q is accepted with trailing data", body)
			}
		}
		want := map[string]bool{}
		for _, v := range naiveXML(&doc, strings.Split(path, "/")[1:]) {
			want[strings.ToUpper(v)] = true
		}
		sameOffices(t, body, m.offices, want)
	})
}

// A cursor is read in full or its reach is unknown; it never ends in an office
// that its text does not hold.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg==", "U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg", "AAAA", "", "||", "QXx8MjB8fDEwMHx8U1dUfHwuKg=="} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		for name, l := range layouts {
			m := Match{route: &route{}}
			at := &locator{kind: cursor, layout: l, name: "page", text: "query page as " + name}
			if err := m.add(at, value); err != nil {
				t.Fatalf("%q: %v", value, err)
			}
			m.settle()
			c := m.Context
			bounded := c.Scope == authz.ScopeOne || c.Scope == authz.ScopeMany
			if bounded && len(c.Offices) == 0 || c.Scope == authz.ScopeMask {
				t.Fatalf("%q: offices %v, scope %s", value, c.Offices, c.Scope)
			}
			text := append(m.buf, bytes.ToUpper(m.buf)...)
			for _, office := range c.Offices {
				if !bytes.Contains(text, []byte(office)) {
					t.Fatalf("%q: office %s from nowhere", value, office)
				}
			}
		}
	})
}
