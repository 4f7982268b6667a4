package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/loader"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// A mutant is the policy with one condition the other way round. The policy's own
// tests must notice each.
type mutant struct {
	name    string
	modules map[string]*ast.Module
	data    map[string]any
	first   string // pattern of the tests that should notice
	by      string // the test that noticed
}

// Tests are tried in this order until one fails: those beside the rule, the quick
// ones, all.
const quick = `^data\.cwms\.(authz_test|faults_test|constraints_test)\.`

func TestEveryConditionIsTested(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute or two")
	}
	modules, data := load(t)
	healthy := mutant{modules: modules, data: data}
	if noticed, err := healthy.noticed(t.Context()); noticed || err != nil {
		t.Fatalf("the policy fails as it is: %s %v", healthy.by, err)
	}

	mutants := make(chan mutant)
	go func() {
		defer close(mutants)
		for m := range ruleMutants(modules, data) {
			mutants <- m
		}
	}()
	var tried, meaningless atomic.Int32
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for m := range mutants {
				switch noticed, err := m.noticed(t.Context()); {
				case err != nil:
					meaningless.Add(1) // no policy: for example a variable without a value
				case noticed:
					tried.Add(1)
				default:
					t.Errorf("no test notices: %s", m.name)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d mutants were noticed, %d more do not compile", tried.Load(), meaningless.Load())
	if tried.Load() < 150 {
		t.Errorf("only %d mutants", tried.Load())
	}
}

func load(t *testing.T) (map[string]*ast.Module, map[string]any) {
	t.Helper()
	sources, err := loader.NewFileLoader().All([]string{"policy"})
	if err != nil {
		t.Fatal(err)
	}
	return sources.ParsedModules(), sources.Documents
}

// noticed reports whether some test fails. The error says that the mutant is no
// policy at all.
func (m *mutant) noticed(ctx context.Context) (bool, error) {
	for _, pattern := range []string{m.first, quick, ""} {
		failed, err := m.fails(ctx, pattern)
		if failed || err != nil {
			return failed, err
		}
	}
	return false, nil
}

func (m *mutant) fails(ctx context.Context, pattern string) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Only the tests that are wanted: most of the time goes into compiling.
	modules, wanted := make(map[string]*ast.Module, len(m.modules)), regexp.MustCompile(pattern)
	for name, module := range m.modules {
		if isTest(name) && !strings.HasSuffix(name, "fixtures_test.rego") && !wanted.MatchString(module.Package.Path.String()+".") {
			continue
		}
		modules[name] = module.Copy()
	}
	store := inmem.NewFromObject(m.data)
	var failed bool
	err := storage.Txn(ctx, store, storage.TransactionParams{}, func(txn storage.Transaction) error {
		results, err := tester.NewRunner().SetStore(store).SetModules(modules).SetDefaultRegoVersion(ast.RegoV1).
			SetTimeout(time.Minute).RunTests(ctx, txn)
		if err != nil {
			return err
		}
		for result := range results {
			if !failed && !result.Pass() {
				failed, m.by = true, result.String()
				cancel()
			}
		}
		return nil
	})
	return failed, err
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.rego") }

// ruleMutants turns each condition of each rule around. What can not be turned
// around, for it gives a variable its value, stays as it is; `every` is left out
// instead.
func ruleMutants(modules map[string]*ast.Module, data map[string]any) func(yield func(mutant) bool) {
	return func(yield func(mutant) bool) {
		for _, name := range slices.Sorted(maps.Keys(modules)) {
			if isTest(name) {
				continue
			}
			for n := range conditions(modules[name]) {
				changed := modules[name].Copy()
				expr := condition(changed, n)
				what := "not "
				if _, every := expr.Terms.(*ast.Every); every {
					what = "without "
					expr.Terms = ast.BooleanTerm(true)
				} else {
					expr.Negated = !expr.Negated
				}
				original := condition(modules[name], n)
				mutated := maps.Clone(modules)
				mutated[name] = changed
				m := mutant{
					name:    fmt.Sprintf("%s: %s%s", original.Location, what, original),
					modules: mutated,
					data:    data,
					first:   "^" + strings.ReplaceAll(changed.Package.Path.String(), ".", `\.`) + `_test\.`,
				}
				if !yield(m) {
					return
				}
			}
		}
	}
}

func conditions(module *ast.Module) (n int) {
	walkConditions(module, func(*ast.Expr) { n++ })
	return n
}

func condition(module *ast.Module, n int) (found *ast.Expr) {
	walkConditions(module, func(e *ast.Expr) {
		if n == 0 {
			found = e
		}
		n--
	})
	return found
}

// walkConditions visits every expression of rule bodies and of comprehensions that
// says yes or no.
func walkConditions(module *ast.Module, visit func(*ast.Expr)) {
	for _, rule := range module.Rules {
		ast.WalkExprs(rule, func(e *ast.Expr) bool {
			switch terms := e.Terms.(type) {
			case *ast.SomeDecl:
				return false
			case *ast.Term:
				if terms.Equal(ast.BooleanTerm(true)) {
					return false // the empty body
				}
			}
			if !e.IsAssignment() {
				visit(e)
			}
			return false
		})
	}
}

// The persona table is made of conditions too: the truth table must notice when a
// role or one of its conditions is taken out.
func TestEveryCellIsTested(t *testing.T) {
	modules, data := load(t)
	compiler := ast.NewCompiler()
	if compiler.Compile(modules); compiler.Failed() {
		t.Fatal(compiler.Errors)
	}
	passing := func(data map[string]any, query string) string {
		results, err := rego.New(rego.Compiler(compiler), rego.Store(inmem.NewFromObject(data)), rego.Query(query)).Eval(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		answer, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	const table = "data.cwms.truth_table_test."
	healthy := map[string]string{}

	tried := 0
	without := func(name, query string, change func(grants map[string]any)) {
		if healthy[query] == "" {
			healthy[query] = passing(data, query)
			if len(healthy[query]) < len("[]")+len(query) {
				t.Fatalf("%s does not hold as it is: %s", query, healthy[query])
			}
		}
		changed := deepCopy(data).(map[string]any)
		change(lookup(changed, "cwms", "personas", "grants"))
		if passing(changed, query) == healthy[query] {
			t.Errorf("no test notices that this is missing: %s", name)
		}
		tried++
	}
	for resource, actions := range lookup(data, "cwms", "personas", "grants") {
		for action, roles := range actions.(map[string]any) {
			for role, required := range roles.(map[string]any) {
				cell := fmt.Sprintf("%s %s %s", role, action, resource)
				without(cell, fmt.Sprintf("%stest_allowed[%q]", table, role), func(grants map[string]any) {
					delete(lookup(grants, resource, action), role)
				})
				for i, condition := range required.([]any) {
					without(fmt.Sprintf("%s if %v", cell, condition), table+"test_condition_missing", func(grants map[string]any) {
						cells := lookup(grants, resource, action)
						cells[role] = slices.Delete(slices.Clone(cells[role].([]any)), i, i+1)
					})
				}
			}
		}
	}
	if tried < 80 {
		t.Errorf("only %d mutants", tried)
	}
}

func lookup(object map[string]any, path ...string) map[string]any {
	for _, key := range path {
		object = object[key].(map[string]any)
	}
	return object
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for key, value := range v {
			c[key] = deepCopy(value)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, value := range v {
			c[i] = deepCopy(value)
		}
		return c
	default:
		return v
	}
}
