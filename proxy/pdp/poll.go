package pdp

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// minPollGap keeps polls that are asked for from following each other without a
// pause, as they would while replies keep naming different revisions.
const minPollGap = 2 * time.Millisecond

// poller hands requests for a poll to the one goroutine that polls.
type poller struct {
	kick chan struct{} // capacity 1: a poll is wanted

	mu   sync.Mutex
	next chan struct{} // closed when the next poll to start has ended
}

func newPoller() poller {
	return poller{kick: make(chan struct{}, 1), next: make(chan struct{})}
}

// want asks for a poll soon.
func (p *poller) want() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// wait returns when a poll that starts after the call has ended, or ctx or the
// time has.
func (p *poller) wait(ctx context.Context, most time.Duration) {
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	p.want()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case <-next:
	case <-ctx.Done():
	}
}

// begin starts a poll; the returned function ends it.
func (p *poller) begin() (end func()) {
	p.mu.Lock()
	current := p.next
	p.next = make(chan struct{})
	p.mu.Unlock()
	return func() { close(current) }
}

// Recheck asks for a poll soon. It is what a status push of OPA triggers: the push
// itself is never believed.
func (d *Decider) Recheck() { d.poller.want() }

// Run polls OPA until ctx ends. It must be called once; polls are serial, which is
// what keeps a late answer from bringing an older policy back.
func (d *Decider) Run(ctx context.Context) {
	warn := warning{log: d.cfg.Log}
	for timer := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-d.poller.kick:
		}
		end := d.poller.begin()
		warn.about(d.poll())
		end()
		select {
		case <-ctx.Done():
		case <-time.After(minPollGap):
		}
		// A little jitter keeps the replicas of a fleet from polling in step.
		timer.Reset(d.cfg.Poll - time.Duration(rand.Int64N(int64(d.cfg.Poll/8)+1)))
	}
}

// poll asks OPA once which policy it runs, and says what is wrong with it.
func (d *Decider) poll() (problem string, cause error) {
	sent := d.now()
	b, err := d.opa.poll(time.Now().Add(d.cfg.Timeout))
	if err != nil {
		pollErrors.Inc()
		return "cannot ask OPA which policy it runs", err
	}
	if d.policy.polled(b, sent) {
		epochChanges.Inc()
		d.cfg.Log.Info().Str("revision", b.revision).Uint64("epoch", d.policy.live.Load().number).Msg("OPA runs another policy")
	}
	if b.uncached != "" {
		return "decisions are not cached: " + b.uncached, nil
	}
	return "", nil
}
