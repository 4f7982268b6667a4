package pep

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
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
	size := int64(rc.Request.Header.ContentLength())
	if size > l.Each {
		return nil, nil, authz.Refuse(authz.ErrBodyTooLarge, "the body of this request may have %d bytes", l.Each)
	}
	if size < 0 {
		size = l.Each // chunked: it may grow to the most allowed
	}
	if l.held.Add(size) > l.Total {
		l.held.Add(-size)
		return nil, nil, authz.Refuse(authz.ErrUnavailable, "too many request bodies are being read")
	}
	done = func() { l.held.Add(-size) }
	if body, err = readAll(rc, l.Each); err != nil {
		done()
		return nil, nil, err
	}
	return body, done, nil
}

// readAll reads a body of at most limit bytes.
func readAll(rc *fasthttp.RequestCtx, limit int64) ([]byte, error) {
	stream := rc.RequestBodyStream()
	if stream == nil {
		body := rc.Request.Body()
		if int64(len(body)) > limit {
			return nil, fasthttp.ErrBodyTooLarge
		}
		return body, nil
	}
	patience(rc)
	body, err := io.ReadAll(io.LimitReader(stream, limit+1))
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, errSlowClient
	case err != nil:
		return nil, authz.Refuse(authz.ErrMalformed, "the body is broken").Because(err)
	case int64(len(body)) > limit:
		return nil, authz.Refuse(authz.ErrBodyTooLarge, "the body may have %d bytes", limit).Because(fasthttp.ErrBodyTooLarge)
	}
	return body, nil
}

// limited is a body of unknown length that may not grow beyond a limit.
type limited struct {
	io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, authz.Refuse(authz.ErrBodyTooLarge, "the body is over the limit")
	}
	return n, err
}
