package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuClock reads the clock that runs while any thread of a process does. It counts
// nanoseconds, where /proc counts hundredths of a second: a short slice of a cheap
// server would have three of those.
func cpuClock(pid int) (seconds float64) {
	const scheduled = 2 // of the three clocks of a process, that of the scheduler
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano()).Seconds()
}
