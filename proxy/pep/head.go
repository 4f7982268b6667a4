package pep

import (
	"bytes"
	"strings"

	"headgate/proxy/authz"
)

// head is what the request path needs of the header, found in one pass over its
// raw lines. fasthttp repairs some headers that RFC 9112 lets a server refuse;
// what was repaired here might be read differently by the upstream, so it is
// refused here. The slices are views of the raw lines.
type head struct {
	authorization []byte
	testUser      []byte
	secret        []byte // x-authorize-secret
	origin        []byte
	forwardedFor  []byte // the last of its lines
	fetchSite     []byte
	requestMethod []byte   // access-control-request-method
	cookies       [][]byte // the Cookie lines
	options       int      // what all Connection lines name
	seen          flags
	lower         [maxNameLen]byte // the name of a line
}

// maxOptions is the most that Connection may name: each is compared with each
// header on its way to the API.
const maxOptions = 16

type flags uint16

const (
	seenAuthorization flags = 1 << iota
	seenContentLength
	seenTransferEncoding
	seenContentType
	seenContentEncoding
	seenHost
	seenExpect
	seenOrigin
	seenTestUser
	seenSecret
)

// once returns the flag of a header that may stand in a request only once: each of
// these has a say in framing, identity or routing, and two of them would be two
// answers.
func once(name []byte) flags {
	switch string(name) {
	case "authorization":
		return seenAuthorization
	case "content-length":
		return seenContentLength
	case "transfer-encoding":
		return seenTransferEncoding
	case "content-type":
		return seenContentType
	case "content-encoding":
		return seenContentEncoding
	case "host":
		return seenHost
	case "expect":
		return seenExpect
	case "origin":
		return seenOrigin
	case "x-test-user":
		return seenTestUser
	case "x-authorize-secret":
		return seenSecret
	}
	return 0
}

const maxNameLen = 32 // longer names are none of those looked for here

func (h *head) read(raw []byte) error {
	cookies := h.cookies[:0]
	*h = head{cookies: cookies}
	for len(raw) > 0 {
		end := bytes.IndexByte(raw, '\n')
		if end < 0 {
			break
		}
		line := raw[:end]
		raw = raw[end+1:]
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return authz.Refuse(authz.ErrMalformed, "a header line does not end in CRLF")
		}
		line = line[:len(line)-1]
		if len(line) == 0 {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			return authz.Refuse(authz.ErrMalformed, "a header is folded over several lines")
		}
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 {
			return authz.Refuse(authz.ErrMalformed, "a header line has no name")
		}
		if err := h.line(line[:colon], trim(line[colon+1:])); err != nil {
			return err
		}
	}
	if h.seen&seenContentLength != 0 && h.seen&seenTransferEncoding != 0 {
		return authz.Refuse(authz.ErrMalformed, "both Content-Length and Transfer-Encoding are given")
	}
	return nil
}

func (h *head) line(name, value []byte) error {
	for i, c := range name {
		if !tokenChar[c] {
			return authz.Refuse(authz.ErrMalformed, "a header name has a character that is not allowed")
		}
		if i < maxNameLen {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			h.lower[i] = c
		}
	}
	if len(name) > maxNameLen {
		return nil
	}
	key := h.lower[:len(name)]
	if flag := once(key); flag != 0 {
		if h.seen&flag != 0 {
			return authz.Refuse(authz.ErrMalformed, "the header %s is given twice", key)
		}
		h.seen |= flag
	}
	switch string(key) {
	case "authorization":
		h.authorization = value
	case "connection":
		if h.options += 1 + bytes.Count(value, []byte{','}); h.options > maxOptions {
			return authz.Refuse(authz.ErrMalformed, "Connection names more than %d headers", maxOptions)
		}
	case "cookie":
		h.cookies = append(h.cookies, value)
	case "transfer-encoding":
		if !strings.EqualFold(view(value), "chunked") {
			return authz.Refuse(authz.ErrMalformed, "the only Transfer-Encoding accepted is chunked")
		}
	case "expect":
		if !strings.EqualFold(view(value), "100-continue") {
			return authz.Refuse(authz.ErrMalformed, "the only Expect accepted is 100-continue")
		}
	case "host":
		if bytes.IndexByte(value, '@') >= 0 {
			return authz.Refuse(authz.ErrMalformed, "the Host header has user information")
		}
		// fasthttp lets these pass, and the API is told the value.
		for _, c := range value {
			if c >= 0x80 || c == '"' || c == '<' || c == '>' {
				return authz.Refuse(authz.ErrMalformed, "the Host header has a character that is not allowed")
			}
		}
	case "x-test-user":
		h.testUser = value
	case "x-authorize-secret":
		h.secret = value
	case "origin":
		h.origin = value
	case "x-forwarded-for":
		h.forwardedFor = value
	case "sec-fetch-site":
		h.fetchSite = value
	case "access-control-request-method":
		h.requestMethod = value
	}
	return nil
}

// trim takes off the blanks around a value; bytes.Trim takes five times as long to
// find that there are none but one.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// tokenChar are the characters of a header name: RFC 9110, 5.6.2.
var tokenChar = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// sessionCookies appends the cookies that the API takes for credentials, as
// "name=value; name=value" in the order of the names, so that equal credentials
// give equal bytes. One name with two values is two credentials. Some servers take
// a blank around a name for no part of it, and a comma for the end of a pair; a
// credential that the API sees must not be overlooked, so blanks are trimmed and a
// session cookie beside a comma is refused.
func sessionCookies(dst []byte, lines [][]byte) ([]byte, error) {
	var found [len(sessionNames)][]byte
	for _, line := range lines {
		before, after := byte(';'), byte(';') // what separates the pair from others
		for ; len(line) > 0; before = after {
			pair := line
			if end := bytes.IndexAny(line, ";,"); end >= 0 {
				pair, after, line = line[:end], line[end], line[end+1:]
			} else {
				after, line = ';', nil
			}
			name, value, _ := bytes.Cut(pair, []byte{'='})
			name, value = trim(name), trim(value)
			for i, session := range sessionNames {
				if string(name) != session {
					continue
				}
				if before == ',' || after == ',' {
					return dst, authz.Refuse(authz.ErrMalformed, "the cookie %s stands beside a comma", session)
				}
				if found[i] != nil && !bytes.Equal(found[i], value) {
					return dst, authz.Refuse(authz.ErrMalformed, "the cookie %s is given twice", session)
				}
				found[i] = value
			}
		}
	}
	for i, value := range found {
		if len(value) == 0 {
			continue
		}
		if len(dst) > 0 {
			dst = append(dst, "; "...)
		}
		dst = append(dst, sessionNames[i]...)
		dst = append(dst, '=')
		dst = append(dst, value...)
	}
	return dst, nil
}

// sessionNames are the servlet session and the single sign-on cookie of Tomcat.
var sessionNames = [...]string{"JSESSIONID", "JSESSIONIDSSO"}
