//go:build !linux

package stack

import "syscall"

// attributes put a child into a process group of its own, which Ctrl-C in a
// terminal does not reach.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
