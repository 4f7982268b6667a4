package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/dependencies"
	"github.com/open-policy-agent/opa/v1/loader"
)

// Everything that is Rego here, as the tools take it.
var sources = []string{"policy", "compat", "testdata/reference"}

func TestFormat(t *testing.T) {
	run(t, opa(t), append([]string{"fmt", "--fail", "--list"}, sources...)...)
}

// Strict, by the schema of the input, and without the built-ins whose answer is
// another one the next time.
func TestCheck(t *testing.T) {
	run(t, opa(t), "check", "--strict", "--schema", "schemas", "--capabilities", "capabilities.json", "policy")
	run(t, opa(t), "check", "--strict", "--schema", "schemas", "--capabilities", "capabilities.json",
		"compat", "policy/cwms/groups", "policy/cwms/cwms.rego", "testdata/reference")
}

func TestPolicy(t *testing.T) {
	run(t, opa(t), "test", "--fail-on-empty", "--timeout", "120s", "--coverage", "--threshold", "95", "policy")
	run(t, opa(t), "test", "--fail-on-empty", "--coverage", "--threshold", "95", "compat", "policy/cwms/groups")
}

// What --schema and --capabilities are there for is refused.
func TestCheckRefuses(t *testing.T) {
	for name, c := range map[string]struct{ rule, complaint string }{
		"a member that the proxy does not send": {`x if input.user.departement == "EC"`, "undefined ref: input.user.departement"},
		"chance":                                {`x if rand.intn("x", 2) == 1`, "undefined function rand.intn"},
		"the network":                           {`x if http.send({"method": "get", "url": "http://127.0.0.1"})`, "undefined function http.send"},
		"the environment":                       {`x if opa.runtime().env.X`, "undefined function opa.runtime"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.rego")
			write(t, file, "package cwms.extra\n\n"+c.rule+"\n")
			_, stderr, err := try(t, nil, opa(t), "check", "--strict", "--schema", "schemas", "--capabilities", "capabilities.json", "policy", file)
			if err == nil || !strings.Contains(string(stderr), c.complaint) {
				t.Errorf("%v, %s", err, stderr)
			}
		})
	}
}

func write(t testing.TB, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The capabilities are those of the pinned OPA without what is not deterministic;
// the clock alone is left, and TestClock says where.
func TestCapabilities(t *testing.T) {
	type capabilities struct {
		Builtins []struct {
			Name             string `json:"name"`
			Nondeterministic bool   `json:"nondeterministic"`
		} `json:"builtins"`
	}
	names := func(c capabilities, nondeterministic bool) (names []string) {
		for _, b := range c.Builtins {
			if b.Nondeterministic == nondeterministic {
				names = append(names, b.Name)
			}
		}
		return names
	}
	all := decode[capabilities](t, run(t, opa(t), "capabilities", "--current"))
	data, err := os.ReadFile("capabilities.json")
	if err != nil {
		t.Fatal(err)
	}
	ours := decode[capabilities](t, data)
	if got := names(ours, true); !slices.Equal(got, []string{"time.now_ns"}) {
		t.Errorf("not deterministic: %v", got)
	}
	if got, want := names(ours, false), names(all, false); !slices.Equal(got, want) {
		t.Errorf("write capabilities.json anew: %d built-ins, OPA has %d", len(got), len(want))
	}
}

// A reference is a path that a rule reads, such as input.user.roles.
func references(t testing.TB, rule string) (base, virtual []string) {
	t.Helper()
	type term struct {
		Value any `json:"value"`
	}
	deps := decode[struct {
		Base    [][]term `json:"base"`
		Virtual [][]term `json:"virtual"`
	}](t, run(t, opa(t), "deps", "--data", "policy", "--format", "json", rule))
	paths := func(refs [][]term) (paths []string) {
		for _, ref := range refs {
			var parts []string
			for _, t := range ref {
				part, ok := t.Value.(string)
				if !ok {
					part = "*"
				}
				parts = append(parts, part)
			}
			paths = append(paths, strings.Join(parts, "."))
		}
		return paths
	}
	return paths(deps.Base), paths(deps.Virtual)
}

// Policy reads nothing that the schema, which documents what the proxy sends, does
// not have: also where the type checker can not see it.
func TestContract(t *testing.T) {
	data, err := os.ReadFile("schemas/input.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Description string                     `json:"description"`
		Properties  map[string]json.RawMessage `json:"properties"`
	}
	documented := map[string]bool{}
	var walk func(path string, raw json.RawMessage)
	walk = func(path string, raw json.RawMessage) {
		documented[path] = true
		for name, property := range decode[schema](t, raw).Properties {
			walk(path+"."+name, property)
		}
	}
	walk("input", data)

	base, _ := references(t, "data.cwms.authz.decision")
	if len(base) < 20 {
		t.Fatalf("policy reads only %v", base)
	}
	for _, path := range base {
		switch {
		case path == "input" || path == "input.user" || path == "input.context":
			t.Errorf("some rule reads %s as a whole: what of it can not be told", path)
		case strings.HasPrefix(path, "input.") && !documented[path]:
			t.Errorf("%s is not in schemas/input.json", path)
		}
	}
}

// Rules read only data that is in the bundle, and no data file lies idle.
func TestData(t *testing.T) {
	base, _ := references(t, "data.cwms.authz.decision")
	read := map[string]bool{}
	for _, path := range base {
		if name, ok := strings.CutPrefix(path, "data."); ok {
			parts := strings.SplitN(name, ".", 4)
			read[strings.Join(parts[:min(3, len(parts))], ".")] = true
		}
	}
	there := map[string]bool{"cwms.public.guest_read": true} // data/cda-guest.json, on demand
	files, err := filepath.Glob("policy/cwms/*/data.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for key := range decode[map[string]any](t, content) {
			name := "cwms." + filepath.Base(filepath.Dir(file)) + "." + key
			there[name] = true
			// The resources are read by tests alone, of the route table and of this.
			if !read[name] && !strings.HasPrefix(name, "cwms.resources.") {
				t.Errorf("no rule reads %s", name)
			}
		}
	}
	for name := range read {
		if !there[name] {
			t.Errorf("%s is not in the bundle", name)
		}
	}
}

// Every resource that a rule names is in the list, against which the route table
// of the proxy is tested too.
func TestResources(t *testing.T) {
	load := func(file string, v any) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, v); err != nil {
			t.Fatal(err)
		}
	}
	var resources struct{ Routes, Stated []string }
	load("policy/cwms/resources/data.json", &resources)
	var personas struct{ Grants map[string]any }
	load("policy/cwms/personas/data.json", &personas)
	var public struct {
		Read    []string       `json:"public_read"`
		Service []string       `json:"service_endpoints"`
		Label   map[string]any `json:"public_label"`
		Own     map[string]any `json:"own_account_actions"`
	}
	load("policy/cwms/public/data.json", &public)
	var embargo struct{ Resources []string }
	load("policy/cwms/embargo/data.json", &embargo)
	var guest struct {
		CWMS struct {
			Public struct {
				Read map[string]any `json:"guest_read"`
			}
		}
	}
	load("data/cda-guest.json", &guest)

	if !slices.IsSorted(resources.Routes) || !slices.IsSorted(resources.Stated) {
		t.Error("the lists are not sorted")
	}
	known := slices.Concat(resources.Routes, resources.Stated)
	names := slices.Concat(public.Read, public.Service, embargo.Resources)
	for _, object := range []map[string]any{personas.Grants, public.Label, public.Own, guest.CWMS.Public.Read} {
		for name := range object {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			t.Errorf("%q is no resource", name)
		}
	}
}

// The clock is read in one place, and whatever rests on it says when it changes.
func TestClock(t *testing.T) {
	loaded, err := loader.NewFileLoader().Filtered([]string{"policy"}, func(path string, info os.FileInfo, _ int) bool {
		return strings.HasSuffix(path, "_test.rego")
	})
	if err != nil {
		t.Fatal(err)
	}
	compiler := ast.NewCompiler()
	if compiler.Compile(loaded.ParsedModules()); compiler.Failed() {
		t.Fatal(compiler.Errors)
	}
	now := ast.MustParseRef("data.cwms.clock.now")
	clocked := func(rule *ast.Rule) bool {
		refs, err := dependencies.Virtual(compiler, rule.Body)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(refs, func(ref ast.Ref) bool { return ref.Equal(now) })
	}

	var reads, conditions, lifetimes, public []string
	for _, module := range compiler.Modules {
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			if ref.Equal(ast.MustParseRef("time.now_ns")) {
				reads = append(reads, module.Package.Path.String())
			}
			return false
		})
		for _, rule := range module.Rules {
			switch name := rule.Head.Ref(); {
			case name[0].Equal(ast.VarTerm("holding")) && clocked(rule):
				conditions = append(conditions, string(rule.Head.Key.Value.(ast.String)))
			case name[0].Equal(ast.VarTerm("until")):
				lifetimes = append(lifetimes, string(name[1].Value.(ast.String)))
			case module.Package.Path.Equal(ast.MustParseRef("data.cwms.public")) && clocked(rule):
				public = append(public, name.String())
			}
		}
	}
	slices.Sort(conditions)
	slices.Sort(lifetimes)
	if want := []string{"data.cwms.clock"}; !slices.Equal(reads, want) {
		t.Errorf("the clock is read by %v, want by %v", reads, want)
	}
	if want := []string{"in_shift", "partner", "recent", "released"}; !slices.Equal(conditions, want) || !slices.Equal(lifetimes, want) {
		t.Errorf("conditions %v rest on the clock and %v say when they change, want %v", conditions, lifetimes, want)
	}
	// data.cwms.authz.changes knows of this one.
	if want := []string{"labelled"}; !slices.Equal(public, want) {
		t.Errorf("open to anybody by the clock: %v, want %v", public, want)
	}
}
