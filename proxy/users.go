package main

import (
	"context"
	"fmt"
	"time"

	"headgate/proxy/pip"
	"headgate/proxy/upstream"
)

// userConfig says where user context comes from.
func (p *proxy) userConfig() (users pip.Config, err error) {
	c := &p.config
	users = pip.Config{
		ProfileURL: c.ContextURL, LookupURL: c.LookupURL, ServiceKey: string(c.ServiceKey),
		Life: c.ContextLife.duration(), RefreshAfter: c.ContextRefresh.duration(), Timeout: time.Duration(c.APITimeout),
		Warn: func(message string) { p.log.Warn().Msg(message) },
	}
	if users.ProfileURL == "" {
		users.ProfileURL = c.below("/user/profile")
	}
	if users.LookupURL == "" && users.ServiceKey != "" {
		users.LookupURL = c.below("/users/{name}?include-roles=true")
	}
	if c.UpstreamCA != "" {
		if users.DialTLS, err = upstream.DialTLS(c.UpstreamCA, sayOnce(p.log)); err != nil {
			err = fmt.Errorf("UPSTREAM_CA: %w", err)
		}
	}
	return users, err
}

// revoke makes every replica read the context of a user, or of all, anew.
func (p *proxy) revoke(ctx context.Context, user string, all bool) (pip.Revocation, error) {
	if all {
		return p.users.InvalidateAll(ctx)
	}
	return p.users.Invalidate(ctx, user)
}
