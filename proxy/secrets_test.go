package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A secret is made once, for its owner alone, and is one that the settings take.
func TestMakeSecret(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	var said bytes.Buffer
	if err := run(t.Context(), []string{"make-secret", a}, nil, &said, io.Discard); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"make-secret", a, b}, nil, &said, io.Discard); err != nil {
		t.Fatal(err)
	}
	again, _ := os.ReadFile(a)
	other, _ := os.ReadFile(b)
	if !bytes.Equal(first, again) || bytes.Equal(first, other) || len(first) != 65 || len(other) != 65 {
		t.Errorf("%q, then %q, and %q", first, again, other)
	}
	if text := said.String(); strings.Contains(text, strings.TrimSpace(string(first))) || strings.Count(text, "\n") != 2 {
		t.Errorf("said %q", text)
	}
	info, err := os.Stat(a)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 2 {
		t.Errorf("left %v", left)
	}
	c, _, err := LoadConfig([]string{"AUTH_MODE=none", "ADMIN_ADDR=0.0.0.0:9091", "ADMIN_TOKEN_FILE=" + a})
	if err != nil || string(c.AdminToken)+"\n" != string(first) {
		t.Errorf("%v", err)
	}
}

func TestMakeSecretRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"", "want the files to write"},
		{empty, "is empty"},
		{filepath.Join(empty, "x"), "not a directory"},
		{filepath.Join(filepath.Dir(empty), "none", "x"), "no such file or directory"},
	} {
		err := run(t.Context(), append([]string{"make-secret"}, strings.Fields(c.args)...), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
