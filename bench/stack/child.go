package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is one server process. It keeps its command line and so its ports when
// it is started again. Methods are safe for concurrent use.
type Child struct {
	Name string

	path  string
	args  []string
	env   []string
	files string // where it writes, without .out and .err; appended over restarts
	spawn *spawner
	ready func(ctx context.Context) error // one probe

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
}

// Start runs the process and returns when it answers. It fails when the process
// ends before that, or when ctx does; the error holds the end of the log.
func (c *Child) Start(ctx context.Context) error {
	exited, err := c.launch()
	if err != nil {
		return err
	}
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%s ended while starting:\n%s", c.Name, c.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log:\n%s", c.Name, err, c.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *Child) launch() (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		select {
		case <-c.exited:
		default:
			return nil, fmt.Errorf("%s runs already", c.Name)
		}
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Env, cmd.Dir = c.env, filepath.Dir(c.files)
	cmd.SysProcAttr = attributes()
	for _, stream := range []struct {
		to   *io.Writer
		name string
	}{{&cmd.Stdout, c.OutFile()}, {&cmd.Stderr, c.ErrFile()}} {
		f, err := os.OpenFile(stream.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot open the log of %s: %w", c.Name, err)
		}
		defer f.Close() // the process has its own copy
		*stream.to = f
	}
	if err := c.spawn.start(cmd); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Name, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // what it returns is kept in ProcessState
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited
	return exited, nil
}

// PID is the id of the running or last process; 0 before the first start.
func (c *Child) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Exited is closed when the present process has ended.
func (c *Child) Exited() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited
}

// Signal sends a signal to the process and its children.
func (c *Child) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return fmt.Errorf("%s never ran", c.Name)
	}
	select {
	case <-c.exited:
		return os.ErrProcessDone
	default:
	}
	return syscall.Kill(-c.cmd.Process.Pid, sig) // the group has the id of its first process
}

// Pause stops the process as it stands: it keeps its connections and answers
// nothing. It returns when the process has stopped: the signal alone leaves its
// threads running for as long as they do not enter the kernel.
func (c *Child) Pause() error {
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(c.PID())
}

// Resume lets a paused process go on.
func (c *Child) Resume() error { return c.Signal(syscall.SIGCONT) }

// Kill ends the process without a chance to clean up, and waits for the end.
func (c *Child) Kill() error {
	err := c.Signal(syscall.SIGKILL)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return nil
	case err != nil:
		return err
	}
	<-c.Exited()
	return nil
}

// Stop asks the process to end and waits; what is left after the bound is
// killed. The error is nil only if it ended by itself and reported success.
func (c *Child) Stop(bound time.Duration) error {
	err := c.Signal(syscall.SIGTERM)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return nil
	case err != nil:
		return err
	}
	_ = c.Resume() // a paused process would not see the signal
	select {
	case <-c.Exited():
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.cmd.ProcessState.Success() {
			return fmt.Errorf("%s ended with %v", c.Name, c.cmd.ProcessState)
		}
		return nil
	case <-time.After(bound):
		_ = c.Kill()
		return fmt.Errorf("%s did not end within %v", c.Name, bound)
	}
}

// Log returns the end of what the process wrote, stderr last.
func (c *Child) Log() string {
	return strings.TrimSpace(tail(c.OutFile(), 2<<10) + "\n" + tail(c.ErrFile(), 8<<10))
}

func tail(file string, most int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// OutFile takes the standard output: of a proxy, its decision records.
func (c *Child) OutFile() string { return c.files + ".out" }

// ErrFile takes the standard error.
func (c *Child) ErrFile() string { return c.files + ".err" }

// spawner starts processes from one thread that lives as long as they do: a
// process with a parent-death signal dies with the thread that made it, and the
// runtime may end a thread at any time.
type spawner struct {
	calls chan func()
	done  chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{calls: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for call := range s.calls {
			call()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.calls <- func() { result <- cmd.Start() }
	return <-result
}

func (s *spawner) close() {
	close(s.calls)
	<-s.done
}
