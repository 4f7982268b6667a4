package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"sync"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// answer is the work on the head of an answer. Its lines are filtered before
// fasthttp parses them: taking a header out of a fasthttp.ResponseHeader puts
// the others in another order, and the order of repeated lines means something.
type answer struct {
	head    []byte   // the lines that reach the client, and ours
	tokens  [][]byte // what Connection lines name beyond the usual
	caching []byte   // all Cache-Control lines as one
	varying []byte   // all Vary lines as one
	length  bool     // a Content-Length was there
	coding  bool     // a Transfer-Encoding was there

	src bytes.Reader
	br  *bufio.Reader
}

var answers = sync.Pool{New: func() any { return &answer{br: bufio.NewReaderSize(nil, 2*readBuffer)} }}

var (
	errNoHead   = errors.New("not a head of HTTP/1")
	errHeadSize = errors.New("head too large")
)

// readHead reads the head of an answer into h: without what belonged to the hop
// behind us or is for us to say, and with the caching rules of an answer that
// depends on who asked. Names are spelled as the API spelled them. reusable says
// whether the connection may serve again after the body.
func (f *Forwarder) readHead(c *conn, h *fasthttp.ResponseHeader, q *request, g *authz.Grant) (reusable bool, err error) {
	block, err := peekHead(c.br)
	if err != nil {
		return false, err
	}
	a := answers.Get().(*answer)
	defer answers.Put(a)
	if err := a.filter(f, block, q, g); err != nil {
		return false, err
	}
	_, _ = c.br.Discard(len(block))
	a.src.Reset(a.head)
	a.br.Reset(&a.src)
	if !h.DisableNormalizing() {
		defer h.EnableNormalizing()
	}
	if err := h.Read(a.br); err != nil {
		return false, errNoHead // fasthttp's error quotes the head, cookies and all
	}
	// Where both were there, another reader may see another end of the body.
	reusable = !h.ConnectionClose() && !(a.length && a.coding)
	h.ResetConnectionClose()
	h.SetProtocol(nil) // the next hop has its own
	return reusable, nil
}

// peekHead returns the bytes up to the empty line, which stay in br.
func peekHead(br *bufio.Reader) ([]byte, error) {
	for n := 1; ; {
		if _, err := br.Peek(n); err != nil {
			if err == bufio.ErrBufferFull {
				return nil, errHeadSize
			}
			return nil, err
		}
		b, _ := br.Peek(br.Buffered())
		if end := bytes.Index(b, []byte("\r\n\r\n")); end >= 0 {
			return b[:end+4], nil
		}
		n = len(b) + 1
	}
}

// filter writes the head as it goes to the client.
func (a *answer) filter(f *Forwarder, block []byte, q *request, g *authz.Grant) error {
	a.tokens = a.tokens[:0]
	if err := a.copyLines(f, block, q); err != nil {
		return err
	}
	if len(a.tokens) > 0 {
		// As in a request: which headers belong to the hop may be said last.
		err := a.copyLines(f, block, q)
		clear(a.tokens)
		if err != nil {
			return err
		}
	}
	// Who asked decides the answer, also when it was nobody in particular: a
	// cache must not give a guest's answer to a user.
	a.head = append(a.head, "Vary: "...)
	if len(a.varying) > 0 {
		a.head = append(a.head, a.varying...)
	}
	if !varies(a.varying) {
		if len(a.varying) > 0 {
			a.head = append(a.head, ", "...)
		}
		a.head = append(a.head, "Authorization, Cookie"...)
	}
	if g.Subject.Authenticated {
		a.head = appendPrivate(append(a.head, "\r\nCache-Control: "...), a.caching)
	} else if len(a.caching) > 0 {
		a.head = append(append(a.head, "\r\nCache-Control: "...), a.caching...)
	}
	a.head = append(a.head, "\r\n\r\n"...)
	return nil
}

// copyLines copies the lines that pass, but those that tokens names; the first
// time it fills tokens.
func (a *answer) copyLines(f *Forwarder, block []byte, q *request) error {
	var folded [maxName]byte
	first := len(a.tokens) == 0
	a.caching, a.varying = a.caching[:0], a.varying[:0]
	a.length, a.coding = false, false
	line, rest, err := cutLine(block)
	if err != nil {
		return err
	}
	if hasControl(line[:len(line)-2]) {
		return errNoHead // fasthttp looks at headers only
	}
	a.head = append(a.head[:0], line...)
	for len(rest) > 2 {
		if line, rest, err = cutLine(rest); err != nil {
			return err
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return errNoHead
		}
		name, ok := fold(&folded, line[:colon])
		if !ok {
			return errNoHead
		}
		value := trim(line[colon+1:])
		switch string(name) {
		case "connection":
			if first {
				a.addTokens(value)
			}
			if !hasToken(value, "close") {
				continue
			}
			line = []byte("Connection: close\r\n")
		case "content-length":
			a.length = true
		case "transfer-encoding":
			a.coding = true
		case "cache-control":
			a.caching = appendList(a.caching, value)
			continue
		case "vary":
			a.varying = appendList(a.varying, value)
			continue
		case "set-cookie":
			if q.session && isSession(value) {
				continue
			}
		default:
			if !f.reaches(name) || !first && marked(line[:colon], a.tokens) {
				continue
			}
		}
		a.head = append(a.head, line...)
	}
	return nil
}

// hasControl reports whether there is a character that no status line may have (RFC
// 9112, 4).
func hasControl(line []byte) bool {
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}

// cutLine cuts the first line, which must end with CRLF and hold no other CR.
func cutLine(b []byte) (line, rest []byte, err error) {
	n := bytes.IndexByte(b, '\n') + 1
	if n < 2 || bytes.IndexByte(b[:n], '\r') != n-2 {
		return nil, nil, errNoHead
	}
	return b[:n], b[n:], nil
}

// addTokens notes what one Connection line names.
func (a *answer) addTokens(value []byte) {
	for token := range bytes.SplitSeq(value, []byte(",")) {
		if token = trim(token); len(token) > 0 && !plain(token, "close") && !plain(token, "keep-alive") {
			a.tokens = append(a.tokens, token)
		}
	}
}

func marked(name []byte, tokens [][]byte) bool {
	for _, token := range tokens {
		if bytes.EqualFold(name, token) {
			return true
		}
	}
	return false
}

// reaches reports whether a header of the answer, by its folded name, reaches
// the client.
func (f *Forwarder) reaches(name []byte) bool {
	switch string(name) {
	case "keep-alive", "te", "trailer", "upgrade", "x-request-id", "x-decision", defaultContext:
		return false
	}
	switch name[0] {
	case 'a':
		return !bytes.HasPrefix(name, []byte("access-control-")) // package pep says these
	case 'p':
		return !bytes.HasPrefix(name, []byte("proxy-"))
	case 'x':
		// A web server in front of us would act on X-Accel-Redirect.
		if bytes.HasPrefix(name, []byte("x-accel-")) {
			return false
		}
	}
	return !bytes.Equal(name, f.contextName)
}

// appendList appends a further line of a list header.
func appendList(list, value []byte) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	return append(list, value...)
}

// hasToken reports whether a list header holds a token, in any case.
func hasToken(list []byte, want string) bool {
	for len(list) > 0 {
		var token []byte
		token, list, _ = bytes.Cut(list, []byte(","))
		if plain(trim(token), want) {
			return true
		}
	}
	return false
}

// varies reports whether a Vary value names both of what tells callers apart.
func varies(value []byte) bool {
	return hasToken(value, "*") || hasToken(value, "authorization") && hasToken(value, "cookie")
}

// appendPrivate appends a Cache-Control value with private in it and nothing
// that lets a shared cache keep the answer. What forbids more stays.
func appendPrivate(b, value []byte) []byte {
	b = append(b, "private"...)
	for len(value) > 0 {
		var directive []byte
		directive, value = cutDirective(value)
		name, _, _ := bytes.Cut(directive, []byte("="))
		// private with a list of fields is less than private alone.
		if len(directive) == 0 || plain(name, "public") || plain(name, "s-maxage") || plain(name, "private") {
			continue
		}
		b = append(append(b, ", "...), directive...)
	}
	return b
}

// cutDirective cuts the first directive from a list in which quoted strings may
// hold commas.
func cutDirective(list []byte) (directive, rest []byte) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return trim(list[:i]), list[i+1:]
		}
	}
	return trim(list), nil
}

// unreadable is the refusal of an answer whose head could not be read.
func unreadable(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return lost(err)
	case err == errHeadSize:
		failedProtocol.Inc()
		return authz.Refuse(authz.ErrUpstream, "the head of the API's answer is over %d bytes", readBuffer)
	case err == errNoHead:
		failedProtocol.Inc()
		return authz.Refuse(authz.ErrUpstream, "the API's answer is not HTTP")
	}
	return lost(err)
}
