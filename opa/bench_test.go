package policy

import (
	"bufio"
	"os"
	"path/filepath"
	"testing"

	"github.com/open-policy-agent/opa/v1/rego"
)

// BenchmarkDecision is what a question costs OPA, without HTTP: the bundle as it
// ships, and some of the cases. Figures are in README.md.
func BenchmarkDecision(b *testing.B) {
	bundle := filepath.Join(b.TempDir(), "bundle.tar.gz")
	buildBundle(b, bundle)
	query, err := rego.New(rego.LoadBundle(bundle), rego.Query("data.cwms.authz.decision")).PrepareForEval(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	measured := map[string]bool{
		"guest reads reference data":            true,
		"guest reads time series":               true,
		"water manager reads":                   true,
		"water manager reads elsewhere":         true,
		"dam operator writes on shift":          true,
		"data manager by a mask for own office": true,
	}
	file, err := os.Open("cases/decisions.jsonl")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		c := decode[struct {
			ID    string
			Input any
			Allow bool
		}](b, scanner.Bytes())
		if !measured[c.ID] {
			continue
		}
		b.Run(c.ID, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				results, err := query.Eval(b.Context(), rego.EvalInput(c.Input))
				if err != nil {
					b.Fatal(err)
				}
				if results[0].Expressions[0].Value.(map[string]any)["allow"] != c.Allow {
					b.Fatal(results)
				}
			}
		})
	}
}
