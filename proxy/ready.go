package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"headgate/proxy/pep"
)

// probeEvery is how long the answer of a probe counts, probeTimeout how long one
// may take: /ready is public and must not become a way to load the API.
const (
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
)

// probe asks whether something is there, once a second at most.
type probe struct {
	check func(context.Context) error

	mu   sync.Mutex
	err  error
	when time.Time
}

func (p *probe) result() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.when) >= probeEvery {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		p.err, p.when = p.check(ctx), time.Now()
	}
	return p.err
}

var (
	errStopping  = errors.New("stopping")
	errRedisAway = errors.New("cannot be reached; user context is kept in this process")
)

// readiness says whether this replica can decide.
func (p *proxy) readiness() pep.Readiness {
	var redis error
	if p.redis != nil && p.redis.Away() {
		redis = errRedisAway
	}
	return pep.NewReadiness(p.policyReady(), p.verifier.Ready(), redis, p.reachable.result(), time.Now())
}

func (p *proxy) policyReady() error {
	select {
	case <-p.stopping:
		return errStopping
	default:
		return p.decider.Ready()
	}
}

// undecidable is why this replica cannot decide; nil if it can.
func (p *proxy) undecidable() error { return errors.Join(p.policyReady(), p.verifier.Ready()) }
