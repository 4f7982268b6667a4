package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const copyBuffer = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// upload sends a request body that is not in memory. It runs beside Forward,
// since the API may answer before it has read everything.
type upload struct {
	c      *conn
	rc     *fasthttp.RequestCtx
	stream io.Reader
	length int64 // -1: chunked
	idle   time.Duration
	first  time.Duration // wait for the answer once all is sent

	done    chan struct{}
	readErr error       // the client's side failed; set before done
	sendErr error       // the API's side failed; set before done
	ending  atomic.Bool // nothing more comes from the client
	aborted atomic.Bool
}

// start begins to send. The stream belongs to the upload until done.
func (c *conn) start(rc *fasthttp.RequestCtx, q *request, f *Forwarder) *upload {
	u := &upload{
		c: c, rc: rc, stream: q.stream, length: q.length,
		idle: f.idle, first: f.firstByte, done: make(chan struct{}),
	}
	c.disarm()
	_ = c.SetReadDeadline(time.Time{})
	go u.run()
	return u
}

func (u *upload) run() {
	defer close(u.done)
	u.copy()
	switch {
	case u.readErr != nil:
		// A cut request must not look whole to the API.
		_ = u.c.Close()
	case u.sendErr != nil:
		// The API may have answered and stopped reading: its answer is there or
		// will not come.
		_ = u.c.SetReadDeadline(time.Now().Add(min(u.first, 5*time.Second)))
	default:
		now := time.Now()
		u.c.until.Store(now.Add(u.first).UnixNano())
		_ = u.c.SetReadDeadline(now.Add(min(u.first, u.c.pool.look)))
	}
}

func (u *upload) copy() {
	defer func() {
		// Nobody above us would catch it: the process would end.
		if r := recover(); r != nil {
			u.readErr = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	// Room before and behind the data for the framing of a chunk: up to four
	// digits and two line ends.
	const before, behind = 6, 2
	p := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(p)
	var sent int64
	for {
		now := time.Now()
		_ = u.rc.SetReadDeadline(now.Add(u.idle))
		if u.aborted.Load() {
			u.readErr = errAborted
			return
		}
		n, err := u.stream.Read(p[before : copyBuffer-behind])
		if err == io.EOF {
			u.ending.Store(true)
		}
		if n > 0 {
			data := p[before : before+n]
			if u.length < 0 {
				data = frameChunk(p[:], before, n)
			}
			_ = u.c.SetWriteDeadline(time.Now().Add(u.idle))
			if _, u.sendErr = u.c.Write(data); u.sendErr != nil {
				return
			}
			sent += int64(n)
		}
		switch {
		case err == io.EOF && u.length >= 0 && sent != u.length:
			u.readErr = io.ErrUnexpectedEOF
			return
		case err == io.EOF:
			if u.length < 0 {
				_, u.sendErr = u.c.Write([]byte("0\r\n\r\n"))
			}
			return
		case err != nil:
			u.readErr = err
			return
		}
	}
}

var (
	errAborted = errors.New("answered before the body was complete")
	errPanic   = errors.New("BUG: panic while reading the request body")
)

// frameChunk puts the size line and the line end around the n bytes at start,
// where there is room for them, and returns the whole.
func frameChunk(p []byte, start, n int) []byte {
	const digits = "0123456789abcdef"
	end := start + n
	p[end], p[end+1] = '\r', '\n'
	start -= 2
	p[start], p[start+1] = '\r', '\n'
	for size := n; size > 0; size >>= 4 {
		start--
		p[start] = digits[size&15]
	}
	return p[start : end+2]
}

// finished reports whether the body has been sent, and gives one that is about
// to be a moment: the API's answer can overtake the end of our last write. On a
// machine that is busy that moment is long.
func (u *upload) finished() bool {
	select {
	case <-u.done:
		return true
	default:
	}
	grace := earlyGrace
	if u.ending.Load() {
		grace = endingGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-u.done:
		return true
	case <-timer.C:
		return false
	}
}

// abort ends the upload and waits for it. The connection is closed, the client
// must be too.
func (u *upload) abort() {
	u.aborted.Store(true)
	_ = u.c.Close()
	for {
		// The upload may just be setting a later one.
		_ = u.rc.SetReadDeadline(time.Unix(1, 0))
		select {
		case <-u.done:
			_ = u.rc.SetReadDeadline(time.Time{})
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// download is an answer's body on its way to the client. The server reads it
// after Forward has returned and then closes it.
type download struct {
	c   *conn
	rc  *fasthttp.RequestCtx
	f   *Forwarder
	key uint64
	up  *upload // still sending when the answer came; nil without

	chunked  bool
	left     int64 // of the body, or of the chunk; -1 if the body ends with the connection
	started  bool  // a chunk was begun
	complete bool
	reusable bool
	armed    time.Time
}

// Read returns what has come, or waits for more.
func (d *download) Read(p []byte) (int, error) {
	if d.complete {
		return 0, io.EOF
	}
	if d.chunked && d.left <= 0 {
		if err := d.nextChunk(); err != nil {
			return 0, err
		}
	}
	if d.left >= 0 && int64(len(p)) > d.left {
		p = p[:d.left]
	}
	d.arm()
	n, err := d.c.br.Read(p)
	if d.left > 0 {
		d.left -= int64(n)
		d.complete = d.left == 0 && !d.chunked
	} else {
		d.complete = err == io.EOF
	}
	if err != nil && !d.complete {
		err = d.failed(err)
	}
	return n, err
}

// nextChunk reads up to the data of the next chunk; after the last one it
// returns io.EOF.
func (d *download) nextChunk() error {
	d.arm()
	size, err := readChunkSize(d.c.br, d.started)
	d.started = true
	if err == nil && size == 0 {
		if err = skipTrailer(d.c.br); err == nil {
			d.complete = true
			return io.EOF
		}
	}
	if err != nil {
		return d.failed(err)
	}
	d.left = size
	return nil
}

var errChunk = errors.New("malformed chunk")

// readChunkSize reads the line before the data of a chunk, and with data the
// line end behind that of the chunk before. Extensions are skipped.
func readChunkSize(br *bufio.Reader, data bool) (int64, error) {
	if data {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) != 2 || line[0] != '\r' {
			return 0, errChunk
		}
	}
	line, err := br.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	n := len(line) - 2
	if n < 1 || bytes.IndexByte(line, '\r') != n {
		return 0, errChunk
	}
	digits, _, _ := bytes.Cut(line[:n], []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	// Fifteen digits cannot overflow.
	if len(digits) == 0 || len(digits) > 15 {
		return 0, errChunk
	}
	var size int64
	for _, c := range digits {
		v := hexValues[c]
		if v == 0 {
			return 0, errChunk
		}
		size = size<<4 | int64(v-1)
	}
	return size, nil
}

// hexValues holds the value of a hexadecimal digit plus one; zero is none.
var hexValues = func() (t [256]byte) {
	for i, c := range "0123456789abcdef" {
		t[c] = byte(i + 1)
	}
	for i, c := range "ABCDEF" {
		t[c] = byte(i + 11)
	}
	return t
}()

// skipTrailer reads past the trailer section: trailers do not pass.
func skipTrailer(br *bufio.Reader) error {
	for room := readBuffer; room > 0; {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 && line[0] == '\r' {
			return nil
		}
		room -= len(line)
	}
	return errors.New("trailer section too long")
}

func (d *download) failed(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	failedBody.Inc()
	return err
}

// arm gives both sides another while before we wait. Moving deadlines costs, so
// they are a little late and stay for that long. The client's must outlast a
// silence of the API.
func (d *download) arm() {
	now, spare := time.Now(), d.f.idle/8
	if now.Sub(d.armed) < spare {
		return
	}
	d.armed = now
	_ = d.c.SetReadDeadline(now.Add(d.f.idle + spare))
	_ = d.rc.SetWriteDeadline(now.Add(2*d.f.idle + spare))
}

// SupportsBodyWriteTo lets the server take the body by WriteTo.
func (d *download) SupportsBodyWriteTo() bool { return true }

// WriteTo hands on what arrives as it arrives, in larger pieces than the server
// would read.
func (d *download) WriteTo(w io.Writer) (sent int64, err error) {
	p := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(p)
	for {
		n, err := d.Read(p[:])
		if n > 0 {
			m, err := w.Write(p[:n])
			sent += int64(m)
			if err != nil {
				clientGone.Inc()
				return sent, err
			}
		}
		switch {
		case err == io.EOF:
			return sent, nil
		case err != nil:
			return sent, err
		}
	}
}

// Close ends the exchange.
func (d *download) Close() error {
	c := d.c
	if c == nil {
		return nil
	}
	d.c = nil
	if d.up != nil {
		d.up.abort()
		d.reusable = false
	}
	c.disarm()
	if d.complete && d.reusable {
		d.f.pool.put(d.key, c)
	} else {
		d.f.pool.discard(c)
	}
	return nil
}

// untilClosed sends the answer to a client of HTTP/1.0, which knows no chunks:
// the end of a body of unknown length is the end of the connection. The server
// has no such way, so the connection is taken over; that happens after the
// handler has returned, so the head is complete then.
func (d *download) untilClosed() {
	d.rc.HijackSetNoResponse(true)
	d.rc.Hijack(func(nc net.Conn) {
		defer func() { _ = d.Close() }()
		h := &d.rc.Response.Header
		h.Del(fasthttp.HeaderConnection) // the server's keep-alive
		h.SetConnectionClose()
		// Del would put the other headers in another order.
		head := bytes.Replace(h.Header(), []byte("\r\nTransfer-Encoding: chunked\r\n"), []byte("\r\n"), 1)
		_ = nc.SetWriteDeadline(time.Now().Add(d.f.idle))
		if _, err := nc.Write(head); err != nil {
			return
		}
		_, _ = d.WriteTo(nc)
	})
}
