package standin

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// Fault is what goes wrong. The delay comes first; then the connection is
// dropped, or the status answered, or, with neither, the true answer given.
type Fault struct {
	Target  string `json:"target"` // profile, keys or api
	Status  int    `json:"status,omitempty"`
	Body    string `json:"body,omitempty"` // with Status; empty means an error document
	DelayMS int    `json:"delay_ms,omitempty"`
	Drop    bool   `json:"drop,omitempty"`
	Times   int    `json:"times,omitempty"` // how many requests meet it; 0 means all
}

// faults are the faults in force.
type faults struct{ profile, keys, api faultPoint }

func (f *faults) set(fault Fault) error {
	switch fault.Target {
	case "profile":
		f.profile.set(&fault)
	case "keys":
		f.keys.set(&fault)
	case "api":
		f.api.set(&fault)
	default:
		return fmt.Errorf("target is %q: want profile, keys or api", fault.Target)
	}
	return nil
}

func (f *faults) clear() {
	f.profile.set(nil)
	f.keys.set(nil)
	f.api.set(nil)
}

type faultPoint struct{ armed atomic.Pointer[armedFault] }

type armedFault struct {
	Fault
	left atomic.Int64
}

func (p *faultPoint) set(f *Fault) {
	if f == nil {
		p.armed.Store(nil)
		return
	}
	a := &armedFault{Fault: *f}
	a.left.Store(int64(f.Times))
	p.armed.Store(a)
}

// next returns the fault that this request meets, after its delay; nil without.
func (p *faultPoint) next() *Fault {
	a := p.armed.Load()
	if a == nil || a.Times > 0 && a.left.Add(-1) < 0 {
		return nil
	}
	time.Sleep(time.Duration(a.DelayMS) * time.Millisecond)
	return &a.Fault
}

func (f *Fault) body() []byte {
	if f.Body != "" {
		return []byte(f.Body)
	}
	return errorBody(http.StatusText(f.Status))
}

// meet plays the fault to a net/http client and reports whether that was the
// answer.
func (p *faultPoint) meet(w http.ResponseWriter) bool {
	f := p.next()
	switch {
	case f == nil || !f.Drop && f.Status == 0:
		return false
	case f.Drop:
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	_, _ = w.Write(f.body()) // a client that left is not our fault
	return true
}
