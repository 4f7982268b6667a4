package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An OPA is needed: $OPA_BIN, else the one in .bin. The tests of the bundle itself
// are in the package above, which builds one if there is none.
func opa(t *testing.T) string {
	t.Helper()
	path := os.Getenv("OPA_BIN")
	if path == "" {
		path = "../../.bin/opa"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no OPA: %v", err)
	}
	return path
}

// small is a policy with one rule over data of its own and one over data that
// comes from elsewhere.
func small(t *testing.T, manifest string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		".manifest":       manifest,
		"app/app.rego":    "package app\n\ndefault allow := false\n\nallow if input.user in data.app.users\n\nallow if data.elsewhere.users[input.user]\n",
		"app/data.json":   `{"users": ["a"]}`,
		"app/x_test.rego": "package app_test\n\ntest_x if true\n",
		"README.md":       "not part of it",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const rooted = `{"rego_version": 1, "roots": ["app"]}`

// publish runs the command and returns what it printed.
func publish(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"-opa", opa(t), "-capabilities", "../capabilities.json", "-entrypoint", "app/allow"}, args...),
		func(name string) string { return env[name] }, &out)
	return strings.TrimSpace(out.String()), err
}

func evaluate(t *testing.T, bundle, query string, args ...string) string {
	t.Helper()
	out, err := exec.Command(opa(t), append([]string{"eval", "--bundle", bundle, "--format", "raw", query}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Equal content makes equal bytes, wherever and whenever; other content another
// revision.
func TestDeterministic(t *testing.T) {
	epoch := map[string]string{"SOURCE_DATE_EPOCH": "1700000000"}
	var bundles [][]byte
	var revisions []string
	for range 2 {
		dir, out := small(t, rooted), filepath.Join(t.TempDir(), "b.tar.gz")
		revision, err := publish(t, epoch, "-policy", dir, "-out", out)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		bundles, revisions = append(bundles, data), append(revisions, revision)
	}
	if !bytes.Equal(bundles[0], bundles[1]) || revisions[0] != revisions[1] {
		t.Errorf("two builds differ: %v", revisions)
	}
	if !regexp.MustCompile(`^1700000000-[0-9a-f]{12}$`).MatchString(revisions[0]) {
		t.Errorf("revision %s", revisions[0])
	}

	dir := small(t, rooted)
	if err := os.WriteFile(filepath.Join(dir, "app/data.json"), []byte(`{"users": ["b"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := publish(t, epoch, "-policy", dir, "-out", filepath.Join(t.TempDir(), "b.tar.gz"))
	if err != nil || other == revisions[0] {
		t.Errorf("other content: %s %v", other, err)
	}
}

// Without SOURCE_DATE_EPOCH the revision begins with the time of the build, and the
// commit is in the manifest.
func TestManifest(t *testing.T) {
	out := filepath.Join(t.TempDir(), "b.tar.gz")
	revision, err := publish(t, nil, "-policy", small(t, rooted), "-out", out)
	if err != nil {
		t.Fatal(err)
	}
	inspected, err := exec.Command(opa(t), "inspect", "--format", "json", out).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Manifest struct {
			Revision string
			Roots    []string
			Metadata map[string]string
		}
		Namespaces map[string][]string
	}
	if err := json.Unmarshal(inspected, &got); err != nil {
		t.Fatal(err)
	}
	if got.Manifest.Revision != revision || got.Manifest.Metadata["git"] != "unknown" || got.Manifest.Roots[0] != "app" {
		t.Errorf("%+v", got.Manifest)
	}
	if strings.Contains(fmt.Sprint(got.Namespaces), "test") {
		t.Errorf("tests are in the bundle: %v", got.Namespaces)
	}
}

// With roots a rule over data that is not in the bundle stays; optimised without
// roots, it would be gone without a word.
func TestRuleOverOtherData(t *testing.T) {
	dir, out := small(t, rooted), filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := publish(t, nil, "-policy", dir, "-out", out); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.json")
	if err := os.WriteFile(elsewhere, []byte(`{"elsewhere": {"users": {"c": true}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	query := `[x | some user in ["a", "b", "c"]; x := data.app.allow with input.user as user]`
	if got := evaluate(t, out, query, "--data", elsewhere); got != "[true,false,true]" {
		t.Errorf("got %s", got)
	}
	for _, manifest := range []string{`{"rego_version": 1}`, `{"roots": []}`, `{"roots": [""]}`} {
		_, err := publish(t, nil, "-policy", small(t, manifest), "-out", out)
		if err == nil || !strings.Contains(err.Error(), "must list roots") {
			t.Errorf("%s: %v", manifest, err)
		}
	}
}

// A build that fails leaves the published bundle, and no litter.
func TestFailure(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "b.tar.gz")
	policy := small(t, rooted)
	if _, err := publish(t, nil, "-policy", policy, "-out", out); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policy, "app/bad.rego"), []byte("package app\n\nallow if http.send({})\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(t, nil, "-policy", policy, "-out", out); err == nil || !strings.Contains(err.Error(), "undefined function http.send") {
		t.Errorf("a policy that asks the network: %v", err)
	}
	after, err := os.ReadFile(out)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the published bundle is another one: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// Who reads while bundles are published sees a whole one each time.
func TestReplace(t *testing.T) {
	dir := small(t, rooted)
	out := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := publish(t, nil, "-policy", dir, "-out", out); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := context.WithCancel(t.Context())
	reads := make(chan error)
	go func() {
		defer close(reads)
		for ctx.Err() == nil {
			data, err := os.ReadFile(out)
			// Only the time in the revision differs: the size is about the same.
			if err != nil || len(data) < len(whole)-50 {
				reads <- fmt.Errorf("read %d bytes: %v", len(data), err)
				return
			}
		}
	}()
	for i := range 3 {
		if _, err := publish(t, map[string]string{"SOURCE_DATE_EPOCH": fmt.Sprint(1700000000 + i)}, "-policy", dir, "-out", out); err != nil {
			t.Fatal(err)
		}
	}
	done()
	for err := range reads {
		t.Error(err)
	}
}

// Data files are joined; two values for one path are an error.
func TestOverlays(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := file("one.json", `{"app": {"extra": {"x": 1}}}`)
	two := file("two.json", `{"app": {"extra": {"y": 2}}}`)
	out := filepath.Join(dir, "b.tar.gz")
	if _, err := publish(t, nil, "-policy", small(t, rooted), "-data", one, "-data", two, "-out", out); err != nil {
		t.Fatal(err)
	}
	if got := evaluate(t, out, "[data.app.extra, data.app.users]"); strings.Join(strings.Fields(got), "") != `[{"x":1,"y":2},["a"]]` {
		t.Errorf("got %s", got)
	}
	for content, complaint := range map[string]string{
		`{"app": {"extra": {"x": 3}}}`: `app.extra."x" is given twice`,
		`{"app": {"extra": 3}}`:        `app."extra" is given twice`,
		`[]`:                           "cannot read data",
	} {
		_, err := publish(t, nil, "-policy", small(t, rooted), "-data", one, "-data", file("bad.json", content), "-out", out)
		if err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// Every bad argument is told in one line.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{nil, []string{"more"}, `unknown argument "more"`},
		{map[string]string{"SOURCE_DATE_EPOCH": "yesterday"}, nil, `SOURCE_DATE_EPOCH "yesterday" is no number of seconds`},
		{nil, []string{"-policy", "nowhere"}, `cannot read policy "nowhere"`},
		{nil, []string{"-policy", small(t, rooted), "-policy", small(t, rooted)}, `two sources give "app/app.rego"`},
		{nil, []string{"-policy", small(t, rooted), "-data", "nowhere.json"}, "cannot read data"},
		{nil, []string{"-policy", small(t, "{"), "-out", filepath.Join(t.TempDir(), "b")}, "cannot read the manifest"},
	} {
		if _, err := publish(t, c.env, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}
}
