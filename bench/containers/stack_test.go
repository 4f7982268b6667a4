package containers

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// reading is a warm read of M5HECTEST, at its own office.
const reading = "/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT"

// The images are built from the Dockerfiles as they are.
func TestImages(t *testing.T) {
	p := newProject(t)
	start := time.Now()
	p.compose("build")
	t.Logf("images built in %v", time.Since(start).Round(time.Second))
	p.images()
}

// `docker compose up` brings up everything, in order, with nothing prepared. One
// stack serves all that follows; the parts are in an order that leaves it well for
// the next.
func TestStack(t *testing.T) {
	p := newProject(t)
	took := p.up()
	t.Logf("up and healthy after %v", took.Round(100*time.Millisecond))
	st := p.attach()

	for _, part := range []struct {
		name string
		run  func(*testing.T, *project, *stack.Stack)
	}{
		{"hint", hint}, {"cases", cases}, {"isolation", isolation}, {"push", push}, {"policy", policyEdit}, {"drill", drill},
	} {
		t.Run(part.name, func(t *testing.T) {
			inner := *p
			inner.t = t
			part.run(t, &inner, st)
		})
	}
}

// images looks at what was built: how large, and that every file in every layer is
// one that belongs there, so no secret can be among them.
func (p *project) images() {
	p.t.Helper()
	belongs := map[string]*regexp.Regexp{
		"headgate-proxy":  regexp.MustCompile(`^(headgate|etc/|etc/ssl/|etc/ssl/certs/|etc/ssl/certs/ca-certificates\.crt|run/|run/secrets/|run/opa/)$`),
		"headgate-opa":    regexp.MustCompile(`^(opa|health|config\.yaml|state/|run/|run/opa/)$`),
		"headgate-bundle": regexp.MustCompile(`^(opa|build|bundles/|policy/)$`),
		"headgate-bench":  regexp.MustCompile(`^bench$`),
	}
	for image, allowed := range belongs {
		var size int64
		var inspected []struct {
			Size   int64
			Config struct {
				User string
				Env  []string
			}
		}
		if err := json.Unmarshal([]byte(p.docker("image", "inspect", image)), &inspected); err != nil || len(inspected) != 1 {
			p.t.Fatal(err)
		}
		size = inspected[0].Size
		p.t.Logf("%s: %.1f MB", image, float64(size)/1e6)
		if image == "headgate-proxy" && size > 20e6 {
			p.t.Errorf("%s has %d bytes, want at most 20 MB", image, size)
		}
		if u := inspected[0].Config.User; u != "65532:65532" {
			p.t.Errorf("%s runs as %q", image, u)
		}
		for _, v := range inspected[0].Config.Env {
			if !strings.HasPrefix(v, "PATH=") {
				p.t.Errorf("%s has the variable %s", image, v)
			}
		}
		for _, file := range layers(p.t, image) {
			if !allowed.MatchString(file) {
				p.t.Errorf("a layer of %s holds %q", image, file)
			}
		}
	}
}

// layers lists the files of all layers of an image.
func layers(t *testing.T, image string) (files []string) {
	t.Helper()
	saved := filepath.Join(t.TempDir(), "image.tar")
	if out, err := exec.Command("docker", "save", "-o", saved, image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(saved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := 0
	for outer := tar.NewReader(f); ; {
		h, err := outer.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var head [512]byte
		n, _ := io.ReadFull(outer, head[:])
		if n < 512 || string(head[257:262]) != "ustar" { // no layer but what describes them
			continue
		}
		found++
		for layer := tar.NewReader(io.MultiReader(bytes.NewReader(head[:]), outer)); ; {
			entry, err := layer.Next()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", h.Name, err)
			}
			files = append(files, strings.TrimPrefix(entry.Name, "./"))
		}
	}
	if found == 0 {
		t.Errorf("no layer is found in %s", image)
	}
	return files
}

// hint pastes the lines that `docker compose up` printed.
func hint(t *testing.T, p *project, _ *stack.Stack) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("left out: curl is not installed")
	}
	var lines []string
	p.await("the hint", func() bool {
		lines = nil
		for line := range strings.Lines(p.compose("logs", "--no-log-prefix", "--no-color", "api")) {
			if strings.HasPrefix(line, "TOKEN=") || strings.HasPrefix(line, "curl ") {
				lines = append(lines, line)
			}
		}
		return len(lines) == 2
	})
	out, err := exec.Command("bash", "-c", strings.Join(lines, "")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "HTTP/1.1 200") {
		t.Errorf("%v\n%s\nanswered\n%s", err, lines, out)
	}
}

// cases are those of the end-to-end tests, asked through the published port.
func cases(t *testing.T, p *project, st *stack.Stack) {
	line, err := json.Marshal(st.Info)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-count=1", "-timeout", "5m", "-v", "-run", "^TestReferenceCases$", "./bench/e2e")
	cmd.Dir = p.root
	cmd.Env = append(os.Environ(), "HEADGATE_STACK="+string(line))
	out, err := cmd.CombinedOutput()
	passed, skipped := strings.Count(string(out), "    --- PASS"), strings.Count(string(out), "    --- SKIP")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d cases hold, %d are left out (x-test-user)", passed, skipped)
	if passed < 60 {
		t.Errorf("only %d cases ran", passed)
	}
}

// isolation looks from a container that shares a network with the proxy's clients.
func isolation(t *testing.T, p *project, _ *stack.Stack) {
	type door struct{ what, address, port string }
	closed := []door{
		{"Redis", p.address("redis", "data"), "6379"},
		{"OPA", p.address("opa", "policy"), "8181"},
		{"the bundles", p.address("bundles", "policy"), "8080"},
		{"the admin listener, by its own address", p.address("proxy", "policy"), "9091"},
		{"the admin listener, by its address among clients", p.address("proxy", "clients"), "9091"},
		{"the API", p.address("api", "upstream"), "7001"},
		{"the control listener", p.address("api", "upstream"), "7002"},
	}
	open := door{"the proxy", p.address("proxy", "clients"), "3001"}
	var script strings.Builder
	for _, d := range append([]door{open}, closed...) {
		fmt.Fprintf(&script, "if nc -w 2 %s %s </dev/null >/dev/null 2>&1; then echo '%s'; fi\n", d.address, d.port, d.what)
	}
	for _, name := range []string{"redis", "opa", "bundles", "api", "cda", "proxy-admin"} {
		fmt.Fprintf(&script, "if nslookup %s 127.0.0.11 >/dev/null 2>&1; then echo 'the name %s'; fi\n", name, name)
	}
	got := p.docker("run", "--rm", "--network", p.network("clients"), "redis:7.4-alpine", "sh", "-c", script.String())
	if got != open.what {
		t.Errorf("a client reaches: %s; want the proxy alone", strings.ReplaceAll(got, "\n", ", "))
	}
	// What a client may be asked to believe: the doors are there, and closed to it.
	for _, d := range closed {
		if d.what == "the admin listener, by its address among clients" {
			continue
		}
		if _, err := p.run("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%s", d.address, d.port)); err != nil {
			t.Errorf("%s is not even there: %v", d.what, err)
		}
	}
}

// push: OPA may tell the proxy of a new policy, with the token that the first start
// made, and nobody without it.
func push(t *testing.T, p *project, st *stack.Stack) {
	post := func(token string) int {
		req, err := http.NewRequest(http.MethodPost, st.Admin+"/opa/status", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := []int{post(st.AdminToken), post("change-me"), post("")}; !slices.Equal(got, []int{200, 401, 401}) {
		t.Errorf("answers %v", got)
	}
	if logs := p.compose("logs", "--no-color", "opa"); strings.Contains(logs, "Status update failed") {
		t.Errorf("OPA cannot push its status:\n%s", logs)
	}
}

// policyEdit changes the policy and has it built; nothing restarts.
func policyEdit(t *testing.T, p *project, st *stack.Stack) {
	public := st.Proxy + "/cwms-data/units"
	if got := status(public, ""); got != 200 {
		t.Fatalf("a public read answers %d", got)
	}
	started := p.docker("inspect", "-f", "{{.State.StartedAt}}", p.container("proxy"), p.container("opa"), p.container("bundles"))
	file := filepath.Join(p.policy, "policy", "cwms", "public", "data.json")
	before := closePublic(t, file)
	for _, want := range []int{403, 200} {
		if want == 200 {
			if err := os.WriteFile(file, before, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p.compose("run", "--rm", "bundle")
		took := p.await(fmt.Sprint("the answer ", want), func() bool { return status(public, "") == want })
		t.Logf("%d after %v", want, took.Round(time.Millisecond))
	}
	if now := p.docker("inspect", "-f", "{{.State.StartedAt}}", p.container("proxy"), p.container("opa"), p.container("bundles")); now != started {
		t.Errorf("something was started anew: %s, before %s", now, started)
	}
}

// The stand-in does not run beside a real API, and says why; nothing else starts
// then.
func TestRealAPI(t *testing.T) {
	p := newProject(t)
	p.files = []string{"-f", "docker-compose.yml"}
	p.env = append(p.env, "CWMS_API_URL=https://cwms.example.org/cwms-data")
	t.Cleanup(p.down)
	if _, err := p.try("up", "-d", "--wait", "--wait-timeout", "60", "proxy"); err == nil {
		t.Fatal("a real API and the stand-in run together")
	}
	if logs := p.compose("logs", "--no-color", "api"); !strings.Contains(logs, "STANDIN_REPLICAS=0") {
		t.Errorf("the stand-in says %s", logs)
	}
	if running := p.compose("ps", "--services", "--status", "running"); slices.Contains(strings.Fields(running), "proxy") {
		t.Errorf("running: %s", running)
	}

	// With the stand-in off, the same file serves the real API.
	p.env = append(p.env, "STANDIN_REPLICAS=0", "JWT_ISSUER=https://login.example.org/realms/cwms", "JWT_JWKS_URL=https://login.example.org/certs")
	p.compose("up", "-d", "proxy")
	p.await("the proxy serves", func() bool { return status(fmt.Sprintf("http://127.0.0.1:%d/health", p.proxyPort), "") == 200 })
	if running := strings.Fields(p.compose("ps", "--services")); slices.Contains(running, "api") {
		t.Errorf("running: %s", running)
	}
}

// call is a request that the load repeats.
func call(st *stack.Stack, user, path string) *load.Call {
	c := &load.Call{URL: st.Proxy + path}
	if user != "" {
		c.Header = [][2]string{{"Authorization", "Bearer " + st.Tokens[user]}}
	}
	return c
}
