package main

import (
	"bytes"
	"strings"
	"testing"
)

// Two results are compared from their files, flags before or after them.
func TestRunCompares(t *testing.T) {
	const sample = "report/testdata/sample.json"
	for _, args := range [][]string{{"--compare", sample, sample, "--all"}, {"--all", "--compare", sample, sample}} {
		var stdout, stderr bytes.Buffer
		if err := run(t.Context(), append([]string{"run"}, args...), &stdout, &stderr); err != nil {
			t.Fatal(err)
		}
		if text := stdout.String(); !strings.Contains(text, "headgate  throughput") || !strings.Contains(text, "beware: it was noisy") || !strings.HasSuffix(text, "compared, 0 of them within noise\n") {
			t.Errorf("%q prints %q", args, text)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--compare one.json", "want two"},
		{"--compare one.json two.json", "one.json"},
		{"--compare go.mod ../go.mod", "go.mod"},
		{"surprise", `unknown argument "surprise"`},
		{"--only nonsense", `no table "nonsense"`},
		{"--target http://127.0.0.1:1", "issuer"},
		{"--target 127.0.0.1:3001 --issuer http://127.0.0.1:1", `target "127.0.0.1:3001": want a URL such as`},
		{"--target https://127.0.0.1:1 --issuer http://127.0.0.1:1", "want a URL such as http://"},
		{"--target http://127.0.0.1:1 --issuer id", `issuer "id": want a URL such as`},
		{"--target http://127.0.0.1:1 --issuer http://127.0.0.1:1 --only miss", "nothing was measured: "},
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), append([]string{"run"}, strings.Fields(c.args)...), &stdout, &stderr)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}
