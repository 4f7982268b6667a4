package pep

import (
	"io"
	"sync"
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
	n, err := b.w.Write(b.pending)
	b.pending = append(b.pending[:0], b.pending[n:]...)
	if err != nil {
		recordErrors.Inc()
	}
	return err
}

// Close writes what is held and ends the writer.
func (b *Buffered) Close() error {
	close(b.done)
	b.gone.Wait()
	return b.Flush()
}
