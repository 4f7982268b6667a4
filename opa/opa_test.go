// Package policy holds no Go but tests: of the policy, by the tools that ship it,
// and of the bundle, by an OPA that fetches it as in production.
//
// The OPA is $OPA_BIN, else ../.bin/opa, else the one that go.mod pins, built now.
package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var opaBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("OPA_BIN"); path != "" {
		return filepath.Abs(path)
	}
	if path, err := filepath.Abs("../.bin/opa"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	dir, err := os.MkdirTemp("", "headgate-opa-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "opa")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/open-policy-agent/opa").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build OPA: %w\n%s", err, out)
	}
	return path, nil
})

func opa(t testing.TB) string {
	t.Helper()
	path, err := opaBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run is the standard output of a command that must succeed.
func run(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	out, stderr, err := try(t, nil, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out, stderr)
	}
	return out
}

func try(t testing.TB, stdin []byte, name string, args ...string) (stdout, stderr []byte, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.Bytes(), errs.Bytes(), err
}

// buildBundle publishes the policy as `just bundle` does and returns the revision.
func buildBundle(t testing.TB, out string, args ...string) string {
	t.Helper()
	return strings.TrimSpace(string(run(t, builder(t), append([]string{"-opa", opa(t), "-out", out}, args...)...)))
}

var builderBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "headgate-build-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "build")
	if out, err := exec.Command("go", "build", "-o", path, "./build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func builder(t testing.TB) string {
	t.Helper()
	path, err := builderBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMain(m *testing.M) {
	code := m.Run()
	// What was built for the run goes with it; a binary that was there stays.
	for _, path := range []func() (string, error){opaBinary, builderBinary} {
		if file, err := path(); err == nil && strings.HasPrefix(file, os.TempDir()) {
			os.RemoveAll(filepath.Dir(file))
		}
	}
	os.Exit(code)
}

func decode[T any](t testing.TB, data []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %.500s", err, data)
	}
	return v
}
