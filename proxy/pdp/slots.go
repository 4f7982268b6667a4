package pdp

import (
	"errors"
	"time"
)

// slots bound the questions in flight to OPA. As many again may wait for one;
// whoever comes beyond that is turned away at once. Anonymous callers have a half
// of everything to themselves and cannot use the other.
//
// OPA stalls every question at once while it activates a bundle; without the
// bound each stall would pile up as many goroutines as there are clients.
type slots struct{ all, anonymous half }

// half is a number of slots and a number of places in their queue.
type half struct{ slots, places chan struct{} }

var (
	errQueueFull = errors.New("the queue of questions to OPA is full")
	errNoSlot    = errors.New("no slot to ask OPA came free in time")
)

func newSlots(n int) slots {
	return slots{all: newHalf(n), anonymous: newHalf(max(1, n/2))}
}

func newHalf(n int) half {
	return half{slots: make(chan struct{}, n), places: make(chan struct{}, 2*n)}
}

// enter takes a slot, waiting for one until the deadline; leave gives it back.
func (s *slots) enter(anonymous bool, deadline time.Time) (leave func(), err error) {
	if !anonymous {
		return s.all.enter(deadline)
	}
	leaveHalf, err := s.anonymous.enter(deadline)
	if err != nil {
		return nil, err
	}
	leaveAll, err := s.all.enter(deadline)
	if err != nil {
		leaveHalf()
		return nil, err
	}
	return func() { leaveAll(); leaveHalf() }, nil
}

func (h *half) enter(deadline time.Time) (leave func(), err error) {
	select {
	case h.places <- struct{}{}:
	default:
		return nil, errQueueFull
	}
	leave = func() { <-h.slots; <-h.places }
	select {
	case h.slots <- struct{}{}:
		return leave, nil
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case h.slots <- struct{}{}:
		return leave, nil
	case <-timer.C:
		<-h.places
		return nil, errNoSlot
	}
}

func (s *slots) inFlight() int { return len(s.all.slots) }

// waiting is how many have a place and no slot. The two are read one after the
// other, so it may be off by what moves in between.
func (s *slots) waiting() int { return max(0, len(s.all.places)-len(s.all.slots)) }
