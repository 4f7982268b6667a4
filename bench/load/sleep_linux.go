package load

import (
	"syscall"
	"time"
)

// fineSleep blocks the thread for about d, which is short; a signal may end it early.
func fineSleep(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil)
}
