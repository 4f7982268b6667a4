package standin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// remembered is how many requests of a kind can be looked at afterwards.
const remembered = 4096

var emptySum = sha256.Sum256(nil)

// recorder keeps the last requests of one kind as they came off the wire. A
// request takes one slot, so that recording costs a copy and no shared lock.
type recorder struct {
	count atomic.Uint64 // requests ever
	floor atomic.Uint64 // those up to here are forgotten
	slots [remembered]slot
}

type slot struct {
	mu          sync.Mutex
	seq         uint64
	method      string
	target, raw []byte
	bodyLen     int64
	bodySum     [sha256.Size]byte
}

// Seen is a request as received: the target and the header fields with their
// order, case and repetitions.
type Seen struct {
	Method     string      `json:"method"`
	Target     string      `json:"target"`
	Headers    [][2]string `json:"headers"`
	BodyLen    int64       `json:"body_len"`
	BodySHA256 string      `json:"body_sha256"`
}

// Header returns the values of all fields of that name, whatever their case, in
// the order received.
func (s *Seen) Header(name string) []string {
	var values []string
	for _, h := range s.Headers {
		if strings.EqualFold(h[0], name) {
			values = append(values, h[1])
		}
	}
	return values
}

// add records a request. raw is the header block without the request line.
func (r *recorder) add(method string, target, raw []byte, bodyLen int64, bodySum [sha256.Size]byte) {
	seq := r.count.Add(1)
	s := &r.slots[seq%remembered]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq > seq {
		return // overtaken by a whole round
	}
	s.seq, s.method, s.bodyLen, s.bodySum = seq, method, bodyLen, bodySum
	s.target = append(s.target[:0], target...)
	s.raw = append(s.raw[:0], raw...)
}

// last returns at most n requests, the newest at the end.
func (r *recorder) last(n int) []Seen {
	out := []Seen{}
	top, floor := r.count.Load(), r.floor.Load()
	for seq := top; seq > floor && len(out) < n && top-seq < remembered; seq-- {
		s := &r.slots[seq%remembered]
		s.mu.Lock()
		if s.seq == seq {
			out = append(out, Seen{
				Method: s.method, Target: string(s.target), Headers: splitHeaders(s.raw),
				BodyLen: s.bodyLen, BodySHA256: hex.EncodeToString(s.bodySum[:]),
			})
		}
		s.mu.Unlock()
	}
	slices.Reverse(out)
	return out
}

func (r *recorder) forget() { r.floor.Store(r.count.Load()) }

func splitHeaders(raw []byte) [][2]string {
	fields := [][2]string{}
	for line := range bytes.SplitSeq(raw, []byte("\n")) {
		name, value, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\r")), []byte(":"))
		if ok {
			fields = append(fields, [2]string{string(name), string(bytes.TrimSpace(value))})
		}
	}
	return fields
}
