package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"headgate/proxy/cache"
	"headgate/proxy/pip"
)

// userNames reads a file of names, one a line; empty lines and those that start
// with # are left out.
func userNames(file string) (names []string, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	return names, nil
}

// prewarmCommand warms the Redis of this environment. It needs no running proxy.
func prewarmCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	if len(args) != 2 || args[0] != "--users" {
		return errors.New("want --users FILE")
	}
	names, err := userNames(args[1])
	if err != nil {
		return err
	}
	c, _, err := LoadConfig(environ)
	if err != nil {
		return err
	}
	if c.Redis == "" {
		return errors.New("want REDIS_URL: what is warmed here would be gone with this command")
	}
	redis, err := cache.OpenRedis(cache.RedisConfig{URL: string(c.Redis)})
	if err != nil {
		return err
	}
	defer redis.Close()
	p := &proxy{config: c, log: zerolog.Nop()}
	config, err := p.userConfig()
	if err != nil {
		return err
	}
	users, err := pip.New(config, redis)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { users.Run(running); close(ended) }()
	defer func() { stop(); <-ended }()

	began := time.Now()
	w, err := users.Prewarm(ctx, names, func(done, of int) {
		if done == of || done%100 == 0 {
			fmt.Fprintf(out, "%d of %d users\n", done, of)
		}
	})
	fmt.Fprintf(out, "warmed %d of %d users in %v\n", w.Warmed, len(names), time.Since(began).Round(time.Millisecond))
	if len(w.NotWarmable) > 0 {
		fmt.Fprintf(out, "not warmable, since the API knows no token of theirs: %s\n", strings.Join(w.NotWarmable, " "))
	}
	for _, f := range w.Failed {
		fmt.Fprintf(out, "failed: %s: %v\n", f.User, f.Err)
	}
	if err == nil && len(w.Failed) > 0 {
		err = fmt.Errorf("%d users could not be warmed", len(w.Failed))
	}
	return err
}

// prewarm warms the users of PREWARM_FILE while the proxy already serves.
func (p *proxy) prewarm(ctx context.Context) {
	names, err := userNames(p.config.PrewarmFile)
	if err == nil {
		var w pip.Warming
		w, err = p.users.Prewarm(ctx, names, nil)
		p.log.Info().Int("warmed", w.Warmed).Int("users", len(names)).Int("failed", len(w.Failed)).Strs("not_warmable", w.NotWarmable).Msg("pre-warming is done")
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error().Err(err).Msg("cannot pre-warm")
	}
}
