package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/bench/stack"
)

var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// The commands of the guide do what the guide says, from an empty folder: its sh
// blocks are one script, and what a text block shows is what the block before it
// prints. Only the ports are others.
func TestGuide(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	opa := filepath.Join(root, ".bin")
	if _, err := os.Stat(filepath.Join(opa, "opa")); err != nil {
		t.Skip("there is no .bin/opa")
	}
	guide, err := os.ReadFile(filepath.Join(root, "proxy", "GUIDE.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(guide)
	var held []net.Listener
	for port := 7100; strings.Contains(text, fmt.Sprint(port)); port++ {
		l, err := net.Listen("tcp", freeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
		text = strings.ReplaceAll(text, fmt.Sprint(port), fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	for _, l := range held {
		l.Close()
	}

	const mark = "---- end of a block ----\n"
	script := "set -euo pipefail\n"
	var want []string // what each sh block prints, if the guide says it
	for _, b := range block.FindAllStringSubmatch(text, -1) {
		if b[1] == "sh" {
			script += b[2] + "echo '" + strings.TrimSpace(mark) + "'\n"
			want = append(want, "")
		} else {
			want[len(want)-1] = b[2]
		}
	}
	dir := t.TempDir()
	var out, errs bytes.Buffer
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	cmd.Env = append(os.Environ(), "HEADGATE="+root, "PATH="+opa+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(10*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	stuck.Stop()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever the script left behind
	printed := strings.Split(out.String(), mark)
	if err != nil || len(printed) != len(want)+1 {
		for _, name := range []string{"headgate.log", "opa.log", "api.log"} {
			said, _ := os.ReadFile(filepath.Join(dir, name))
			t.Logf("%s: %s", name, said)
		}
		t.Fatalf("%v after block %d; it printed\n%s\nand on stderr\n%s", err, len(printed), out.String(), errs.String())
	}
	for i := range want {
		if want[i] != "" && printed[i] != want[i] {
			t.Errorf("block %d prints\n%s\nthe guide says\n%s", i+1, printed[i], want[i])
		}
	}
}
