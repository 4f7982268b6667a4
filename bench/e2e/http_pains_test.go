package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/proxy/authz"
)

// elsewhere are the tests of the pains that proxies of this kind are known for,
// where a package of its own proves them. TestPains has the others.
var elsewhere = map[string]struct{ pain, tests string }{
	"C1":  {"a client's own context header reaches the API", "upstream.TestRequestOnTheWire upstream.TestNoContextHeader"},
	"C2":  {"look-alike header names", "upstream.TestRequestOnTheWire upstream.FuzzRequestHead conformance.TestRequestPath"},
	"C3":  {"our header is appended, doubled or dropped", "upstream.TestRequestRefused conformance.TestRequestPath"},
	"C4":  {"dot segments and queries change what was matched", "route.TestParseTarget route.FuzzParseTarget e2e.TestSpellings e2e.TestTomcat"},
	"C5":  {"encoded, doubled and trailing slashes", "route.TestParseTarget e2e.TestSpellings e2e.TestConformance"},
	"C6":  {"path parameters", "route.TestParseTarget e2e.TestSpellings e2e.TestTomcat"},
	"C7":  {"an upgrade opens a tunnel", "e2e.TestTomcat upstream.TestAnswerRefused"},
	"C8":  {"forwarded headers are believed", "upstream.TestRequestOnTheWire upstream.FuzzForwarded"},
	"C9":  {"one cache entry for two questions", "e2e.TestPains pdp.TestReuse pip.TestAnswersOfTheAPI pip.TestSubjectOfEachCredential identity.TestWhichCredentialCounts"},
	"C10": {"access goes on after it was taken", "e2e.TestRevocationIsSeenByEveryReplica pip.TestRevocationOvertakesAFetch pip.TestRevokedRightsNeverComeBack identity.TestTokenCache"},
	"C11": {"many misses overload the decision point", "pdp.TestEqualQuestionsAreAskedOnce pdp.TestLeaderGivesUp pdp.TestOverload pdp.TestAnonymousFlood"},
	"C12": {"invalidation fails silently", "pip.TestFaultPartition pip.TestFaultFlushKillEvict pip.TestFaultFailoverWithALostWrite pip.TestFaultServerKilled cache.TestRedisConnectionKilled"},
	"C13": {"OPA answers without a decision", "e2e.TestAnswersOfOPAThatAreNoDecision pdp.TestParseReplyRefuses pdp.TestLargeAnswerTakesNoMemory pdp.TestRestartedWithoutBundle"},
	"C14": {"keys rotate, are away, are invented", "identity.TestRotation identity.TestIssuerDown identity.TestIssuerSilent identity.TestFloodOfInventedKeys identity.TestStartWithoutTheIssuer"},
	"C15": {"clocks differ", "identity.TestLeeway identity.TestTokenCache"},
	"C16": {"claims are not checked", "identity.TestRefusedTokens e2e.TestHostileTokens"},
	"C17": {"policy that needs the body is fooled", "pep.TestInspection pep.TestInspectionOfACutBody route.TestBody route.TestBodyWithContentEncoding upstream.TestBodyAlreadyRead"},
	"C18": {"a dead connection fails a request, or a write is sent twice", "upstream.TestDeadConnection upstream.TestRetryOnce upstream.TestClosedBehindTheAnswer upstream.TestHalfClosedBehindTheAnswer upstream.TestUnaskedAnswer"},
	"C19": {"the client library rewrites the path", "e2e.TestConformance upstream.TestRequestOnTheWire"},
	"C20": {"streams break, memory grows", "upstream.TestEventsAreNotHeldBack upstream.TestLargeBodies upstream.TestClientLeavesDuringAnswer e2e.TestLargeBodies"},
	"C21": {"framing", "e2e.TestConformance e2e.TestTomcat conformance.TestRequestPath conformance.TestEarlyAnswer pep.TestExpect pep.TestLoneLF pep.TestMessages"},
	"C22": {"preflight, HEAD, OPTIONS, cookies", "pep.TestCrossOrigin pep.TestMethods upstream.TestHead upstream.TestAnswerOnTheWire"},
	"C23": {"deploys drop requests", "e2e.TestStopUnderLoad e2e.TestStopFinishesWhatIsInFlight pep.TestDrain"},
	"C24": {"headers too large somewhere in the chain", "e2e.TestTomcat pep.TestFaults upstream.TestContextTooLarge upstream.TestHeaderMax"},
	"C25": {"tokens in logs", "pep.TestNoSecretIsTold e2e.TestHostileTokens upstream.TestBrokenBodyIsNotQuoted"},
	"C26": {"paths as metric labels", "pep.TestSeries"},
	"C27": {"a name is resolved once", "upstream.TestNameIsResolvedAgain"},
	"C28": {"IPv4 only; a black hole is answered 200", "upstream.TestIPv6 upstream.TestBlackHole upstream.TestUnreachable upstream.TestFirstByteTimeout"},
	"C29": {"clients that leave mark the API bad", "upstream.TestClientLeavesDuringAnswer upstream.TestClientLeavesDuringUpload upstream.TestClientLeavesBeforeTheAnswer"},
	"C30": {"readiness hides or exaggerates", "e2e.TestDependenciesComeAndGo pep.TestHealthAndReady"},
	"C31": {"failing open is invisible", "pep.TestEvent pep.TestRecord"},
	"C32": {"an outage looks like a denial", "e2e.TestDependenciesComeAndGo e2e.TestWhatTheProfileSays pdp.TestNoDecision"},
	"C33": {"WebSocket: not supported, so never upgraded", "e2e.TestConformance"},
	"C34": {"no decision cache, or one that is never hit", "pdp.TestHitAllocatesNothing pdp.TestReuse"},
	"C35": {"two identities in one request", "identity.TestWhichCredentialCounts pep.TestCredentials pep.TestGrant"},
	"C36": {"a parameter under two names, or twice", "route.TestMatch route.TestEveryOfficeNamedIsSeen e2e.TestOfficeMismatches"},
	"C37": {"a 200 with a deny in it is an allow", "pdp.TestRealAnswers pdp.TestParseReply e2e.TestAnswersOfOPAThatAreNoDecision"},
}

// earlier are the faults of the earlier proxy that a request can show, and the tests
// that they are not ours.
var earlier = []struct{ fault, tests string }{
	{"a token is decoded and not verified", "identity.TestRefusedTokens e2e.TestHostileTokens"},
	{"the right name in a forged token is served what is known of that user", "identity.TestRefusedTokens pip.TestRightContexts"},
	{"roles that were taken away count for half an hour", "e2e.TestRevocationIsSeenByEveryReplica pip.TestRevocation"},
	{"a header names a test user, wherever the proxy runs", "identity.TestTestUsers main.TestConfigFaults e2e.TestPains"},
	{"anybody may ask about anybody, and is told who that is", "pep.TestAuthorizeRefuses pep.TestAuthorizeWithoutSecret identity.TestAssertedUserRefused"},
	{"what was asked of an asserted user is answered to the real one", "pdp.TestReuse e2e.TestPains"},
	{"API keys and cookies are nobody to the proxy and somebody to the API", "identity.TestWhichCredentialCounts identity.TestPrincipalOfAKeyAndOfASession e2e.TestPains"},
	{"the scheme of a credential is compared by case", "identity.TestPrincipalOfAToken e2e.TestHostileTokens"},
	{"a bad token is nobody, and so 403", "pep.TestFailures e2e.TestHostileTokens"},
	{"a failure of the API makes users nobody", "e2e.TestWhatTheProfileSays pip.TestAnswersOfTheAPI"},
	{"many at once make as many calls", "pip.TestOneCallForAllWhoWait pdp.TestEqualQuestionsAreAskedOnce"},
	{"the client says how its data is classified", "e2e.TestPains"},
	{"a parameter in another spelling hides an office", "e2e.TestOfficeMismatches route.TestEveryOfficeNamedIsSeen"},
	{"a list that cannot be read lets everything pass, a switch lets outages pass", "main.TestConfigOfTheEarlierProxy main.TestConfigFaults main.TestMigration"},
	{"an outage of policy is 403, after 5 s each", "e2e.TestDependenciesComeAndGo pdp.TestNoDecision pdp.TestNoSlotInTime"},
	{"an outage of Redis holds up requests", "e2e.TestDependenciesComeAndGo pip.TestFaultSlowRedis pip.TestDownAtStart cache.TestRedisFrozen"},
	{"decisions are kept without bound, and none is met again", "cache.TestLocalIsBounded e2e.TestManyURLsAreOneQuestion"},
	{"forwarded requests are not counted and not timed", "e2e.TestPains pep.TestRecord"},
	{"a path in another spelling is forwarded undecided", "e2e.TestSpellings e2e.TestTomcat e2e.TestConformance"},
	{"the beginning of a path skips the decision", "route.TestPrefix e2e.TestSpellings"},
	{"paths of items are not decided", "route.TestMatch e2e.TestReferenceCases"},
	{"a client's context header passes", "e2e.TestPains"},
	{"HEAD is refused or not decided", "e2e.TestPains pep.TestMethods"},
	{"names beyond Latin-1 break the context header, which has no limit", "e2e.TestPains upstream.TestContextTooLarge"},
	{"a stop drops what is in flight", "e2e.TestStopFinishesWhatIsInFlight e2e.TestStopUnderLoad"},
	{"readiness cannot say no", "pep.TestHealthAndReady e2e.TestDependenciesComeAndGo"},
	{"paths are metric labels", "e2e.TestPains pep.TestSeries"},
	{"a GET is repeated ten times when the API is overloaded", "e2e.TestPains upstream.TestRetryOnce"},
	{"every failure of the API is 502, after 300 s", "upstream.TestFirstByteTimeout upstream.TestBlackHole upstream.TestUnreachable"},
	{"tokens are logged", "e2e.TestPains pep.TestNoSecretIsTold"},
	{"every origin may use the cookies of every user", "pep.TestCrossOrigin pep.TestCrossSite"},
	{"forwarded headers and request ids of clients are believed, and the API gets none", "e2e.TestPains upstream.FuzzForwarded"},
	{"a dot segment is a fault of the server", "e2e.TestSpellings route.TestParseTarget"},
	{"there is no 401, and bodies of errors are not the API's", "pep.TestFailures e2e.TestHostileTokens"},
}

// The tests that are named exist.
func TestPainsElsewhere(t *testing.T) {
	declared := map[string]bool{}
	for _, dir := range []string{".", "../../proxy", "../../proxy/*"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					declared[parsed.Name.Name+"."+f.Name.Name] = true
				}
			}
		}
	}
	check := func(what, tests string) {
		if tests == "" {
			t.Errorf("%s: there is no test", what)
		}
		for _, name := range strings.Fields(tests) {
			if !declared[name] {
				t.Errorf("%s: there is no test %s", what, name)
			}
		}
	}
	for n := 1; n <= 37; n++ {
		c := fmt.Sprintf("C%d", n)
		check(c, elsewhere[c].tests)
	}
	for _, e := range earlier {
		check(e.fault, e.tests)
	}
}

const (
	contextHeader = "X-Cwms-Auth-Context"
	appOrigin     = "https://app.example"
)

func TestPains(t *testing.T) {
	api := newAPI(t)
	st := api.before(t, map[string]string{"LOG_LEVEL": "debug", "CORS_ORIGINS": appOrigin, "ADMIN_PPROF": "true", "DEBUG_HEADERS": "true"})
	admin, manager, guest := bearer(st.Tokens["HECADMIN"]), bearer(st.Tokens["M5HECTEST"]), bearer(st.Tokens["L1HECTEST"])
	const public, private = "/cwms-data/offices", "/cwms-data/users"
	asking := func(method, target, body string, header ...string) request {
		return request{method: method, target: target, body: body, header: header}
	}

	// On no way through the program does a context header of the client's pass.
	t.Run("C1", func(t *testing.T) {
		forged := []string{
			contextHeader + `: {"forged":1}`, `x-cwms-auth-context: forged`, `X_CWMS_AUTH_CONTEXT: forged`, `x.cwms.auth.context: forged`, `x--cwms-auth_context: forged`,
		}
		arrived := 0
		for name, r := range map[string]request{
			"allowed":        get(reading, admin),
			"public":         get(public),
			"denied":         get(private),
			"bad token":      get(public, "Authorization: Bearer x"),
			"OPTIONS":        asking("OPTIONS", reading, "", admin),
			"preflight":      asking("OPTIONS", reading, "", "Origin: "+appOrigin, "Access-Control-Request-Method: GET"),
			"HEAD":           asking("HEAD", reading, "", admin),
			"a write":        asking("DELETE", "/cwms-data/locations/A?office=SWT", "", admin),
			"a body":         asking("POST", "/cwms-data/locations", `{"office-id":"SWT","name":"A"}`, admin, "Content-Type: application/json"),
			"WebSocket":      get(reading, admin, "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"),
			"an own":         get("/health"),
			"an unknown":     get("/cwms-data/nobody/knows", admin),
			"not ours":       get("/elsewhere", admin),
			"unknown scheme": get(public, "Authorization: Basic eDp5"),
		} {
			api.seen()
			send(t, st.Proxy, r.with(forged...))
			for _, got := range api.seen() {
				arrived++
				values := got.header[contextHeader]
				if len(values) != 1 || object(t, values[0])["policy"] == nil {
					t.Errorf("%s: the API sees %q", name, values)
				}
				for key, values := range got.header {
					if strings.Contains(fmt.Sprint(key, values), "forged") {
						t.Errorf("%s: the API sees %s: %q", name, key, values)
					}
				}
			}
		}
		if arrived != 9 {
			t.Errorf("the API sees %d requests, want 9", arrived)
		}
	})

	// Nothing that a client says of other hops changes who asked for what.
	t.Run("C8", func(t *testing.T) {
		said := []string{
			"X-Forwarded-For: 9.9.9.9", "X-Forwarded-Host: evil", "X-Forwarded-Proto: https", "X-Forwarded-Uri: " + public, "X-Forwarded-Prefix: /x", "X-Forwarded-Method: POST",
			`Forwarded: for="[2001:db8::1]:80";host=evil`, "X-Real-IP: 9.9.9.9", "X-Original-URL: " + public, "X-Original-Method: POST", "X-Rewrite-URL: " + public,
			"X-Request-Id: evil", "X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE", "User-Agent: kube-probe/1.30", "X-Test-User: {}",
		}
		api.seen()
		for _, query := range []string{"", "?classification=public", "?data_source=public&data_classification=public", "?resource=offices&action=read"} {
			for _, who := range [][]string{{guest}, {}} {
				if a := send(t, st.Proxy, get(private+query, who...).with(said...)); a.status != http.StatusForbidden {
					t.Errorf("%s%s: %d, want 403", private, query, a.status)
				}
			}
		}
		if a := send(t, st.Proxy, get(reading, admin).with(said...)); a.status != http.StatusOK {
			t.Errorf("%d, want 200", a.status)
		}
		seen := api.seen()
		if len(seen) != 1 || seen[0].method != http.MethodGet || seen[0].target != reading {
			t.Fatalf("the API sees %v", seen)
		}
		h := seen[0].header
		if h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Forwarded-Host") != strings.TrimPrefix(st.Proxy, "http://") || h.Get("X-Forwarded-Proto") != "http" {
			t.Errorf("the API sees %v", h)
		}
		for _, name := range said {
			name, _, _ = strings.Cut(name, ":")
			written := slices.Contains([]string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id", "User-Agent"}, name)
			if !written && h.Get(name) != "" || h.Get(name) == "evil" {
				t.Errorf("the API sees %s: %q", name, h.Get(name))
			}
		}
	})

	// Two questions have one key only if they are one: the key is the bytes.
	t.Run("C9", func(t *testing.T) {
		user := func(m authz.Method, id string, roles, offices []string) *authz.Subject {
			return authz.NewSubject(&authz.Principal{Method: m}, authz.User{ID: id, Username: id, Roles: roles, Offices: offices}, time.Time{})
		}
		base := func() *authz.Input {
			return &authz.Input{Subject: user(authz.JWT, "a", []string{"r"}, []string{"SWT"}), Resource: "levels", Action: "read",
				Context: authz.Context{Method: "GET", Route: "/levels", Offices: []string{"SWT"}, Scope: "one"}}
		}
		keys := map[string]string{}
		for name, change := range map[string]func(*authz.Input){
			"base":                   func(*authz.Input) {},
			"another user":           func(in *authz.Input) { in.Subject = user(authz.JWT, "b", []string{"r"}, []string{"SWT"}) },
			"another proof":          func(in *authz.Input) { in.Subject = user(authz.APIKey, "a", []string{"r"}, []string{"SWT"}) },
			"asserted":               func(in *authz.Input) { in.Subject = user(authz.Asserted, "a", []string{"r"}, []string{"SWT"}) },
			"nobody":                 func(in *authz.Input) { in.Subject = authz.AnonymousSubject },
			"an empty name":          func(in *authz.Input) { in.Subject = user(authz.JWT, "", nil, nil) },
			"two roles":              func(in *authz.Input) { in.Subject = user(authz.JWT, "a", []string{"r", "s"}, []string{"SWT"}) },
			"two roles in one":       func(in *authz.Input) { in.Subject = user(authz.JWT, "a", []string{"r,s"}, []string{"SWT"}) },
			"a role with a quote":    func(in *authz.Input) { in.Subject = user(authz.JWT, "a", []string{`r","s`}, []string{"SWT"}) },
			"no role":                func(in *authz.Input) { in.Subject = user(authz.JWT, "a", nil, []string{"SWT"}) },
			"an empty role":          func(in *authz.Input) { in.Subject = user(authz.JWT, "a", []string{""}, []string{"SWT"}) },
			"another home":           func(in *authz.Input) { in.Subject = user(authz.JWT, "a", []string{"r"}, []string{"SPK"}) },
			"another action":         func(in *authz.Input) { in.Action = "create" },
			"another resource":       func(in *authz.Input) { in.Resource = "level" },
			"resource and action":    func(in *authz.Input) { in.Resource, in.Action = "levelsr", "ead" },
			"another method":         func(in *authz.Input) { in.Context.Method = "POST" },
			"another route":          func(in *authz.Input) { in.Context.Route = "/levels/{id}" },
			"another office":         func(in *authz.Input) { in.Context.Offices = []string{"SPK"} },
			"two offices":            func(in *authz.Input) { in.Context.Offices, in.Context.Scope = []string{"SPK", "SWT"}, "many" },
			"two offices in one":     func(in *authz.Input) { in.Context.Offices = []string{"SPK,SWT"} },
			"no office":              func(in *authz.Input) { in.Context.Offices, in.Context.Scope = nil, "none" },
			"unknown":                func(in *authz.Input) { in.Context.Offices, in.Context.Scope = nil, "unknown" },
			"a mask":                 func(in *authz.Input) { in.Context.Mask, in.Context.Scope = "S*", "mask" },
			"a|bc":                   func(in *authz.Input) { in.Context.Params = []authz.Pair{{Name: "a", Value: "bc"}} },
			"ab|c":                   func(in *authz.Input) { in.Context.Params = []authz.Pair{{Name: "ab", Value: "c"}} },
			"an attribute, no param": func(in *authz.Input) { in.Context.Attributes = []authz.Pair{{Name: "a", Value: "bc"}} },
			"a subresource":          func(in *authz.Input) { in.Context.Subresource = "a" },
		} {
			in := base()
			change(in)
			key := string(in.AppendJSON(nil))
			if !json.Valid([]byte(key)) {
				t.Errorf("%s: %s", name, key)
			}
			if other, taken := keys[key]; taken {
				t.Errorf("%q and %q have one key: %s", name, other, key)
			}
			keys[key] = name
			again := base()
			change(again)
			if string(again.AppendJSON(nil)) != key {
				t.Errorf("%s: the same question has two keys", name)
			}
		}
	})

	// What the API says is what the client hears, once: nothing is asked again.
	t.Run("C18", func(t *testing.T) {
		for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
			calls := 0
			api.on("/counties", func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			if a := send(t, st.Proxy, asking(method, "/cwms-data/counties", "", admin)); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" || calls != 1 {
				t.Errorf("%s: %d after %d calls", method, a.status, calls)
			}
		}
	})

	// An event reaches the client before the next is made; a client that leaves ends
	// the API's work, and nobody takes that for a fault of the API.
	t.Run("C20", func(t *testing.T) {
		next, gone := make(chan struct{}), make(chan struct{})
		api.on("/levels", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			defer close(gone)
			for n := 0; ; n++ {
				if _, err := fmt.Fprintf(w, "data: %d\n\n", n); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
		})
		failures := sum(scrape(t, st), "authorizer_proxy_upstream_failures_total")
		res := open(t, st.Proxy, "GET", "/cwms-data/levels?office=SWT", manager)
		lines := bufio.NewReader(res.Body)
		for n := range 20 {
			// The API waits for us with the event after this one.
			if line, err := lines.ReadString('\n'); line != fmt.Sprintf("data: %d\n", n) || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			next <- struct{}{}
		}
		res.Body.Close()
		// Whoever is gone is noticed when there is something for him.
		await(t, "the API hears that the client has left", func() bool {
			select {
			case <-gone:
				return true
			case next <- struct{}{}:
			default:
			}
			return false
		})
		if n := sum(scrape(t, st), "authorizer_proxy_upstream_failures_total"); n != failures {
			t.Errorf("%v failures of the API are counted", n-failures)
		}
	})

	t.Run("C22", func(t *testing.T) {
		api.on("/states", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"e"`)
			if r.Header.Get("If-None-Match") == `"e"` {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			for _, c := range []string{"a=1; Path=/", "b=2, x; Path=/", "a=3; Path=/"} {
				w.Header().Add("Set-Cookie", c)
			}
			io.WriteString(w, "states")
		})
		preflight := func(origin string) reply {
			return send(t, st.Proxy, asking("OPTIONS", reading, "", "Origin: "+origin, "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization"))
		}
		api.seen()
		if a := preflight(appOrigin); a.status != http.StatusNoContent || a.header.Get("Access-Control-Allow-Origin") != appOrigin || a.header.Get("X-Decision") != "none" {
			t.Errorf("a preflight: %d %v", a.status, a.header)
		}
		if a := preflight("https://evil.example"); a.status != http.StatusForbidden || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("a stranger's preflight: %d %v", a.status, a.header)
		}
		if seen := api.seen(); len(seen) > 0 {
			t.Errorf("the API sees the preflight: %v", seen)
		}
		// An OPTIONS that is none is judged.
		if a := send(t, st.Proxy, asking("OPTIONS", private, "a body", guest)); a.status != http.StatusForbidden || !strings.HasPrefix(a.header.Get("X-Decision"), "deny") {
			t.Errorf("OPTIONS: %d %v", a.status, a.header)
		}
		// HEAD is what GET is.
		if a := send(t, st.Proxy, asking("HEAD", "/cwms-data/states", "")); a.status != http.StatusOK || a.body != "" || a.header.Get("Content-Length") != "6" {
			t.Errorf("HEAD: %d %v", a.status, a.header)
		}
		if a := send(t, st.Proxy, asking("HEAD", private, "", guest)); a.status != http.StatusForbidden || a.body != "" {
			t.Errorf("HEAD: %d %q", a.status, a.body)
		}
		if a := send(t, st.Proxy, get("/cwms-data/states", `If-None-Match: "e"`)); a.status != http.StatusNotModified || a.header.Get("ETag") != `"e"` {
			t.Errorf("a condition: %d %v", a.status, a.header)
		}
		if got, want := send(t, st.Proxy, get("/cwms-data/states")).header["Set-Cookie"], []string{"a=1; Path=/", "b=2, x; Path=/", "a=3; Path=/"}; !slices.Equal(got, want) {
			t.Errorf("cookies %q", got)
		}
		// A browser may read why it was refused.
		for _, r := range []request{get(private, guest), get(public, "Authorization: Bearer x")} {
			if a := send(t, st.Proxy, r.with("Origin: "+appOrigin)); a.header.Get("Access-Control-Allow-Origin") != appOrigin || a.status < 401 {
				t.Errorf("%d %v", a.status, a.header)
			}
		}
	})

	// Whoever is somebody in many places gets a header that the API can take, with
	// every constraint in it; where that cannot be, the answer says so.
	t.Run("C24", func(t *testing.T) {
		for name, c := range map[string]struct{ offices, roles, status int }{
			"MIXED01":   {60, 1, 200},
			"DAMOP001":  {60, 40, 200}, // without the roles it fits
			"L2HECTEST": {2000, 1, 500},
		} {
			roles := map[string][]string{"SWT": {"CWMS Users"}, "HQ": {"water_manager"}}
			for n := range c.offices {
				roles[fmt.Sprintf("O%04d", n)] = []string{"CWMS Users"}
				for r := range c.roles {
					roles[fmt.Sprintf("O%04d", n)] = append(roles[fmt.Sprintf("O%04d", n)], fmt.Sprintf("A role with a long name, %d of office %d", r, n))
				}
			}
			b, err := json.Marshal(roles)
			if err != nil {
				t.Fatal(err)
			}
			api.mu.Lock()
			api.roles[name] = string(b)
			api.mu.Unlock()
			api.seen()
			a := send(t, st.Proxy, get(reading, bearer(st.Tokens[name])))
			if a.status != c.status {
				t.Errorf("%s: %d %s, want %d", name, a.status, a.body, c.status)
			}
			seen := api.seen()
			if a.status != http.StatusOK {
				if len(seen) > 0 || !strings.Contains(a.body, "context header of") {
					t.Errorf("%s: %s; the API sees %d requests", name, a.body, len(seen))
				}
				continue
			}
			value := seen[0].header.Get(contextHeader)
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) || !strings.Contains(value, `zo\u00eb@`) {
				t.Errorf("%s: the header is not ASCII: %s", name, value)
			}
			if offices, _ := object(t, value)["constraints"].(map[string]any)["allowed_offices"].([]any); len(value) > authz.MaxContextHeader || len(offices) < c.offices {
				t.Errorf("%s: a header of %d bytes with %d offices", name, len(value), len(offices))
			}
		}
	})

	// What proves an identity, and what is inside a body, is nowhere in what the
	// system writes, when it is served, refused, broken or turned away.
	t.Run("C25", func(t *testing.T) {
		canaries := []string{"canary-bearer", "canary-basic", "canary-key-of-somebody", "canary-sso", "canary-session", "canary-body", "canary-query", "canary-secret", "canary-trailer", "canary-user"}
		_, token, _ := strings.Cut(manager, "Bearer ")
		canaries = append(canaries, token, token[strings.LastIndexByte(token, '.')+1:])
		json := "Content-Type: application/json"
		for _, r := range []request{
			get(reading, manager),
			get(reading, "Authorization: Bearer canary-bearer.canary-bearer.canary-bearer"),
			get(public, "Authorization: Basic canary-basic"),
			get(public, "Authorization: apikey canary-key-of-somebody"),
			get(public, "Cookie: JSESSIONIDSSO=canary-sso; JSESSIONID=canary-session"),
			get(reading+"&note=canary-query", manager),
			get(public+"?name=canary-query&office=canary-query!", manager),
			asking("POST", "/cwms-data/locations", `{"office-id":"canary-body!`, manager, json),
			asking("POST", "/cwms-data/locations", `{"office-id":"canary-body!","name":"canary-body"}`, manager, json),
			asking("POST", "/cwms-data/timeseries", `{"name":"canary-body`, manager, json),
			asking("POST", "/authorize", `{"resource":"x","action":"y","context":{"canary-body":1},"jwt_token":"canary-bearer"}`, json),
			asking("POST", "/authorize", `{"resource":"levels","action":"read","context":{},"user":{"id":"canary-user"}}`, json, "X-Authorize-Secret: canary-secret"),
			get(reading, manager, "Authorization: Bearer canary-bearer"),
			get(reading, "Authorization: Bearer canary-bearer", "X-Pad: "+strings.Repeat("x", 20<<10)),
			get(reading, "Authorization : Bearer canary-bearer"),
			get(reading, "Authorization: Bearer canary-bearer", " folded canary-bearer"),
		} {
			if _, err := try(st.Proxy, r); err != nil {
				t.Logf("%s %.60s: %v", r.method, r.target, err)
			}
		}
		raw(t, st.Proxy, "POST /cwms-data/blobs?office=SWT HTTP/1.1\r\nHost: h\r\n"+manager+"\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nAuthorization canary-trailer\r\n\r\n")
		raw(t, st.Proxy, "GET "+reading+" HTTP/1.1\nAuthorization: Bearer canary-bearer\r\n\r\n")
		raw(t, st.Proxy, "canary-bearer\r\n\r\n")
		// The records are written through a buffer; this request's is the last.
		last := send(t, st.Proxy, get("/health")).header.Get("X-Request-Id")
		recordsOf(t, st, []string{last})

		wrote := map[string]string{"/metrics": scrape(t, st)}
		for _, path := range []string{"/metrics/json", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
			wrote[path] = send(t, st.Admin, get(path, bearer(st.AdminToken))).body
		}
		for _, c := range []interface {
			OutFile() string
			ErrFile() string
		}{st.Replicas[0], st.OPAServer, st.RedisServer} {
			for _, file := range []string{c.OutFile(), c.ErrFile()} {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				wrote[file] = string(b)
			}
		}
		for where, text := range wrote {
			for _, canary := range canaries {
				if i := strings.Index(text, canary); i >= 0 {
					t.Errorf("%s holds %.20s: …%s…", filepath.Base(where), canary, text[max(0, i-200):min(len(text), i+60)])
				}
			}
		}
	})

	// However many paths, methods and offices clients invent, the series are as many.
	t.Run("C26", func(t *testing.T) {
		k := &talker{t: t, addr: strings.TrimPrefix(st.Proxy, "http://"), head: admin + "\r\n"}
		defer k.close()
		invent := func(from int) int {
			for n := from; n < from+500; n++ {
				k.get(fmt.Sprintf("/cwms-data/invented%d/x%d?office=O%d", n, n, n))
				if n%10 == 0 {
					send(t, st.Proxy, asking(fmt.Sprintf("M%d", n), fmt.Sprintf("/p%d", n), ""))
				}
			}
			return strings.Count(scrape(t, st), "\n")
		}
		if first, second := invent(0), invent(500); first != second {
			t.Errorf("%d lines of metrics have become %d", first, second)
		}
	})

	// Clients that leave in the middle cost others nothing.
	t.Run("C29", func(t *testing.T) {
		api.on("/blobs/large", func(w http.ResponseWriter, _ *http.Request) {
			piece := make([]byte, 1<<20)
			for range 64 {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		})
		before := scrape(t, st)
		for range 1000 {
			res := open(t, st.Proxy, "GET", "/cwms-data/blobs/large?office=SWT", admin)
			if _, err := io.CopyN(io.Discard, res.Body, 100<<10); err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
		if a := send(t, st.Proxy, get(reading, admin)); a.status != http.StatusOK {
			t.Errorf("another client: %d %s", a.status, a.body)
		}
		await(t, "every client that left is counted as such", func() bool {
			return sum(scrape(t, st), "authorizer_proxy_upstream_client_gone_total")-sum(before, "authorizer_proxy_upstream_client_gone_total") >= 1000
		})
		if n := sum(scrape(t, st), "authorizer_proxy_upstream_failures_total") - sum(before, "authorizer_proxy_upstream_failures_total"); n != 0 {
			t.Errorf("%v failures of the API are counted", n)
		}
	})

	// The API sees no upgrade, and the client gets a plain answer.
	t.Run("C33", func(t *testing.T) {
		api.seen()
		a := send(t, st.Proxy, get(reading, manager, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"))
		if a.status != http.StatusOK || a.header.Get("Upgrade") != "" {
			t.Errorf("%d %v", a.status, a.header)
		}
		if seen := api.seen(); len(seen) != 1 || seen[0].header.Get("Upgrade") != "" || seen[0].header.Get("Connection") != "" {
			t.Errorf("the API sees %v", seen)
		}
	})

	// A thousand URLs of one user, office and parameter are one question.
	t.Run("C34", func(t *testing.T) {
		k := &talker{t: t, addr: strings.TrimPrefix(st.Proxy, "http://"), head: manager + "\r\n"}
		defer k.close()
		before := scrape(t, st)
		for n := range 1000 {
			if a, _ := k.get(fmt.Sprintf("/cwms-data/timeseries?office=SWT&name=KEYS.Elev.Inst.1Hour.0.V%d&begin=2026-01-01T%02d:00:00Z&page-size=%d", n, n%24, n)); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		after := scrape(t, st)
		// Each is counted, and timed.
		for _, name := range []string{`authorizer_proxy_http_requests_total{method="GET",route="/timeseries",status_code="200"}`, "authorizer_proxy_http_request_duration_seconds_count"} {
			if n := sum(after, name) - sum(before, name); n < 1000 {
				t.Errorf("%s: %v more, want 1000", name, n)
			}
		}
		const series = `authorizer_proxy_authorization_decisions_total{decision="allow",source=`
		hits, asked := sum(after, series+`"cache"`)-sum(before, series+`"cache"`), sum(after, series+`"opa"`)-sum(before, series+`"opa"`)
		if hits < 995 || hits+asked < 1000 {
			t.Errorf("%v hits, OPA was asked %v times", hits, asked)
		}
	})

	// Of two identities one counts, and the other does not reach the API.
	t.Run("C35", func(t *testing.T) {
		for _, c := range []struct {
			name   string
			header []string
			status int
			user   string
		}{
			{"a token", []string{manager}, 200, "M5HECTEST"},
			{"a key", []string{"Authorization: apikey key-of-the-user-M5HECTEST"}, 200, "M5HECTEST"},
			{"a session", []string{"Cookie: JSESSIONIDSSO=session-M5HECTEST"}, 200, "M5HECTEST"},
			{"a token and another's session", []string{manager, "Cookie: JSESSIONIDSSO=session-HECADMIN"}, 200, "M5HECTEST"},
			{"a key and another's session", []string{"Authorization: apikey key-of-the-user-M5HECTEST", "Cookie: a=1; JSESSIONIDSSO=session-HECADMIN"}, 200, "M5HECTEST"},
			{"a bad token and a session", []string{"Authorization: Bearer x", "Cookie: JSESSIONIDSSO=session-HECADMIN"}, 401, ""},
			{"two tokens", []string{manager, admin}, 400, ""},
			{"a token twice", []string{manager, manager}, 400, ""},
			{"a token and a key", []string{manager, "Authorization: apikey key-of-the-user-HECADMIN"}, 400, ""},
			{"two in one line", []string{manager + ", apikey key-of-the-user-HECADMIN"}, 401, ""},
			{"two sessions", []string{"Cookie: JSESSIONIDSSO=session-M5HECTEST; JSESSIONIDSSO=session-HECADMIN"}, 400, ""},
			{"two sessions in two lines", []string{"Cookie: JSESSIONIDSSO=session-M5HECTEST", "Cookie: JSESSIONIDSSO=session-HECADMIN"}, 400, ""},
		} {
			api.seen()
			if a := send(t, st.Proxy, get(reading, c.header...)); a.status != c.status {
				t.Errorf("%s: %d %s, want %d", c.name, a.status, a.body, c.status)
				continue
			}
			seen := api.seen()
			if c.status != http.StatusOK {
				if len(seen) > 0 {
					t.Errorf("%s: the API sees it", c.name)
				}
				continue
			}
			h := seen[0].header
			user, _ := object(t, h.Get(contextHeader))["user"].(map[string]any)
			if user["username"] != c.user || strings.Contains(fmt.Sprint(h), "HECADMIN") || (h.Get("Authorization") != "") == (strings.Contains(h.Get("Cookie"), "SESSION")) {
				t.Errorf("%s: the API sees %v", c.name, h)
			}
		}
	})

	// Every office that a request names counts, whatever the order.
	t.Run("C36", func(t *testing.T) {
		user := bearer(st.Tokens["APICOLLECTOR"])
		for office, status := range map[string]int{"SWT": 200, "SPK": 403} {
			if a := send(t, st.Proxy, get("/cwms-data/timeseries?name=A.Elev.Inst.1Hour.0.x&office="+office, user)); a.status != status {
				t.Fatalf("%s alone: %d, want %d", office, a.status, status)
			}
		}
		for _, query := range []string{"office=SWT&office=SPK", "office=SPK&office=SWT", "office=SWT&office=spk", "o%66fice=SPK&office=SWT", "office=SWT&office=SP%4B"} {
			api.seen()
			if a := send(t, st.Proxy, get("/cwms-data/timeseries?name=A.Elev.Inst.1Hour.0.x&"+query, user)); a.status != http.StatusForbidden {
				t.Errorf("%s: %d, want 403", query, a.status)
			}
			if seen := api.seen(); len(seen) > 0 {
				t.Errorf("%s: the API sees it", query)
			}
		}
	})
}

// While policy is only reported on, that is said wherever somebody may look; what
// is no matter of policy is refused as ever.
func TestPainsOfReporting(t *testing.T) {
	api := newAPI(t)
	st := api.before(t, map[string]string{"ENFORCE": "report", "DEBUG_HEADERS": "true"})
	t.Run("C31", func(t *testing.T) {
		denied := get("/cwms-data/users", bearer(st.Tokens["L1HECTEST"]))
		a := send(t, st.Proxy, denied)
		if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("X-Decision"), "deny; ") || len(api.seen()) != 1 {
			t.Errorf("%d %v", a.status, a.header)
		}
		id := a.header.Get("X-Request-Id")
		recordsOf(t, st, []string{id})
		records, err := os.ReadFile(st.Replicas[0].OutFile())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(records)) {
			if r := object(t, line); r["request_id"] == id && (r["allow"] != false || r["enforced"] != false) {
				t.Errorf("the record is %s", line)
			}
		}
		said, err := os.ReadFile(st.Replicas[0].ErrFile())
		if err != nil || !strings.Contains(string(said), "ENFORCE=report") {
			t.Errorf("nothing is said at start: %s", said)
		}
		metrics := scrape(t, st)
		if sum(metrics, "authorizer_proxy_enforce_report ") != 1 || sum(metrics, "authorizer_proxy_reported_denies_total") != 1 {
			t.Error("it is not in the metrics")
		}
		for status, r := range map[int]request{
			401: get("/cwms-data/offices", "Authorization: Bearer x"),
			400: get("/cwms-data/../offices"),
		} {
			if a := send(t, st.Proxy, r); a.status != status {
				t.Errorf("%d, want %d", a.status, status)
			}
		}
		if seen := api.seen(); len(seen) > 0 {
			t.Errorf("the API sees %v", seen)
		}
	})
}

// open sends a request and leaves the body to be read. Closing it closes the
// connection.
func open(t *testing.T, base, method, target, header string) *http.Response {
	t.Helper()
	c := dialAndSay(t, base, method+" "+target+" HTTP/1.1\r\nHost: h\r\n"+header+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{res.Body, c}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", method, target, res.Status)
	}
	return res
}

func dialAndSay(t *testing.T, base, bytes string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(base, "http://"), deadline)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, bytes); err != nil {
		t.Fatal(err)
	}
	return c
}

// raw sends bytes, takes whatever comes until the connection closes, and returns it.
func raw(t *testing.T, base, bytes string) string {
	t.Helper()
	c := dialAndSay(t, base, bytes)
	defer c.Close()
	b, _ := io.ReadAll(c) // a reset is an answer too
	return string(b)
}
