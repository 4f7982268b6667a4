package stack

import "syscall"

// attributes put a child into a process group of its own, which Ctrl-C in a
// terminal does not reach, and let it die with its parent.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
