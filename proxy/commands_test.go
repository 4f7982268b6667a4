package main

import (
	"bytes"
	"io"
	"net"
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

// What cannot be served or looked up is said with the name of what is to be changed.
func TestFaultsAreNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	local := enough("HOST=127.0.0.1", "REDIS_URL=", "PORT=0", "ADMIN_ADDR="+taken.Addr().String())
	for _, c := range []struct {
		args, environ []string
		want          string
	}{
		{nil, append(local, "PORT="+port), "HOST and PORT: "},
		{nil, local, "ADMIN_ADDR: "},
		{[]string{"routes", "get", "/cwms-data/offices"}, nil, `method "get": want GET, HEAD, POST`},
	} {
		if err := run(t.Context(), c.args, c.environ, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
}
