package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"headgate/bench/stack"
)

// recipe is one of the justfile.
type recipe struct {
	name, comment string
	parameters    []parameter
	needs         []string
	lines         []string
}

type parameter struct{ name, value string }

var (
	header        = regexp.MustCompile(`^([a-z_][a-z0-9-]*)((?: [*+]?[a-z]+(?:="[^"]*")?)*):((?: [a-z0-9-]+)*)$`)
	parameterText = regexp.MustCompile(`[*+]?([a-z]+)(?:="([^"]*)")?`)
	interpolation = regexp.MustCompile(`\{\{([^}]*)\}\}`)
)

// readJustfile reads the part of just's language that the justfile uses, and
// refuses the rest.
func readJustfile(t *testing.T, root string) (all []recipe) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "justfile"))
	if err != nil {
		t.Fatal(err)
	}
	comment, blank := "", true
	for n, line := range strings.Split(string(b), "\n") {
		switch {
		case line == "":
			comment, blank = "", true
		case strings.HasPrefix(line, "# "):
			comment, blank = strings.TrimPrefix(line, "# "), false
		case strings.HasPrefix(line, "    ") && len(all) > 0 && !blank:
			r := &all[len(all)-1]
			r.lines = append(r.lines, strings.TrimSpace(line))
		default:
			m := header.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("justfile:%d: cannot read %q", n+1, line)
			}
			r := recipe{name: m[1], comment: comment, needs: strings.Fields(m[3])}
			for _, p := range parameterText.FindAllStringSubmatch(m[2], -1) {
				r.parameters = append(r.parameters, parameter{p[1], p[2]})
			}
			all, comment, blank = append(all, r), "", false
		}
	}
	return all
}

// script is what just would give to sh, with the defaults of the parameters or
// what is given for them.
func (r recipe) script(t *testing.T, root string, given map[string]string) string {
	t.Helper()
	return interpolation.ReplaceAllStringFunc(strings.Join(r.lines, "\n"), func(s string) string {
		expr := interpolation.FindStringSubmatch(s)[1]
		name, absolute := expr, false
		if rest, ok := strings.CutPrefix(expr, "absolute_path("); ok {
			name, absolute = strings.TrimSuffix(rest, ")"), true
		}
		for _, p := range r.parameters {
			if p.name != name {
				continue
			}
			value := p.value
			if v, ok := given[name]; ok {
				value = v
			}
			if absolute && !filepath.IsAbs(value) {
				value = filepath.Join(root, value)
			}
			return value
		}
		t.Errorf("%s: %s is no parameter", r.name, s)
		return ""
	})
}

// file is a path as it stands in a recipe.
var file = regexp.MustCompile(`(?:^|[\s"'=])((?:\./|\.ci/|bench/|opa/|proxy/|redis/)[A-Za-z0-9_./-]*[A-Za-z0-9_])`)

// Every recipe can be read, says what it is for, and names what exists.
func TestJustfile(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	recipes := readJustfile(t, root)
	names := map[string]bool{}
	for _, r := range recipes {
		if names[r.name] {
			t.Errorf("%s is there twice", r.name)
		}
		names[r.name] = true
	}
	for _, name := range []string{"up", "down", "test", "bench", "bundle", "lint", "fuzz", "docs", "k6", "ci", "opa", "soak"} {
		if !names[name] {
			t.Errorf("no recipe %s", name)
		}
	}
	for _, r := range recipes {
		if r.comment == "" || len(r.lines) == 0 {
			t.Errorf("%s: says %q and does %q", r.name, r.comment, r.lines)
		}
		for _, other := range r.needs {
			if !names[other] {
				t.Errorf("%s needs %s, which is not there", r.name, other)
			}
		}
		if r.name == "_default" { // just itself
			continue
		}
		script := r.script(t, root, nil)
		bash := exec.CommandContext(t.Context(), "bash", "-n")
		bash.Stdin = strings.NewReader(script)
		if out, err := bash.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", r.name, err, out)
		}
		dir := root
		if rest, ok := strings.CutPrefix(script, "cd opa && "); ok {
			dir, script = filepath.Join(root, "opa"), rest
		}
		if strings.Contains(script, "-C opa") {
			dir = filepath.Join(root, "opa")
		}
		for _, m := range file.FindAllStringSubmatch(script, -1) {
			path := strings.TrimSuffix(strings.TrimSuffix(m[1], "..."), "/")
			if _, err := os.Stat(filepath.Join(dir, path)); err != nil && !strings.Contains(r.name, "results") {
				t.Errorf("%s names %s: %v", r.name, m[1], err)
			}
		}
		for _, m := range regexp.MustCompile(`-run (\w+)`).FindAllStringSubmatch(script, -1) {
			list := exec.CommandContext(t.Context(), "grep", "-rqE", "--include=*_test.go", `^func (Test)?\w*`+m[1], root+"/proxy", root+"/bench", root+"/opa")
			if out, err := list.CombinedOutput(); err != nil {
				t.Errorf("%s runs the test %s, which is not there: %s", r.name, m[1], out)
			}
		}
	}
}

// Those that are short and touch nothing are run, line by line as just would.
func TestRecipesRun(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "bundle.tar.gz")
	runs := map[string]map[string]string{
		"up":     {"flags": "--help"},
		"bundle": {"out": out},
	}
	for _, r := range readJustfile(t, root) {
		given, ok := runs[r.name]
		if !ok {
			continue
		}
		delete(runs, r.name)
		t.Run(r.name, func(t *testing.T) {
			if r.name == "bundle" {
				if _, err := os.Stat(filepath.Join(root, ".bin", "opa")); err != nil {
					t.Skip("left out: OPA is not built; .ci/opa does it")
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			for line := range strings.Lines(r.script(t, root, given)) {
				cmd := exec.CommandContext(ctx, "sh", "-c", line)
				cmd.Dir = root
				if output, err := cmd.CombinedOutput(); err != nil && !(r.name == "up" && strings.Contains(string(output), "-replicas")) {
					t.Fatalf("%s: %v\n%s", line, err, output)
				}
			}
		})
	}
	if len(runs) > 0 {
		t.Errorf("no recipes %v", runs)
	}
	if info, err := os.Stat(out); err == nil && info.Size() == 0 {
		t.Error("the bundle is empty")
	}
}
