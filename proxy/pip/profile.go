package pip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/latency"
)

const maxProfile = 1 << 20

// What the API said instead of a profile.
var (
	errNotAUser = errors.New("the API does not accept the credential") // 401
	errNoRights = errors.New("the API says that the user may not")     // 403
	errNoUser   = errors.New("the API knows no such user")             // 404, of a look-up by name
	errBusy     = errors.New("too many profile calls at once")
	errCrowded  = errors.New("too many profile calls at once for unknown callers of one address")
)

// calls asks the API. At most a fixed number of calls run at once; callers whom
// nobody has vouched for yet may take half of them, so that a flood of invented
// keys does not keep verified users out; and few addresses cannot take all of that
// half, so that it does not keep out who comes for the first time either.
type calls struct {
	client          *http.Client
	profile, lookup string
	serviceKey      string
	timeout         time.Duration
	all             chan struct{}
	strangers       strangers
}

func newCalls(cfg *Config) *calls {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = cfg.MaxCalls
	transport.Proxy = nil // credentials go to the API and nowhere else
	transport.DisableCompression = true
	transport.DialTLSContext = cfg.DialTLS
	return &calls{
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		profile: cfg.ProfileURL, lookup: cfg.LookupURL, serviceKey: cfg.ServiceKey, timeout: cfg.Timeout,
		all: make(chan struct{}, cfg.MaxCalls), strangers: strangers{free: max(1, cfg.MaxCalls/2), of: map[netip.Addr]int{}},
	}
}

// strangers are the places of callers whom nobody has vouched for yet.
type strangers struct {
	mu   sync.Mutex
	free int
	of   map[netip.Addr]int // places taken by each address
}

// enter takes a place for p, if p is a stranger; leave gives it back. An address
// gets no further place when it has as many as are free: alone it has half of them,
// two have a third each, and the next one always finds some.
func (s *strangers) enter(p *authz.Principal) (leave func(), err error) {
	if !stranger(p) {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.free == 0:
		strangersShed.Inc()
		return nil, errBusy
	case p.From.IsValid() && s.of[p.From] >= s.free:
		strangersCrowded.Inc()
		return nil, errCrowded
	}
	s.free--
	s.of[p.From]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free++
		if s.of[p.From]--; s.of[p.From] == 0 {
			delete(s.of, p.From)
		}
	}, nil
}

// own asks for the profile of whoever shows the credential.
func (c *calls) own(ctx context.Context, credential authz.Credential) (*record, error) {
	return c.get(ctx, c.profile, credential)
}

// byName asks for a user's profile with the service credential.
func (c *calls) byName(ctx context.Context, name string) (*record, error) {
	r, err := c.get(ctx, strings.ReplaceAll(c.lookup, "{name}", url.PathEscape(name)),
		authz.Credential{Header: "Authorization", Value: "apikey " + c.serviceKey})
	if err == nil && r.Username != name {
		return nil, fmt.Errorf("the API answered for the user %q when asked for %q", r.Username, name)
	}
	return r, err
}

func (c *calls) canLookUp() bool { return c.serviceKey != "" && c.lookup != "" }

func (c *calls) get(ctx context.Context, target string, credential authz.Credential) (*record, error) {
	select {
	case c.all <- struct{}{}:
		defer func() { <-c.all }()
	default:
		callsShed.Inc()
		return nil, errBusy
	}
	start := time.Now()
	r, err := c.ask(ctx, target, credential, start)
	latency.Since(callSeconds, start)
	switch {
	case err == nil:
		callsOK.Inc()
	case errors.Is(err, errNotAUser), errors.Is(err, errNoRights), errors.Is(err, errNoUser):
		callsRefused.Inc()
	default:
		callsFailed.Inc()
	}
	return r, err
}

func (c *calls) ask(ctx context.Context, target string, credential authz.Credential, start time.Time) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for the profile: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set(credential.Header, credential.Value)
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for the profile: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProfile+1))
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, errNotAUser
	case resp.StatusCode == http.StatusForbidden:
		return nil, errNoRights
	case resp.StatusCode == http.StatusNotFound && target != c.profile:
		return nil, errNoUser
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("cannot read the profile: the API answered %d", resp.StatusCode)
	case err != nil:
		return nil, fmt.Errorf("cannot read the profile: %w", err)
	case len(body) > maxProfile:
		return nil, fmt.Errorf("cannot read the profile: more than %d bytes", maxProfile)
	}
	return parse(body, start)
}
