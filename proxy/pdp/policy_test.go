package pdp

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/proxy/authz"
)

// rules are the steps in which the rules of policy.go are applied. The model
// drives the real ones; a mutant differs from them in one.
type rules struct {
	polled  func(p *policy, b bundles, sent, now time.Duration)
	failed  func(p *policy, now time.Duration)            // a poll without an answer
	late    func(p *policy, b bundles, now time.Duration) // the answer to a poll that was given up
	pushed  func(p *policy, b bundles, now time.Duration) // a status push
	replied func(p *policy, asked *epoch, sent time.Duration, b bundles, now time.Duration) *epoch
	state   func(p *policy, t term, now time.Duration) state
	served  func(d *Decider, key [32]byte, e *entry) // an entry was reused
	ends    func(sent, now, operator, policy time.Duration) time.Duration
	store   func(d *Decider, key [32]byte, a answer)
}

var realRules = rules{
	polled: func(p *policy, b bundles, sent, _ time.Duration) { p.polled(b, sent) },
	failed: func(*policy, time.Duration) {},
	late:   func(*policy, bundles, time.Duration) {},
	pushed: func(*policy, bundles, time.Duration) {},
	replied: func(p *policy, asked *epoch, _ time.Duration, b bundles, now time.Duration) *epoch {
		e, _ := p.replied(asked, b.revision, now)
		return e
	},
	state:  (*policy).state,
	served: func(*Decider, [32]byte, *entry) {},
	ends: func(sent, _, operator, policy time.Duration) time.Duration {
		return sent + life(operator, policy)
	},
	store: (*Decider).store,
}

// content is what OPA ran for a while.
type content struct {
	bundles
	left     time.Duration // when OPA last ran it, and in which step; unused while it does
	leftStep int
}

// asking is a question on its way to OPA and back.
type asking struct {
	key       [32]byte
	epoch     *epoch // in which it was asked
	sent      time.Duration
	followers int

	by     *content // nil until evaluated
	at     time.Duration
	atStep int
	life   time.Duration // given by policy
}

// polling is a poll on its way.
type polling struct {
	sent time.Duration
	saw  *content // nil until served
}

const (
	modelLease    = 100 * time.Millisecond
	modelOperator = 300 * time.Millisecond

	keys byte = 3
)

// model is an OPA that changes its policy at will, and a network that delays,
// loses, doubles and reorders whatever passes between it and a Decider.
type model struct {
	rules
	d     *Decider
	clock *hand

	steps   int
	current map[string]*content // by name of the revision
	running *content
	etags   int

	poll       *polling
	latePolls  []*content
	pushes     []*content
	askings    []*asking
	decided    map[string]*asking // by decision id
	contradict map[string]int     // by revision: step of the latest evaluation, of those replied, by another one

	hits, follows, doubts int
}

func newModel(t testing.TB, r rules) *model {
	m := &model{rules: r, clock: &hand{}, current: map[string]*content{}, decided: map[string]*asking{}, contradict: map[string]int{}}
	m.d = newDecider(t, "http://127.0.0.1:1", func(c *Config) { c.Lease, c.MaxEntries, c.Now = modelLease, 100, m.clock.now })
	m.activate(m.publish("a"))
	return m
}

// publish makes new content under a revision, in place of what bore its name.
func (m *model) publish(revision string) *content {
	m.etags++
	c := &content{bundles: bundles{revision: revision, tag: fmt.Sprint(revision, " ", m.etags), loaded: true}}
	switch revision {
	case "": // whatever it holds, it looks the same
		c.tag, c.uncached = "", "no revision"
	case "none":
		c.bundles = bundles{uncached: "no bundle"}
	}
	m.current[revision] = c
	return c
}

func (m *model) activate(c *content) {
	if m.running != nil {
		m.running.left, m.running.leftStep = m.d.now(), m.steps
	}
	m.running = c
}

// lastRan is when OPA last ran c, and in which step.
func (m *model) lastRan(c *content) (time.Duration, int) {
	if c == m.running {
		return m.d.now(), m.steps
	}
	return c.left, c.leftStep
}

// check is what must hold when an answer is reused.
func (m *model) check(a *asking, how string) error {
	now := m.d.now()
	left, step := m.lastRan(a.by)
	switch {
	case now-left > modelLease:
		return fmt.Errorf("%s of %q served %v after OPA left it", how, a.by.tag, now-left)
	case m.contradict[a.by.revision] > step && a.by.uncached == "":
		return fmt.Errorf("%s of %q served, which a reply has shown to be left", how, a.by.tag)
	case a.life >= 0 && now >= a.at+a.life:
		return fmt.Errorf("%s served %v after the limit of policy", how, now-a.at-a.life)
	case now-a.sent >= modelOperator:
		return fmt.Errorf("%s served at the age of %v", how, now-a.sent)
	case how == "entry" && a.by.uncached != "":
		return fmt.Errorf("entry served that has no revision")
	}
	return nil
}

// What may happen in a step, each as often as it is in steps.
const (
	pass = iota // time
	change
	republish
	pollSend
	pollReach
	pollAnswer
	pollFail
	stray
	ask
	join
	evaluate
	arrive
	lose
	hit
)

var steps = [...]int{
	pollSend, pollReach, pollAnswer, ask, evaluate, arrive, hit, join,
	pollSend, pollReach, pollAnswer, ask, evaluate, arrive, hit, pass,
	pollSend, pollReach, pollAnswer, ask, evaluate, arrive, hit, join,
	pollSend, pollReach, pollAnswer, ask, evaluate, arrive, hit, pass,
	pollFail, stray, lose, change, republish, pass,
}

// step does one thing that draw picks.
func (m *model) step(draw func(n int) int) error {
	m.steps++
	p, now := m.d.policy, m.d.now()
	pick := func() *asking {
		if len(m.askings) == 0 {
			return nil
		}
		return m.askings[draw(len(m.askings))]
	}
	name := [...]string{"a", "b", "a", "b", "", "none"}[draw(6)]
	switch steps[draw(len(steps))] {
	case pass:
		m.clock.advance([...]time.Duration{1, 1, time.Millisecond, 10 * time.Millisecond, modelLease / 2, modelLease + 1}[draw(6)])
	case change: // to another policy, or back
		if draw(3) > 0 {
			break // so that policies last for a while
		}
		if m.current[name] == nil {
			m.publish(name)
		}
		m.activate(m.current[name])
	case republish: // other content under the same revision
		if draw(3) > 0 {
			break
		}
		if draw(2) == 0 {
			name = m.running.revision
		}
		m.activate(m.publish(name))

	case pollSend:
		if m.poll == nil {
			m.poll = &polling{sent: now}
		}
	case pollReach:
		if m.poll != nil && m.poll.saw == nil {
			m.poll.saw = m.running
		}
	case pollAnswer:
		if m.poll != nil && m.poll.saw != nil {
			m.polled(p, m.poll.saw.bundles, m.poll.sent, now)
			m.poll = nil
		}
	case pollFail:
		if m.poll != nil {
			m.failed(p, now)
			if m.poll.saw != nil {
				m.latePolls = append(m.latePolls, m.poll.saw)
			}
			m.poll = nil
		}
	case stray: // the answer to a poll that was given up comes; a push is sent; one arrives
		switch {
		case len(m.latePolls) > 0 && draw(2) == 0:
			m.late(p, m.latePolls[0].bundles, now)
			m.latePolls = m.latePolls[1:]
		case draw(2) == 0:
			m.pushes = append(m.pushes, m.running)
		case len(m.pushes) > 0:
			i := draw(len(m.pushes))
			m.pushed(p, m.pushes[i].bundles, now)
			if draw(4) > 0 { // else it comes once more
				m.pushes = append(m.pushes[:i], m.pushes[i+1:]...)
			}
		}

	case ask:
		if len(m.askings) < 10 {
			m.askings = append(m.askings, &asking{key: [32]byte{byte(draw(int(keys)))}, epoch: p.live.Load(), sent: now})
		}
	case join:
		if a := pick(); a != nil && a.epoch == p.live.Load() {
			a.followers++
		}
	case evaluate:
		if a := pick(); a != nil && a.by == nil && m.running.loaded {
			a.by, a.at, a.atStep, a.life = m.running, now, m.steps, [...]time.Duration{-1, -1, 0, modelLease / 5, modelLease, 2 * modelOperator}[draw(6)]
		}
	case arrive:
		a := pick()
		if a == nil || a.by == nil {
			break
		}
		for revision := range m.current {
			if revision != a.by.revision {
				m.contradict[revision] = max(m.contradict[revision], a.atStep)
			}
		}
		doubt := p.doubt.Load()
		id := strconv.Itoa(len(m.decided))
		t := term{asked: a.sent, ends: m.ends(a.sent, now, modelOperator, a.life)}
		t.epoch = m.replied(p, a.epoch, a.sent, a.by.bundles, now)
		if p.doubt.Load() > doubt {
			m.doubts++
		}
		m.decided[id] = a
		m.store(m.d, a.key, answer{decision: authz.Decision{ID: id}, term: t})
		for ; a.followers > 0; a.followers-- {
			if m.state(p, t, now) == fresh {
				m.follows++
				if err := m.check(a, "shared answer"); err != nil {
					return err
				}
			}
		}
		if draw(4) > 0 { // else it comes once more
			m.drop(a)
		}
	case lose:
		if a := pick(); a != nil {
			m.drop(a)
		}
	case hit:
		for i := range keys {
			key := [32]byte{i}
			if e, ok := m.d.entries.Get(key); ok && m.state(p, e.term, now) == fresh {
				m.hits++
				if err := m.check(m.decided[e.id], "entry"); err != nil {
					return err
				}
				m.served(m.d, key, e)
			}
		}
	}
	return nil
}

func (m *model) drop(a *asking) {
	for i := range m.askings {
		if m.askings[i] == a {
			m.askings = append(m.askings[:i], m.askings[i+1:]...)
			return
		}
	}
}

// TestNoAnswerOutlivesItsPolicy holds the rules of policy.go against all that
// OPA and the network may do: 100 runs of 2,000 steps.
func TestNoAnswerOutlivesItsPolicy(t *testing.T) {
	var hits, follows, doubts, total int
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, realRules)
		draw := func(n int) (v int) {
			for range bits.Len(uint(n)) + 1 { // rapid prefers small integers, but not false
				v <<= 1
				if rapid.Bool().Draw(rt, "") {
					v++
				}
			}
			return v % n
		}
		for range 2000 {
			if err := m.step(draw); err != nil {
				rt.Fatal(err)
			}
		}
		hits, follows, doubts = hits+m.hits, follows+m.follows, doubts+m.doubts
		total += m.steps
	})
	if hits < 1000 || follows < 100 || doubts < 1000 {
		t.Errorf("%d hits, %d shared answers, %d doubts: too few to prove anything", hits, follows, doubts)
	}
	t.Logf("%d steps, %d hits, %d shared answers, %d doubts", total, hits, follows, doubts)
}

// TestModelCatchesMutants shows that the model would notice if any one rule were
// missing.
func TestModelCatchesMutants(t *testing.T) {
	// confirm and move do by hand what only a poll may.
	confirm := func(p *policy, now time.Duration) {
		if e := p.live.Load(); e != nil {
			e.confirmed.Store(int64(now))
		}
	}
	believe := func(p *policy, b bundles, now time.Duration) { p.polled(b, now) }
	// relaxed is the state of an answer where a test of the confirmation is
	// replaced.
	relaxed := func(confirmed func(p *policy, at, now time.Duration) bool) func(*policy, term, time.Duration) state {
		return func(p *policy, t term, now time.Duration) state {
			s := p.state(t, now)
			if s == unconfirmed && confirmed(p, time.Duration(t.epoch.confirmed.Load()), now) {
				return fresh
			}
			return s
		}
	}
	inLease := func(p *policy, at, now time.Duration) bool { return now-at <= p.lease }
	certain := func(p *policy, at time.Duration) bool { return at > time.Duration(p.doubt.Load()) }

	mutants := map[string]func(*rules){
		"none": func(*rules) {},
		"1: entries outlive their epoch": func(r *rules) {
			r.state = func(p *policy, t term, now time.Duration) state {
				if t.epoch != nil {
					t.epoch = p.live.Load()
				}
				return p.state(t, now)
			}
		},
		"1: the same revision with another etag is the same policy": func(r *rules) {
			r.polled = func(p *policy, b bundles, sent, _ time.Duration) { b.tag = b.revision; p.polled(b, sent) }
		},
		"2: the late answer to a poll counts": func(r *rules) { r.late = believe },
		"2: a push is believed":               func(r *rules) { r.pushed = believe },
		"2: a reply moves the epoch": func(r *rules) {
			r.replied = func(p *policy, asked *epoch, sent time.Duration, b bundles, now time.Duration) *epoch {
				p.polled(b, now)
				return realRules.replied(p, asked, sent, b, now)
			}
		},
		"3: no lease": func(r *rules) { r.state = relaxed(func(p *policy, at, _ time.Duration) bool { return certain(p, at) }) },
		"3: a lease twice as long": func(r *rules) {
			r.state = relaxed(func(p *policy, at, now time.Duration) bool { return certain(p, at) && now-at <= 2*p.lease })
		},
		"3: a confirmation counts from the answer to the poll": func(r *rules) {
			r.polled = func(p *policy, b bundles, _, now time.Duration) { p.polled(b, now) }
		},
		"3: a poll that failed confirms": func(r *rules) { r.failed = confirm },
		"3: a reply confirms": func(r *rules) {
			r.replied = func(p *policy, asked *epoch, sent time.Duration, b bundles, now time.Duration) *epoch {
				e := realRules.replied(p, asked, sent, b, now)
				if e != nil {
					confirm(p, now)
				}
				return e
			}
		},
		"4: no doubt": func(r *rules) { r.state = relaxed(inLease) },
		"4: a poll sent at the moment of the doubt ends it": func(r *rules) {
			r.state = relaxed(func(p *policy, at, now time.Duration) bool {
				return inLease(p, at, now) && at >= time.Duration(p.doubt.Load())
			})
		},
		"4: doubt counts from the question": func(r *rules) {
			r.replied = func(p *policy, asked *epoch, sent time.Duration, b bundles, _ time.Duration) *epoch {
				return realRules.replied(p, asked, sent, b, sent)
			}
		},
		"5: a reply need not name the epoch's revision": func(r *rules) {
			r.replied = func(p *policy, asked *epoch, sent time.Duration, b bundles, now time.Duration) *epoch {
				realRules.replied(p, asked, sent, b, now)
				if asked != p.live.Load() {
					return nil
				}
				return asked
			}
		},
		"5: a reply belongs to the epoch in which it arrives": func(r *rules) {
			r.replied = func(p *policy, _ *epoch, sent time.Duration, b bundles, now time.Duration) *epoch {
				return realRules.replied(p, p.live.Load(), sent, b, now)
			}
		},
		"6: life counts from the reply": func(r *rules) {
			r.ends = func(_, now, operator, policy time.Duration) time.Duration { return now + life(operator, policy) }
		},
		"6: policy may lengthen the operator's life": func(r *rules) {
			r.ends = func(sent, _, operator, policy time.Duration) time.Duration { return sent + max(operator, policy) }
		},
		"6: a life without end": func(r *rules) {
			r.state = func(p *policy, t term, now time.Duration) state { t.ends = now + 1; return p.state(t, now) }
		},
		"6: a hit lengthens the life": func(r *rules) {
			r.served = func(d *Decider, key [32]byte, e *entry) {
				longer := *e
				longer.ends = d.now() + modelOperator
				d.entries.Set(key, &longer, modelOperator)
			}
		},
		"7: an answer without a revision is stored": func(r *rules) {
			r.store = func(d *Decider, key [32]byte, a answer) {
				if a.epoch != nil {
					d.entries.Set(key, &entry{id: a.decision.ID, term: a.term}, time.Hour)
				}
			}
		},
		"7: an answer without a revision is shared for ever": func(r *rules) {
			r.state = func(p *policy, t term, now time.Duration) state {
				t.asked = now
				return p.state(t, now)
			}
		},
		"followers take any answer": func(r *rules) {
			r.state = func(p *policy, t term, now time.Duration) state {
				if t.asked > now-modelOperator && t.epoch != nil {
					return fresh
				}
				return p.state(t, now)
			}
		},
	}
	for name, mutate := range mutants {
		t.Run(name, func(t *testing.T) {
			r := realRules
			mutate(&r)
			steps := 0
			for seed := uint64(1); seed <= 200; seed++ {
				m, source := newModel(t, r), rand.New(rand.NewPCG(seed, 0))
				for range 1000 {
					steps++
					if err := m.step(source.IntN); err != nil {
						if name == "none" {
							t.Error("caught without a mutation")
						}
						t.Logf("caught at step %d: %v", steps, err)
						return
					}
				}
			}
			if name != "none" {
				t.Errorf("not caught in %d steps", steps)
			}
		})
	}
}
