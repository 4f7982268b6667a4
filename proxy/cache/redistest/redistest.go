// Package redistest starts real redis-server processes for the tests of the
// packages that talk to Redis.
package redistest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The files of the folder redis name this directory, and the hosts of a compose
// network.
const installed = "/etc/redis/"

// Server is a redis-server of its own, on a free port of 127.0.0.1, without
// persistence. It ends with the test.
type Server struct {
	Addr string
	dir  string
	t    testing.TB
	args []string
	cmd  *exec.Cmd
	out  *bytes.Buffer
}

// Start starts a server; args are further arguments of redis-server.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := Stopped(t, args...)
	s.Start()
	return s
}

// Stopped is a server that is not started yet.
func Stopped(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("redis-server is needed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed")
	}
	s := &Server{Addr: freeAddr(t), dir: t.TempDir(), t: t, args: args}
	t.Cleanup(s.Kill)
	return s
}

func freeAddr(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Free is a port that nobody listens on.
func Free(t testing.TB) string {
	_, port, _ := net.SplitHostPort(freeAddr(t))
	return port
}

// URL is the address as REDIS_URL.
func (s *Server) URL() string { return "redis://" + s.Addr }

// Port is the port alone.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// Start starts the server, or starts it again after Kill, and waits until it
// answers.
func (s *Server) Start() {
	s.t.Helper()
	s.out = new(bytes.Buffer)
	args := append(s.first(), []string{"--bind", "127.0.0.1", "--port", s.Port(), "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--repl-diskless-sync-delay", "0"}...)
	args = append(args, s.args...)
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	Eventually(s.t, "redis-server answers", func() bool {
		c, err := net.DialTimeout("tcp", s.Addr, time.Second)
		if err != nil {
			return false
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		fmt.Fprint(c, "PING\r\n")
		b := make([]byte, 16)
		n, _ := c.Read(b)
		return n > 0 && !bytes.HasPrefix(b, []byte("-LOADING"))
	})
}

// Kill ends the server at once, as a crash does.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// Freeze stops the process without closing a connection; Thaw lets it go on.
func (s *Server) Freeze() { s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.cmd.Process.Signal(syscall.SIGCONT) }

// Do runs a command through redis-cli, as an operator would, and returns what it
// printed.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("redis-cli %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try is Do that may fail.
func (s *Server) Try(args ...string) (string, error) {
	out, err := exec.Command("redis-cli", append([]string{"-h", "127.0.0.1", "-p", s.Port()}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Sentinel starts a Sentinel that watches the primary alone and takes it for dead
// after a second. It ends with the test.
func Sentinel(t testing.TB, name string, primary *Server) *Server {
	t.Helper()
	s := Stopped(t, "--sentinel")
	s.configure(fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]s 1\nsentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 5000\n", name, primary.Port()))
	s.Start()
	return s
}

// Shipped starts a server with a file of the folder redis. replace are pairs of
// what stands in it and what is put there instead.
func Shipped(t testing.TB, file string, replace []string, args ...string) *Server {
	t.Helper()
	s := Stopped(t, args...)
	text, err := os.ReadFile(Config(t, file))
	if err != nil {
		t.Fatal(err)
	}
	// An included file names further files.
	common, err := os.ReadFile(Config(t, "redis.conf"))
	if err != nil {
		t.Fatal(err)
	}
	place := strings.NewReplacer(append(replace, "include /etc/redis/redis.conf\n", string(common))...)
	s.configure(strings.ReplaceAll(place.Replace(string(text)), installed, Config(t, "")+"/"))
	s.Start()
	return s
}

// HighAvailability starts a primary, two replicas and three Sentinels with the files
// as they are shipped, and returns when they know each other: the primary, one of the
// Sentinels, and the URL by which the proxy finds whoever is primary.
func HighAvailability(t testing.TB) (primary, sentinel *Server, url string) {
	t.Helper()
	primary = Shipped(t, "sentinel/redis.conf", nil)
	for range 2 {
		Shipped(t, "sentinel/redis.conf", nil, "--replicaof", "127.0.0.1 "+primary.Port())
	}
	var sentinels []string
	for range 3 {
		sentinel = Shipped(t, "sentinel/sentinel.conf", []string{"redis-1 6379", "127.0.0.1 " + primary.Port()}, "--sentinel")
		sentinels = append(sentinels, sentinel.Addr)
	}
	Eventually(t, "the replicas are known", func() bool { return strings.Count(sentinel.Do("sentinel", "replicas", "contexts"), "runid") == 2 })
	Eventually(t, "the Sentinels know each other", func() bool { return strings.Count(sentinel.Do("sentinel", "sentinels", "contexts"), "runid") == 2 })
	return primary, sentinel, "redis://proxy:headgate@" + sentinels[0] + "?master_set=contexts&addr=" + sentinels[1] + "&addr=" + sentinels[2]
}

// configure gives the server a file.
func (s *Server) configure(text string) {
	if err := os.WriteFile(s.file(), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) file() string { return filepath.Join(s.dir, "redis.conf") }

// first are the arguments that must come first: the file, if there is one.
func (s *Server) first() []string {
	if exists(s.file()) {
		return []string{s.file()}
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Cluster starts a cluster of three primaries that serves what it has when one of
// them is lost.
func Cluster(t testing.TB) []*Server {
	t.Helper()
	var nodes []*Server
	create := []string{"--cluster", "create"}
	for range 3 {
		s := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no")
		nodes = append(nodes, s)
		create = append(create, s.Addr)
	}
	nodes[0].Do(append(create, "--cluster-yes")...)
	for _, s := range nodes {
		Eventually(t, "the cluster is one", func() bool { return strings.Contains(s.Do("cluster", "info"), "cluster_state:ok") })
	}
	return nodes
}

// Config is the path of a file of the repository's folder redis.
func Config(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "redis", name)
		}
	}
	t.Fatal("the repository's root was not found")
	return ""
}

// Eventually waits for a condition; a minute without it fails the test.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("waited a minute in vain: %s", what)
}
