package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/bench/stack"
	"headgate/proxy/conformance"
)

// updateSpellings writes the table of TestSpellings anew.
var updateSpellings = flag.Bool("update-spellings", false, "write "+spellingsFile+" from what Tomcat does")

var ways = []string{"reject", "decode", "passthrough"}

// resources that Tomcat has a mapping for, as the API has.
var mapped = []string{"timeseries", "locations", "ratings", "offices", "user", "auth", "catalog", "levels", "clobs", "v2"}

// tomcat runs Debian's Tomcat with one servlet for each resource and returns the
// address for each way with an encoded slash.
func tomcat(t *testing.T) map[string]string {
	t.Helper()
	const home = "/usr/share/tomcat10"
	if _, err := os.Stat(home + "/lib/catalina.jar"); err != nil {
		t.Skip("Tomcat is not installed (Debian: tomcat10-common): TestSpellings has what it was seen to do")
	}
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("no JDK is installed: TestSpellings has what Tomcat was seen to do")
	}
	source, err := filepath.Abs("testdata/tomcat/Echo.java")
	if err != nil {
		t.Fatal(err)
	}
	java := exec.Command("java", append([]string{"-cp", home + "/lib/*:" + home + "/bin/tomcat-juli.jar", source, t.TempDir()}, mapped...)...)
	var log bytes.Buffer
	java.Stderr = &log
	input, err := java.StdinPipe() // it ends with it
	if err != nil {
		t.Fatal(err)
	}
	output, err := java.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := java.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := java.Wait(); err != nil {
			t.Logf("Tomcat: %v\n%s", err, log.Bytes())
		}
	})
	addresses := map[string]string{}
	lines := bufio.NewScanner(output)
	for _, way := range ways {
		if !lines.Scan() {
			_ = input.Close()
			t.Fatalf("Tomcat does not start:\n%s", log.Bytes())
		}
		addresses[way] = "127.0.0.1:" + lines.Text()
	}
	return addresses
}

// echo is what the servlet says.
type echo struct {
	Servlet, Path, URI, Protocol string

	Before int // requests of all connections that Tomcat had ended before
}

// talker keeps a connection for as long as the other side does, and sends targets
// byte for byte.
type talker struct {
	t    *testing.T
	addr string
	head string // further header lines
	conn net.Conn
	br   *bufio.Reader
}

func (k *talker) get(target string) (reply, echo) {
	k.t.Helper()
	for attempt := 0; ; attempt++ {
		a, err := k.try(target)
		if err == nil {
			var e echo
			_ = json.Unmarshal([]byte(a.body), &e) // an error page is none
			return a, e
		}
		k.close()
		if attempt == 2 {
			k.t.Fatalf("%q: %v", target, err)
		}
	}
}

func (k *talker) try(target string) (reply, error) {
	if k.conn == nil {
		c, err := net.DialTimeout("tcp", k.addr, deadline)
		if err != nil {
			return reply{}, err
		}
		k.conn, k.br = c, bufio.NewReader(c)
	}
	_ = k.conn.SetDeadline(time.Now().Add(deadline))
	if _, err := fmt.Fprintf(k.conn, "GET %s HTTP/1.1\r\nHost: h\r\n%s\r\n", target, k.head); err != nil {
		return reply{}, err
	}
	res, err := http.ReadResponse(k.br, &http.Request{Method: http.MethodGet})
	if err != nil {
		return reply{}, err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{}, err
	}
	if res.Close {
		k.close()
	}
	return reply{res.StatusCode, res.Header, string(body)}, nil
}

func (k *talker) close() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn = nil
	}
}

// writer invents spellings of paths.
type writer struct{ *rand.Rand }

func (w writer) one(of ...string) string { return of[w.IntN(len(of))] }

func (w writer) target() string {
	var b strings.Builder
	b.WriteString(w.spell("cwms-data", 30, "/"))
	for range 1 + w.IntN(4) {
		b.WriteString(w.segment())
	}
	switch w.IntN(8) {
	case 0:
		b.WriteString("/")
	case 1:
		b.WriteString("?office=SWT")
	case 2:
		b.WriteString(w.one("?", "?a=/../x", "?;x", "?%2e%2e", "#", "#?office=SWT"))
	}
	if w.IntN(40) == 0 {
		return "http://h" + b.String()
	}
	return b.String()
}

// segment is a slash, or something like it, and what follows it.
func (w writer) segment() string {
	slash := "/"
	if w.IntN(12) == 0 {
		slash = w.one("//", `\`, "%2f", "%2F", "%5c", "/;/", "/;x=1/", "/%2e/", "/./", ";/", "%252f", "%c0%af", "/%20/", "/%00/")
	}
	switch w.IntN(10) {
	case 0, 1:
		return slash + w.one("..", ".", "%2e%2e", "%2E.", ".%2e", "..;", "..;x", ".;", "%2e%2e;", "...", "..%3b", "%252e%252e", "..%00", "..%20", "%c0%ae%c0%ae", "%u002e.", "..\\", "%2e")
	case 2, 3:
		return w.spell(w.one("SWT", "a", "A.B.c", "x y", "é", "1;2", "a/b", "a+b", "profile", "keys", "rate-times"), 3, slash)
	}
	return w.spell(w.one(mapped...), 5, slash)
}

// spell writes a word in one of its spellings; one in so many is odd.
func (w writer) spell(word string, odd int, slash string) string {
	var b strings.Builder
	b.WriteString(slash)
	strange := w.IntN(odd) == 0
	for i := range len(word) {
		c := word[i]
		switch {
		case c <= ' ' || c >= 0x7f || c == '/' || c == ';' || c == '%' || strange && w.IntN(4) == 0:
			fmt.Fprintf(&b, w.one("%%%02x", "%%%02X"), c)
		case strange && w.IntN(12) == 0:
			fmt.Fprintf(&b, "%%25%02x", c)
		case strange && w.IntN(12) == 0:
			b.WriteString(w.one(";", ";x=1", ";jsessionid=1", "%3b", "%09", "%", "%g1", "%00", "%0a", "|", "^", "[", "\xc3\xa9", "+"))
			b.WriteByte(c)
		case strange && w.IntN(6) == 0:
			b.WriteString(strings.ToUpper(string(c)))
		default:
			b.WriteByte(c)
		}
	}
	if w.IntN(15) == 0 {
		b.WriteString(w.one(";", ";a=b", ";a=/../x", ";a=%2e%2e", "%3b", ".", "%2e", "%20", "%2f..", "%5c..", "\\", "%23"))
	}
	return b.String()
}

// known spellings that have led a proxy astray, and the plain ones.
var knownSpellings = []string{
	"/cwms-data", "/cwms-data/", "/cwms-data/timeseries", "/cwms-data/timeseries/", "/cwms-data/timeseries/recent", "/cwms-data/timeseries?office=SWT",
	"/cwms-data/a;b/..;/c", "/cwms-data/a/..;/timeseries/x", "/cwms-data/timeseries;v=1/x", "/cwms-data/;/timeseries/x", "/cwms-data/%2e%2e/", "/cwms-data/a/%2e%2e/timeseries/x",
	"/cwms-data/a/.%2e/timeseries/x", "//cwms-data/timeseries", "/cwms-data//timeseries", "/cwms-data/a//../timeseries/x", "/cwms-data/x%2fy", "/cwms-data/a%2f..%2ftimeseries",
	`/cwms-data/a\..\timeseries`, "/cwms-data/a%5c..%5ctimeseries", "/cwms-data/%74imeseries/x", "/cwms-data/%2574imeseries/x", "/cwms-data/timeseries%00/x", "/cwms-data/timeseries%3bx/y",
	"/cwms-data/a/..%3b/timeseries", "http://evil/cwms-data/timeseries/x", "/cwms-data/timeseries#f", "/cwms-data/timeseries;a=b", "/cwms-data/docs/..;/timeseries", "/cwms-data%3Bx/timeseries",
	"/cwms-data/./timeseries", "/cwms-data/x/../timeseries", "/cwms-data/%2e/timeseries", "/cwms-data/x/%2E%2e/timeseries", "/cwms-data/TimeSeries", "/cwms-data/timeserie%73", "/CWMS-DATA/timeseries",
	"/cwms-data/../cwms-data/timeseries", "/x/../cwms-data/timeseries", "/cwms-data/docs/../timeseries", "/cwms-data/v2/timeseries", "/cwms-data/v2/../locations", "/cwms-data/user/profile",
	"/cwms-data/user%2fprofile", "/cwms-data/auth/keys", "/cwms-data/ratings/a%2Fb", "/cwms-data/ratings/a%2F..%2Fb", "/cwms-data/ratings/..%2F..%2Ftimeseries", "/cwms-data/ratings/a%3Bb.c",
	"/cwms-data/ratings/a%252Fb", "/cwms-data/ratings/a%2F%2E%2E%2F..%2Ftimeseries", "/cwms-data/ratings/%2Ftimeseries", "/cwms-data/locations/a%20b", "/cwms-data/locations/%C3%A9", "/cwms-data/locations/a+b",
	"/cwms-data/timeseries/.", "/cwms-data/timeseries/..", "/cwms-data/timeseries/...", "/cwms-data/timeseries/%2e", "*", "cwms-data/timeseries", "/cwms-data?/timeseries", "/cwms-data%2ftimeseries",
	"/cwms-data/timeseries%2f", "/cwms-data/timeseries//", "/cwms-data/timeseries/;", "/cwms-data/%c0%ae%c0%ae/timeseries", "/cwms-data/offices/SWT", "/cwms-data/offices/S%57T", "/cwms-data/offices/swt",
}

// invented spellings, the known ones first.
func invented(seed uint64, n int) []string {
	w := writer{rand.New(rand.NewPCG(seed, 1))}
	all := append([]string{}, knownSpellings...)
	seen := map[string]bool{}
	for len(all) < n {
		if s := w.target(); !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	}
	return all
}

// Tomcat itself is asked what it serves for each spelling, and policy's reading of
// it is held against that; then the same goes through the program.
func TestTomcat(t *testing.T) {
	at := tomcat(t)
	direct := map[string]*talker{}
	for _, way := range ways {
		direct[way] = &talker{t: t, addr: at[way]}
		defer direct[way].close()
	}
	ask := func(target string) spelling {
		s := spelling{target, map[string]string{}}
		for _, way := range ways {
			if a, e := direct[way].get(target); a.status == http.StatusOK && e.Servlet != "" {
				s.Served[way] = e.Path
			}
		}
		return s
	}

	if *updateSpellings {
		var b bytes.Buffer
		for i, target := range invented(1, 12_000) {
			s := ask(target)
			// Of the invented ones those are kept that say something: served otherwise
			// than they are written, or by one way only, or against our refusal.
			path, _, _ := strings.Cut(strings.TrimPrefix(target, "/cwms-data"), "?")
			dull := len(s.Served) == 0 && judgedAs(target).refused || len(s.Served) == len(ways) && s.Served["reject"] == path
			if i >= len(knownSpellings) && (dull || i%6 > 0) {
				continue
			}
			line, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
		if err := os.WriteFile(spellingsFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("the table holds", func(t *testing.T) {
		for _, s := range readSpellings(t) {
			if now := ask(s.Target); !maps.Equal(now.Served, s.Served) {
				t.Errorf("Tomcat serves %q as %v, the table says %v", s.Target, now.Served, s.Served)
			}
		}
	})

	// The same spellings each time in CI, others in each long run.
	seed := uint64(20_000)
	if os.Getenv("HEADGATE_LONG") != "" {
		seed = uint64(time.Now().UnixNano())
	}
	t.Run("invented", func(t *testing.T) {
		refused, served := 0, 0
		n := 3000
		if os.Getenv("HEADGATE_LONG") != "" {
			n = 100_000
		}
		for _, target := range invented(seed, n) {
			s := ask(target)
			if err := s.agree(); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if judgedAs(target).refused {
				refused++
			} else if len(s.Served) > 0 {
				served++
			}
		}
		t.Logf("seed %d: %d refused, %d judged and served", seed, refused, served)
	})

	st := stack.New(t, stack.Options{Env: map[string]string{
		"UPSTREAM_URL": "http://" + at["reject"] + "/cwms-data", "UPSTREAM_HEADER_MAX": "8KiB",
	}})
	through := &talker{t: t, addr: strings.TrimPrefix(st.Proxy, "http://"), head: bearer(st.Tokens["HECADMIN"]) + "\r\n"}
	defer through.close()

	t.Run("through the program", func(t *testing.T) {
		type pair struct {
			target, path string
		}
		servedAs := map[string]pair{} // by request id
		refused := 0
		for _, target := range invented(seed+1, 2000) {
			a, e := through.get(target)
			switch {
			case e.Servlet != "":
				servedAs[a.header.Get("X-Request-Id")] = pair{target, e.Path}
				if path, _, _ := strings.Cut(target, "?"); e.URI != path {
					t.Errorf("Tomcat was sent %q for %q", e.URI, path)
				}
			case a.status == 400 || a.status == 404:
				refused++
			default:
				t.Errorf("%q: %d %s", target, a.status, a.body)
			}
		}
		t.Logf("seed %d: %d refused, %d served", seed, refused, len(servedAs))
		records := recordsOf(t, st, slices.Collect(maps.Keys(servedAs)))
		for id, s := range servedAs {
			r := records[id]
			_, query, _ := strings.Cut(s.target, "?")
			want := judgedAs(plainly(s.path, query, "reject"))
			if !r.Allow || r.Resource != want.resource || r.Action != want.action || r.Route != want.route {
				t.Errorf("Tomcat served %q for %q, which is %+v; policy judged %+v", s.path, s.target, want, r)
			}
		}
	})

	// C7: the API would take an upgrade to HTTP/2 and with it requests that nobody
	// judges; through the program it stays HTTP/1.1.
	t.Run("h2c", func(t *testing.T) {
		upgrade := "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
		alone := &talker{t: t, addr: at["reject"], head: upgrade}
		defer alone.close()
		if a, err := alone.try("/cwms-data/timeseries"); err != nil || a.status != http.StatusSwitchingProtocols {
			t.Errorf("Tomcat alone: %d, %v; want 101, or this test shows nothing", a.status, err)
		}
		asked := &talker{t: t, addr: through.addr, head: through.head + upgrade}
		defer asked.close()
		for range 2 { // on one connection
			if a, e := asked.get("/cwms-data/timeseries"); a.status != http.StatusOK || e.Protocol != "HTTP/1.1" {
				t.Errorf("%d %+v, want HTTP/1.1", a.status, e)
			}
		}
	})

	// C21: whatever the bytes of clients, Tomcat reads no more requests than policy
	// allowed.
	t.Run("framing", func(t *testing.T) {
		beside := &talker{t: t, addr: at["reject"]}
		defer beside.close()
		own := 0
		seen := func() (n int) { // requests of others than beside
			for same := 0; same < 3; own++ {
				_, e := beside.get("/cwms-data/timeseries")
				if e.Before-own == n {
					same++
				} else {
					n, same = e.Before-own, 0 // a request is counted a little after its answer
				}
			}
			return n
		}
		allowed := func() int {
			return int(sum(scrape(t, st), `authorizer_proxy_authorization_decisions_total{decision="allow"`))
		}
		through.get("/cwms-data/timeseries") // the user is known from here on
		first := seen()
		for _, c := range conformance.Cases {
			seenBefore, allowedBefore := seen(), allowed()
			auth := bearer(st.Tokens["HECADMIN"]) + "\r\n"
			nc := dialAndSay(t, st.Proxy, strings.ReplaceAll(c.Send, "{auth}", auth))
			if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if answers, err := io.ReadAll(nc); len(answers) == 0 {
				t.Errorf("%s: no answer, %v", c.Name, err)
			}
			nc.Close()
			if n, most := seen()-seenBefore, allowed()-allowedBefore; n > most {
				t.Errorf("%s: Tomcat has read %d requests, policy allowed %d", c.Name, n, most)
			}
		}
		t.Logf("%d byte strings, Tomcat has read %d requests", len(conformance.Cases), seen()-first)
	})

	// C24: Tomcat takes 8 KiB of header and answers a bare 400 beyond. With ours
	// counted in, it never comes to that, and not a byte of room is lost.
	t.Run("large headers", func(t *testing.T) {
		padded := func(size int) reply {
			k := &talker{t: t, addr: through.addr, head: through.head + "X-Pad: " + strings.Repeat("x", size) + "\r\n"}
			defer k.close()
			a, e := k.get("/cwms-data/timeseries")
			if e.Servlet == "" && a.status != http.StatusRequestHeaderFieldsTooLarge {
				t.Fatalf("%d bytes: %d %s", size, a.status, a.body)
			}
			return a
		}
		taken, refused := 4<<10, 9<<10 // bytes
		for _, c := range []struct{ size, status int }{{taken, 200}, {refused, 431}, {17 << 10, 431}} {
			if a := padded(c.size); a.status != c.status {
				t.Errorf("%d bytes: %d %s, want %d", c.size, a.status, a.body, c.status)
			}
		}
		for refused-taken > 1 {
			if middle := (taken + refused) / 2; padded(middle).status == http.StatusOK {
				taken = middle
			} else {
				refused = middle
			}
		}
		if metrics := scrape(t, st); sum(metrics, "authorizer_proxy_context_header_reduced_total") == 0 {
			t.Error("no context header was reduced on the way to the limit")
		}
		alone := &talker{t: t, addr: at["reject"], head: "X-Pad: " + strings.Repeat("x", 8<<10) + "\r\n"}
		defer alone.close()
		if a, err := alone.try("/cwms-data/timeseries"); err != nil || a.status != http.StatusBadRequest {
			t.Errorf("Tomcat alone: %d, %v; want 400, or this test shows nothing", a.status, err)
		}
		t.Logf("a header of %d bytes is the longest that passes", taken)
	})
}

// record is what the tests read of a decision record.
type record struct {
	RequestID               string `json:"request_id"`
	Method, Route, Resource string
	Action                  string
	Allow                   bool
	Status                  int
}

// recordsOf waits until the first proxy has written the records of those requests,
// and returns all there are, by request id.
func recordsOf(t *testing.T, st *stack.Stack, requests []string) (all map[string]record) {
	t.Helper()
	await(t, "a record of every request", func() bool {
		b, err := os.ReadFile(st.Replicas[0].OutFile())
		if err != nil {
			t.Fatal(err)
		}
		all = map[string]record{}
		for line := range bytes.Lines(b) {
			var r record
			if json.Unmarshal(line, &r) == nil {
				all[r.RequestID] = r
			}
		}
		return !slices.ContainsFunc(requests, func(id string) bool { return all[id].RequestID == "" })
	})
	return all
}
