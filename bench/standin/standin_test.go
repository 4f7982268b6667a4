package standin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's own: they end by themselves within seconds of a shutdown.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

// rig is a running stand-in and a client that keeps no cookies.
type rig struct {
	t                    *testing.T
	api, issuer, control string
	srv                  *Server
	client               *http.Client
}

func start(t *testing.T, o Options) *rig {
	t.Helper()
	for _, l := range []*net.Listener{&o.API, &o.Issuer, &o.Control} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, srv: s, client: &http.Client{Transport: &http.Transport{}},
		api:    "http://" + o.API.Addr().String(),
		issuer: s.opts.IssuerURL, control: "http://" + o.Control.Addr().String(),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// reply is an answer read whole.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are "Name: value" lines.
func (r *rig) do(method, target, body string, headers ...string) reply {
	r.t.Helper()
	rep, err := r.try(method, target, body, headers...)
	if err != nil {
		r.t.Fatal(err)
	}
	return rep
}

func (r *rig) try(method, target, body string, headers ...string) (reply, error) {
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header[name] = append(req.Header[name], value)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b)}, err
}

// ask calls the control listener and decodes its answer.
func ask[V any](r *rig, method, path, body string) V {
	r.t.Helper()
	rep := r.do(method, r.control+path, body)
	if rep.status > 299 {
		r.t.Fatalf("%s %s: %d %s", method, path, rep.status, rep.body)
	}
	var v V
	if rep.body != "" {
		if err := json.Unmarshal([]byte(rep.body), &v); err != nil {
			r.t.Fatal(err)
		}
	}
	return v
}

func (r *rig) token(body string) string {
	return ask[map[string]string](r, "POST", "/tokens", body)["token"]
}

// What the API answers, by route and credential.
func TestAPI(t *testing.T) {
	r := start(t, Options{})
	token := "Authorization: Bearer " + r.token(`{"user":"m5hectest"}`)
	admin := "Authorization: Bearer " + r.token(`{"user":"headgate"}`)
	key := "Authorization: apikey " + ask[map[string]string](r, "POST", "/apikeys", `{"user":"M5HECTEST"}`)["key"]
	weakKey := "Authorization: apikey " + ask[map[string]string](r, "POST", "/apikeys", `{"user":"L1HECTEST"}`)["key"]
	cookie := "Cookie: " + ask[map[string]string](r, "POST", "/sessions", `{"user":"M5HECTEST"}`)["cookie"]

	for _, c := range []struct {
		what, method, path, header string
		status                     int
		media                      string
		contains                   string
	}{
		{"guests read", "GET", "/offices", "", 200, "application/json", `{"offices":{"offices":[{"name":"HQ"`},
		{"version 2 by Accept", "GET", "/offices", "Accept: application/json;version=2", 200, "application/json;version=2", `[{"name":"HQ"`},
		{"one office", "GET", "/offices/swt", "", 200, "application/json", `"Tulsa District"`},
		{"an office that is not", "GET", "/offices/XYZ", "", 404, "application/json", `"message":"Not Found"`},
		{"a series", "GET", "/timeseries?office=SWT&name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev", "", 200, "application/json", `"name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev"`},
		{"a slash at the end", "GET", "/timeseries/?office=SWT&name=X", "", 200, "application/json", `"office-id":"SWT"`},
		{"the first of two values counts", "GET", "/timeseries?office=SWT&office=SPK&name=X", "", 200, "application/json", `"office-id":"SWT"`},
		{"CSV", "GET", "/timeseries?office=SWT&name=X", "Accept: text/csv", 200, "text/csv", "#X,SWT\n"},
		{"a series that is not", "GET", "/timeseries?office=SWT&name=Missing", "", 404, "application/json", `"incidentIdentifier":"`},
		{"version 2 wants an office", "GET", "/timeseries?name=X", "Accept: application/json;version=2", 400, "application/json", `'office'`},
		{"no such route", "GET", "/gates", "", 404, "application/json", `"details":{}`},
		{"case matters", "GET", "/TimeSeries?name=X", "", 404, "application/json", ""},
		{"doubled slashes are kept", "GET", "//timeseries?name=X", "", 404, "application/json", ""},
		{"reading one by path is not there", "GET", "/timeseries/X", "", 501, "application/json", "Not Implemented"},
		{"a guest has no profile", "GET", "/user/profile", "", 401, "application/json", `{"message":"Invalid User"`},
		{"profile by token", "GET", "/user/profile", token, 200, "application/json", `"cac-auth":true`},
		{"profile by key", "GET", "/user/profile", key, 200, "application/json", `"cac-auth":false`},
		{"profile by cookie", "GET", "/user/profile", cookie, 200, "application/json", `"user-name":"M5HECTEST"`},
		{"scheme in any case", "GET", "/user/profile", strings.Replace(token, "Bearer", "bEARER", 1), 200, "application/json", `"M5HECTEST"`},
		{"a key without CWMS Users", "GET", "/user/profile", weakKey, 403, "application/json", "Missing one of the following roles {CWMS Users,cac_auth}"},
		{"others by an administrator", "GET", "/users/DAMOP001?include-roles=true", admin, 200, "application/json", `"user-name":"DAMOP001"`},
		{"others by anyone else", "GET", "/users/DAMOP001", token, 403, "application/json", "Missing roles {CWMS User Admins}"},
		{"nobody", "GET", "/users/NOBODY", admin, 404, "application/json", ""},
		{"own keys", "GET", "/auth/keys", token, 200, "application/json", ""},
		{"a bad token on a public read", "GET", "/offices", "Authorization: Bearer x.y.z", 401, "application/json", "Invalid User"},
		{"an unknown key", "GET", "/offices", "Authorization: apikey ak1_nonsense", 401, "application/json", "Invalid User"},
		{"an unknown scheme is a guest", "GET", "/offices", "Authorization: Basic eDp5", 200, "application/json", ""},
		{"a bad SSO cookie", "GET", "/offices", "Cookie: JSESSIONIDSSO=nonsense", 401, "application/json", "Invalid User"},
		{"an unknown servlet session is a guest", "GET", "/offices", "Cookie: JSESSIONID=nonsense", 200, "application/json", ""},
		{"a guest cannot write", "POST", "/timeseries", "", 401, "application/json", ""},
		{"a user can", "POST", "/timeseries", token, 200, "", ""},
		{"other creations", "POST", "/locations", token, 201, "application/json", ""},
		{"updates", "PATCH", "/locations/KEYS", token, 200, "", ""},
		{"deletions", "DELETE", "/locations/KEYS?office=SWT", token, 204, "", ""},
		{"calculations are reads", "POST", "/ratings/rate-values/SWT/KEYS.Elev%3BStor.Linear.Production", "", 200, "application/json", "ac-ft"},
		{"HEAD is not looked into", "HEAD", "/user/profile", "", 200, "text/plain", ""},
		{"the probe of cwms-cli", "GET", "/swagger-docs", "", 200, "application/json", `"openapi"`},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := &rig{t: t, api: r.api, client: r.client}
			var headers []string
			if c.header != "" {
				headers = []string{c.header}
			}
			rep := r.do(c.method, r.api+"/cwms-data"+c.path, "", headers...)
			if rep.status != c.status || rep.header.Get("Content-Type") != c.media || !strings.Contains(rep.body, c.contains) {
				t.Errorf("%d %q %.200s\nwant %d %q …%s…", rep.status, rep.header.Get("Content-Type"), rep.body, c.status, c.media, c.contains)
			}
		})
	}
}

// The profile is that of the case files; the principal binds it to the token.
func TestProfile(t *testing.T) {
	r := start(t, Options{ProfileDelay: time.Millisecond})
	bearer := "Authorization: Bearer " + r.token(`{"user":"M5HecTest"}`)
	profile := func() map[string]any {
		var v map[string]any
		if err := json.Unmarshal([]byte(r.do("GET", r.api+"/cwms-data/user/profile", "", bearer).body), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := map[string]any{
		"user-name": "M5HECTEST", "principal": r.issuer + "::" + subjectOf("m5hectest"), "email": "m5hectest@example.test",
		"cac-auth": true, "roles": map[string]any{
			"SWT": []any{"All Users", "CWMS Users", "TS ID Creator"}, "HQ": []any{"water_manager"},
		},
	}
	if got := profile(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	ask[any](r, "PUT", "/users/m5hectest", `{"roles":{"SPK":["dam_operator"]},"email":null,"user-name":"RENAMED"}`)
	want["roles"], want["user-name"] = map[string]any{"SPK": []any{"dam_operator"}}, "RENAMED"
	delete(want, "email")
	if got := profile(); !reflect.DeepEqual(got, want) {
		t.Errorf("after PUT got  %v\nwant %v", got, want)
	}
	ask[any](r, "DELETE", "/users/m5hectest", "")
	if rep := r.do("GET", r.api+"/cwms-data/user/profile", "", bearer); rep.status != 401 {
		t.Errorf("a deleted user got %d", rep.status)
	}
}

// A token of the password grant is one that a verifier accepts by discovery and
// key document alone.
func TestPasswordGrant(t *testing.T) {
	r := start(t, Options{})
	grant := func(form url.Values) (int, map[string]any) {
		rep := r.do("POST", r.issuer+"/protocol/openid-connect/token", form.Encode(), "Content-Type: application/x-www-form-urlencoded")
		var v map[string]any
		if err := json.Unmarshal([]byte(rep.body), &v); err != nil {
			t.Fatal(err)
		}
		return rep.status, v
	}
	form := url.Values{"grant_type": {"password"}, "client_id": {"cwms"}, "username": {"m5hectest"}, "password": {"M5HECTEST"}}
	status, v := grant(form)
	if status != 200 || v["token_type"] != "Bearer" || v["expires_in"] != 28800.0 {
		t.Fatalf("%d %v", status, v)
	}
	var discovery, keys map[string]any
	_ = json.Unmarshal([]byte(r.do("GET", r.issuer+"/.well-known/openid-configuration", "").body), &discovery)
	_ = json.Unmarshal([]byte(r.do("GET", discovery["jwks_uri"].(string), "").body), &keys)
	published := keys["keys"].([]any)[0].(map[string]any)

	token, _, err := jwt.NewParser().ParseUnverified(v["access_token"].(string), jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	claims := token.Claims.(jwt.MapClaims)
	if token.Header["kid"] != published["kid"] || token.Header["alg"] != "RS256" || claims["iss"] != discovery["issuer"] ||
		claims["preferred_username"] != "m5hectest" || claims["azp"] != "cwms" || claims["typ"] != "Bearer" || claims["aud"] != "account" {
		t.Errorf("header %v claims %v", token.Header, claims)
	}

	for _, c := range []struct {
		field, value string
		status       int
		code         string
	}{
		{"password", "wrong", 401, "invalid_grant"},
		{"username", "nobody", 401, "invalid_grant"},
		{"client_id", "other", 401, "invalid_client"},
		{"grant_type", "client_credentials", 400, "unsupported_grant_type"},
	} {
		bad := url.Values{}
		for k, v := range form {
			bad[k] = v
		}
		bad.Set(c.field, c.value)
		if status, v := grant(bad); status != c.status || v["error"] != c.code {
			t.Errorf("%s=%s: %d %v", c.field, c.value, status, v)
		}
	}
}

// Tokens that a verifier must refuse, and that the API refuses too.
func TestTokensToRefuse(t *testing.T) {
	r := start(t, Options{})
	for _, c := range []struct {
		what, ask string
		status    int
	}{
		{"a good one", `{"user":"m5hectest"}`, 200},
		{"expired", `{"user":"m5hectest","ttl_s":-60}`, 401},
		{"not yet valid", `{"user":"m5hectest","claims":{"nbf":4000000000}}`, 401},
		{"another issuer", `{"user":"m5hectest","claims":{"iss":"http://other"}}`, 401},
		{"a key that was never published", `{"user":"m5hectest","key":"unknown"}`, 401},
		{"no kid", `{"user":"m5hectest","key":"none"}`, 401},
		{"unsigned", `{"user":"m5hectest","alg":"none"}`, 401},
		{"HMAC with the public key", `{"user":"m5hectest","alg":"HS256"}`, 401},
		{"nobody's", `{"user":"nobody"}`, 401},
	} {
		rep := r.do("GET", r.api+"/cwms-data/user/profile", "", "Authorization: Bearer "+r.token(c.ask))
		if rep.status != c.status {
			t.Errorf("%s: %d, want %d", c.what, rep.status, c.status)
		}
	}
	// A claim or header field that is null is left out.
	token, parts, err := jwt.NewParser().ParseUnverified(r.token(`{"user":"m5hectest","claims":{"exp":null,"cnf":{"jkt":"x"}},"header":{"crit":["x"],"typ":null}}`), jwt.MapClaims{})
	if err != nil || len(parts) != 3 {
		t.Fatal(err)
	}
	claims := token.Claims.(jwt.MapClaims)
	if claims["exp"] != nil || claims["cnf"] == nil || token.Header["crit"] == nil || token.Header["typ"] != nil {
		t.Errorf("header %v claims %v", token.Header, claims)
	}
}

func TestKeyRotation(t *testing.T) {
	r := start(t, Options{})
	old := r.token(`{"user":"m5hectest"}`)
	status := func(token string) int {
		return r.do("GET", r.api+"/cwms-data/offices", "", "Authorization: Bearer "+token).status
	}
	if rep := r.do("POST", r.control+"/tokens", `{"user":"m5hectest","key":"previous"}`); rep.status != 400 {
		t.Errorf("a previous key before the first rotation: %d", rep.status)
	}
	ask[any](r, "POST", "/keys/rotate", `{"overlap":true}`)
	if a, b, c := status(old), status(r.token(`{"user":"m5hectest","key":"previous"}`)), status(r.token(`{"user":"m5hectest"}`)); a != 200 || b != 200 || c != 200 {
		t.Errorf("with overlap: %d %d %d", a, b, c)
	}
	ask[any](r, "POST", "/keys/rotate", `{"overlap":false}`)
	if a, b := status(r.token(`{"user":"m5hectest","key":"previous"}`)), status(r.token(`{"user":"m5hectest"}`)); a != 401 || b != 200 {
		t.Errorf("without overlap: %d %d", a, b)
	}
}

// An authenticated call leaves a servlet session that is as good as its
// credential.
func TestServletSession(t *testing.T) {
	r := start(t, Options{})
	key := ask[map[string]string](r, "POST", "/apikeys", `{"user":"M5HECTEST"}`)["key"]
	if len(key) != 268 || !strings.HasPrefix(key, "ak1_") {
		t.Errorf("key of %d characters", len(key))
	}
	rep := r.do("GET", r.api+"/cwms-data/offices", "", "Authorization: apikey "+key)
	cookie, _, _ := strings.Cut(rep.header.Get("Set-Cookie"), ";")
	if !strings.HasPrefix(cookie, "JSESSIONID=") {
		t.Fatalf("Set-Cookie %q", rep.header.Get("Set-Cookie"))
	}
	rep = r.do("GET", r.api+"/cwms-data/user/profile", "", "Cookie: "+cookie)
	if rep.status != 200 || !strings.Contains(rep.body, `"cac-auth":false`) || rep.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %s, Set-Cookie %q", rep.status, rep.body, rep.header.Get("Set-Cookie"))
	}
	ask[any](r, "DELETE", "/apikeys/"+key, "")
	if rep := r.do("GET", r.api+"/cwms-data/offices", "", "Authorization: apikey "+key); rep.status != 401 {
		t.Errorf("a withdrawn key: %d", rep.status)
	}
}

func TestConditionalAndPaged(t *testing.T) {
	r := start(t, Options{})
	series := r.api + "/cwms-data/timeseries?office=SWT&name=X"
	rep := r.do("GET", series, "")
	if rep.header.Get("Cache-Control") != "max-age=300" || len(rep.body) < 1500 || len(rep.body) > 1700 {
		t.Errorf("Cache-Control %q, %d bytes", rep.header.Get("Cache-Control"), len(rep.body))
	}
	if rep := r.do("GET", series, "", "If-None-Match: "+rep.header.Get("ETag")); rep.status != 304 || rep.body != "" {
		t.Errorf("%d %s", rep.status, rep.body)
	}
	values := 0
	for page, pages := "", 0; pages < 10; pages++ {
		var v struct {
			Next   string `json:"next-page"`
			Values [][]any
		}
		rep := r.do("GET", series+"&page-size=15"+page, "")
		if err := json.Unmarshal([]byte(rep.body), &v); err != nil {
			t.Fatalf("%v in %s", err, rep.body)
		}
		values += len(v.Values)
		if v.Next == "" {
			break
		}
		page = "&page=" + url.QueryEscape(v.Next)
	}
	if values != seriesLength {
		t.Errorf("%d values over all pages", values)
	}
}

func TestBlobsAndStreams(t *testing.T) {
	r := start(t, Options{})
	for _, query := range []string{"bytes=100000", "bytes=100000&chunked=true"} {
		rep := r.do("GET", r.api+"/cwms-data/blobs/X?"+query, "")
		if len(rep.body) != 100000 || rep.body[99_999] != 'a'+99_999%26 {
			t.Errorf("%s: %d bytes", query, len(rep.body))
		}
	}
	rep := r.do("GET", r.api+"/cwms-data/blobs/X?bytes=1000", "", "Range: bytes=26-28")
	if rep.status != 206 || rep.body != "abc" || rep.header.Get("Content-Range") != "bytes 26-28/1000" {
		t.Errorf("%d %q %q", rep.status, rep.body, rep.header.Get("Content-Range"))
	}
	rep = r.do("GET", r.api+"/cwms-data/timeseries?events=2", "", "Accept: text/event-stream")
	if rep.body != "id: 0\ndata: {\"value\":0}\n\nid: 1\ndata: {\"value\":1}\n\n" {
		t.Errorf("%q", rep.body)
	}
}

// What is seen is what came over the wire, byte for byte.
func TestSeen(t *testing.T) {
	r := start(t, Options{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /cwms-data/timeseries?x=%41+b HTTP/1.1\r\nHost: h\r\nx-TWICE: 1\r\nContent-Length: 5\r\nX-Twice:  2\r\nConnection: close\r\n\r\nhello")
	_, _ = io.Copy(io.Discard, conn)

	sum := sha256.Sum256([]byte("hello"))
	want := []Seen{{
		Method: "POST", Target: "/cwms-data/timeseries?x=%41+b",
		Headers: [][2]string{{"Host", "h"}, {"x-TWICE", "1"}, {"Content-Length", "5"}, {"X-Twice", "2"}, {"Connection", "close"}},
		BodyLen: 5, BodySHA256: hex.EncodeToString(sum[:]),
	}}
	got := ask[[]Seen](r, "GET", "/seen?last=1", "")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if twice := got[0].Header("x-twice"); !reflect.DeepEqual(twice, []string{"1", "2"}) {
		t.Errorf("x-twice %q", twice)
	}

	// Calls that a proxy makes for itself are kept apart; one that it forwards
	// carries a context header and counts as a request.
	token := "Authorization: Bearer " + r.token(`{"user":"m5hectest"}`)
	r.do("GET", r.api+"/cwms-data/user/profile", "", token)
	r.do("GET", r.api+"/cwms-data/user/profile", "", token, "x-cwms-auth-context: {}")
	r.do("GET", r.issuer+"/protocol/openid-connect/certs", "")
	if got := ask[Stats](r, "GET", "/stats", ""); got != (Stats{ProfileCalls: 1, KeyCalls: 1, Requests: 2}) {
		t.Errorf("%+v", got)
	}
	if n := len(ask[[]Seen](r, "GET", "/seen?calls=profile", "")); n != 1 {
		t.Errorf("%d profile calls seen", n)
	}
	ask[any](r, "DELETE", "/seen", "")
	if n := len(ask[[]Seen](r, "GET", "/seen?last=10", "")); n != 0 {
		t.Errorf("%d requests seen after forgetting", n)
	}

	// A large body is hashed as it streams.
	large := bytes.Repeat([]byte("0123456789"), 2<<20)
	sum = sha256.Sum256(large)
	if rep := r.do("POST", r.api+"/cwms-data/timeseries", string(large), token); rep.status != 200 {
		t.Errorf("large body: %d", rep.status)
	}
	if got := ask[[]Seen](r, "GET", "/seen?last=1", "")[0]; got.BodyLen != 20<<20 || got.BodySHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("large body seen as %d bytes", got.BodyLen)
	}
}

func TestFaults(t *testing.T) {
	r := start(t, Options{})
	offices := r.api + "/cwms-data/offices"
	ask[any](r, "PUT", "/fault", `{"target":"api","status":503,"times":2}`)
	for i, want := range []int{503, 503, 200} {
		if rep := r.do("GET", offices, ""); rep.status != want {
			t.Errorf("call %d: %d, want %d", i, rep.status, want)
		}
	}
	ask[any](r, "PUT", "/fault", `{"target":"api","drop":true}`)
	if rep, err := r.try("DELETE", offices, ""); !errors.Is(err, io.EOF) {
		t.Errorf("a dropped call: %d %v", rep.status, err)
	}
	ask[any](r, "PUT", "/fault", `{"target":"keys","status":500}`)
	if rep := r.do("GET", r.issuer+"/protocol/openid-connect/certs", ""); rep.status != 500 {
		t.Errorf("keys: %d", rep.status)
	}
	ask[any](r, "PUT", "/fault", `{"target":"profile","status":200,"body":"null"}`)
	token := "Authorization: Bearer " + r.token(`{"user":"m5hectest"}`)
	if rep := r.do("GET", r.api+"/cwms-data/user/profile", "", token); rep.body != "null" {
		t.Errorf("profile: %s", rep.body)
	}
	ask[any](r, "DELETE", "/fault", "")
	if rep := r.do("GET", offices, ""); rep.status != 200 {
		t.Errorf("after the faults: %d", rep.status)
	}
	if rep := r.do("PUT", r.control+"/fault", `{"target":"elsewhere"}`); rep.status != 400 {
		t.Errorf("an unknown target: %d", rep.status)
	}
}
