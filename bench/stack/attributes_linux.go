package stack

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes put a child into a process group of its own, which Ctrl-C in a
// terminal does not reach, and let it die with its parent.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped returns when a child that was sent SIGSTOP has stopped, all its
// threads, or has ended.
func awaitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}
