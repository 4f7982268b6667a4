package upstream

import "golang.org/x/sys/unix"

// readHungUp reports whether the other end has closed its direction, whatever
// bytes of it are still unread: a look at the bytes would not see past those.
func readHungUp(fd uintptr) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n > 0
}
