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
	bufferMax   = 1 << 20                // bytes it may hold while others are being written
	bufferPause = 100 * time.Millisecond // longest time a record waits in it; pause between attempts
)

var recordErrors = metrics.NewCounter(`authorizer_proxy_record_write_errors_total`)

// Buffered is the writer of decision records: it writes in large pieces and drops
// nothing. While its target fails it keeps what it holds and tries again; when it
// is full, Write waits. Safe for concurrent use: while one caller writes a piece,
// the others go on and fill the next.
type Buffered struct {
	w io.Writer

	stuck atomic.Int64 // when the write under way, or the first of those that fail, began; 0: none

	mu      sync.Mutex
	pending []byte

	writing sync.Mutex
	piece   []byte // what is being written, older than all that is pending

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
	b.pending = append(b.pending, record...)
	held := len(b.pending)
	b.mu.Unlock()
	if held >= bufferMax {
		if err := b.makeRoom(); err != nil {
			return 0, err
		}
	} else if held >= bufferFlush && b.writing.TryLock() {
		_ = b.flush(bufferFlush) // counted, kept and tried again
		b.writing.Unlock()
	}
	return len(record), nil
}

// makeRoom waits until the buffer is not full.
func (b *Buffered) makeRoom() error {
	b.writing.Lock()
	defer b.writing.Unlock()
	for b.held() >= bufferMax {
		err := b.flush(bufferFlush)
		if err == nil {
			continue
		}
		select {
		case <-b.done:
			return err
		case <-time.After(bufferPause):
		}
	}
	return nil
}

func (b *Buffered) held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// Flush writes what is held.
func (b *Buffered) Flush() error {
	b.writing.Lock()
	defer b.writing.Unlock()
	return b.flush(1)
}

// flush writes what is left of a piece, and then what is pending as long as that is
// so many bytes. The caller holds writing.
func (b *Buffered) flush(least int) error {
	for {
		if len(b.piece) == 0 {
			b.mu.Lock()
			if len(b.pending) >= least {
				b.piece, b.pending = b.pending, b.piece
			}
			b.mu.Unlock()
		}
		if len(b.piece) == 0 {
			return nil
		}
		b.stuck.CompareAndSwap(0, time.Now().UnixNano())
		n, err := b.w.Write(b.piece)
		b.piece = append(b.piece[:0], b.piece[n:]...)
		if err != nil {
			recordErrors.Inc()
			return err
		}
		b.stuck.Store(0)
	}
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
