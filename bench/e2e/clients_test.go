package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// clientRequest is a request as a client of the API sends it today, and its status
// under the shipped policy and under the same with data/cda-guest.json.
type clientRequest struct {
	name           string
	shipped, guest int
	request
}

// asSent builds a request of its request line and its header lines.
func asSent(line string, header ...string) request {
	method, target, _ := strings.Cut(line, " ")
	return request{method: method, target: "/cwms-data" + target, header: header}
}

func (r request) saying(body string) request {
	r.body = body
	return r
}

// What cwms-python, cwms-cli, the Java client and the JavaScript client send
// reaches the API byte for byte where policy allows it. Guests read nothing but
// reference data under the shipped policy, and what the API serves to guests by
// itself under the other.
func TestClientRequests(t *testing.T) {
	const origin = "https://site.example"
	st := stack.New(t, stack.Options{Env: map[string]string{"CORS_ORIGINS": origin}})
	user := func(name string, roles map[string][]string) (bearer, key, cookie string) {
		bearer = enroll(t, st, name, roles)
		var made struct{ Key, Cookie string }
		for _, path := range []string{"/apikeys", "/sessions"} {
			if err := st.Do(t.Context(), http.MethodPost, path, map[string]string{"user": name}, &made); err != nil {
				t.Fatal(err)
			}
		}
		return bearer, "Authorization: apikey " + made.Key, "Cookie: " + made.Cookie
	}
	writer := []string{"CWMS Users", "water_manager", "data_manager"}
	bearerSPK, keySPK, cookieSPK := user("CLIENTSPK", map[string][]string{"SPK": writer})
	_, keySWT, _ := user("CLIENTSWT", map[string][]string{"SWT": writer})
	bearerNWDM, keyNWDM, _ := user("CLIENTNWDM", map[string][]string{"NWDM": writer})
	_, keyAdmin, _ := user("CLIENTADMIN", map[string][]string{"HQ": {"CWMS Users", "system_admin"}})

	const (
		v1      = "Accept: application/json"
		v2      = "Accept: application/json;version=2"
		lower   = "accept: application/json;version=2"
		sendsV1 = "Content-Type: application/json"
		sendsV2 = "Content-Type: application/json;version=2"
		xmlV2   = "Content-Type: application/xml;version=2"
	)
	group := `{"office-id":"NWDM","id":"Fort Peck Gages","location-category":{"office-id":%q,"id":"Default"},"assigned-locations":[{"office-id":"NWDM","location-id":"FTPK"}]}`
	patchGroup := "PATCH /location/group/Fort%20Peck%20Gages?replace-assigned-locs=False&office=NWDM"

	requests := []clientRequest{
		{"1 a time series, by key", 200, 200, asSent("GET /timeseries?office=SPK&name=Folsom.Elev.Inst.1Hour.0.Ccp-Rev&unit=EN&begin=2026-01-01T00%3A00%3A00%2B00%3A00&end=2026-01-15T00%3A00%3A00%2B00%3A00&page-size=300000&trim=True", v2, "Accept-Encoding: gzip, deflate", keySPK)},
		{"2 by a guest's browser", 403, 200, asSent("GET /timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT", lower, "Origin: "+origin)},
		{"3 over 77 years", 403, 200, asSent("GET /timeseries?office=MVP&name=Baldhill_Dam.Flow-Out.Inst.~15Minutes.0.best&begin=1948-08-29T15%3A06%3A08.543Z&end=2025-08-29T15%3A06%3A08.543Z", lower)},
		{"4 a name with a percent sign", 403, 200, asSent("GET /timeseries?office=SPK&name=FOLS-Gate%201.%25-Opening.Inst.1Hour.0.Raw&format=csv", "Accept: text/csv")},
		{"5 a version", 200, 200, asSent("GET /timeseries?office=NWDM&name=OMA.Stage.Inst.6Hours.0.Fcst-MRBWM-GRFT&version-date=2026-04-22T07%3A00%3A00-05%3A00", v2, bearerNWDM)},
		// That there is no such page is for the API to say.
		{"6 the next page", 400, 400, asSent("GET /timeseries?office=SPK&name=X&page=MTcwNDA2NzIwMDAwMHx8MTQ0MHx8MzAwMDAw&page-size=300000", v2, bearerSPK)},
		{"7 a name with an ampersand", 403, 200, asSent("GET /timeseries?name=A%26B.Flow.Inst.1Hour.0.Rev&office=SWT", v1)},
		{"8 1344 values", 200, 200, asSent("POST /timeseries?create-as-lrts=False&override-protection=False&store-rule=REPLACE_ALL", sendsV2, "accept: */*", keySWT).saying(manyValues("SWT"))},
		{"9 XML", 200, 200, asSent("POST /timeseries", xmlV2, bearerSPK).saying(`<timeseries><office-id>SPK</office-id><name>Folsom.Elev.Inst.1Hour.0.Ccp-Rev</name></timeseries>`)},
		{"10 values replaced", 200, 200, asSent("PATCH /timeseries/Folsom.Elev.Inst.1Hour.0.Ccp-Rev?store-rule=DELETE_INSERT", sendsV2, bearerSPK).saying(manyValues("SPK"))},
		// A data manager deletes what somebody else approved, and no client says so.
		{"11 values deleted", 403, 403, asSent("DELETE /timeseries/KEYS.Elev.Inst.1Hour.0.Ccp-Rev?office=SWT&begin=2026-01-01T00%3A00%3A00&end=2026-01-02T00%3A00%3A00", v2, keySWT)},
		{"11 by an administrator", 204, 204, asSent("DELETE /timeseries/KEYS.Elev.Inst.1Hour.0.Ccp-Rev?office=SWT&begin=2026-01-01T00%3A00%3A00&end=2026-01-02T00%3A00%3A00", v2, keyAdmin)},
		{"12 recent values of a group", 403, 200, asSent("GET /timeseries/recent?office=SWT&category-id=Default&group-id=Elev", v1)},
		{"13 the catalog", 403, 200, asSent("GET /catalog/TIMESERIES?page-size=5000&office=SPK&timeseries-group-like=DMZ+Include+List&include-extents=False", v2)},
		{"14 its next page", 403, 200, asSent("GET /catalog/TIMESERIES?office=SPK&page=U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg%3D%3D", v2)},
		{"14 by its office", 200, 200, asSent("GET /catalog/TIMESERIES?office=SPK&page=U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg%3D%3D", v2, keySPK)},
		{"15 the catalog of locations", 403, 200, asSent("GET /catalog/LOCATIONS?office=SWT&like=KEYS.*&location-kind-like=(SITE%7CSTREAM)", v2)},
		{"16 locations", 403, 200, asSent("GET /locations?office=SWT&names=KEYS*&unit=EN", v2)},
		{"16 a location stored", 201, 201, asSent("POST /locations?fail-if-exists=False", sendsV2, keySPK).saying(`{"name":"Folsom","office-id":"SPK","bounding-office-id":"SPK","location-kind":"SITE"}`)},
		// The shipped policy lets no role but an administrator's write groups.
		{"17 a group of a category that all share", 200, 200, asSent(patchGroup, sendsV1, keyAdmin).saying(fmt.Sprintf(group, "CWMS"))},
		{"17 by a data manager", 403, 403, asSent(patchGroup, sendsV1, keyNWDM).saying(fmt.Sprintf(group, "NWDM"))},
		{"18 a level as a series", 403, 200, asSent("GET /levels/Folsom.Elev.Inst.0.Bottom%20of%20Flood%20Control/timeseries?office=SPK&unit=ft&begin=2026-01-01T00%3A00%3A00%2B00%3A00&end=2026-01-15T00%3A00%3A00%2B00%3A00&interval=1Hour", v2)},
		{"19 ratings", 201, 201, asSent("POST /ratings?store-template=True", xmlV2, keySWT).saying("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ratings><rating-template office-id=\"SWT\"><parameters-id>Elev;Stor</parameters-id></rating-template></ratings>")},
		{"20 a rating", 403, 200, asSent("GET /ratings/KEYS.Elev%3BStor.Linear.Production?office=SWT&method=EAGER", "Accept: application/xml;version=2")},
		{"21 rated values", 403, 200, asSent("POST /ratings/rate-values/SWT/KEYS.Elev%3BStor.Linear.Production", sendsV1).saying(`{"input-units":["ft"],"output-unit":"ac-ft","values":[[723.1]]}`)},
		{"22 measurements", 403, 200, asSent("GET /measurements?office-mask=SWT&id-mask=KEYS*&unit-system=EN", v1)},
		{"22 measurements stored", 201, 201, asSent("POST /measurements?fail-if-exists=False", sendsV1, keySWT).saying(`[{"id":{"office-id":"SWT","name":"KEYS"},"number":"1"}]`)},
		// The shipped policy lets no role but an administrator's write large objects.
		{"23 a report stored", 403, 403, asSent("POST /blobs?fail-if-exists=True", sendsV1, keySWT).saying(report)},
		{"23 by an administrator", 201, 201, asSent("POST /blobs?fail-if-exists=True", sendsV1, keyAdmin).saying(report)},
		{"23 a report", 403, 200, asSent("GET /blobs/ignored?blob-id=DIR%2FREPORT.PDF&office=SWT", v1)},
		{"24 a role taken, with a body", 204, 204, asSent("DELETE /user/L2HECTEST/roles/SPK", sendsV2, keyAdmin).saying(`["TS ID Creator"]`)},
		{"25 what the API can", 200, 200, asSent("GET /swagger-docs", v1)},
		{"25 offices", 200, 200, asSent("GET /offices?has-data=true", v1)},
		{"25 own keys, by session", 200, 200, asSent("GET /auth/keys", v1, cookieSPK)},
	}
	run := func(t *testing.T, status func(*clientRequest) int) {
		for _, c := range requests {
			t.Run(c.name, func(t *testing.T) { judge(t, st, c.request, status(&c), status(&c) != http.StatusForbidden) })
		}
		// The browser's question before 2 is answered here.
		answer, seen := sighted(t, st, asSent("OPTIONS /timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT",
			"Origin: "+origin, "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization"))
		if answer.status != http.StatusNoContent || seen != nil || answer.header.Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("preflight: %d %v, the API saw %v", answer.status, answer.header, seen)
		}
	}
	t.Run("shipped", func(t *testing.T) { run(t, func(c *clientRequest) int { return c.shipped }) })

	if _, err := st.PublishBundle(t.Context(), "", "-data", "data/cda-guest.json"); err != nil {
		t.Fatal(err)
	}
	await(t, "guests are let in", func() bool { return statusOf(st, get("/cwms-data/locations")) == http.StatusOK })
	t.Run("guest", func(t *testing.T) { run(t, func(c *clientRequest) int { return c.guest }) })
}

// manyValues is a time series of two months of hours, some 60 KB.
func manyValues(office string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev","office-id":%q,"units":"ft","version-date":null,"values":[`, office)
	for i := range 1344 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `["2026-%02d-%02dT%02d:00:00+00:00",%d.1,0]`, 1+i/24/28, 1+i/24%28, i%24, 700+i%50)
	}
	return b.String() + `]}`
}

// report is a large object of SWT, 2 MB as text.
var report = `{"office-id":"SWT","id":"DIR/REPORT.PDF","media-type-id":"application/pdf","value":"` + strings.Repeat("JVBERi0x", 256<<10) + `"}`
