// Package containers tests docker-compose.yml and the Dockerfiles with a real
// engine and a real Compose: what a user gets who says `docker compose up`.
//
// .ci/containers makes what it needs and runs it. Elsewhere, and where no engine
// answers, its tests are skipped.
package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// patience bounds each wait and each command.
const patience = 3 * time.Minute

// project is one deployment of docker-compose.yml, with ports, networks and
// volumes of its own.
type project struct {
	t       *testing.T
	root    string
	name    string
	env     []string
	files   []string // -f
	profile []string
	policy  string // what /policy of the bundle service is

	proxyPort, issuerPort, lbPort, prometheusPort int
}

// newProject describes a deployment and takes it down with the test.
func newProject(t *testing.T, profile ...string) *project {
	t.Helper()
	if os.Getenv("HEADGATE_CONTAINERS") == "" {
		t.Skip("left out: .ci/containers runs the tests of the containers, where a Docker engine answers")
	}
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	p := &project{
		t: t, root: root, name: fmt.Sprintf("headgate-test-%d-%s", os.Getpid(), strings.ToLower(t.Name())),
		files:   []string{"-f", "docker-compose.yml", "-f", "bench/containers/testdata/test.yml"},
		profile: profile, policy: t.TempDir(),
		proxyPort: freePort(t), issuerPort: freePort(t), lbPort: freePort(t), prometheusPort: freePort(t),
	}
	if err := os.CopyFS(p.policy, os.DirFS(filepath.Join(root, "opa"))); err != nil {
		t.Fatal(err)
	}
	// The service reads it as a user of its own.
	for dir := p.policy; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.env = append(os.Environ(),
		fmt.Sprint("PROXY_PORT=", p.proxyPort), fmt.Sprint("ISSUER_PORT=", p.issuerPort), fmt.Sprint("LB_PORT=", p.lbPort), fmt.Sprint("PROMETHEUS_PORT=", p.prometheusPort),
		fmt.Sprint("REPLICAS_NET=172.30.", os.Getpid()%256), "POLICY="+p.policy, "COMPOSE_PROGRESS=plain")
	return p
}

// run executes a command in the root of the repository.
func (p *project) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = p.root, p.env
	var out, both bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &both
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, both.Bytes(), out.Bytes())
	}
	return strings.TrimSpace(out.String()), err
}

// try runs Compose; compose fails the test with it.
func (p *project) try(args ...string) (string, error) {
	all := append([]string{"-p", p.name}, p.files...)
	for _, profile := range p.profile {
		all = append(all, "--profile", profile)
	}
	return p.run(filepath.Join(p.root, ".bin", "docker-compose"), append(all, args...)...)
}

func (p *project) compose(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

func (p *project) docker(args ...string) string {
	p.t.Helper()
	out, err := p.run("docker", args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// up starts services, all without names, and waits until they are healthy. The
// project is gone when the test ends, and it is an error if something is left.
func (p *project) up(services ...string) (took time.Duration) {
	p.t.Helper()
	p.t.Cleanup(p.down)
	start := time.Now()
	p.compose(append([]string{"up", "-d", "--wait", "--wait-timeout", "300"}, services...)...)
	return time.Since(start)
}

func (p *project) down() {
	if p.t.Failed() {
		logs, _ := p.try("logs", "--no-color", "--tail", "60")
		state, _ := p.try("ps", "-a")
		p.t.Logf("%s\n%s", state, logs)
	}
	if _, err := p.try("--profile", "*", "down", "-v", "-t", "20", "--remove-orphans"); err != nil {
		p.t.Error(err)
	}
	label := "label=com.docker.compose.project=" + p.name
	for _, list := range [][]string{
		{"ps", "-aq", "--filter", label}, {"volume", "ls", "-q", "--filter", label}, {"network", "ls", "-q", "--filter", label},
		{"volume", "ls", "-q", "--filter", "name=" + p.name}, {"network", "ls", "-q", "--filter", "name=" + p.name},
	} {
		if left, err := p.run("docker", list...); left != "" || err != nil {
			p.t.Errorf("down -v leaves %s: %s %v", list[0], left, err)
		}
	}
}

// container is the name of a service's container.
func (p *project) container(service string) string { return p.name + "-" + service + "-1" }

func (p *project) network(name string) string { return p.name + "_" + name }

// address is where a service is on a network.
func (p *project) address(service, network string) string {
	p.t.Helper()
	ip := p.docker("inspect", "-f", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", p.network(network)), p.container(service))
	if net.ParseIP(ip) == nil {
		p.t.Fatalf("%s has no address on %s: %q", service, network, ip)
	}
	return ip
}

func (p *project) secret(name string) string {
	p.t.Helper()
	return p.docker("run", "--rm", "--network", "none", "-v", p.network("secrets")+":/s:ro", "redis:7.4-alpine", "cat", "/s/"+name)
}

// attach makes the running project a stack for tests.
func (p *project) attach() *stack.Stack {
	p.t.Helper()
	info := stack.Info{
		Proxy:           fmt.Sprint("http://127.0.0.1:", p.proxyPort),
		Issuer:          fmt.Sprintf("http://localhost:%d/auth/realms/cwms", p.issuerPort),
		Control:         "http://" + net.JoinHostPort(p.address("api", "upstream"), "7002"),
		AdminToken:      p.secret("admin_token"),
		AuthorizeSecret: p.secret("authorize_secret"),
	}
	if slices.Contains(p.profile, "ha") {
		info.Proxy = fmt.Sprint("http://127.0.0.1:", p.lbPort)
	} else {
		info.OPA = "http://" + net.JoinHostPort(p.address("opa", "policy"), "8181")
		info.Admin = "http://" + net.JoinHostPort(p.address("proxy", "policy"), "9091")
	}
	st := stack.Attach(info)
	p.t.Cleanup(func() { st.Stop() })
	p.mint(st)
	return st
}

// mint makes a token for each user; a stand-in that was started anew has other keys.
func (p *project) mint(st *stack.Stack) {
	p.t.Helper()
	st.Tokens = map[string]string{}
	for _, user := range standin.Users {
		token, err := st.Token(p.t.Context(), standin.TokenRequest{User: user})
		if err != nil {
			p.t.Fatal(err)
		}
		st.Tokens[user] = token
	}
}

// await waits for a condition.
func (p *project) await(what string, condition func() bool) time.Duration {
	p.t.Helper()
	start := time.Now()
	for !condition() {
		if time.Since(start) > patience {
			p.t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start)
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// status of a GET; 0 without an answer.
func status(url, token string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// ready is what /ready says of a proxy: ready, degraded or not-ready.
func ready(base string) string {
	res, err := client.Get(base + "/ready")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	var answer struct{ Status string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err.Error()
	}
	return answer.Status
}

func freePort(t *testing.T) int {
	t.Helper()
	address, err := stack.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
