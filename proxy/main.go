// Headgate is an authorization proxy: it stands in front of a REST API, beside an
// OPA server, and forwards only what policy allows. README.md tells how to run it.
//
// A request meets, in this order: pep (reads it), identity (who sent it), pip
// (what is known about them), route (what it is about), pdp (may they), upstream
// (forwards it). This file is the wiring of exactly that.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"headgate/proxy/cache"
	"headgate/proxy/identity"
	"headgate/proxy/pdp"
	"headgate/proxy/pep"
	"headgate/proxy/pip"
	"headgate/proxy/route"
	"headgate/proxy/upstream"
)

func main() {
	// Nearly all that lives here is cached decisions, and a warm request allocates
	// next to nothing: collecting more often than usual saves a quarter of the memory
	// and costs no time that could be measured.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	status := exit{status: 1, err: err}
	errors.As(err, &status)
	if status.err != nil {
		fmt.Fprintln(os.Stderr, status.err)
	}
	os.Exit(status.status)
}

// run is the program: a subcommand, or the proxy itself until ctx ends.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	if len(args) > 0 {
		return subcommand(ctx, args, environ, stdout)
	}
	c, warnings, err := LoadConfig(environ)
	if err != nil {
		return fmt.Errorf("cannot start, the settings have faults:\n%w", err)
	}
	log := zerolog.New(stderr).Level(zerolog.Level(c.LogLevel)).With().Timestamp().Logger()
	for _, w := range warnings {
		log.Warn().Msg(w)
	}
	p, err := build(c, stdout, log)
	if err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	return p.serve(ctx)
}

// proxy is the running program.
type proxy struct {
	config  Config
	log     zerolog.Logger
	records *pep.Buffered

	redis    *cache.Redis // nil without
	verifier *identity.Verifier
	users    *pip.Source
	routes   *route.Table
	decider  *pdp.Decider
	forward  *upstream.Forwarder
	handler  *pep.Handler

	reachable   probe        // is the API there
	certificate *certificate // of the public listener; nil without TLS
	stopping    chan struct{}
	giveUp      context.CancelFunc // ends what is still in flight
}

// build makes the stages, in the order a request meets them.
func build(c Config, stdout io.Writer, log zerolog.Logger) (p *proxy, err error) {
	p = &proxy{config: c, log: log, stopping: make(chan struct{})}
	var base context.Context
	base, p.giveUp = context.WithCancel(context.Background())

	if p.verifier, err = identity.New(identity.Config{
		None: c.AuthMode == "none", Issuer: c.Issuer, JWKSURL: c.JWKS.url(), Audience: c.Audience, Claims: c.Claims,
		TestUsers: c.TestUsers, Log: log,
	}); err != nil {
		return nil, err
	}
	if c.Redis != "" {
		said := func(message string) { log.Warn().Msg(message) }
		if p.redis, err = cache.OpenRedis(cache.RedisConfig{URL: string(c.Redis), Said: said}); err != nil {
			return nil, fmt.Errorf("REDIS_URL: %w", err)
		}
	} else {
		log.Warn().Msg("REDIS_URL is empty: user context is kept in this process alone, and a revocation reaches only the replica that is told")
	}
	users, err := p.userConfig()
	if err != nil {
		return nil, err
	}
	if p.users, err = pip.New(users, p.redis); err != nil {
		return nil, err
	}
	if p.routes, err = loadRoutes(c); err != nil {
		return nil, err
	}
	if p.decider, err = pdp.New(pdp.Config{
		URL: c.OPA.url(), Path: c.OPAPath, Timeout: time.Duration(c.OPATimeout), Poll: c.PolicyPoll, Lease: c.PolicyLease,
		AllowTTL: c.CacheTTL.duration(), DenyTTL: c.CacheDenyTTL.duration(), MaxEntries: c.CacheMax, Log: log,
	}); err != nil {
		return nil, err
	}
	if p.forward, err = upstream.New(upstream.Config{
		URL: c.Upstream.url(), FirstByteTimeout: time.Duration(c.UpstreamTimeout), HeaderMax: int(c.UpstreamHeader), CA: c.UpstreamCA, Said: sayOnce(log),
		ContextHeader: c.contextHeader(), TrustedProxies: c.TrustedProxies, Secure: c.TLSCert != "",
	}); err != nil {
		return nil, err
	}
	p.reachable = probe{check: p.forward.Ping}

	p.records = pep.NewBuffered(stdout)
	p.handler = &pep.Handler{
		Routes:   p.routes,
		Identify: p.verifier.Verify,
		Subject:  p.users.Subject,
		Decide:   p.decider.Decide,
		Forward:  p.forward.Forward,
		Record:   pep.NewRecorder(p.records, c.LogInputs).Record,

		Client: p.forward.Client,
		Trusts: p.forward.Trusts,
		Vouch:  p.forward.Vouch,

		Token:           p.verifier.VerifyToken,
		AssertedUser:    identity.Asserted,
		AuthorizeSecret: string(c.AuthorizeSecret),

		Ready:        p.readiness,
		OwnPrefix:    c.OwnPrefix(),
		Origins:      c.Origins,
		Report:       c.Enforce == "report",
		DebugHeaders: c.DebugHeaders,
		Bodies:       &pep.BodyLimit{Each: int64(c.BodyInspectMax), Total: int64(c.BodyInspectTotal)},
		BodyMax:      int64(c.BodyMax),
		Base:         base,
	}
	return p, nil
}

// serve runs until ctx ends, and then stops without losing a request.
func (p *proxy) serve(ctx context.Context) error {
	public, err := p.listen(net.JoinHostPort(p.config.Host, strconv.Itoa(p.config.Port)))
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	admin, err := net.Listen("tcp", p.config.AdminAddr)
	if err != nil {
		return fmt.Errorf("cannot listen: ADMIN_ADDR: %w", err)
	}

	background, stopBackground := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { p.verifier.Run(background) })
	work.Go(func() { p.users.Run(background) })
	work.Go(func() { p.decider.Run(background) })
	if p.config.PrewarmFile != "" {
		work.Go(func() { p.prewarm(background) })
	}

	server := p.handler.Server()
	adminServer := p.admin()
	p.gauges(server)
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(public) }()
	go func() { failed <- adminServer.Serve(admin) }()
	p.hello(public.Addr(), admin.Addr())

	select {
	case err = <-failed:
		err = fmt.Errorf("cannot serve: %w", err)
	case <-ctx.Done():
		err = p.stop(server)
	}
	p.giveUp()
	stopBackground()
	work.Wait()
	_ = adminServer.Close() // it serves probes and scrapes only
	p.forward.Close()
	if p.redis != nil {
		p.redis.Close()
	}
	return errors.Join(err, p.records.Close())
}

// hello says what was started, and loudly what is unsafe.
func (p *proxy) hello(public, admin net.Addr) {
	p.log.Info().Str("address", public.String()).Str("admin", admin.String()).Str("api", p.config.Upstream.url().String()).
		Str("opa", p.config.OPA.url().String()).Str("version", version()).Msg("serving")
	if p.config.Enforce == "report" {
		p.log.Warn().Msg("ENFORCE=report: what policy denies is FORWARDED")
	}
	if p.config.TestUsers {
		p.log.Warn().Msg("TEST_USERS=true: anybody who reaches this listener may be anybody")
	}
	if p.config.AuthMode == "none" {
		p.log.Warn().Msg("AUTH_MODE=none: no token is accepted")
	}
}

// stop turns the replica unready, serves on for the delay, and finishes what is in
// flight. It is an error if something had to be cut.
func (p *proxy) stop(server interface {
	ShutdownWithContext(context.Context) error
}) error {
	close(p.stopping)
	p.handler.Drain()
	p.log.Info().Msg("stopping")
	time.Sleep(p.config.ShutdownDelay)
	ctx, cancel := context.WithTimeout(context.Background(), p.config.ShutdownTimeout)
	defer cancel()
	if err := server.ShutdownWithContext(ctx); err != nil {
		return fmt.Errorf("requests in flight were cut after %v: %w", p.config.ShutdownTimeout, err)
	}
	return nil
}
