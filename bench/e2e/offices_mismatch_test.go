package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// sighted sends a request and returns the answer, and what the API saw of it: nil
// if nothing.
func sighted(t *testing.T, st *stack.Stack, r request) (reply, *standin.Seen) {
	t.Helper()
	if err := st.Do(t.Context(), http.MethodDelete, "/seen", nil, nil); err != nil {
		t.Fatal(err)
	}
	answer := send(t, st.Proxy, r)
	seen, err := st.Seen(t.Context(), 2)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(seen) > 1:
		t.Fatalf("%s %s: the API saw it more than once", r.method, r.target)
	case len(seen) == 0:
		return answer, nil
	}
	return answer, &seen[0]
}

// unchanged compares what the API saw with what was sent.
func (r request) unchanged(t *testing.T, seen *standin.Seen) {
	t.Helper()
	sum := sha256.Sum256([]byte(r.body))
	if seen.Method != r.method || seen.Target != r.target || seen.BodyLen != int64(len(r.body)) || seen.BodySHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("sent %s %s and %d bytes, the API saw %s %s and %d bytes", r.method, r.target, len(r.body), seen.Method, seen.Target, seen.BodyLen)
	}
	for _, line := range r.header {
		if !slices.ContainsFunc(seen.Headers, func(h [2]string) bool { return h[0]+": "+h[1] == line }) {
			t.Errorf("sent %q, the API saw %q", line, seen.Headers)
		}
	}
}

// judge sends a request and wants its status. The API must see it byte for byte if
// it is forwarded, and else not at all.
func judge(t *testing.T, st *stack.Stack, r request, status int, forwarded bool) {
	t.Helper()
	answer, seen := sighted(t, st, r)
	if answer.status != status {
		t.Errorf("status %d, want %d: %s", answer.status, status, answer.body)
	}
	switch {
	case seen == nil && forwarded:
		t.Error("the API did not see it")
	case seen != nil && !forwarded:
		t.Errorf("the API saw %s %s", seen.Method, seen.Target)
	case seen != nil:
		r.unchanged(t, seen)
	}
}

// enroll makes a user with roles by office, who is gone after the test, and
// returns the credential line of a token.
func enroll(t *testing.T, st *stack.Stack, name string, roles map[string][]string) string {
	t.Helper()
	if err := st.Do(t.Context(), http.MethodPut, "/users/"+name, map[string]any{"roles": roles}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Do(t.Context(), http.MethodDelete, "/users/"+name, nil, nil); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return bearer(token(t, st, standin.TokenRequest{User: name}))
}

// page is a cursor as it stands in a query.
func page(text string) string {
	return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(text)))
}

// mismatch is a request of which the earlier proxy read another office than the
// API acts on, or none.
type mismatch struct {
	name, user, method, target, contentType, body string
	status                                        int
}

const (
	jsonType = "application/json;version=2"
	xmlType  = "application/xml;version=2"
)

func (m mismatch) run(t *testing.T, st *stack.Stack, credentials map[string]string) {
	t.Run(m.name, func(t *testing.T) {
		r := request{method: m.method, target: "/cwms-data" + m.target, body: m.body}
		if m.user != "" {
			r = r.with(credentials[m.user])
		}
		if m.contentType != "" {
			r = r.with("Content-Type: " + m.contentType)
		}
		judge(t, st, r, m.status, m.status < 300)
	})
}

// mismatchUsers are the credentials of the rows: "spk" writes and reads at SPK,
// "spk+swt" at both, "reader" only reads, at SWT, "admin" does everything.
func mismatchUsers(t *testing.T, st *stack.Stack) map[string]string {
	writer := []string{"CWMS Users", "water_manager", "data_manager"}
	return map[string]string{
		"spk":     enroll(t, st, "ROWSPK", map[string][]string{"SPK": writer}),
		"spk+swt": enroll(t, st, "ROWBOTH", map[string][]string{"SPK": writer, "SWT": writer}),
		"reader":  bearer(st.Tokens["M5HECTEST"]),
		"admin":   bearer(st.Tokens["HECADMIN"]),
	}
}

// Each row was a hole or a false denial of the earlier proxy, which read the
// office from the query parameters office_id or office alone.
func TestOfficeMismatches(t *testing.T) {
	st := sharedStack(t)
	credentials := mismatchUsers(t, st)
	for _, m := range mismatches {
		m.run(t, st, credentials)
	}
}

var mismatches = []mismatch{
	// Hole: office_id was read, the API acts on office.
	{"M1 office_id hides office", "spk", "GET", "/timeseries?office_id=SPK&office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},
	{"M1 office behind an encoded name", "spk", "GET", "/timeseries?office_id=SPK&%6Fffice=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},
	{"M1 office_id counts for nothing", "spk", "GET", "/timeseries?office_id=SWT&office=SPK&name=A.Flow.Inst.1Hour.0.Rev", "", "", 200},

	// Hole: the office of the query was read, that of the body is written.
	{"M2 query SPK, body SWT", "spk", "POST", "/timeseries?office=SPK", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SWT","values":[]}`, 403},
	{"M2 query SWT, body SPK", "spk", "POST", "/timeseries?office=SWT", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SPK","values":[]}`, 403},
	{"M2 query and body SPK", "spk", "POST", "/timeseries?office=SPK", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SPK","values":[]}`, 200},

	// False denial: every normal write, as clients name its office in the body.
	{"M3 office in the body only", "spk", "POST", "/timeseries", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SPK","values":[]}`, 200},
	{"M3 another office in the body", "spk", "POST", "/timeseries", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","office-id":"SWT","values":[]}`, 403},
	{"M3 no office at all", "spk", "POST", "/timeseries", jsonType, `{"name":"A.Flow.Inst.1Hour.0.Rev","values":[]}`, 403},
	{"M3 two offices in the body", "spk", "POST", "/timeseries", jsonType, `{"office-id":"SPK","Office-Id":"SWT"}`, 400},

	// Hole: only the exact path of a collection was judged.
	{"M4 item", "spk", "PATCH", "/timeseries/A.Flow.Inst.1Hour.0.Rev", jsonType, `{"office-id":"SWT"}`, 403},
	{"M4 own item", "spk", "PATCH", "/timeseries/A.Flow.Inst.1Hour.0.Rev", jsonType, `{"office-id":"SPK"}`, 200},
	{"M4 item deleted", "spk", "DELETE", "/timeseries/A.Flow.Inst.1Hour.0.Rev?office=SWT", "", "", 403},
	{"M4 part of an item", "spk", "GET", "/levels/A.Elev.Inst.0.Top/timeseries?office=SWT", "", "", 403},
	{"M4 part of an own item", "spk", "GET", "/levels/A.Elev.Inst.0.Top/timeseries?office=SPK", "", "", 200},
	{"M4 slash at the end", "spk", "GET", "/timeseries/?office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},
	{"M4 dot segment", "spk", "GET", "/x/../timeseries?office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 400},
	{"M4 letter of the path encoded", "spk", "GET", "/timeserie%73?office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 400},

	// Hole: the office inside a page cursor overrides that of the query.
	{"M5 cursor of SWT", "spk", "GET", "/catalog/TIMESERIES?office=SPK&page=" + page("SWT/KEYS.Elev.Inst.1Hour.0.Rev||SWT||.*"), "", "", 403},
	{"M5 cursor of SPK", "spk", "GET", "/catalog/TIMESERIES?office=SPK&page=" + page("SPK/Folsom.Elev.Inst.1Hour.0.Rev||SPK||.*"), "", "", 200},
	{"M5 a cursor that cannot be read", "spk", "GET", "/catalog/TIMESERIES?office=SPK&page=x", "", "", 403},
	{"M5 any cursor, allowed everywhere", "admin", "GET", "/catalog/TIMESERIES?office=SPK&page=x", "", "", 200},

	// Hole: with ts-ids the API ignores the office.
	{"M7 ts-ids", "spk", "GET", "/timeseries/recent?office=SPK&ts-ids=KEYS.Elev.Inst.1Hour.0.Ccp-Rev", "", "", 403},
	{"M7 group", "spk", "GET", "/timeseries/recent?office=SPK&category-id=Default&group-id=Elev", "", "", 200},
	{"M7 ts-ids, allowed everywhere", "admin", "GET", "/timeseries/recent?office=SPK&ts-ids=KEYS.Elev.Inst.1Hour.0.Ccp-Rev", "", "", 200},

	// Hole and false denial: masks were not read.
	{"M8 mask of another office", "spk", "GET", "/measurements?office-mask=SWT", "", "", 403},
	{"M8 mask of the own office", "spk", "GET", "/measurements?office-mask=SPK", "", "", 200},
	{"M8 mask of all", "spk", "GET", "/measurements?office-mask=*", "", "", 403},
	{"M8 pattern", "spk", "GET", "/measurements?office-mask=S%5BPW%5D.", "", "", 403},
	{"M8 no mask", "spk", "GET", "/measurements", "", "", 403},
	{"M8 mask beside an office", "spk", "GET", "/measurements?office=SPK&office-mask=SWT", "", "", 403},

	// Hole: further parameters that name offices.
	{"M9 category-office-id", "spk", "GET", "/timeseries/group?office=SPK&category-office-id=SWT", "", "", 403},
	{"M9 group-office-id", "spk", "GET", "/timeseries/group?office=SPK&group-office-id=SWT", "", "", 403},
	{"M9 all of the own office", "spk", "GET", "/timeseries/group?office=SPK&category-office-id=SPK&group-office-id=SPK", "", "", 200},
	{"M9 bounding-office-like", "spk", "GET", "/catalog/LOCATIONS?office=SPK&bounding-office-like=SWT", "", "", 403},
	{"M9 bounding-office-like, own", "spk", "GET", "/catalog/LOCATIONS?office=SPK&bounding-office-like=SPK", "", "", 200},

	// Hole: offices in the path.
	{"M10 text of SWT", "spk", "GET", "/v2/timeseries/text/SWT/A.Text.Inst.1Hour.0.Rev", "", "", 403},
	{"M10 text of SPK", "spk", "GET", "/v2/timeseries/text/SPK/A.Text.Inst.1Hour.0.Rev", "", "", 200},
	{"M10 forecast of SWT", "spk", "GET", "/v2/forecast-spec/SWT/F", "", "", 403},
	{"M10 forecast of SPK", "spk", "GET", "/v2/forecast-spec/SPK/F", "", "", 200},
	{"M10 path SPK, query SWT", "spk", "GET", "/v2/forecast-spec/SPK/F?office=SWT", "", "", 403},

	// Hole: arrays whose elements name different offices.
	{"M11 one of two", "spk", "POST", "/measurements", jsonType, `[{"id":{"office-id":"SPK","name":"A"}},{"id":{"office-id":"SWT","name":"B"}}]`, 403},
	{"M11 both own", "spk", "POST", "/measurements", jsonType, `[{"id":{"office-id":"SPK","name":"A"}},{"id":{"office-id":"SPK","name":"B"}}]`, 201},
	{"M11 two offices of the user", "spk+swt", "POST", "/measurements", jsonType, `[{"id":{"office-id":"SPK","name":"A"}},{"id":{"office-id":"SWT","name":"B"}}]`, 201},
	{"M11 an element without one", "spk", "POST", "/measurements", jsonType, `[{"id":{"office-id":"SPK","name":"A"}},{"id":{"name":"B"}}]`, 403},

	// Hole: offices deep in the bodies of groups.
	{"M12 assigned series of SWT", "spk", "POST", "/timeseries/group", jsonType, `{"office-id":"SPK","id":"G","time-series-category":{"office-id":"SPK","id":"C"},"assigned-time-series":[{"office-id":"SPK","timeseries-id":"A"},{"office-id":"SWT","timeseries-id":"B"}]}`, 403},
	{"M12 category of SWT", "spk", "POST", "/timeseries/group", jsonType, `{"office-id":"SPK","id":"G","time-series-category":{"office-id":"SWT","id":"C"}}`, 403},
	{"M12 all own", "spk", "POST", "/timeseries/group", jsonType, `{"office-id":"SPK","id":"G","time-series-category":{"office-id":"SPK","id":"C"},"assigned-time-series":[{"office-id":"SPK","timeseries-id":"A"}]}`, 201},

	// Hole and false denial: XML was not read.
	{"M13 attribute", "spk", "POST", "/ratings?store-template=True", xmlType, `<ratings><rating-template office-id="SPK"/><simple-rating office-id="SWT"/></ratings>`, 403},
	{"M13 own attributes", "spk", "POST", "/ratings?store-template=True", xmlType, `<ratings><rating-template office-id="SPK"/><simple-rating office-id="SPK"/></ratings>`, 201},
	{"M13 element", "spk", "POST", "/timeseries", xmlType, `<timeseries><office-id>SWT</office-id></timeseries>`, 403},
	{"M13 own element", "spk", "POST", "/timeseries", xmlType, `<timeseries><office-id>SPK</office-id></timeseries>`, 200},
	{"M13 element as a reference", "spk", "POST", "/timeseries", xmlType, `<timeseries><office-id>S&#87;T</office-id></timeseries>`, 403},
	{"M13 entity of its own", "spk", "POST", "/timeseries", xmlType, `<!DOCTYPE t [<!ENTITY o "SPK">]><timeseries><office-id>&o;</office-id></timeseries>`, 400},

	// False denial: offices compared with case.
	{"M14 small letters", "spk", "GET", "/timeseries?office=spk&name=A.Flow.Inst.1Hour.0.Rev", "", "", 200},
	{"M14 small letters of another", "spk", "GET", "/timeseries?office=swt&name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},

	// False denial: a repeated parameter was nobody's office. The API takes the
	// first value; here each counts.
	{"M15 twice the same", "spk", "GET", "/timeseries?office=SPK&office=SPK&name=A.Flow.Inst.1Hour.0.Rev", "", "", 200},
	{"M15 two offices of the user", "spk+swt", "GET", "/timeseries?office=SPK&office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 200},
	{"M15 one of two", "spk", "GET", "/timeseries?office=SPK&office=SWT&name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},

	// False denial for those who are allowed everywhere; a hole for all others, as
	// without an office the API looks at all.
	{"M16 no office", "spk", "GET", "/timeseries?name=A.Flow.Inst.1Hour.0.Rev", "", "", 403},
	{"M16 no office, allowed everywhere", "admin", "GET", "/timeseries?name=A.Flow.Inst.1Hour.0.Rev", "", "", 200},
	{"M16 an empty office", "spk", "GET", "/timeseries?office=&name=A.Flow.Inst.1Hour.0.Rev", "", "", 400},

	// Hole: the name in the path is ignored, the body names what is written.
	{"M18 another series in the body", "spk", "PATCH", "/timeseries/Folsom.Elev.Inst.1Hour.0.Ccp-Rev", jsonType, `{"name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev","office-id":"SWT","values":[]}`, 403},
	{"M18 path as query", "spk", "PATCH", "/timeseries/Folsom.Elev.Inst.1Hour.0.Ccp-Rev?office=SPK", jsonType, `{"name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev","office-id":"SWT","values":[]}`, 403},

	// The request does not tell whose lock it is: only who is allowed everywhere.
	{"M19 a lock by its id", "spk", "POST", "/project-locks/deny?lock-id=17", "", "", 403},
	{"M19 with an office that the API does not read", "spk", "POST", "/project-locks/deny?lock-id=17&office=SPK", "", "", 403},
	{"M19 allowed everywhere", "admin", "POST", "/project-locks/deny?lock-id=17", "", "", 201},

	// False denial: to rate values is to read, for those who may not write ratings.
	{"M20 rate values", "reader", "POST", "/ratings/rate-values/SWT/KEYS.Elev%3BStor.Linear.Production", jsonType, `{"input-units":["ft"],"values":[[723.1]]}`, 200},
	{"M20 rate series", "reader", "POST", "/ratings/reverse-rate-ts/SWT/KEYS.Elev%3BStor.Linear.Production", jsonType, `{"office-id":"SPK"}`, 200},
	{"M20 of another office", "reader", "POST", "/ratings/rate-values/SPK/A.Elev%3BStor.Linear.Production", jsonType, `{"input-units":["ft"],"values":[[723.1]]}`, 403},
	{"M20 a rating is written", "reader", "POST", "/ratings", xmlType, `<ratings><rating-template office-id="SWT"/></ratings>`, 403},
}

// The rest of the holes is on routes that the shipped policy opens to no role but
// those that are allowed everywhere. Here data managers may do everything there,
// at their offices.
func TestOfficeMismatchesWhereRolesAreGranted(t *testing.T) {
	policy := policyWith(t, "cwms/personas/data.json", func(data map[string]any) {
		grants := data["grants"].(map[string]any)
		manager := map[string]any{"data_manager": []string{}}
		for _, resource := range []string{"gates", "location", "project-locks", "projects", "rss", "stream-locations", "streams", "user", "users"} {
			grants[resource] = map[string]any{"read": manager, "create": manager, "update": manager, "delete": manager}
		}
	})
	st := stack.New(t, stack.Options{Policy: []string{"-policy", policy}})
	credentials := map[string]string{"spk": enroll(t, st, "ROWSPK", map[string][]string{"SPK": {"CWMS Users", "CWMS User Admins", "data_manager"}})}
	for _, m := range []mismatch{
		// Hole: the office inside a page cursor overrides that of the query.
		{"M6 cursor of SWT", "spk", "GET", "/users?office=SPK&page=" + page("A||20||100||SWT||.*"), "", "", 403},
		{"M6 cursor of all offices", "spk", "GET", "/users?office=SPK&page=" + page("A||20||100||||.*"), "", "", 403},
		{"M6 cursor of SPK", "spk", "GET", "/users?office=SPK&page=" + page("A||20||100||SPK||.*"), "", "", 200},

		// Hole and false denial: masks were not read.
		{"M8 mask of another office", "spk", "GET", "/streams?office-mask=SWT", "", "", 403},
		{"M8 mask of the own office", "spk", "GET", "/streams?office-mask=SPK", "", "", 200},

		// Hole: further parameters that name offices.
		{"M9 location-office-id", "spk", "GET", "/location/group/G?office=SPK&location-office-id=SWT", "", "", 403},
		{"M9 all of the own office", "spk", "GET", "/location/group/G?office=SPK&category-office-id=SPK&group-office-id=SPK&location-office-id=SPK", "", "", 200},

		// Hole: offices in the path.
		{"M10 water users of SWT", "spk", "GET", "/projects/SWT/P/water-user", "", "", 403},
		{"M10 water users of SPK", "spk", "GET", "/projects/SPK/P/water-user", "", "", 200},
		{"M10 path SPK, body SWT", "spk", "POST", "/projects/SPK/P/water-user", jsonType, `{"project-id":{"office-id":"SWT","name":"P"}}`, 403},
		{"M10 gates of SWT", "spk", "GET", "/projects/SWT/P/gate-changes?begin=0", "", "", 403},
		{"M10 gates of SPK", "spk", "GET", "/projects/SPK/P/gate-changes?begin=0", "", "", 200},
		{"M10 feed of SWT", "spk", "GET", "/rss/SWT/F", "", "", 403},
		{"M10 feed of SPK", "spk", "GET", "/rss/SPK/F", "", "", 200},
		{"M10 upstream of SWT", "spk", "GET", "/stream-locations/SWT/L/upstream-locations", "", "", 403},
		{"M10 upstream of SPK", "spk", "GET", "/stream-locations/SPK/L/upstream-locations", "", "", 200},
		{"M10 roles at SWT", "spk", "DELETE", "/user/L2HECTEST/roles/SWT", jsonType, `["TS ID Creator"]`, 403},
		{"M10 roles at SPK", "spk", "DELETE", "/user/L2HECTEST/roles/SPK", jsonType, `["TS ID Creator"]`, 204},

		// Hole: arrays whose elements name different offices.
		{"M11 one of two", "spk", "POST", "/projects/gate-changes", jsonType, `[{"project-id":{"office-id":"SPK","name":"P"}},{"project-id":{"office-id":"SWT","name":"P"}}]`, 403},
		{"M11 both own", "spk", "POST", "/projects/gate-changes", jsonType, `[{"project-id":{"office-id":"SPK","name":"P"}},{"project-id":{"office-id":"SPK","name":"Q"}}]`, 201},
		{"M11 path SPK, an element SWT", "spk", "POST", "/projects/SPK/P/turbine-changes", jsonType, `[{"project-id":{"office-id":"SPK","name":"P"}},{"project-id":{"office-id":"SWT","name":"P"}}]`, 403},

		// Hole: offices deep in the bodies of groups.
		{"M12 assigned location of SWT", "spk", "PATCH", "/location/group/G?office=SPK", jsonType, `{"office-id":"SPK","id":"G","location-category":{"office-id":"SPK","id":"C"},"assigned-locations":[{"office-id":"SWT","location-id":"L"}]}`, 403},
		{"M12 all own", "spk", "PATCH", "/location/group/G?office=SPK", jsonType, `{"office-id":"SPK","id":"G","location-category":{"office-id":"SPK","id":"C"},"assigned-locations":[{"office-id":"SPK","location-id":"L"}]}`, 200},

		// Hole: the office of the body wins over that of the query.
		{"M17 query SPK, attribute SWT", "spk", "POST", "/location/L/vertical-datum?office=SPK", xmlType, `<vertical-datum-info office="SWT" unit="ft"/>`, 403},
		{"M17 query SPK, member SWT", "spk", "PATCH", "/location/L/vertical-datum?office=SPK", jsonType, `{"office":"SWT","unit":"ft"}`, 403},
		{"M17 both SPK", "spk", "POST", "/location/L/vertical-datum?office=SPK", xmlType, `<vertical-datum-info office="SPK" unit="ft"/>`, 201},

		// The request does not tell whose lock it is, whatever the role.
		{"M19 a lock by its id", "spk", "POST", "/project-locks/deny?lock-id=17", "", "", 403},
		{"M19 an own lock released", "spk", "POST", "/project-locks/release?office=SPK&lock-id=17", "", "", 201},
	} {
		m.run(t, st, credentials)
	}
}
