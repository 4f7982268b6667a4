package observe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
	"headgate/bench/standin"
)

// The faults that are made here, and the alerts that must fire in each. The others
// fire in rules_test.yml alone, since it takes a bug or hours to cause them: see
// elsewhere.
var faults = []fault{
	{"a start with policy in report mode", nil, nil,
		[]string{"HeadgateReportMode warning"}},
	{"every question is new", (*drill).newQuestions, nil,
		[]string{"HeadgateDecisionHitRate warning", "HeadgateDecisionHitRate critical"}},
	{"contexts are deleted all the time", (*drill).forget, nil,
		[]string{"HeadgateUserContextHitRate warning", "HeadgateUserContextHitRate critical"}},
	{"the profile API fails", (*drill).failProfiles, (*drill).noFault,
		[]string{"HeadgateProfilesFailing critical"}},
	{"the profile API mixes up its users", (*drill).mixUpProfiles, (*drill).noFault,
		[]string{"HeadgateProfileMismatch warning"}},
	{"the API drops connections", (*drill).dropAPI, (*drill).noFault,
		[]string{"HeadgateAPIFailing warning", "HeadgateErrorRate warning", "HeadgateErrorRate critical"}},
	{"Redis is killed", (*drill).killRedis, (*drill).startRedis,
		[]string{"HeadgateRedisDegraded warning", "HeadgateRevocationSlow warning"}},
	{"OPA hangs", (*drill).hangOPA, (*drill).resumeOPA,
		[]string{"HeadgatePolicyUnconfirmed warning", "HeadgateNotReady critical", "HeadgateNoDecision critical", "HeadgateOPASlow warning",
			"HeadgateOPASlow critical", "HeadgateOPAQueue warning", "HeadgateOPAShed critical", "HeadgateAddsLatency warning",
			"HeadgateLatency warning", "HeadgateLatency critical"}},
	{"thousands of connections", (*drill).connect, (*drill).disconnect,
		[]string{"HeadgateConnections warning", "HeadgateConnectionsRefused warning"}},
	{"bodies that do not end", (*drill).upload, (*drill).disconnect,
		[]string{"HeadgateBodies warning"}},
	{"few files may be open", (*drill).fewFiles, (*drill).manyFiles,
		[]string{"HeadgateFiles warning"}},
	{"a certificate that ends tomorrow, and a new one that does not fit its key", (*drill).oldCertificate, (*drill).leave,
		[]string{"HeadgateCertificateEnds warning", "HeadgateCertificateUnread warning"}},
	{"a replica whose OPA runs a bundle without a revision", (*drill).otherPolicy, (*drill).leave,
		[]string{"HeadgatePoliciesDiffer warning", "HeadgateNotCached warning"}},
	{"nobody reads the decision records", (*drill).recordsUnread, (*drill).leave,
		[]string{"HeadgateRecordsStuck critical"}},
	{"the disk of the decision records is full", (*drill).recordsRefused, (*drill).leave,
		[]string{"HeadgateRecordErrors critical"}},
	{"the proxy restarts", (*drill).restartProxy, nil,
		[]string{"HeadgateRestarts warning"}},
	{"the proxy is killed", (*drill).killProxy, nil,
		[]string{"HeadgateDown critical"}},
	{"nobody knows of a proxy", (*drill).forgetTargets, nil,
		[]string{"HeadgateMissing critical"}},
}

var elsewhere = []string{"HeadgatePanics warning", "HeadgateKeysOld warning", "HeadgateKeysOld critical"}

type fault struct {
	name string
	// begin causes it; it may be called again and again until the alerts fire.
	begin, end func(*drill)
	alerts     []string
}

// drill is a stack with traffic, watched by Prometheus.
type drill struct {
	t  *testing.T
	st *stack.Stack
	p  *prometheus

	once  map[string]bool
	calls int // distinct questions asked so far

	open   []io.Closer     // connections and files of the present fault
	beside []*stack.Beside // processes of the present fault
}

// Every expression of rules and dashboard yields a series on a running stack,
// every metric is documented and none is documented that is not there, and the
// alerts fire when they should.
func TestLive(t *testing.T) {
	p := startPrometheus(t)
	st := stack.New(t, stack.Options{Env: map[string]string{
		"ENFORCE": "report", "LOG_LEVEL": "error", "OPA_TIMEOUT": "3000", "POLICY_LEASE": "3s", // time to see OPA hang
		"BODY_INSPECT_MAX": "1MiB", "BODY_INSPECT_TOTAL": "2MiB",
	}})
	if st.RedisServer == nil {
		t.Skip("left out: redis-server is not installed")
	}
	d := &drill{t: t, st: st, p: p}
	t.Cleanup(func() { d.disconnect() })
	p.scrape(t, st.Admins...)
	d.traffic()
	audit(t, st)

	// Each expression until it has yielded something once: errors, for example, are
	// there only after a fault.
	missing := expressions(t)
	look := func() {
		for where, expr := range missing {
			got, err := p.query(t.Context(), expr)
			if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			if len(got) > 0 {
				delete(missing, where)
			}
		}
	}
	all := map[string]bool{}
	for _, r := range rules(t) {
		if r.Alert != "" {
			all[r.key()] = true
		}
	}
	for _, key := range elsewhere {
		delete(all, key)
	}
	for _, f := range faults {
		d.once = map[string]bool{}
		want := map[string]bool{}
		for _, key := range f.alerts {
			want[key] = true
			delete(all, key)
		}
		start := time.Now()
		for len(want) > 0 {
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: %q did not fire", f.name, slices.Sorted(maps.Keys(want)))
			}
			if f.begin != nil {
				f.begin(d)
			}
			d.traffic()
			// Some fire while a step of a fault is under way, and are gone after it.
			fired, err := p.query(t.Context(), fmt.Sprintf(`count by (alertname, severity) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`, 1+int(time.Since(start).Seconds())))
			d.must(err)
			for _, s := range fired {
				delete(want, s.Metric["alertname"]+" "+s.Metric["severity"])
			}
			alerts, err := p.alerts(t.Context())
			d.must(err)
			for _, a := range alerts {
				for name, text := range a.Annotations {
					if strings.Contains(text, "error expanding") || strings.Contains(text, "no value") {
						t.Errorf("%s: its %s says %q", a.Labels["alertname"], name, text)
					}
				}
			}
			look()
		}
		t.Logf("%s: %d alerts after %v", f.name, len(f.alerts), time.Since(start).Round(100*time.Millisecond))
		if f.end != nil {
			f.end(d)
		}
	}
	for where, expr := range missing {
		t.Errorf("%s never yields a series: %s", where, expr)
	}
	for key := range all {
		t.Errorf("%s: no fault here causes it, and it is not among those that fire elsewhere", key)
	}
}

// comparison is one that filters; with bool it yields 0 or 1 instead.
var comparison = regexp.MustCompile(` (==|!=|>=|<=|>|<) `)

// expressions are all of rules and dashboard, each so that it yields a series
// whatever its value is.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range rules(t) {
		all["rule "+r.Record+r.key()] = comparison.ReplaceAllString(r.Expr, " $1 bool ")
	}
	var d dashboard
	read(t, dashboardFile, &d)
	for where, expr := range d.queries() {
		all["dashboard, "+where] = comparison.ReplaceAllString(expr, " $1 bool ")
	}
	for where, expr := range all {
		all[where] = shortened(strings.NewReplacer("[$__rate_interval]", "[5m]", "$instance", ".*").Replace(expr))
	}
	return all
}

// send asks the proxy for something and does not mind the answer.
func (d *drill) send(target string) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.st.Proxy+target, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.st.Tokens["M5HECTEST"])
	if res, err := d.p.client.Do(req); err == nil {
		res.Body.Close()
	}
}

const series = "/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office="

// traffic sends a few requests for half a second: allowed, denied and refused ones.
func (d *drill) traffic() {
	allowed := &load.Call{Name: "allowed", URL: d.st.Proxy + series + "SWT", Header: d.bearer("M5HECTEST")}
	denied := &load.Call{Name: "denied", URL: d.st.Proxy + series + "SPK", Header: d.bearer("M5HECTEST")}
	bad := &load.Call{Name: "bad token", URL: d.st.Proxy + series + "SWT", Header: [][2]string{{"Authorization", "Bearer x"}}, Status: 401}
	d.run(load.Options{Connections: 2, Rate: 40, Duration: 500 * time.Millisecond, Timeout: 2 * time.Second}, func(n int64) *load.Call {
		return []*load.Call{allowed, allowed, denied, bad}[n%4]
	})
}

func (d *drill) bearer(user string) [][2]string {
	return [][2]string{{"Authorization", "Bearer " + d.st.Tokens[user]}}
}

func (d *drill) run(o load.Options, next func(int64) *load.Call) {
	d.t.Helper()
	if _, err := load.Run(d.t.Context(), o, next); err != nil { // wrong answers are what the faults are for
		d.t.Fatal(err)
	}
}

// newQuestions asks for offices that nobody asked for before.
func (d *drill) newQuestions() { d.ask(200, 4) }

func (d *drill) ask(requests, connections int) {
	calls := make([]*load.Call, requests)
	for i := range calls {
		d.calls++
		calls[i] = &load.Call{Name: "new", URL: fmt.Sprintf("%s%sX%06d", d.st.Proxy, series, d.calls), Header: d.bearer("M5HECTEST")}
	}
	d.run(load.Options{Connections: connections, Requests: int64(requests), Timeout: 5 * time.Second}, func(n int64) *load.Call { return calls[n] })
}

// forget deletes all contexts before every request.
func (d *drill) forget() {
	for range 20 {
		d.invalidate()
		d.send(series + "SWT")
	}
}

func (d *drill) invalidate() {
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.st.Admin+"/invalidate", strings.NewReader(`{"all":true}`))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.st.AdminToken)
	res, err := d.p.client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		d.t.Fatalf("/invalidate: %s", res.Status)
	}
}

func (d *drill) fault(f standin.Fault) {
	if err := d.st.Do(d.t.Context(), http.MethodPut, "/fault", f, nil); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drill) noFault() {
	if err := d.st.Do(d.t.Context(), http.MethodDelete, "/fault", nil, nil); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drill) failProfiles() {
	d.fault(standin.Fault{Target: "profile", Status: 500})
	d.invalidate()
}

func (d *drill) mixUpProfiles() {
	d.fault(standin.Fault{Target: "profile", Status: 200, Body: `{"user-name":"M5HECTEST","principal":"elsewhere::somebody","roles":{}}`})
	d.invalidate()
}

func (d *drill) dropAPI() { d.fault(standin.Fault{Target: "api", Drop: true}) }

// first reports whether a step is to be taken, which is once in a fault.
func (d *drill) first(step string) bool {
	defer func() { d.once[step] = true }()
	return !d.once[step]
}

func (d *drill) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *drill) killRedis() {
	if d.first("kill") {
		d.must(d.st.RedisServer.Kill())
	}
	d.send(series + "SWT")
}

func (d *drill) startRedis() { d.must(d.st.RedisServer.Start(d.t.Context())) }

// hangOPA asks more at once than may wait for OPA. The queue fills only until the
// lease runs out; after that requests wait for OPA to say which policy it runs.
func (d *drill) hangOPA() {
	if !d.first("pause") {
		d.resumeOPA()
	}
	d.must(d.st.OPAServer.Pause())
	d.ask(400, 200)
}

func (d *drill) resumeOPA() {
	d.must(d.st.OPAServer.Resume())
	d.must(d.st.WaitReady(d.t.Context()))
}

// connect opens as many connections as the proxy serves, from as many addresses as
// that takes, and some more; each is given ten seconds to say something.
func (d *drill) connect() {
	d.disconnect()
	const addresses, each = 4, 4200
	proxy := strings.TrimPrefix(d.st.Proxy, "http://")
	for i := range addresses {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(10+i))}, Timeout: 5 * time.Second}
		for range each {
			c, err := from.DialContext(d.t.Context(), "tcp", proxy)
			if err != nil {
				d.t.Fatalf("connection %d: %v", len(d.open), err)
			}
			d.open = append(d.open, c)
		}
	}
}

func (d *drill) disconnect() {
	for _, c := range d.open {
		_ = c.Close()
	}
	d.open = nil
}

// upload sends most of a body that is read for its attributes, as each of two users:
// one alone may not have all the memory there is for them.
func (d *drill) upload() {
	if !d.first("upload") {
		return
	}
	for _, user := range []string{"M5HECTEST", "DAMOP001"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(d.st.Proxy, "http://"))
		d.must(err)
		d.open = append(d.open, c)
		_, err = fmt.Fprintf(c, "POST /cwms-data/timeseries HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n%s",
			d.st.Tokens[user], strings.Repeat(" ", 900_000))
		d.must(err)
	}
}

// fewFiles lets the proxy open few more files than it has.
func (d *drill) fewFiles() {
	if d.first("limit") {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.st.Replicas[0].PID()))
		d.must(err)
		d.limitFiles(len(open) + len(open)/10)
	}
}

func (d *drill) manyFiles() { d.limitFiles(20_000) }

func (d *drill) limitFiles(n int) {
	out, err := exec.Command("prlimit", fmt.Sprint("--pid=", d.st.Replicas[0].PID()), fmt.Sprint("--nofile=", n, ":")).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
}

// join adds a proxy with settings of its own to the fleet, once in a fault, and
// sends it questions; leave takes it away.
func (d *drill) join(name string, prepare func() map[string]string) {
	if d.first("join") {
		b, err := d.st.AddProxy(d.t.Context(), name, prepare())
		d.must(err)
		d.beside = append(d.beside, b)
		d.p.scrape(d.t, append(slices.Clone(d.st.Admins), b.Admin)...)
	}
	proxy := d.beside[len(d.beside)-1]
	call := &load.Call{Name: name, URL: proxy.URL + series + "SWT", Header: d.bearer("M5HECTEST")}
	d.run(load.Options{Connections: 4, Requests: 100, Timeout: time.Second}, func(int64) *load.Call { return call })
}

func (d *drill) leave() {
	d.p.scrape(d.t, d.st.Admins...)
	d.disconnect()
	for _, b := range slices.Backward(d.beside) {
		d.must(b.Kill())
	}
	d.beside = nil
}

func (d *drill) oldCertificate() {
	certificate, key := filepath.Join(d.st.Dir(), "cert.pem"), filepath.Join(d.st.Dir(), "key.pem")
	d.join("old-certificate", func() map[string]string {
		selfSigned(d.t, certificate, key, 24*time.Hour)
		return map[string]string{"TLS_CERT": certificate, "TLS_KEY": key}
	})
	if d.first("another certificate") {
		selfSigned(d.t, certificate, key+".other", 24*time.Hour)
	}
}

// otherPolicy is a replica with an OPA of its own, whose bundle somebody built by
// hand.
func (d *drill) otherPolicy() {
	d.join("other-policy", func() map[string]string {
		root, err := stack.Root()
		d.must(err)
		bundle := filepath.Join(d.st.Dir(), "by-hand.tar.gz")
		out, err := exec.CommandContext(d.t.Context(), d.st.OPABinary, "build", "-b", "--ignore", "*_test.rego", "-o", bundle, filepath.Join(root, "opa", "policy")).CombinedOutput()
		if err != nil {
			d.t.Fatalf("%v: %s", err, out)
		}
		address, err := stack.FreeAddress()
		d.must(err)
		opa, err := d.st.Spawn(d.t.Context(), "opa-by-hand", d.st.OPABinary, "http://"+address+"/health?bundles",
			"run", "--server", "--addr", address, "--log-level", "error", "--set", "decision_logs.console=true", "--set", "bundles.headgate.resource=file://"+bundle)
		d.must(err)
		d.beside = append(d.beside, opa)
		return map[string]string{"OPA_URL": "http://" + address}
	})
}

// recordsUnread is a replica whose standard output is a pipe that nobody reads.
func (d *drill) recordsUnread() {
	d.join("records-unread", func() map[string]string {
		pipe := filepath.Join(d.st.Dir(), "records-unread.out")
		d.must(syscall.Mkfifo(pipe, 0o600))
		f, err := os.OpenFile(pipe, os.O_RDWR, 0)
		d.must(err)
		d.open = append(d.open, f)
		return nil
	})
}

func (d *drill) recordsRefused() {
	d.join("records-refused", func() map[string]string {
		d.must(os.Symlink("/dev/full", filepath.Join(d.st.Dir(), "records-refused.out")))
		return nil
	})
}

func selfSigned(t *testing.T, certificate, key string, life time.Duration) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// restartProxy starts it anew and returns when that was seen.
func (d *drill) restartProxy() {
	proxy, before := d.st.Replicas[0], d.startTime()
	d.must(proxy.Stop(20 * time.Second))
	d.must(proxy.Start(d.t.Context()))
	d.must(d.st.WaitReady(d.t.Context()))
	for start := time.Now(); time.Since(start) < 10*time.Second && d.startTime() == before; {
		time.Sleep(100 * time.Millisecond)
	}
}

// startTime is that of the proxy as Prometheus knows it.
func (d *drill) startTime() any {
	seen, err := d.p.query(d.t.Context(), "authorizer_proxy_process_start_time_seconds")
	d.must(err)
	if len(seen) == 0 {
		return nil
	}
	return seen[0].Value[1]
}

func (d *drill) killProxy() {
	if d.first("kill") {
		d.must(d.st.Replicas[0].Kill())
	}
}

func (d *drill) forgetTargets() { d.p.scrape(d.t) }
