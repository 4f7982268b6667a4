package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"headgate/bench/load"
	"headgate/bench/stack"
)

// subject is a server under load.
type subject struct {
	name    string
	url     string
	admin   string       // of a proxy of ours
	process *stack.Child // nil: not on this machine, or not ours
	records *ledger      // nil: it writes none, or they cannot be read
}

// proxySubject is a proxy that runs and has been sent nothing but probes.
func proxySubject(ctx context.Context, name, url, admin string, process *stack.Child) (*subject, error) {
	s := &subject{name: name, url: url, admin: admin, process: process, records: &ledger{file: process.OutFile()}}
	m, err := s.metrics(ctx)
	if err != nil {
		return nil, err
	}
	// The records of the probes are on their way.
	return s, s.records.settle(ctx, int64(m.sum("authorizer_proxy_http_requests_total")), nil)
}

// slice is one stretch of load on one subject, with the processor time that was
// used meanwhile, in seconds.
type slice struct {
	*load.Result
	used      float64 // by the subject
	generator float64
	api       float64 // by the stand-in
}

// cost is the processor time of the subject for a request, in seconds.
func (s slice) cost() float64 { return s.used / float64(s.Total.Requests) }

// slice sends load to a subject. Wrong answers, and records that are more or fewer
// than the requests, are errors: nothing that was measured then counts. See is
// told of each decision record.
func (b *bench) slice(ctx context.Context, s *subject, o load.Options, next func(int64) *load.Call, see func(*record)) (slice, error) {
	pids := [3]int{pidOf(s.process), os.Getpid(), 0}
	if b.st != nil {
		pids[2] = b.st.StandIn.PID()
	}
	var before, used [3]float64
	for i, pid := range pids {
		before[i] = cpuOf(pid)
	}
	result, err := load.Run(ctx, o, next)
	if err != nil {
		return slice{}, err
	}
	for i, pid := range pids {
		used[i] = cpuOf(pid) - before[i]
	}
	if ctx.Err() != nil {
		return slice{}, context.Cause(ctx)
	}
	if result.Total.Requests == 0 {
		return slice{}, fmt.Errorf("%s was sent nothing", s.name)
	}
	if err := result.Err(); err != nil {
		return slice{}, fmt.Errorf("%s: %w", s.name, err)
	}
	if s.records != nil {
		if err := s.records.settle(ctx, result.Total.Requests, see); err != nil {
			return slice{}, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return slice{Result: result, used: used[0], generator: used[1], api: used[2]}, nil
}

func pidOf(c *stack.Child) int {
	if c == nil {
		return 0
	}
	return c.PID()
}

// record is what a decision record tells of one request.
type record struct {
	Route    string  `json:"route"`
	Source   string  `json:"source"`
	Status   int     `json:"status"`
	Identify float64 `json:"identify_us"`
	Context  float64 `json:"context_us"`
	Decide   float64 `json:"decide_us"`
	Forward  float64 `json:"forward_us"`
	Total    float64 `json:"total_us"`

	Input json.RawMessage `json:"input"`
}

// ledger holds the decision records of a proxy against the requests it was sent.
type ledger struct {
	file   string
	offset int64
	bound  time.Duration // until the last record must be there; 0: settleBound
}

const (
	settleBound = 10 * time.Second
	ledgerMax   = 64 << 20 // bytes after which the file is emptied
)

// settle reads the records that were written since the last call until there are
// as many as requests. That there are more shows now or in the next call.
func (l *ledger) settle(ctx context.Context, requests int64, see func(*record)) error {
	bound := l.bound
	if bound == 0 {
		bound = settleBound
	}
	var found int64
	for end := time.Now().Add(bound); ; {
		n, err := l.read(see)
		if err != nil {
			return err
		}
		found += n
		switch {
		case found > requests:
			return fmt.Errorf("%d decision records for %d requests", found, requests)
		case found == requests:
			if l.offset > ledgerMax && os.Truncate(l.file, 0) == nil {
				l.offset = 0 // it is appended to, so from the start
			}
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d decision records for %d requests", found, requests)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// read takes the whole lines that are there and counts them.
func (l *ledger) read(see func(*record)) (lines int64, err error) {
	f, err := os.Open(l.file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := f.ReadAt(buffer, l.offset)
		whole := bytes.LastIndexByte(buffer[:n], '\n') + 1
		if whole == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return lines, err
			}
			return lines, nil
		}
		l.offset += int64(whole)
		lines += int64(bytes.Count(buffer[:whole], []byte{'\n'}))
		if see == nil {
			continue
		}
		for line := range bytes.Lines(buffer[:whole]) {
			var r record
			if err := json.Unmarshal(line, &r); err != nil {
				return lines, fmt.Errorf("a decision record that is no JSON: %w: %.200s", err, line)
			}
			see(&r)
		}
	}
}

// do makes one HTTP call that is no part of what is measured.
func do(ctx context.Context, method, url, token string, ask any, into any) error {
	var body io.Reader
	if ask != nil {
		text, err := json.Marshal(ask)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s answers %s: %.300s", method, url, res.Status, text)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}

// invalidate makes every replica read a user's context anew.
func (b *bench) invalidate(ctx context.Context, admin, user string) error {
	return do(ctx, http.MethodPost, admin+"/invalidate", b.st.AdminToken, map[string]string{"user": user}, nil)
}
