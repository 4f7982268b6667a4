package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/bench/stack"
	"headgate/bench/standin"
)

// goRun starts this command as a reader of the README does, and returns it with
// its standard output.
func goRun(t *testing.T, args ...string) (*exec.Cmd, *bufio.Reader, *bytes.Buffer) {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"run", "./bench"}, args...)...)
	cmd.Dir = root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell does
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	return cmd, bufio.NewReader(stdout), stderr
}

func ready(t *testing.T, stdout *bufio.Reader, stderr *bytes.Buffer) stack.Info {
	t.Helper()
	line, err := stdout.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%v; stderr:\n%s", err, stderr)
	}
	var info stack.Info
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&info); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return info
}

// gone waits for processes to be no more.
func gone(t *testing.T, pids map[string]int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for name, pid := range pids {
		for syscall.Kill(pid, 0) != syscall.ESRCH {
			if time.Now().After(deadline) {
				t.Errorf("%s (process %d) is left behind", name, pid)
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// One line of JSON says all; SIGTERM and Ctrl-C end everything, also when it is
// go run that gets them.
func TestUpJSON(t *testing.T) {
	for _, c := range []struct {
		what string
		end  func(cmd *exec.Cmd) error
	}{
		{"Ctrl-C", func(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }},
		{"SIGTERM to go run", func(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGTERM) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			cmd, stdout, stderr := goRun(t, "up", "--json", "--ports", "free", "--replicas", "2", "--profile-delay", "0s")
			info := ready(t, stdout, stderr)
			if len(info.Proxies) != 2 || len(info.Admins) != 2 || info.Proxy != info.Proxies[0] || info.Admin != info.Admins[0] ||
				len(info.Tokens) != len(standin.Users) || info.AdminToken == "" || info.AuthorizeSecret == "" {
				t.Errorf("%+v", info)
			}
			for _, file := range []string{info.Bundle, info.OPABinary} {
				if _, err := os.Stat(file); err != nil {
					t.Error(err)
				}
			}
			for _, url := range []string{info.Proxies[0] + "/ready", info.Proxies[1] + "/ready", info.Admin + "/livez", info.OPA + "/health", info.API + "/cwms-data/offices", info.Control + "/stats", info.Issuer + "/.well-known/openid-configuration"} {
				res, err := http.Get(url)
				if err != nil {
					t.Error(err)
					continue
				}
				res.Body.Close()
				if res.StatusCode != 200 {
					t.Errorf("%s: %s", url, res.Status)
				}
			}
			if err := c.end(cmd); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(stdout)
			_ = cmd.Wait() // go run reports the signal
			if len(rest) > 0 {
				t.Errorf("more on stdout: %s", rest)
			}
			gone(t, info.PIDs)
			if _, err := os.Stat(filepath.Dir(info.Bundle)); !os.IsNotExist(err) {
				t.Errorf("files are left: %v", err)
			}
		})
	}
}

// The four command lines that are printed do what they say when pasted, for each
// API.
func TestExamples(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	for of, want := range map[string][]string{
		"":       {"HTTP/1.1 200", "HTTP/1.1 403", "HTTP/1.1 401", "before: 200, after: 403"},
		"orders": {"HTTP/1.1 201", "HTTP/1.1 403", "HTTP/1.1 401", "before: 200, after: 401"},
	} {
		s := stack.New(t, stack.Options{Example: of})
		var said bytes.Buffer
		if err := describe(&said, s, of); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(said.String()) {
			if !strings.HasPrefix(line, "curl ") && !strings.HasPrefix(line, "TOKEN=") {
				continue
			}
			out, err := exec.Command("bash", "-c", line).Output()
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			got = append(got, strings.Join(regexp.MustCompile(`(?m)^HTTP/1.1 \d+|^before: \d+|^after: \d+`).FindAllString(string(out), -1), ", "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got  %q\nwant %q\nin\n%s", of, got, want, said.String())
		}
	}
}

// What is asked wrongly is said, and nothing is started.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // in the error; empty: none
	}{
		{"--help", ""},
		{"up --help", ""},
		{"standin --help", ""},
		{"", "want a command"},
		{"nonsense", `unknown command "nonsense"`},
		{"standin more", `unknown argument "more"`},
		{"up --replicas 0", "want 1 or more"},
		{"up --ports some", "want fixed or free"},
		{"up more", `unknown argument "more"`},
		{"up --example invoices", `there is no example "invoices": want orders`},
		{"orders --help", ""},
		{"orders more", `unknown argument "more"`},
	} {
		var out, errs bytes.Buffer
		err := run(t.Context(), strings.Fields(c.args), &out, &errs)
		switch {
		case c.want == "" && fmt.Sprint(out.String(), errs.String()) == "":
			t.Errorf("%s: says nothing", c.args)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}
