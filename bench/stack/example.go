package stack

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"

	"headgate/bench/orders"
	"headgate/bench/standin"
)

// example is an API with what belongs to it: how it is started, how the proxy is
// told of it, and whose tokens a stack has.
type example struct {
	issuer string // path of the issuer's URL
	users  []string
	policy []string                                                           // arguments of the bundle build
	args   func(s *Stack, p ports, env map[string]string, o Options) []string // of bench
	env    func(s *Stack) map[string]string                                   // of the proxy
}

// examples are the APIs that a stack can have, by name.
var examples = map[string]example{
	"": {
		issuer: "/auth/realms/cwms",
		users:  standin.Users,
		args: func(s *Stack, p ports, env map[string]string, o Options) []string {
			return []string{"standin", "-issuer-url", s.Issuer, "-profile-delay", o.ProfileDelay.String(), "-service-key", env["CWMS_API_KEY"]}
		},
		env: func(s *Stack) map[string]string {
			return map[string]string{
				"CWMS_API_KEY": apiKey(),
				"CWMS_API_URL": s.API + "/cwms-data",
				"JWT_JWKS_URL": s.Issuer + "/protocol/openid-connect/certs",
			}
		},
	},
	"orders": {
		users:  slices.Sorted(maps.Keys(orders.Users)),
		policy: []string{"-policy", "../bench/orders/policy", "-policy", "policy/system", "-entrypoint", "orders/decision"},
		args:   func(*Stack, ports, map[string]string, Options) []string { return []string{"orders"} },
		env: func(s *Stack) map[string]string {
			return map[string]string{
				"UPSTREAM_URL":     s.API,
				"ROUTES_FILE":      filepath.Join(s.tools.root, "bench", "orders", "routes.yaml"),
				"CONTEXT_HEADER":   orders.ContextHeader,
				"OPA_POLICY_PATH":  "/v1/data/orders/decision",
				"USER_CONTEXT_URL": "none",
				"JWT_JWKS_URL":     s.Issuer + "/keys",
				"JWT_AUDIENCE":     orders.Audience,
				"JWT_CLAIMS":       "tenant,scope",
			}
		},
	},
}

// startAPI starts what stands behind the proxy, and mints the tokens of its users.
func (s *Stack) startAPI(ctx context.Context, p ports, env map[string]string, o Options) error {
	path, err := s.tools.bench(ctx)
	if err != nil {
		return err
	}
	args := append(s.example.args(s, p, env, o), "-api", p.address("api"), "-issuer", p.address("issuer"), "-control", p.address("control"))
	s.StandIn = s.child("api", path, environment(nil), s.answers(s.Control+"/stats"), args...)
	if err := s.StandIn.Start(ctx); err != nil {
		return err
	}
	s.Tokens = map[string]string{}
	for _, user := range s.example.users {
		var answer struct{ Token string }
		if err := s.Do(ctx, http.MethodPost, "/tokens", standin.TokenRequest{User: user}, &answer); err != nil {
			return err
		}
		s.Tokens[user] = answer.Token
	}
	return nil
}

func exampleOf(name string) (example, error) {
	e, ok := examples[name]
	if !ok {
		return e, fmt.Errorf("there is no example %q: want orders", name)
	}
	return e, nil
}
