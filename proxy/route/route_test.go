package route

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"headgate/proxy/authz"
)

var table = Default("/cwms-data")

const (
	asJSON = "application/json;version=2"
	asXML  = "application/xml;version=2"
)

// request is one request as this package sees it.
type request struct{ method, target, contentType, body string }

// ask matches a request and reads its body where the table needs it.
func (t *Table) ask(m *Match, q request) error {
	target, err := ParseTarget([]byte(q.target))
	if err != nil {
		return err
	}
	if err := t.Match(m, []byte(q.method), target); err != nil {
		return err
	}
	if !m.NeedsBody {
		return nil
	}
	return t.Body(m, []byte(q.contentType), nil, []byte(q.body))
}

// meaning is what a request means to policy, on one line: resource, action,
// route, offices, scope, and what else is known; or the kind of its refusal.
func (t *Table) meaning(q request) string {
	var m Match
	if err := t.ask(&m, q); err != nil {
		var refusal *authz.Refusal
		if !errors.As(err, &refusal) {
			return "error without a kind: " + err.Error()
		}
		return refusal.Kind.Error()
	}
	return m.summary()
}

func (m *Match) summary() string {
	c := &m.Context
	s := fmt.Sprintf("%s %s %s %v %s", m.Resource, m.Action, c.Route, c.Offices, c.Scope)
	if c.Mask != "" {
		s += " mask=" + c.Mask
	}
	for _, p := range c.Params {
		s += " params." + p.Name + "=" + p.Value
	}
	for _, a := range c.Attributes {
		s += " " + a.Name + "=" + a.Value
	}
	return s
}

func cursorOf(fields ...string) string {
	encoded := base64.StdEncoding.EncodeToString([]byte(strings.Join(fields, "||")))
	return strings.NewReplacer("+", "%2B", "/", "%2F", "=", "%3D").Replace(encoded)
}

// The places where the earlier proxy judged another office than the API acted on.
func TestEveryOfficeNamedIsSeen(t *testing.T) {
	get := func(target string) request { return request{"GET", "/cwms-data" + target, "", ""} }
	send := func(method, target, contentType, body string) request {
		return request{method, "/cwms-data" + target, contentType, body}
	}
	for _, c := range []struct {
		name string
		q    request
		want string
	}{
		// M1: no route of the API reads office_id.
		{"office_id is not read", get("/timeseries?office_id=SPK&office=SWT&name=X"), "timeseries read /timeseries [SWT] one"},
		{"office_id alone names nothing", get("/timeseries?office_id=SPK&name=X"), "timeseries read /timeseries [] none"},
		// M2: the body says where a write goes; what the query says beside it counts too.
		{"body and query", send("POST", "/timeseries?office=SPK", asJSON, `{"office-id":"SWT","name":"A.Flow.Inst"}`), "timeseries create /timeseries [SPK SWT] many parameter=Flow"},
		{"the query does not stand in for the body", send("POST", "/timeseries?office=SPK", asJSON, `{"name":"A.Flow.Inst"}`), "timeseries create /timeseries [SPK] none parameter=Flow"},
		// M3: what clients send.
		{"body alone", send("POST", "/timeseries?store-rule=REPLACE_ALL", asJSON, `{"name":"X","office-id":"SWT","units":"ft","values":[]}`), "timeseries create /timeseries [SWT] one"},
		// M4: items are routes like any other.
		{"item", send("DELETE", "/timeseries/KEYS.Elev.Inst.1Hour.0.x?office=SWT", "", ""), "timeseries delete /timeseries/{timeseries} [SWT] one parameter=Elev"},
		{"item without a handler", get("/timeseries/KEYS.Elev.Inst.1Hour.0.x?office=SWT"), "timeseries read /timeseries/{timeseries} [] unknown"},
		// M5: the cursor of a catalog overrides the office.
		{"cursor of another office", get("/catalog/TIMESERIES?office=SPK&page=" + cursorOf("SWT/KEYS", "SWT", ".*")), "catalog read /catalog/{dataset} [SPK SWT] many"},
		{"cursor of the same office", get("/catalog/TIMESERIES?office=SPK&page=" + cursorOf("SPK/Folsom", "SPK", ".*")), "catalog read /catalog/{dataset} [SPK] one"},
		{"cursor over all offices", get("/catalog/TIMESERIES?office=SPK&page=" + cursorOf("SPK/Folsom", "null", ".*")), "catalog read /catalog/{dataset} [SPK] none"},
		{"cursor in full", get("/catalog/LOCATIONS?page=" + cursorOf("SPK/Folsom", "SPK", ".*", "null", "null", "null", "null", "null", "true", "true", "10", "500")), "catalog read /catalog/{dataset} [SPK] one"},
		{"cursor under its old name", get("/catalog/TIMESERIES?office=SPK&cursor=" + cursorOf("SWT/KEYS", "SWT", ".*")), "catalog read /catalog/{dataset} [SPK SWT] many"},
		{"two cursors", get("/catalog/TIMESERIES?page=" + cursorOf("SPK/A", "SPK", "*") + "&page=" + cursorOf("SWT/A", "SWT", "*")), "catalog read /catalog/{dataset} [SPK SWT] many"},
		{"cursor that says nothing", get("/catalog/TIMESERIES?office=SPK&page=AAAA"), "catalog read /catalog/{dataset} [SPK] unknown"},
		{"cursor with a raw plus, which is a space", get("/catalog/TIMESERIES?office=SPK&page=++++"), "catalog read /catalog/{dataset} [SPK] unknown"},
		{"first page", get("/catalog/TIMESERIES?office=SPK&page="), "catalog read /catalog/{dataset} [SPK] one"},
		// M6: so does the cursor of users.
		{"cursor of users", get("/users?office=SPK&page=" + cursorOf("A", "20", "100", "SWT", ".*")), "users read /users [SPK SWT] many"},
		{"cursor of users everywhere", get("/users?office=SPK&page=" + cursorOf("A", "20", "100", "null", ".*")), "users read /users [SPK] none"},
		{"cursor of users of another form", get("/users?office=SPK&page=" + cursorOf("A", "20", "SPK")), "users read /users [SPK] unknown"},
		// M7: with ts-ids the office is ignored.
		{"ts-ids", get("/timeseries/recent?office=SPK&ts-ids=A.Flow.Inst"), "timeseries read /timeseries/recent [SPK] unknown"},
		{"recent by group", get("/timeseries/recent?office=SWT&category-id=Default&group-id=Elev"), "timeseries read /timeseries/recent [SWT] one"},
		// M8: masks.
		{"mask", get("/measurements?office-mask=SWT"), "measurements read /measurements [] mask mask=SWT"},
		{"mask of all", get("/streams?office-mask=.*"), "streams read /streams [] mask mask=.*"},
		{"no mask", get("/properties"), "properties read /properties [] none"},
		{"an office where only the mask is read", get("/measurements?office=SWT"), "measurements read /measurements [SWT] none"},
		{"two masks", get("/measurements?office-mask=SWT&office-mask=SPK"), "measurements read /measurements [] unknown"},
		// M9: offices and masks beside the office.
		{"offices of a group", get("/timeseries/group?office=SWT&category-office-id=CWMS&group-office-id=SPK"), "timeseries read /timeseries/group [CWMS SPK SWT] many"},
		{"an office beside none", get("/location/group?location-office-id=SPK"), "location read /location/group [SPK] none"},
		{"bounding offices", get("/catalog/LOCATIONS?office=SWT&bounding-office-like=SP."), "catalog read /catalog/{dataset} [SWT] mask mask=SP."},
		{"a mask that the API does not read", get("/standard-text-id?office-id-mask=SWT"), "standard-text-id read /standard-text-id [] none mask=SWT"},
		// M10: offices in the path.
		{"gates", get("/projects/SPK/FOLS/gate-changes?begin=2026-01-01T00%3A00%3A00Z"), "gates read /projects/{office}/{project-id}/gate-changes [SPK] one"},
		{"path and query", get("/rss/SPK/x?office=SWT"), "rss read /rss/{office}/{name} [SPK SWT] many"},
		{"neighbours", get("/stream-locations/spk/A/upstream-locations"), "stream-locations read /stream-locations/{office}/{name}/upstream-locations [SPK] one"},
		{"second version", send("DELETE", "/v2/timeseries/text/SPK/A.Code-X.Inst", "", ""), "timeseries delete /v2/timeseries/text/{office}/{name} [SPK] one parameter=Code-X"},
		{"roles of a user", send("POST", "/user/X/roles/SPK", asJSON, `["CWMS Users"]`), "user create /user/{user-name}/roles/{office-id} [SPK] one"},
		// M11: arrays.
		{"array of offices", send("POST", "/measurements", asJSON, `[{"id":{"office-id":"SWT"}},{"id":{"office-id":"SPK"}}]`), "measurements create /measurements [SPK SWT] many"},
		{"an element without an office", send("POST", "/measurements", asJSON, `[{"id":{"office-id":"SWT"}},{"id":{"name":"X"}}]`), "measurements create /measurements [SWT] unknown"},
		{"gate changes", send("POST", "/projects/gate-changes", asJSON, `[{"project-id":{"office-id":"SPK","name":"F"},"settings":[{"location-id":{"office-id":"SWT"}}]}]`), "gates create /projects/gate-changes [SPK SWT] many"},
		{"turbine changes", send("POST", "/projects/SPK/F/turbine-changes", asJSON, `[{"project-id":{"office-id":"SWT"}}]`), "projects create /projects/{office}/{name}/turbine-changes [SPK SWT] many"},
		// M12: nested offices.
		{"assigned locations", send("PATCH", "/location/group/G?office=SWT", asJSON, `{"office-id":"SWT","location-category":{"office-id":"CWMS"},"assigned-locations":[{"office-id":"SPK"},{"office-id":"SWT"}]}`), "location update /location/group/{group-id} [CWMS SPK SWT] many"},
		// M13: XML.
		{"elements", send("POST", "/timeseries", asXML, `<timeseries><office-id>SPK</office-id><name>A.Elev.Inst</name></timeseries>`), "timeseries create /timeseries [SPK] one parameter=Elev"},
		{"attributes", send("POST", "/ratings", asXML, `<ratings><rating-template office-id="SWT"/><rating-spec office-id="spk"></rating-spec></ratings>`), "ratings create /ratings [SPK SWT] many"},
		// M14: offices are compared without case.
		{"lower case", get("/timeseries?office=spk&name=X"), "timeseries read /timeseries [SPK] one"},
		// M15: the API takes the first of several, here each counts.
		{"twice", get("/timeseries?office=SPK&office=SWT"), "timeseries read /timeseries [SPK SWT] many"},
		{"twice the same", get("/timeseries?office=SPK&office=spk"), "timeseries read /timeseries [SPK] one"},
		// M16: without an office the API acts on all.
		{"no office", get("/timeseries?name=A.Flow.Inst"), "timeseries read /timeseries [] none parameter=Flow"},
		// M17: body over query.
		{"vertical datum", send("POST", "/location/A/vertical-datum?office=SPK", asXML, `<vertical-datum-info office="SWT"/>`), "location create /location/{location-id}/vertical-datum [SPK SWT] many"},
		// M18: body over path.
		{"another series in the body", send("PATCH", "/timeseries/A.Flow.Inst", asJSON, `{"office-id":"SWT","name":"B.Elev.Inst"}`), "timeseries update /timeseries/{timeseries} [SWT] one parameter=Elev"},
		// M19: a lock whose office does not show.
		{"deny a lock", send("POST", "/project-locks/deny?lock-id=1&office=SPK", "", ""), "project-locks create /project-locks/deny [SPK] unknown"},
		// M20: to rate is to read.
		{"rate", send("POST", "/ratings/rate-values/SWT/KEYS.Elev%3BStor.Linear.Production", asJSON, `{}`), "ratings read /ratings/rate-values/{office}/{rating-id} [SWT] one"},
	} {
		if got := table.meaning(c.q); got != c.want {
			t.Errorf("%s: %s %s\n got %s\nwant %s", c.name, c.q.method, c.q.target, got, c.want)
		}
	}
}

// What the usual clients send, byte for byte, with paths under the prefix.
func TestRequestsOfRealClients(t *testing.T) {
	for i, c := range []struct {
		q    request
		want string
	}{
		{request{"GET", commonRead, "", ""}, "timeseries read /timeseries [SPK] one parameter=Elev"},
		{request{"GET", "/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT", "", ""}, "timeseries read /timeseries [SWT] one parameter=Elev"},
		{request{"GET", "/cwms-data/timeseries?office=MVP&name=Baldhill_Dam.Flow-Out.Inst.~15Minutes.0.best&begin=1948-08-29T15%3A06%3A08.543Z&end=2025-08-29T15%3A06%3A08.543Z", "", ""}, "timeseries read /timeseries [MVP] one parameter=Flow-Out"},
		{request{"GET", "/cwms-data/timeseries?office=SPK&name=FOLS-Gate%201.%25-Opening.Inst.1Hour.0.Raw&format=csv", "", ""}, "timeseries read /timeseries [SPK] one parameter=%-Opening"},
		{request{"GET", "/cwms-data/timeseries?office=NWDM&name=OMA.Stage.Inst.6Hours.0.Fcst-MRBWM-GRFT&version-date=2026-04-22T07%3A00%3A00-05%3A00", "", ""}, "timeseries read /timeseries [NWDM] one parameter=Stage"},
		{request{"GET", "/cwms-data/timeseries?office=SPK&name=X&page=MTcwNDA2NzIwMDAwMHx8MTQ0MHx8MzAwMDAw&page-size=300000", "", ""}, "timeseries read /timeseries [SPK] one"},
		{request{"GET", "/cwms-data/timeseries?name=A%26B.Flow.Inst.1Hour.0.Rev&office=SWT", "", ""}, "timeseries read /timeseries [SWT] one parameter=Flow"},
		{request{"POST", "/cwms-data/timeseries?create-as-lrts=False&override-protection=False&store-rule=REPLACE_ALL", asJSON, string(seriesBody(60 << 10))}, "timeseries create /timeseries [SWT] one parameter=Elev"},
		{request{"POST", "/cwms-data/timeseries", asXML, string(seriesXML(60 << 10))}, "timeseries create /timeseries [SWT] one parameter=Elev"},
		{request{"PATCH", "/cwms-data/timeseries/Folsom.Elev.Inst.1Hour.0.Ccp-Rev?store-rule=DELETE_INSERT", asJSON, string(seriesBody(1 << 10))}, "timeseries update /timeseries/{timeseries} [SWT] one parameter=Elev"},
		{request{"DELETE", "/cwms-data/timeseries/KEYS.Elev.Inst.1Hour.0.Ccp-Rev?office=SWT&begin=2026-01-01T00%3A00%3A00&end=2026-01-02T00%3A00%3A00", "", ""}, "timeseries delete /timeseries/{timeseries} [SWT] one parameter=Elev"},
		{request{"GET", "/cwms-data/timeseries/recent?office=SWT&category-id=Default&group-id=Elev", "", ""}, "timeseries read /timeseries/recent [SWT] one"},
		{request{"GET", "/cwms-data/catalog/TIMESERIES?page-size=5000&office=SPK&timeseries-group-like=DMZ+Include+List&include-extents=False", "", ""}, "catalog read /catalog/{dataset} [SPK] one"},
		{request{"GET", "/cwms-data/catalog/TIMESERIES?office=SPK&page=U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg%3D%3D", "", ""}, "catalog read /catalog/{dataset} [SPK] one"},
		{request{"GET", "/cwms-data/catalog/LOCATIONS?office=SWT&like=KEYS.*&location-kind-like=(SITE%7CSTREAM)", "", ""}, "catalog read /catalog/{dataset} [SWT] one"},
		{request{"GET", "/cwms-data/locations?office=SWT&names=KEYS*&unit=EN", "", ""}, "locations read /locations [SWT] one"},
		{request{"POST", "/cwms-data/locations?fail-if-exists=False", asJSON, `{"name":"A","office-id":"SPK","bounding-office-id":"SPK","nation":null}`}, "locations create /locations [SPK] one"},
		{request{"PATCH", "/cwms-data/location/group/Fort%20Peck%20Gages?replace-assigned-locs=False&office=NWDM", "application/json", `{"office-id":"NWDM","id":"A","location-category":{"office-id":"CWMS","id":"Default"},"assigned-locations":[{"office-id":"NWDM","location-id":"A"}]}`}, "location update /location/group/{group-id} [CWMS NWDM] many"},
		{request{"GET", "/cwms-data/levels/Folsom.Elev.Inst.0.Bottom%20of%20Flood%20Control/timeseries?office=SPK&unit=ft&interval=1Hour", "", ""}, "levels read /levels/{level-id}/timeseries [SPK] one"},
		{request{"POST", "/cwms-data/ratings?store-template=True", asXML, `<ratings><rating-template office-id="SWT"><parameters-id>Elev;Stor</parameters-id></rating-template></ratings>`}, "ratings create /ratings [SWT] one"},
		{request{"GET", "/cwms-data/ratings/KEYS.Elev%3BStor.Linear.Production?office=SWT&method=EAGER", "", ""}, "ratings read /ratings/{rating-id} [SWT] one"},
		{request{"POST", "/cwms-data/ratings/rate-values/SWT/KEYS.Elev%3BStor.Linear.Production", "application/json", `{"input-units":["ft"],"values":[[723.1]]}`}, "ratings read /ratings/rate-values/{office}/{rating-id} [SWT] one"},
		{request{"GET", "/cwms-data/measurements?office-mask=SWT&id-mask=KEYS*&unit-system=EN", "", ""}, "measurements read /measurements [] mask mask=SWT"},
		{request{"POST", "/cwms-data/measurements?fail-if-exists=False", "application/json", `[{"id":{"office-id":"SWT","name":"KEYS"},"number":"1"}]`}, "measurements create /measurements [SWT] one"},
		{request{"POST", "/cwms-data/blobs?fail-if-exists=True", "application/json", `{"office-id":"SWT","id":"DIR/REPORT.PDF","media-type-id":"application/pdf","value":"QUJD"}`}, "blobs create /blobs [SWT] one"},
		{request{"GET", "/cwms-data/blobs/ignored?blob-id=DIR%2FREPORT.PDF&office=SWT", "", ""}, "blobs read /blobs/{blob-id} [SWT] one"},
		{request{"DELETE", "/cwms-data/user/L2HECTEST/roles/SPK", asJSON, `["TS ID Creator"]`}, "user delete /user/{user-name}/roles/{office-id} [SPK] one"},
		{request{"GET", "/cwms-data/swagger-docs", "", ""}, "swagger-docs read /swagger-docs [] none"},
		{request{"GET", "/cwms-data/offices?has-data=true", "", ""}, "offices read /offices [] none"},
		{request{"GET", "/cwms-data/auth/keys", "", ""}, "auth/keys read /auth/keys [] none"},
		{request{"GET", "/cwms-data/user/profile", "", ""}, "user/profile read /user/profile [] none"},
		{request{"GET", "/cwms-data", "", ""}, " read / [] none"},
		{request{"GET", "/cwms-data/", "", ""}, " read / [] none"},
		// Some clients post with a trailing slash.
		{request{"POST", "/cwms-data/ratings/spec/", asXML, `<rating-spec office-id="SWT"/>`}, "ratings create /ratings/spec [SWT] one"},
		{request{"POST", "/cwms-data/ratings/template/", asXML, `<rating-template office-id="SWT"/>`}, "ratings create /ratings/template [SWT] one"},
		// Without a credential the browser asks first; this is a plain OPTIONS.
		{request{"OPTIONS", "/cwms-data/timeseries?office=SWT", "", ""}, "timeseries options /timeseries [] unknown"},
	} {
		if got := table.meaning(c.q); got != c.want {
			t.Errorf("%d: %s %s\n got %s\nwant %s", i, c.q.method, c.q.target, got, c.want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct{ method, target, want string }{
		// HEAD tells what GET tells.
		{"HEAD", "/cwms-data/timeseries?office=SWT", "timeseries read /timeseries [SWT] one"},
		{"GET", "/cwms-data/timeseries/?office=SWT", "timeseries read /timeseries [SWT] one"},
		{"CONNECT", "/cwms-data/timeseries", "method not allowed"},
		{"TRACE", "/cwms-data/timeseries", "method not allowed"},
		{"get", "/cwms-data/timeseries", "method not allowed"},
		{"PROPFIND", "/cwms-data/timeseries", "method not allowed"},

		// A path that no template has.
		{"GET", "/cwms-data/nothing/of/the/kind?office=SPK", "nothing read unknown [] unknown"},
		{"POST", "/cwms-data/TimeSeries", "TimeSeries create unknown [] unknown"},
		{"GET", "/cwms-data/n%C3%A9ant", "néant read unknown [] unknown"},
		{"GET", "/cwms-data" + strings.Repeat("/a", 40), "a read unknown [] unknown"},
		{"GET", "/other/timeseries", "malformed request"},
		{"GET", "/cwms-data2/timeseries", "malformed request"},

		// A method that the template does not have keeps the resource.
		{"PUT", "/cwms-data/projects/SPK/F/gate-changes", "gates update /projects/{office}/{project-id}/gate-changes [] unknown"},
		// A fixed segment hides an id only where it has the method.
		{"DELETE", "/cwms-data/timeseries/recent?office=SPK", "timeseries delete /timeseries/{timeseries} [SPK] one"},
		{"GET", "/cwms-data/projects/locks/F/gate-changes", "gates read /projects/{office}/{project-id}/gate-changes [LOCKS] one"},

		// Query names are compared with case, after decoding once.
		{"GET", "/cwms-data/timeseries?o%66fice=SPK", "timeseries read /timeseries [SPK] one"},
		{"GET", "/cwms-data/timeseries?o%2566fice=SPK", "timeseries read /timeseries [] none"},
		{"GET", "/cwms-data/timeseries?OFFICE=SPK&office=SWT", "timeseries read /timeseries [SWT] one"},
		{"GET", "/cwms-data/timeseries?office%00=SPK", "timeseries read /timeseries [] none"},
		{"GET", "/cwms-data/timeseries?a=1;office=SPK", "timeseries read /timeseries [] none"},
		{"GET", "/cwms-data/timeseries?&&a&office=S%50K&", "timeseries read /timeseries [SPK] one"},
		{"GET", "/cwms-data/timeseries?x=\xc3\xa9&office=SPK", "timeseries read /timeseries [SPK] one"},

		// What is not an office id.
		{"GET", "/cwms-data/timeseries?office", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=SPK&office=", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=SPK,SWT", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=SPK%20", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=SPK+", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=*", "malformed request"},
		{"GET", "/cwms-data/timeseries?office=S%C5%BFK", "malformed request"}, // long s, which upper-cases to S
		{"GET", "/cwms-data/timeseries?office=ABCDEFGHIJKLMNOPQ", "malformed request"},
		{"GET", "/cwms-data/rss/S%2FK/x", "malformed request"},
		{"GET", "/cwms-data/measurements?office-mask=", "malformed request"},
		{"GET", "/cwms-data/measurements?office-mask=%ff", "malformed request"},
		{"GET", "/cwms-data/timeseries?name=A.%ff.Inst", "malformed request"},

		// Several parameters are none.
		{"GET", "/cwms-data/timeseries?name=A.Flow.x&name=B.Flow.x", "timeseries read /timeseries [] none parameter=Flow"},
		{"GET", "/cwms-data/timeseries?name=A.Flow.x&name=B.Elev.x", "timeseries read /timeseries [] none"},

		// An encoded separator stands only in an id, and never around a dot segment.
		{"GET", "/cwms-data/clobs/%2FTIME%20SERIES%20TEXT%2F6261044?office=SPK", "clobs read /clobs/{clob-id} [SPK] one"},
		{"GET", "/cwms-data/clobs/a%5Cb?office=SPK", "clobs read /clobs/{clob-id} [SPK] one"},
		{"GET", "/cwms-data/clobs/a%2f..%2fb?office=SPK", "malformed request"},
		{"GET", "/cwms-data/clobs/%2e%2e%2Fb?office=SPK", "malformed request"},
		{"GET", "/cwms-data/clobs/b%5c.?office=SPK", "malformed request"},
		{"GET", "/cwms-data/clobs/..%3Bx?office=SPK", "malformed request"},
		{"GET", "/cwms-data/clobs%2Fx?office=SPK", "malformed request"},
		{"GET", "/cwms-data/timeseries%3Ba=b", "malformed request"},
		{"GET", "/cwms-data%2Ftimeseries", "malformed request"},

		// A fixed segment is spelled as it is.
		{"GET", "/cwms-data/timeserie%73?office=SPK", "malformed request"},
		{"GET", "/cwms-data/timeseries/grou%70?office=SPK", "malformed request"},
		{"GET", "/cwms%2Ddata/timeseries", "malformed request"},
	} {
		if got := table.meaning(request{c.method, c.target, "", ""}); got != c.want {
			t.Errorf("%s %s\n got %s\nwant %s", c.method, c.target, got, c.want)
		}
	}
}

func TestPrefix(t *testing.T) {
	for _, c := range []struct {
		prefix, path string
		want         bool
	}{
		{"/cwms-data", "/cwms-data", true},
		{"/cwms-data", "/cwms-data/", true},
		{"/cwms-data", "/cwms-data/timeseries", true},
		{"/cwms-data", "/cwms-data2", false},
		{"/cwms-data", "/CWMS-DATA/timeseries", false},
		{"/cwms-data", "/health", false},
		{"", "/", true},
		{"", "/timeseries", true},
	} {
		if got := Default(c.prefix).InPrefix([]byte(c.path)); got != c.want {
			t.Errorf("prefix %q, path %q: got %v", c.prefix, c.path, got)
		}
	}
	if got, want := Default("").meaning(request{"GET", "/timeseries?office=SPK", "", ""}), "timeseries read /timeseries [SPK] one"; got != want {
		t.Errorf("at the root: got %s, want %s", got, want)
	}
}

// A match is reused: nothing of one request shows in the next.
func TestMatchIsReused(t *testing.T) {
	var m Match
	for range 2 {
		for _, c := range []struct {
			q    request
			want string
		}{
			{request{"POST", "/cwms-data/measurements?office=NWD", asJSON, `[{"id":{"office-id":"SWT"}},{}]`}, "measurements create /measurements [NWD SWT] unknown"},
			{request{"GET", "/cwms-data/catalog/X?office=SPK&page=AAAA&bounding-office-like=x", "", ""}, "catalog read /catalog/{dataset} [SPK] unknown mask=x"},
			{request{"GET", "/cwms-data/unheard", "", ""}, "unheard read unknown [] unknown"},
			{request{"GET", commonRead, "", ""}, "timeseries read /timeseries [SPK] one parameter=Elev"},
			{request{"GET", "/cwms-data/offices", "", ""}, "offices read /offices [] none"},
		} {
			if err := table.ask(&m, c.q); err != nil {
				t.Fatal(err)
			}
			if got := m.summary(); got != c.want {
				t.Errorf("%s: got %s, want %s", c.q.target, got, c.want)
			}
		}
	}
}

// Until its body was read a request is judged by the widest scope.
func TestScopeIsUnknownBeforeTheBody(t *testing.T) {
	var m Match
	target, _ := ParseTarget([]byte("/cwms-data/projects/SPK/F/turbine-changes"))
	if err := table.Match(&m, []byte("POST"), target); err != nil {
		t.Fatal(err)
	}
	if got, want := m.summary(), "projects create /projects/{office}/{name}/turbine-changes [SPK] unknown"; got != want || !m.NeedsBody {
		t.Errorf("got %s, needs body %v", got, m.NeedsBody)
	}
}

func TestTooManyOffices(t *testing.T) {
	offices := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "&office=A%d", i)
		}
		return "/cwms-data/timeseries?" + b.String()[1:]
	}
	if got := table.meaning(request{"GET", offices(maxOffices), "", ""}); !strings.HasSuffix(got, "many") {
		t.Errorf("%d offices: %s", maxOffices, got)
	}
	if got := table.meaning(request{"GET", offices(maxOffices + 1), "", ""}); got != "malformed request" {
		t.Errorf("%d offices: %s", maxOffices+1, got)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	var m Match
	for _, raw := range []string{commonRead, "/cwms-data/levels/A%20B.Elev/timeseries?o%66fice=SPK", "/cwms-data/catalog/X?page=" + cursorOf("SPK/A", "SPK", "x")} {
		target := []byte(raw)
		method := []byte("GET")
		if n := testing.AllocsPerRun(100, func() {
			parsed, err := ParseTarget(target)
			if err == nil {
				err = table.Match(&m, method, parsed)
			}
			if err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", raw, n)
		}
	}
	body := seriesBody(4 << 10)
	target, _ := ParseTarget([]byte("/cwms-data/timeseries"))
	if n := testing.AllocsPerRun(100, func() {
		if table.Match(&m, []byte("POST"), target) != nil || table.Body(&m, []byte(asJSON), nil, body) != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("body: %v allocations", n)
	}
}
