package pep

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

const (
	// bodyTime is how long a body may take that must be read before its decision:
	// it occupies memory that others wait for.
	bodyTime  = 2 * time.Minute
	bodyPiece = 64 << 10 // memory it is given at first; doubled when it is full
)

// BodyLimit bounds the memory of bodies that are read before their decision. One
// subject may have half of it: whoever fills that leaves the rest to the others.
type BodyLimit struct {
	Each  int64 // BODY_INSPECT_MAX, bytes
	Total int64 // BODY_INSPECT_TOTAL, bytes

	mu   sync.Mutex
	held int64
	by   map[string]int64 // subject -> bytes
}

// read returns the whole body of a subject's request. done gives its memory back
// to the budget; the bytes stay valid as long as somebody holds them.
func (l *BodyLimit) read(rc *fasthttp.RequestCtx, subject string) (body []byte, done func(), err error) {
	var held int64
	done = func() { l.take(subject, -held) }
	body, err = readAll(rc, l.Each, func(size int64) error {
		if !l.take(subject, size-held) {
			return authz.Refuse(authz.ErrUnavailable, "too many request bodies are being read")
		}
		held = size
		return nil
	})
	if err != nil {
		done()
		return nil, nil, err
	}
	return body, done, nil
}

// take moves bytes from the budget to a subject, or back, if there is room.
func (l *BodyLimit) take(subject string, bytes int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	share := max(l.Each, l.Total/2)
	if bytes > 0 && (l.held+bytes > l.Total || l.by[subject]+bytes > share) {
		return false
	}
	if l.by == nil {
		l.by = map[string]int64{}
	}
	l.held += bytes
	if l.by[subject] += bytes; l.by[subject] == 0 {
		delete(l.by, subject)
	}
	return true
}

// Held is how many bytes are taken now.
func (l *BodyLimit) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// readAll reads a body of at most limit bytes. It takes memory as bytes come, not
// as they are announced, and tells reserve how much it holds.
func readAll(rc *fasthttp.RequestCtx, limit int64, reserve func(size int64) error) (body []byte, err error) {
	stream := rc.RequestBodyStream()
	announced := int64(rc.Request.Header.ContentLength())
	most := limit + 1
	if announced >= 0 {
		most = announced
	}
	switch {
	case announced > limit:
		return nil, tooLarge(limit)
	case stream == nil || announced == 0:
		return nil, nil
	}
	patience(rc, bodyTime)
	for {
		if len(body) == cap(body) {
			size := min(max(2*int64(cap(body)), bodyPiece), most)
			if err := reserve(size); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := stream.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var timeout net.Error
		switch {
		case int64(len(body)) > limit:
			return nil, tooLarge(limit)
		case int64(len(body)) == announced, err == io.EOF && announced < 0:
			return body, nil
		case err == io.EOF:
			// fasthttp takes the end of the connection for the end of the body.
			return nil, errBroken
		case errors.As(err, &timeout) && timeout.Timeout():
			return nil, errSlowClient
		case err != nil:
			return nil, errBroken // the error itself may quote a trailer
		}
	}
}

func tooLarge(limit int64) error {
	return authz.Refuse(authz.ErrBodyTooLarge, "the body of this request may have %d bytes", limit)
}

var errBroken = authz.Refuse(authz.ErrMalformed, "the body is broken")

// limited is a body of unknown length that may not grow beyond a limit.
type limited struct {
	io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errors.New("the body is over the limit")
	}
	return n, err
}
