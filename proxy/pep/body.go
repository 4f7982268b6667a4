package pep

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
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

// BodyLimit bounds the memory of bodies that are read before their decision.
type BodyLimit struct {
	Each  int64 // BODY_INSPECT_MAX, bytes
	Total int64 // BODY_INSPECT_TOTAL, bytes

	held atomic.Int64
}

// read returns the whole body. done gives its memory back to the budget; the
// bytes stay valid as long as somebody holds them.
func (l *BodyLimit) read(rc *fasthttp.RequestCtx) (body []byte, done func(), err error) {
	var held int64
	done = func() { l.held.Add(-held) }
	body, err = readAll(rc, l.Each, func(size int64) error {
		more := size - held
		if l.held.Add(more) > l.Total {
			l.held.Add(-more)
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
	patience(rc)
	for start := time.Now(); ; {
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
		case errors.As(err, &timeout) && timeout.Timeout(), time.Since(start) > bodyTime:
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
