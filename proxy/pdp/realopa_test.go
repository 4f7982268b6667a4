package pdp

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// opaBinary is the OPA that the tests run: OPA_BIN, or the one this repository
// pins, or any on the path; else the pinned one is built.
var opaBinary = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("OPA_BIN"); bin != "" {
		return bin, nil
	}
	pinned, err := filepath.Abs("../../.bin/opa")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(pinned); err == nil {
		return pinned, nil
	}
	if bin, err := exec.LookPath("opa"); err == nil {
		return bin, nil
	}
	if out, err := exec.Command("go", "build", "-C", "../../opa", "-o", pinned, "github.com/open-policy-agent/opa").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build OPA: %w\n%s", err, out)
	}
	return pinned, nil
})

func opaCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := opaBinary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(bin, args...)
}

const (
	allowRule = "package cwms.authz\ndecision := {\"allow\": true}\n"
	denyRule  = "package cwms.authz\ndecision := {\"allow\": false}\n"
)

// bundle builds a bundle of one rule.
func bundle(t testing.TB, rego, revision string, roots ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	manifest, err := json.Marshal(map[string]any{"revision": revision, "roots": roots})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "bundle.tar.gz")
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "policy.rego"), []byte(rego), 0o600),
		os.WriteFile(filepath.Join(dir, ".manifest"), manifest, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := opaCommand(t, "build", "-b", dir, "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// renamed is a built bundle under another revision; OPA takes a while to build.
func renamed(t testing.TB, bundle []byte, revision string) []byte {
	t.Helper()
	in, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	from, to := tar.NewReader(in), tar.NewWriter(zip)
	for {
		h, err := from.Next()
		if err == io.EOF {
			break
		}
		content, err2 := io.ReadAll(from)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if strings.TrimPrefix(h.Name, "/") == ".manifest" {
			var m map[string]any
			err := json.Unmarshal(content, &m)
			m["revision"] = revision
			content, err2 = json.Marshal(m)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			h.Size = int64(len(content))
		}
		err = to.WriteHeader(h)
		if _, err2 := to.Write(content); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	if err := errors.Join(to.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// bundleServer serves one bundle with an ETag, by long polling, so that OPA
// fetches a new one at once.
type bundleServer struct {
	*httptest.Server
	mu      sync.Mutex
	bundle  []byte
	etag    string
	changed chan struct{}
	closed  chan struct{}
	served  atomic.Int32
}

func newBundleServer(t testing.TB) *bundleServer {
	s := &bundleServer{changed: make(chan struct{}), closed: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { close(s.closed); s.Close() })
	return s
}

// publish replaces the bundle; nil serves none.
func (s *bundleServer) publish(bundle []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle, s.etag = bundle, fmt.Sprintf("%q", fmt.Sprint(time.Now().UnixNano()))
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *bundleServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/status") {
		return
	}
	for {
		s.mu.Lock()
		bundle, etag, changed := s.bundle, s.etag, s.changed
		s.mu.Unlock()
		switch {
		case bundle == nil:
			http.NotFound(w, r)
			return
		case r.Header.Get("If-None-Match") != etag:
			w.Header().Set("ETag", etag)
			w.Header().Set("Content-Type", "application/vnd.openpolicyagent.bundles")
			w.Write(bundle)
			s.served.Add(1)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-s.closed:
			return
		}
	}
}

// realOPA is an OPA process.
type realOPA struct {
	address string // as in OPA_URL
	args    []string
	cmd     *exec.Cmd
	ended   chan struct{}
	log     *bytes.Buffer
}

// options of a realOPA; the zero value runs no bundle.
type options struct {
	bundles *bundleServer // where its bundle comes from
	status  string        // URL to which it posts its status
	persist string        // directory
	unix    bool          // listen on a Unix socket instead of TCP
	args    []string      // files, bundles
}

// startOPA starts an OPA and waits until it listens.
func startOPA(t testing.TB, o options) *realOPA {
	t.Helper()
	dir, err := os.MkdirTemp("", "opa") // t.TempDir is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &realOPA{}
	listen := ""
	if o.unix {
		listen = "unix://" + filepath.Join(dir, "s")
		r.address = listen
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listen = l.Addr().String()
		l.Close()
		r.address = "http://" + listen
	}
	config := map[string]any{}
	services := map[string]any{}
	if o.bundles != nil {
		services["bundles"] = map[string]any{"url": o.bundles.URL}
		config["bundles"] = map[string]any{"authz": map[string]any{
			"service": "bundles", "resource": "bundle.tar.gz", "persist": o.persist != "",
			"polling": map[string]any{"min_delay_seconds": 1, "max_delay_seconds": 1, "long_polling_timeout_seconds": 60},
		}}
	}
	if o.persist != "" {
		config["persistence_directory"] = o.persist
	}
	if o.status != "" {
		services["status"] = map[string]any{"url": o.status}
		config["status"] = map[string]any{"service": "status"}
	}
	config["services"] = services
	file := filepath.Join(dir, "config.json")
	text, err := json.Marshal(config)
	if err := errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.args = append([]string{"run", "--server", "--addr", listen, "--log-level", "error", "--disable-telemetry", "--config-file", file}, o.args...)
	r.start(t)
	t.Cleanup(r.kill)
	return r
}

func (r *realOPA) start(t testing.TB) {
	t.Helper()
	r.log = &bytes.Buffer{}
	r.cmd = opaCommand(t, r.args...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { cmd.Wait(); close(ended) }(r.cmd, r.ended)
	until(t, "OPA listens", func() bool {
		select {
		case <-r.ended:
			t.Fatalf("OPA has ended\n%s", r.log)
		default:
		}
		network, address, _ := strings.Cut(r.address, "://")
		if network != "unix" {
			network = "tcp"
		}
		c, err := net.Dial(network, address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// kill ends the process as kill -9 does.
func (r *realOPA) kill() {
	r.cmd.Process.Kill()
	<-r.ended
}

// asked puts a question to OPA itself and returns the revision that answered.
func (r *realOPA) asked(ctx context.Context, client *http.Client) (revision string, err error) {
	url := r.address
	if strings.HasPrefix(url, "unix:") {
		url = "http://opa"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+rulePath+"?provenance=true", strings.NewReader(`{"input":{}}`))
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	reply, err := parseReply(body)
	return reply.revision, err
}

// client is an HTTP client for OPA.
func (r *realOPA) client(t testing.TB) *http.Client {
	transport := &http.Transport{}
	if path, ok := strings.CutPrefix(r.address, "unix://"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
