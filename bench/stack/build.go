package stack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// toolbox finds and builds the programs of the stack in .bin of the repository.
type toolbox struct {
	root     string
	progress io.Writer
}

// Root returns the directory of the repository that the working directory is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module headgate\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("cannot find the repository: no go.mod of module headgate above %q", dir)
		}
		dir = parent
	}
}

func (t *toolbox) say(format string, args ...any) { fmt.Fprintf(t.progress, format+"\n", args...) }

func (t *toolbox) bin(name string) string { return filepath.Join(t.root, ".bin", name) }

// build runs go build for a package of the module in dir; up to date is fast.
// The lock keeps test binaries that run side by side from writing one file
// together.
func (t *toolbox) build(ctx context.Context, name, dir, pkg string) (string, error) {
	out := t.bin(name)
	slow := time.AfterFunc(2*time.Second, func() { t.say("building %s", name) })
	defer slow.Stop()
	unlock, err := t.lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Dir = filepath.Join(t.root, dir)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w\n%s", name, err, output)
	}
	return out, nil
}

func (t *toolbox) lock(ctx context.Context, name string) (unlock func(), err error) {
	if err := os.MkdirAll(t.bin(""), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(t.bin("."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = await(ctx, func(context.Context) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock %q: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// bench is the program that holds the stand-in: this one, if it is it.
func (t *toolbox) bench(ctx context.Context) (string, error) {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path == "headgate/bench" && !testing.Testing() {
		return os.Executable()
	}
	return t.build(ctx, "bench", ".", "./bench")
}

var pinned = regexp.MustCompile(`(?m)^\s*github\.com/open-policy-agent/opa v(\S+)`)

// opa is an OPA of the pinned version: the one on PATH, the one built before, or
// one built now.
func (t *toolbox) opa(ctx context.Context) (string, error) {
	mod, err := os.ReadFile(filepath.Join(t.root, "opa", "go.mod"))
	if err != nil {
		return "", fmt.Errorf("cannot read which OPA is pinned: %w", err)
	}
	match := pinned.FindSubmatch(mod)
	if match == nil {
		return "", fmt.Errorf("opa/go.mod pins no OPA")
	}
	version := string(match[1])
	if path, err := exec.LookPath("opa"); err == nil && isVersion(ctx, path, version) {
		return path, nil
	}
	if path := t.bin("opa"); isVersion(ctx, path, version) {
		return path, nil
	}
	t.say("building OPA %s: this takes minutes, once", version)
	return t.build(ctx, "opa", "opa", "github.com/open-policy-agent/opa")
}

func isVersion(ctx context.Context, path, version string) bool {
	out, err := exec.CommandContext(ctx, path, "version").Output()
	return err == nil && strings.Contains(string(out), "Version: "+version+"\n")
}

// bundle builds a policy bundle and returns its revision. The arguments are
// those of opa/build, whose directory is the working directory.
func (t *toolbox) bundle(ctx context.Context, opa, out string, args ...string) (string, error) {
	builder, err := t.build(ctx, "bundle", "opa", "./build")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, builder, append([]string{"-opa", opa, "-out", out}, args...)...)
	cmd.Dir = filepath.Join(t.root, "opa")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cannot build the policy bundle: %w\n%s", err, stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// locked makes progress messages of parallel builds come out whole.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
