package stack

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"strconv"
)

// Beside is a process that runs beside the stack's own: one more proxy with
// settings of its own, or something to compare with. Its owner may stop it; Stop
// of the stack does so too.
type Beside struct {
	*Child
	URL   string
	Admin string // of a proxy
}

// AddProxy starts one more proxy against the same OPA, Redis and API. OPA's status
// reports do not reach it: it learns of a new policy by its own polling.
func (s *Stack) AddProxy(ctx context.Context, name string, over map[string]string) (*Beside, error) {
	public, err := freePort()
	if err != nil {
		return nil, err
	}
	admin, err := freePort()
	if err != nil {
		return nil, err
	}
	p := ports{"public": public, "admin": admin}
	env := maps.Clone(s.env)
	maps.Copy(env, map[string]string{"HOST": "127.0.0.1", "PORT": strconv.Itoa(public), "ADMIN_ADDR": p.address("admin")})
	maps.Copy(env, over)
	b := &Beside{URL: p.url("public"), Admin: p.url("admin")}
	b.Child = s.child(name, s.proxy, env, s.answers(b.Admin+"/readyz"))
	return b, s.startBeside(ctx, b)
}

// Spawn starts any server; it is there when GET url answers 200.
func (s *Stack) Spawn(ctx context.Context, name, path, at string, args ...string) (*Beside, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	b := &Beside{URL: u.Scheme + "://" + u.Host, Child: s.child(name, path, environment(nil), s.answers(at), args...)}
	return b, s.startBeside(ctx, b)
}

func (s *Stack) startBeside(ctx context.Context, b *Beside) error {
	if err := b.Start(ctx); err != nil {
		return errors.Join(err, b.Stop())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = append(s.extra, b.Child)
	return nil
}

// Stop ends the process.
func (b *Beside) Stop() error {
	if b.PID() == 0 {
		return nil
	}
	return b.Child.Stop(stopBound)
}

// Build builds a package of the repository and returns the program.
func (s *Stack) Build(ctx context.Context, name, pkg string) (path string, err error) {
	return s.tools.build(ctx, name, ".", pkg)
}

// Dir is where the stack keeps its files; it goes with the stack.
func (s *Stack) Dir() string { return s.dir }

// FreeAddress is an address of loopback that nothing listens on.
func FreeAddress() (string, error) {
	port, err := freePort()
	return ports{"": port}.address(""), err
}
