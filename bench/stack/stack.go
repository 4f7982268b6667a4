// Package stack runs the whole system on this machine, each part its own
// process: Redis, OPA, the stand-in API and any number of proxies. A small HTTP
// server in this process gives OPA its bundle.
//
// Start builds what is missing, starts everything side by side and returns when
// every proxy can decide. The caller owns the Stack and calls Stop once; the
// processes die with the caller in any case. End-to-end tests say
//
//	st := stack.New(t, stack.Options{})
//
// and get a stack of their own on free ports, with the logs of all processes
// when they fail. All methods are safe for concurrent use.
package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/standin"
)

// Options describe a stack. The zero value is one proxy on free ports, with the
// shipped policy and a stand-in that answers at once.
type Options struct {
	// Replicas is the number of proxies; zero means 1.
	Replicas int
	// NoProxy starts everything else.
	NoProxy bool
	// FixedPorts takes the ports of the documentation instead of free ones, and
	// serves the bundle that is published in .bin/published.
	FixedPorts bool
	// ProfileDelay is the time that the API takes for a profile.
	ProfileDelay time.Duration
	// Env is given to every proxy. It wins over the environment of this process,
	// which wins over what the stack itself would set. PORT and ADMIN_ADDR count
	// for the first proxy. Without REDIS_URL among them a Redis is started.
	Env map[string]string
	// LeastPrivilege lets the proxies sign in to Redis as the user of the shipped
	// access list and not as the tester, who may do everything.
	LeastPrivilege bool
	// Policy holds further arguments for the build of the first bundle, as for
	// BuildBundle. Empty means the policy that belongs to the API.
	Policy []string
	// Example is the API that is guarded: empty for the stand-in of CWMS, or orders.
	Example string
	// Progress is told what is built and what is missing; nil means nobody.
	Progress io.Writer
}

// Info says where everything is. Its JSON form is the line that the command
// prints for programs.
type Info struct {
	Proxy           string            `json:"proxy"` // the first of Proxies
	Admin           string            `json:"admin"`
	OPA             string            `json:"opa"`
	Redis           string            `json:"redis"` // with credentials; empty when there is none
	API             string            `json:"api"`   // without a path
	Issuer          string            `json:"issuer"`
	Control         string            `json:"control"`
	Proxies         []string          `json:"proxies"`
	Admins          []string          `json:"admins"`
	PIDs            map[string]int    `json:"pids"` // as they were at the start
	Bundle          string            `json:"bundle"`
	OPABinary       string            `json:"opa_binary"`
	AuthorizeSecret string            `json:"authorize_secret"`
	AdminToken      string            `json:"admin_token"`
	Tokens          map[string]string `json:"tokens"` // by user name, upper case
}

// Stack is a running system.
type Stack struct {
	Info
	// Revision is that of the first bundle.
	Revision string
	// OPASocket is where the same OPA listens too, as unix:///path/of/socket.
	OPASocket string

	// The processes. RedisServer is nil when there is no Redis of ours.
	RedisServer, OPAServer, StandIn *Child
	Replicas                        []*Child

	mu    sync.Mutex
	extra []*Child // started beside the stack's own

	tools     toolbox
	proxy     string            // its binary
	env       map[string]string // of every proxy, without its ports
	example   example
	dir       string
	spawn     *spawner
	hub       *hub
	client    *http.Client
	endpoints []string // of each proxy, where /ready is below
	once      sync.Once
}

// stopBound is how long a process may take to end before it is killed.
const stopBound = 30 * time.Second

// New is Start for a test, which it ends on failure. The stack stops with the
// test.
//
// OPA is waited for longer than by default: on a busy machine a question may take
// its second, and a test that is not about that shall not fail for it.
func New(t testing.TB, o Options) *Stack {
	t.Helper()
	o.Env = maps.Clone(o.Env)
	if o.Env == nil {
		o.Env = map[string]string{}
	}
	if _, set := o.Env["OPA_TIMEOUT"]; !set {
		o.Env["OPA_TIMEOUT"] = "15000"
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, c := range s.children() {
				t.Logf("---- %s ----\n%s", c.Name, c.Log())
			}
		}
		s.Stop()
	})
	return s
}

// Start builds and starts everything. The context bounds the start alone.
func Start(ctx context.Context, o Options) (*Stack, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.NoProxy {
		o.Replicas = 0
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "headgate-")
	if err != nil {
		return nil, err
	}
	s := &Stack{
		tools: toolbox{root: root, progress: &locked{w: o.Progress}},
		dir:   dir,
		spawn: newSpawner(),
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // a test's own certificate
		},
	}
	if err := s.start(ctx, o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Attach makes a Stack of a system that others run, such as containers. It has no
// processes, and Stop leaves the system alone.
func Attach(info Info) *Stack {
	return &Stack{Info: info, spawn: newSpawner(), client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}}
}

func (s *Stack) start(ctx context.Context, o Options) error {
	given := environment(o.Env)
	ports, err := choosePorts(o, given)
	if err != nil {
		return err
	}
	if s.example, err = exampleOf(o.Example); err != nil {
		return err
	}
	s.Bundle = filepath.Join(s.dir, "bundle.tar.gz")
	if o.FixedPorts {
		// Where `just bundle` publishes.
		s.Bundle = filepath.Join(s.tools.root, ".bin", "published", "bundle.tar.gz")
		if err := os.MkdirAll(filepath.Dir(s.Bundle), 0o755); err != nil {
			return err
		}
	}
	s.OPA, s.API, s.Control = ports.url("opa"), ports.url("api"), ports.url("control")
	s.Issuer = ports.url("issuer") + s.example.issuer
	l, err := net.Listen("tcp", ports.address("bundle"))
	if err != nil {
		return fmt.Errorf("cannot serve the bundle: %w", err)
	}
	s.hub = newHub(l, s.Bundle)

	password := secret()
	env := map[string]string{
		"HOST":             "127.0.0.1",
		"ADMIN_TOKEN":      secret(),
		"AUTHORIZE_SECRET": secret(),
		"OPA_URL":          s.OPA,
		"JWT_ISSUER":       s.Issuer,
		"REDIS_URL":        "redis://:" + password + "@" + ports.address("redis"),
	}
	maps.Copy(env, s.example.env(s))
	startRedis, err := s.prepareRedis(o, given, env, ports, password)
	if err != nil {
		return err
	}
	for name := range env { // a secret may be given by file, the API by its other name
		if given[name+"_FILE"] != "" || name == "CWMS_API_URL" && given["UPSTREAM_URL"] != "" {
			delete(env, name)
		}
	}
	maps.Copy(env, given)
	s.env = env
	s.AdminToken, s.AuthorizeSecret = env["ADMIN_TOKEN"], env["AUTHORIZE_SECRET"]

	work, together := errgroup.WithContext(ctx)
	proxyBuilt, backends := make(chan struct{}), make(chan struct{})
	if o.Replicas > 0 {
		work.Go(func() (err error) {
			s.proxy, err = s.tools.build(together, "proxy", ".", "./proxy")
			if err == nil {
				close(proxyBuilt)
			}
			return err
		})
	}
	work.Go(func() error {
		var both errgroup.Group
		both.Go(func() error { return s.startAPI(together, ports, env, o) })
		both.Go(func() error { return startRedis(together) })
		err := both.Wait()
		if err == nil {
			close(backends)
		}
		return err
	})
	work.Go(func() error {
		policy := o.Policy
		if len(policy) == 0 {
			policy = s.example.policy
		}
		return s.startOPA(together, ports, policy)
	})
	s.describeProxies(o, ports, env)
	s.hub.admins.Store(&s.Admins)
	for i := range s.Replicas {
		work.Go(func() error {
			for _, needed := range []chan struct{}{proxyBuilt, backends} {
				select {
				case <-needed:
				case <-together.Done():
					return together.Err()
				}
			}
			c := s.Replicas[i]
			c.path = s.proxy
			return c.Start(together)
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	if err := s.WaitReady(ctx); err != nil {
		return err
	}
	s.PIDs = map[string]int{}
	for _, c := range s.children() {
		s.PIDs[c.Name] = c.PID()
	}
	return nil
}

// environment is what the caller set: this process's environment and, over it,
// the options.
func environment(over map[string]string) map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	maps.Copy(env, over)
	return env
}

// child makes a process description; it inherits this environment.
func (s *Stack) child(name, path string, env map[string]string, ready func(context.Context) error, args ...string) *Child {
	c := &Child{Name: name, path: path, args: args, files: filepath.Join(s.dir, name), spawn: s.spawn, ready: ready}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		c.env = append(c.env, key+"="+env[key])
	}
	return c
}

// prepareRedis decides which Redis is used, puts it into Info and into the
// environment of the proxies, and returns what starts it.
func (s *Stack) prepareRedis(o Options, given, env map[string]string, p ports, password string) (func(context.Context) error, error) {
	none := func(context.Context) error { return nil }
	if url, ok := given["REDIS_URL"]; ok {
		s.Redis = url
		return none, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		s.tools.say("redis-server is not installed: each proxy keeps user contexts in its own process alone")
		env["REDIS_URL"] = ""
		return none, nil
	}
	s.Redis = env["REDIS_URL"]
	if o.LeastPrivilege {
		env["REDIS_URL"] = "redis://proxy:" + password + "@" + p.address("redis")
	}
	args, err := redisArgs(s.tools.root, s.dir, p["redis"], password)
	if err != nil {
		return nil, err
	}
	s.RedisServer = s.child("redis", path, environment(nil), pingRedis(p.address("redis")), args...)
	return s.RedisServer.Start, nil
}

func (s *Stack) startOPA(ctx context.Context, p ports, policy []string) (err error) {
	if s.OPABinary, err = s.tools.opa(ctx); err != nil {
		return err
	}
	if s.Revision, err = s.BuildBundle(ctx, s.Bundle, policy...); err != nil {
		return err
	}
	env := environment(nil)
	maps.Copy(env, map[string]string{
		"BUNDLE_URL": p.url("bundle"), "STATUS_URL": p.url("bundle") + "/opa", "STATUS_TOKEN": s.AdminToken,
		"OPA_STATE": filepath.Join(s.dir, "opa-state"),
	})
	s.OPASocket = "unix://" + filepath.Join(s.dir, "opa.sock")
	s.OPAServer = s.child("opa", s.OPABinary, env, s.answers(s.OPA+"/health"), "run", "--server",
		"--addr", p.address("opa"), "--addr", s.OPASocket, "--log-level", "error", "--config-file", filepath.Join(s.tools.root, "opa", "config.yaml"))
	if err := s.OPAServer.Start(ctx); err != nil {
		return err
	}
	return s.WaitRevision(ctx, s.Revision)
}

func (s *Stack) describeProxies(o Options, p ports, env map[string]string) {
	scheme := "http://"
	if env["TLS_CERT"] != "" {
		scheme = "https://"
	}
	host := env["HOST"]
	if host == "0.0.0.0" || host == "::" || host == "" {
		host = "127.0.0.1"
	}
	for i := range o.Replicas {
		name := "proxy"
		if i > 0 {
			name += strconv.Itoa(i + 1)
		}
		own := maps.Clone(env)
		own["PORT"], own["ADMIN_ADDR"] = strconv.Itoa(p[name]), p.address(name+" admin")
		url := scheme + net.JoinHostPort(host, own["PORT"])
		s.Proxies = append(s.Proxies, url)
		s.endpoints = append(s.endpoints, url+below(env))
		s.Admins = append(s.Admins, p.url(name+" admin"))
		s.Replicas = append(s.Replicas, s.child(name, "", own, s.answers(s.endpoints[i]+"/health")))
	}
	if o.Replicas > 0 {
		s.Proxy, s.Admin = s.Proxies[0], s.Admins[0]
	}
}

// below is the path under which a proxy keeps its own endpoints: with an API
// that has no path of its own they make way for it.
func below(env map[string]string) string {
	for _, name := range []string{"UPSTREAM_URL", "CWMS_API_URL"} {
		if u, err := url.Parse(env[name]); err == nil && u.Host != "" && strings.Trim(u.Path, "/") == "" {
			return "/-"
		}
	}
	return ""
}

// answers makes a probe that wants 200 from a URL.
func (s *Stack) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := s.client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s %s", url, res.Status, body)
		}
		return nil
	}
}

// WaitReady returns when every proxy can decide, or after three minutes, or with ctx.
func (s *Stack) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for i, c := range s.Replicas {
		if err := await(ctx, s.answers(s.endpoints[i]+"/ready")); err != nil {
			return fmt.Errorf("%s is not ready: %w; its log:\n%s", c.Name, err, c.Log())
		}
	}
	return nil
}

// await repeats a probe until it succeeds or ctx ends.
func await(ctx context.Context, probe func(context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends all processes, proxies first so that they can finish what is in
// flight, and removes the files. Further calls do nothing. The error tells of
// each that did not end in order.
func (s *Stack) Stop() (err error) {
	s.once.Do(func() {
		err = errors.Join(stopAll(s.Replicas), stopAll(s.children()))
		if s.hub != nil {
			s.hub.close()
		}
		s.client.CloseIdleConnections()
		s.spawn.close()
		err = errors.Join(err, os.RemoveAll(s.dir))
	})
	return err
}

func stopAll(children []*Child) error {
	errs := make([]error, len(children))
	var wg sync.WaitGroup
	for i, c := range children {
		if c.PID() != 0 {
			wg.Go(func() { errs[i] = c.Stop(stopBound) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// children are all processes that were described, in the order of a request.
func (s *Stack) children() []*Child {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(slices.Clone(s.Replicas), s.extra...)
	for _, c := range []*Child{s.OPAServer, s.RedisServer, s.StandIn} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// Children are the running processes, proxies first.
func (s *Stack) Children() []*Child { return s.children() }

// BuildBundle builds a policy bundle into a file, which is replaced at once, and
// returns its revision. The arguments are flags of opa/build such as
// "-policy", DIR; paths are absolute or relative to opa/. Without arguments it is
// the shipped policy.
func (s *Stack) BuildBundle(ctx context.Context, file string, args ...string) (revision string, err error) {
	return s.tools.bundle(ctx, s.OPABinary, file, args...)
}

// PublishBundle builds a bundle from a policy directory and serves it from now
// on; OPA takes it up within its polling interval.
func (s *Stack) PublishBundle(ctx context.Context, dir string, args ...string) (revision string, err error) {
	if dir != "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return "", err
		}
		args = append([]string{"-policy", dir}, args...)
	}
	return s.BuildBundle(ctx, s.Bundle, args...)
}

// PublishFile serves a bundle built before; OPA takes it up within its polling
// interval.
func (s *Stack) PublishFile(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	next := s.Bundle + ".next"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, s.Bundle)
}

// DropStatus loses all status reports of OPA from now on, or lets them through
// again.
func (s *Stack) DropStatus(drop bool) { s.hub.deaf.Store(drop) }

// WaitRevision returns when OPA runs the bundle of that revision.
func (s *Stack) WaitRevision(ctx context.Context, revision string) error {
	return await(ctx, func(ctx context.Context) error {
		var answer struct {
			Result map[string]struct {
				Manifest struct{ Revision string }
			}
		}
		if err := s.call(ctx, http.MethodGet, s.OPA+"/v1/data/system/bundles", nil, &answer); err != nil {
			return err
		}
		for _, b := range answer.Result {
			if b.Manifest.Revision == revision {
				return nil
			}
		}
		return fmt.Errorf("OPA does not run revision %q", revision)
	})
}

// Do calls the control listener of the stand-in, such as "PUT", "/fault". A nil
// ask sends no body, a nil answer ignores what comes back.
func (s *Stack) Do(ctx context.Context, method, path string, ask, answer any) error {
	return s.call(ctx, method, s.Control+path, ask, answer)
}

// Seen returns the last n requests that reached the API, the newest at the end.
func (s *Stack) Seen(ctx context.Context, n int) (seen []standin.Seen, err error) {
	return seen, s.Do(ctx, http.MethodGet, "/seen?last="+strconv.Itoa(n), nil, &seen)
}

// Stats returns the counts of the stand-in.
func (s *Stack) Stats(ctx context.Context) (stats standin.Stats, err error) {
	return stats, s.Do(ctx, http.MethodGet, "/stats", nil, &stats)
}

// Token mints a token; see standin.TokenRequest.
func (s *Stack) Token(ctx context.Context, ask standin.TokenRequest) (string, error) {
	var answer struct{ Token string }
	return answer.Token, s.Do(ctx, http.MethodPost, "/tokens", ask, &answer)
}

func (s *Stack) call(ctx context.Context, method, url string, ask, answer any) error {
	var body io.Reader
	if ask != nil {
		b, err := json.Marshal(ask)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode > 299 {
		return fmt.Errorf("%s %s answers %s: %s", method, url, res.Status, bytes.TrimSpace(b))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(b, answer)
}

// ports are the ports of the stack by server.
type ports map[string]int

func (p ports) address(name string) string { return "127.0.0.1:" + strconv.Itoa(p[name]) }
func (p ports) url(name string) string     { return "http://" + p.address(name) }

func choosePorts(o Options, given map[string]string) (ports, error) {
	p := ports{"opa": 8181, "bundle": 8182, "redis": 6379, "api": 7001, "control": 7002, "issuer": 8080}
	for i := range o.Replicas {
		name := "proxy"
		if i > 0 {
			name += strconv.Itoa(i + 1)
		}
		p[name], p[name+" admin"] = 3001+i, 9091+i
	}
	if !o.FixedPorts {
		for name := range p {
			port, err := freePort()
			if err != nil {
				return nil, err
			}
			p[name] = port
		}
	}
	if port, err := strconv.Atoi(given["PORT"]); err == nil && port > 0 {
		p["proxy"] = port
	}
	if _, port, err := net.SplitHostPort(given["ADMIN_ADDR"]); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n > 0 {
			p["proxy admin"] = n
		}
	}
	for name := range p {
		if name == "redis" {
			if _, ok := given["REDIS_URL"]; ok {
				continue
			}
		}
		l, err := net.Listen("tcp", p.address(name))
		if err != nil {
			return nil, fmt.Errorf("cannot use the port of the %s: %w; --ports free takes others", name, err)
		}
		l.Close()
	}
	return p, nil
}

// freePort draws from below the range that the kernel takes for outgoing
// connections, so that none of those gets in between. Until its server listens, and
// as long as this process lives, the same port of UDP is held: nobody else who draws
// comes upon it.
func freePort() (int, error) {
	for range 100 {
		port := 12_000 + mathrand.IntN(20_000)
		address := "127.0.0.1:" + strconv.Itoa(port)
		hold, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			hold.Close()
			continue
		}
		l.Close()
		held.Lock()
		held.ports = append(held.ports, hold)
		held.Unlock()
		return port, nil
	}
	return 0, errors.New("cannot find a free port")
}

var held struct {
	sync.Mutex
	ports []net.PacketConn
}

func secret() string { return rand.Text() }

// apiKey has the form of the API's own: ak1_ and 264 characters.
func apiKey() string {
	var b strings.Builder
	b.WriteString("ak1_")
	for b.Len() < 268 {
		b.WriteString(rand.Text())
	}
	return b.String()[:268]
}
