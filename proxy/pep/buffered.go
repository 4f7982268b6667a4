package pep

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

const (
	bufferFlush = 64 << 10               // bytes after which the buffer is written
	bufferMax   = 1 << 20                // bytes it may hold while writing fails
	bufferPause = 100 * time.Millisecond // longest time a record waits in it; pause between attempts
)

var recordErrors = metrics.NewCounter(`authorizer_proxy_record_write_errors_total`)

// Buffered is the writer of decision records: it writes in large pieces and drops
// nothing. While its target fails it keeps what it holds and tries again; when it
// is full, Write waits. Safe for concurrent use.
type Buffered struct {
	w io.Writer

	stuck atomic.Int64 // when the write under way, or the first of those that fail, began; 0: none

	mu      sync.Mutex
	pending []byte

	done chan struct{}
	gone sync.WaitGroup
}

// NewBuffered starts a writer. Close ends it.
func NewBuffered(w io.Writer) *Buffered {
	b := &Buffered{w: w, done: make(chan struct{})}
	b.gone.Go(func() {
		tick := time.NewTicker(bufferPause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = b.Flush() // counted, kept and tried again
			case <-b.done:
				return
			}
		}
	})
	return b
}

// Write takes a record. It fails only for a target that fails after Close.
func (b *Buffered) Write(record []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, record...)
	if len(b.pending) < bufferFlush {
		return len(record), nil
	}
	err := b.flush()
	for err != nil && len(b.pending) >= bufferMax {
		select {
		case <-b.done:
			return 0, err
		case <-time.After(bufferPause):
		}
		err = b.flush()
	}
	return len(record), nil
}

// Flush writes what is held.
func (b *Buffered) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flush()
}

func (b *Buffered) flush() error {
	if len(b.pending) == 0 {
		return nil
	}
	b.stuck.CompareAndSwap(0, time.Now().UnixNano())
	n, err := b.w.Write(b.pending)
	b.pending = append(b.pending[:0], b.pending[n:]...)
	if err != nil {
		recordErrors.Inc()
		return err
	}
	b.stuck.Store(0)
	return nil
}

// Stuck is how long records have been kept from their target, which fails or does
// not take them: soon requests will wait for it. It does not wait for anything.
func (b *Buffered) Stuck() time.Duration {
	since := b.stuck.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// Close writes what is held and ends the writer.
func (b *Buffered) Close() error {
	close(b.done)
	b.gone.Wait()
	return b.Flush()
}
