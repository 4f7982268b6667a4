package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithGoRun asks for a SIGTERM when the parent dies, if that is go run: it
// passes Ctrl-C on, but when it is terminated itself it leaves its program
// running.
func endWithGoRun() {
	parent := os.Getppid()
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || strings.TrimSpace(string(name)) != "go" {
		return
	}
	err = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	if err != nil || os.Getppid() != parent { // it died before we asked
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
}
