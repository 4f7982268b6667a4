package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the package map: which packages of ours each may import. Stages
// never import each other; they meet in authz and in main.
var mayImport = map[string][]string{
	"authz":           {},
	"latency":         {},
	"cache":           {"latency"},
	"cache/redistest": {},
	"conformance":     {},
	"identity":        {"authz", "cache"},
	"pip":             {"authz", "cache", "latency"},
	"pdp":             {"authz", "cache", "latency"},
	"route":           {"authz"},
	"upstream":        {"authz", "latency"},
	"pep":             {"authz", "route", "latency"},
}

// owners are packages that one of ours has to itself.
var owners = map[string]string{
	"github.com/redis/rueidis":           "cache",
	"github.com/golang-jwt/jwt/v5":       "identity",
	"github.com/MicahParks/jwkset":       "identity",
	"github.com/maypok86/otter/v2":       "cache",
	"github.com/caarlos0/env/v11":        ".",
	"golang.org/x/sync/singleflight":     "pdp pip",
	"github.com/goccy/go-yaml":           "route",
	"github.com/valyala/fasthttp":        "pdp pep upstream .",
	"github.com/goccy/go-yaml/ast":       "route",
	"github.com/goccy/go-yaml/parser":    "route",
	"github.com/VictoriaMetrics/metrics": "latency cache identity pip pdp pep upstream .",
}

func TestPackagesImportOnlyWhatTheMapAllows(t *testing.T) {
	eachFile(t, func(pkg, file string, f *ast.File) {
		for _, spec := range f.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if of, ours := strings.CutPrefix(path, "headgate/proxy/"); ours && pkg != "." && !slices.Contains(mayImport[pkg], of) {
				t.Errorf("%s: %s may not import %s", file, pkg, of)
			}
			if owner, owned := owners[path]; owned && !slices.Contains(strings.Fields(owner), pkg) {
				t.Errorf("%s: only %q imports %s", file, owner, path)
			}
		}
		if pkg != "." && mayImport[pkg] == nil {
			t.Errorf("%s: package %s is not in the map", file, pkg)
		}
	})
}

// A principal is a verified identity, so only identity makes one. Pre-warming
// names the principal that a user's token will be, to store under its alias; it
// decides nothing on it.
func TestOnlyIdentityMakesPrincipals(t *testing.T) {
	eachFile(t, func(pkg, file string, f *ast.File) {
		if pkg == "identity" || pkg == "authz" || file == "pip/prewarm.go" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if sel, ok := literal.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Principal" {
				t.Errorf("%s makes a Principal", file)
			}
			return true
		})
	})
}

// The program serves any API. What belongs to the one it was made for is in the
// built-in route table and in the names and defaults of settings, and nowhere else.
func TestProgramKnowsNoAPI(t *testing.T) {
	named := func(s string) bool { return strings.Contains(strings.ToLower(s), "cwms") }
	eachFile(t, func(pkg, file string, f *ast.File) {
		if pkg == "conformance" {
			return // for tests
		}
		for _, group := range f.Comments {
			for _, c := range group.List {
				if named(c.Text) && !strings.HasPrefix(c.Text, "//go:embed ") {
					t.Errorf("%s: a comment names the API: %s", file, c.Text)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if named(n.Name) {
					t.Errorf("%s: %s names the API", file, n.Name)
				}
			case *ast.BasicLit:
				// Settings, and the default name of the context header, which stays ours
				// where another one is sent.
				if named(n.Value) && file != "config.go" && n.Value != `"x-cwms-auth-context"` {
					t.Errorf("%s: %s names the API", file, n.Value)
				}
			}
			return true
		})
	})
}

// eachFile visits the program's own files, tests apart.
func eachFile(t *testing.T, visit func(pkg, file string, f *ast.File)) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		seen++
		visit(filepath.ToSlash(filepath.Dir(path)), path, f)
		return nil
	})
	if err != nil || seen < 20 {
		t.Fatalf("looked at %d files: %v", seen, err)
	}
}
