//go:build !linux

package load

import "time"

func fineSleep(d time.Duration) { time.Sleep(d) }
