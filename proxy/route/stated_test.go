package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func stated(resource, action, context string) string {
	var members map[string]json.RawMessage
	if context != "" {
		if err := json.Unmarshal([]byte(context), &members); err != nil {
			return err.Error()
		}
	}
	c, err := table.Stated(resource, action, members)
	if err != nil {
		return err.Error()
	}
	return string(c.AppendJSON(nil))
}

func TestStated(t *testing.T) {
	for _, c := range []struct{ context, want string }{
		{``, `{"offices":[],"office_scope":"none","office_mask":null}`},
		{`{}`, `{"offices":[],"office_scope":"none","office_mask":null}`},
		{`{"office_id":"swt"}`, `{"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null}`},
		{`{"office":"SWT","office_id":"SPK"}`, `{"offices":["SPK","SWT"],"office_scope":"many","office_mask":null}`},
		{`{"office_id":"SPK","offices":["spk"]}`, `{"office_id":"SPK","offices":["SPK"],"office_scope":"one","office_mask":null}`},
		{`{"offices":["SWT","SPK","SWT"]}`, `{"offices":["SPK","SWT"],"office_scope":"many","office_mask":null}`},
		{`{"offices":"SWT"}`, `{"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null}`},
		{`{"office_id":["SWT"]}`, `{"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null}`},
		{`{"offices":[],"office_id":null}`, `{"offices":[],"office_scope":"none","office_mask":null}`},
		{`{"office_mask":"S.*"}`, `{"offices":[],"office_scope":"mask","office_mask":"S.*"}`},
		{`{"office_id":"SWT","office_mask":"SP"}`, `{"offices":["SWT"],"office_scope":"mask","office_mask":"SP"}`},
		// The rest is passed on, in a form that is the same for equal values.
		{`{"data_source":"MANUAL","office_id":"SWT"}`, `{"office_id":"SWT","offices":["SWT"],"office_scope":"one","office_mask":null,"data_source":"MANUAL"}`},
		{`{"x": { "b" : [ 1.50, 1e3 , true ] , "a" : "\u00e9\/" } }`, `{"offices":[],"office_scope":"none","office_mask":null,"x":{"a":"\u00e9/","b":[1.50,1e3,true]}}`},
		{`{"created_ns":1796080000000000123}`, `{"offices":[],"office_scope":"none","office_mask":null,"created_ns":1796080000000000123}`},
		{`{"classification":null}`, `{"offices":[],"office_scope":"none","office_mask":null}`},
	} {
		if got := stated("timeseries", "read", c.context); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.context, got, c.want)
		}
	}
	for _, c := range []struct{ resource, action, context, want string }{
		{"", "read", "", "malformed request: resource must be text of 1 to 1024 bytes"},
		{"timeseries", "execute", "", "malformed request: action must be one of create, delete, read, update"},
		{"timeseries", "read", `{"office_id":"S-K"}`, "malformed request: context.office_id must hold office ids: 1 to 16 letters and digits"},
		{"timeseries", "read", `{"offices":["SPK",null]}`, "malformed request: context.offices must be an office id or a list of them"},
		{"timeseries", "read", `{"office":7}`, "malformed request: context.office must be an office id or a list of them"},
		{"timeseries", "read", `{"office_mask":""}`, "malformed request: context.office_mask must be text of 1 to 256 bytes"},
		{"timeseries", "read", `{"office_scope":"one"}`, "malformed request: context.office_scope is not stated: it follows from the offices"},
		// Every bad field is named.
		{"", "x", `{"offices":[""],"office":{}}`, "malformed request: resource must be text of 1 to 1024 bytes; action must be one of create, delete, read, update; context.office must be an office id or a list of them; context.offices must hold office ids: 1 to 16 letters and digits"},
	} {
		if got := stated(c.resource, c.action, c.context); got != c.want {
			t.Errorf("%s %s %s\n got %s\nwant %s", c.resource, c.action, c.context, got, c.want)
		}
	}
}

// Different contexts give different questions, equal ones the same; and every
// question is valid JSON without a member twice.
func FuzzStated(f *testing.F) {
	f.Add(`{"office_id":"SPK","x":1}`, `{"office_id":"spk","x":1.0}`)
	f.Add(`{"x":"\u00e9"}`, `{"x":"é"}`)
	f.Add(`{"office_mask":"a","params":{}}`, `{"method":"GET"}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		left, right := stated("r", "read", a), stated("r", "read", b)
		if !strings.HasPrefix(left, `{"`) || !strings.HasPrefix(right, `{"`) {
			return
		}
		for _, doc := range []string{left, right} {
			if err := uniqueMembers(doc); err != nil {
				t.Fatalf("%q: %v", doc, err)
			}
		}
		if left == right && rest(t, a) != rest(t, b) {
			t.Fatalf("%q and %q give the same question %s", a, b, left)
		}
	})
}

// rest is a context as encoding/json writes it, without what is normalised away.
func rest(t *testing.T, context string) string {
	members := map[string]any{}
	dec := json.NewDecoder(strings.NewReader(context))
	dec.UseNumber()
	if err := dec.Decode(&members); err != nil && context != "" {
		t.Fatal(err)
	}
	if len(members) == 0 {
		return "{}"
	}
	for name, v := range members {
		if v == nil || name == "office" || name == "office_id" || name == "offices" {
			delete(members, name)
		}
	}
	b, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func uniqueMembers(doc string) error {
	dec := json.NewDecoder(strings.NewReader(doc))
	if _, err := dec.Token(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		if seen[name.(string)] {
			return fmt.Errorf("member %s twice", name)
		}
		seen[name.(string)] = true
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return err
		}
	}
	return nil
}

func TestExplain(t *testing.T) {
	var m Match
	if err := table.ask(&m, request{"PATCH", "/cwms-data/location/group/G?office=swt&group-office-id=CWMS", asJSON, `{"office-id":"SWT","assigned-locations":[{"office-id":"SPK"},{"office-id":"SPK"}]}`}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	e := m.Explain()
	if err := e.Print(&b); err != nil {
		t.Fatal(err)
	}
	const want = `resource      location
action        update
method        PATCH
route         /location/group/{group-id}
subresource   group/{group-id}
offices       CWMS SPK SWT
office_scope  many
office_mask   -

other-office  SWT   query office
other-office  CWMS  query group-office-id
office        SWT   json /office-id
other-office  SPK   json /assigned-locations/*/office-id
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for target, want := range map[string]string{
		"/cwms-data/timeseries/recent?ts-ids=x": "office_scope  unknown (the request does not tell)",
		"/cwms-data/x":                          "office_scope  unknown (no route has this path)",
		"/cwms-data/ratings/rate-ts/SPK/x":      "office_scope  unknown (no route has this path with this method)",
	} {
		b.Reset()
		if err := table.ask(&m, request{"GET", target, "", ""}); err != nil {
			t.Fatal(err)
		}
		e := m.Explain()
		if err := e.Print(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("%s: %q is not in\n%s", target, want, b.String())
		}
	}
}

func TestPrint(t *testing.T) {
	var b bytes.Buffer
	if err := table.Print(&b); err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(b.String()) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{
		"METHOD PATH RESOURCE ACTION READS",
		"POST /cwms-data/timeseries timeseries create other-office=query office office=json /office-id|xml /*/office-id parameter=json /name|xml /*/name",
		"GET /cwms-data/catalog/{dataset} catalog read office=query office other-mask=query bounding-office-like cursor=query page as catalog|query cursor as catalog",
		"POST /cwms-data/project-locks/deny project-locks create scope=unknown other-office=query office",
		"DELETE /cwms-data/projects/{office}/{project-id}/gate-changes gates delete office=path office other-office=query office",
	} {
		if !lines[want] {
			t.Errorf("%q is not in the table", want)
		}
	}
	if len(lines) != len(table.routes)+1 {
		t.Errorf("%d lines for %d routes", len(lines), len(table.routes))
	}
}
