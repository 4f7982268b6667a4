package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// Every subcommand tells how it is used, and does nothing else then. What takes no
// arguments refuses them.
func TestSubcommandHelp(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range commands() {
		var out bytes.Buffer
		err := run(t.Context(), []string{c.name, "--help"}, nil, &out, io.Discard)
		if want := strings.TrimSpace("Usage: proxy " + c.name + " " + c.args); err != nil || !strings.HasPrefix(out.String(), want+"\n") {
			t.Errorf("%s --help: %v\n%s", c.name, err, out.String())
		}
		if flags := strings.Contains(out.String(), "-json"); flags != strings.Contains(c.args, "[FLAGS]") {
			t.Errorf("%s --help lists its flags: %t\n%s", c.name, flags, out.String())
		}
		if c.args == "" {
			if err := run(t.Context(), []string{c.name, "extra"}, nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), `want no arguments, got ["extra"]`) {
				t.Errorf("%s extra: %v", c.name, err)
			}
		}
	}
}
