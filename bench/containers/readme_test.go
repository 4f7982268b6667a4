package containers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// Who comes with an empty folder and follows the chapter on deployment to the letter
// gets what it says: the stack, a first call, another policy, nothing left; and the
// same file before a real API, which here is a stand-in outside the project.
func TestDeploymentChapter(t *testing.T) {
	p := newProject(t)
	p.files = nil
	t.Cleanup(p.down)
	blocks := p.chapter("## Deployment")
	if len(blocks) != 2 {
		t.Fatalf("the chapter has %d blocks of commands, want the start and the real API: %q", len(blocks), blocks)
	}
	clone := filepath.Join(t.TempDir(), "headgate")
	p.shell(t.TempDir(), "git clone -q "+p.root+" "+clone)
	url := fmt.Sprint("http://127.0.0.1:", p.proxyPort)
	data := filepath.Join(clone, "opa", "policy", "cwms", "public", "data.json")

	for _, line := range blocks[0] {
		if strings.Contains(line, " run --rm bundle") {
			closePublic(t, data)
		}
		out := p.shell(clone, line)
		switch {
		case strings.Contains(line, " logs api"):
			p.await("the hint", func() bool { out = p.shell(clone, line); return strings.Contains(out, "curl ") })
			var hint strings.Builder
			for _, m := range regexp.MustCompile(`(?m)^api-1 +\| ((?:TOKEN=|curl ).*)$`).FindAllStringSubmatch(out, -1) {
				fmt.Fprintln(&hint, m[1])
			}
			if answer := p.shell(clone, hint.String()); !strings.Contains(answer, "HTTP/1.1 200") {
				t.Errorf("%s\nanswers\n%s", &hint, answer)
			}
		case strings.Contains(line, " run --rm bundle"):
			p.await("the new policy", func() bool { return status(url+"/cwms-data/units", "") == 403 })
		}
	}
	if left := p.docker("ps", "-aq", "--filter", "label=com.docker.compose.project="+p.name); left != "" {
		t.Errorf("containers are left: %s", left)
	}

	settings, token := p.realAPI()
	for _, line := range blocks[1] {
		p.shell(clone, line)
		if strings.HasPrefix(line, "cp ") {
			edit(t, filepath.Join(clone, ".env"), settings)
		}
	}
	if got := status(url+reading, token); got != 200 {
		t.Errorf("a read of the real API answers %d", got)
	}
	if got := status(url+reading, "x"); got != 401 {
		t.Errorf("a bad token is answered with %d", got)
	}
}

// chapter gives the commands of each block of a chapter of README.md.
func (p *project) chapter(heading string) (blocks [][]string) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, "README.md"))
	if err != nil {
		p.t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(text), "\n"+heading+"\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	for _, m := range regexp.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(chapter, -1) {
		blocks = append(blocks, strings.Split(strings.TrimSpace(m[1]), "\n"))
	}
	return blocks
}

// shell runs a line as somebody would who has docker and its Compose, and ports of
// their own.
func (p *project) shell(dir, line string) string {
	p.t.Helper()
	plugins := filepath.Join(p.t.TempDir(), "cli-plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(p.root, ".bin", "docker-compose"), filepath.Join(plugins, "docker-compose")); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), "bash", "-euo", "pipefail", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(p.env, "DOCKER_CONFIG="+filepath.Dir(plugins), "COMPOSE_PROJECT_NAME="+p.name)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%s\n%v\n%s%s", line, err, &said, &out)
	}
	return out.String()
}

// realAPI starts an API and its issuer on this machine, where containers reach it:
// the settings that name it, and a token of its issuer.
func (p *project) realAPI() (settings map[string]string, token string) {
	p.t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		p.t.Fatal(err)
	}
	var host string
	for _, a := range addresses {
		if ip, _, _ := net.ParseCIDR(a.String()); ip.To4() != nil && ip.IsGlobalUnicast() {
			host = ip.String()
		}
	}
	at := func() string { return net.JoinHostPort(host, fmt.Sprint(freePort(p.t))) }
	api, issuer, control := at(), at(), fmt.Sprint("127.0.0.1:", freePort(p.t))
	program := filepath.Join(p.t.TempDir(), "bench")
	if _, err := p.run("go", "build", "-o", program, "./bench"); err != nil {
		p.t.Fatal(err)
	}
	realm := "http://" + issuer + "/auth/realms/cwms"
	cmd := exec.Command(program, "standin", "-api="+api, "-issuer="+issuer, "-control="+control, "-issuer-url="+realm)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	st := stack.Attach(stack.Info{Control: "http://" + control})
	p.t.Cleanup(func() { st.Stop() })
	p.await("the API", func() bool { _, err := st.Stats(p.t.Context()); return err == nil })
	p.mint(st)
	return map[string]string{
		"CWMS_API_URL": "http://" + api + "/cwms-data", "JWT_ISSUER": realm,
		"JWT_JWKS_URL": realm + "/protocol/openid-connect/certs", "JWT_AUDIENCE": "account",
	}, st.Tokens["M5HECTEST"]
}

// edit does with .env what its reader is told to do.
func edit(t *testing.T, file string, settings map[string]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, value := range settings {
		line := regexp.MustCompile(`(?m)^` + name + `=.*$`)
		if !line.MatchString(text) {
			t.Errorf(".env does not set %s", name)
		}
		text = line.ReplaceAllLiteralString(text, name+"="+value)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// closePublic edits policy: nothing is public. It returns what was there.
func closePublic(t *testing.T, file string) (before []byte) {
	t.Helper()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var data map[string]any
	if err := json.Unmarshal(before, &data); err != nil {
		t.Fatal(err)
	}
	data["public_read"] = []string{}
	closed, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, closed, 0o644); err != nil {
		t.Fatal(err)
	}
	return before
}
