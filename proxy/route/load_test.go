package route

import (
	"slices"
	"strings"
	"testing"
)

// A table for another API: a repository host, with params for its policy.
const repositories = `
routes:
  /repos/{owner}/{repo}:
    GET:
    DELETE: {action: destroy}
  /repos/{owner}/{repo}/issues:
    GET: {params: {state: query state}}
    POST: &issue
      params: {priority: json /priority, confidential: json /flags/confidential}
      attributes: {label: [json /labels/*/name, query label]}
  /repos/{owner}/{repo}/issues/{number}:
    resource: issues
    PATCH: *issue
  /{tenant}/status:
    resource: status
    GET: {office: path tenant}
`

func TestTableOfAnotherAPI(t *testing.T) {
	table, err := Load([]byte(repositories), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, target, body, want string }{
		{"GET", "/repos/ann/dam%20model", "", "repos read /repos/{owner}/{repo} [] none params.owner=ann params.repo=dam model"},
		{"DELETE", "/repos/ann/x", "", "repos destroy /repos/{owner}/{repo} [] none params.owner=ann params.repo=x"},
		{"GET", "/repos/ann/x/issues?state=open&state=open", "", "repos read /repos/{owner}/{repo}/issues [] none params.owner=ann params.repo=x params.state=open"},
		// The API would take one of the two, and which is not known.
		{"GET", "/repos/ann/x/issues?state=open&state=closed", "", "malformed request"},
		{"POST", "/repos/ann/x/issues", `{"priority":2.0,"flags":{"confidential":true},"labels":[{"name":"a\"b"}]}`, `repos create /repos/{owner}/{repo}/issues [] none params.confidential=true params.owner=ann params.priority=2.0 params.repo=x label=a"b`},
		{"POST", "/repos/ann/x/issues?label=a", `{"labels":[{"name":"a"},{"name":"b"}]}`, "malformed request"},
		{"POST", "/repos/ann/x/issues", `{"priority":[1]}`, "malformed request"},
		{"PATCH", "/repos/ann/x/issues/7", `{}`, "issues update /repos/{owner}/{repo}/issues/{number} [] none params.number=7 params.owner=ann params.repo=x"},
		{"GET", "/spk/status", "", "status read /{tenant}/status [SPK] one"},
		{"GET", "/repos/ann/" + strings.Repeat("x", maxValue+1), "", "malformed request"},
	} {
		if got := table.meaning(request{c.method, c.target, "application/json", c.body}); got != c.want {
			t.Errorf("%s %s\n got %s\nwant %s", c.method, c.target, got, c.want)
		}
	}
}

// Every fault is told at once, with its line and field.
func TestLoadTellsEveryFault(t *testing.T) {
	for _, c := range []struct {
		yaml string
		want []string
	}{
		{"", []string{"cannot read route table: it must be one YAML document"}},
		{"routes: {}", []string{"line 1: routes: the table has no routes"}},
		{"- a", []string{"line 1: file: must be a mapping"}},
		{`
rules: 1
anywhere: {office: path x}
routes:
  timeseries: {GET: }
  /a//b: {GET: }
  /a;b: {GET: }
  /{a}/{a}: {GET: }
  /{a}/x: {GET: }
  /b: {}
  /c:
    get:
    GET: {ofice: query office}
    POST: {office: query}
    PUT: {office: header office, mask: [json office, "json /a/**/b", xml a, xml /a/@b/c, xml /**/a/b], cursor: query page}
    PATCH: {office: path name, scope: none, action: "a b"}
    DELETE: *nowhere
  /d/{x}: {GET: {office: [[a]], attributes: {offices: query a, "b c": query b}}}
  /d/{y}: {GET: {cursor: query page as book}}
  /e: {POST: {office: [json /a/b, json /a]}, PUT: {office: [json /a, json /A/*/b]}}
`, []string{
			"line 2: rules: unknown key; known are params, anywhere, routes",
			"line 3: anywhere.office: must be a query locator",
			"line 5: timeseries: a path must begin with a slash",
			`line 6: /a//b: "" is not a segment; only letters, digits and -._~ stand in a fixed one`,
			`line 7: /a;b: "a;b" is not a segment; only letters, digits and -._~ stand in a fixed one`,
			"line 8: /{a}/{a}: names {a} twice",
			"line 9: /{a}/x: begins with a named segment: it needs a resource",
			"line 10: /b: has no methods",
			"line 12: /c.get: unknown key; known are resource, subresource and the methods GET, POST, PUT, PATCH, DELETE, OPTIONS",
			"line 13: /c.GET.ofice: unknown key; known are action, scope, office, other-office, mask, other-mask, cursor, parameter, unclear, params, attributes",
			`line 14: /c.POST.office: "query" is not a locator: write query NAME, path NAME, json POINTER or xml PATH`,
			`line 15: /c.PUT.office: "header office" is not a locator: write query NAME, path NAME, json POINTER or xml PATH`,
			`line 15: /c.PUT.mask: "json office" is not a pointer: it must begin with a slash`,
			`line 15: /c.PUT.mask: "json /a/**/b" may have ** only as /**/name`,
			`line 15: /c.PUT.mask: "xml a" is not an XML path: it must begin with a slash`,
			`line 15: /c.PUT.mask: "xml /a/@b/c" is not an XML path: a step is not a name`,
			`line 15: /c.PUT.mask: "xml /**/a/b" may have ** only as /**/name`,
			`line 15: /c.PUT.cursor: "query page" is not a cursor: write query NAME as catalog or as users`,
			"line 16: /c.PATCH.action: is not a name",
			"line 16: /c.PATCH.office: the path has no segment {name}",
			"line 16: /c.PATCH.scope: must be unknown; every other scope follows from the offices",
			"line 17: *nowhere: no such anchor before this line",
			"line 18: /d/{x}.GET.office: must be text",
			"line 18: /d/{x}.GET.attributes.b c: is not a name that can be set",
			"line 18: /d/{x}.GET.attributes.offices: is not a name that can be set",
			`line 19: /d/{y}.GET.cursor: "query page as book" is not a cursor: write query NAME as catalog or as users`,
			"line 20: /e.POST.office: is a value and holds another: a value is text",
			"line 20: /e.PUT.office: is a value and holds another: a value is text",
			"line 19: /d/{y}.GET: line 18 has this route already, as /d/{x}",
		}},
	} {
		_, err := Load([]byte(c.yaml), "")
		if err == nil {
			t.Errorf("%q is accepted", c.yaml)
			continue
		}
		got := strings.Split(err.Error(), "\n")
		slices.Sort(got)
		want := slices.Sorted(slices.Values(c.want))
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for _, broken := range []string{"routes: [", "routes:\n  /a: {GET: }\n  /a: {GET: }\n", "a: 1\n---\nb: 2\n", "\tx", "a: &a *a\n", "routes: &a *a\n"} {
		if _, err := Load([]byte(broken), ""); err == nil {
			t.Errorf("%q is accepted", broken)
		}
	}
}

// A table comes from a file of the operator: whatever is in it, loading ends in a
// table or in an error.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(repositories))
	f.Add([]byte("routes:\n  /a: &a {GET: *a}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, yaml []byte) {
		table, err := Load(yaml, "/x")
		if err == nil && table.meaning(request{"GET", "/x/a", "", ""}) == "" {
			t.Fatal("no meaning")
		}
	})
}
