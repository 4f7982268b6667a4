package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"proxy": main})
}

// The scripts show the subcommands as a user types them.
func TestScripts(t *testing.T) {
	opa := "../.bin/opa"
	if _, err := os.Stat(opa); err != nil {
		opa, _ = exec.LookPath("opa")
	}
	if opa == "" {
		t.Log("left out where there is no opa: what needs one")
	} else if abs, err := filepath.Abs(opa); err != nil {
		t.Fatal(err)
	} else {
		opa = abs
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("OPA", opa)
			return nil
		},
		Condition: func(name string) (bool, error) { return name == "opa" && opa != "", nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// await SOCKET returns when somebody listens there.
			"await": func(ts *testscript.TestScript, _ bool, args []string) {
				for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
					c, err := net.Dial("unix", ts.MkAbs(args[0]))
					if err == nil {
						c.Close()
						return
					}
					if time.Now().After(end) {
						ts.Fatalf("waited in vain: %v", err)
					}
				}
			},
		},
	})
}
