package route

import (
	"bytes"
	"unicode/utf8"

	"headgate/proxy/authz"
)

// Target is a request target in origin form (RFC 9112, section 3.2.1), split
// once. Its slices are views of the bytes that ParseTarget was given.
type Target struct {
	Raw      []byte
	Path     []byte
	Query    []byte // without the question mark
	HasQuery bool   // false for "/a", true for "/a?"

	separators bool // the path holds %2f, %5c or %3b
}

// ParseTarget splits a request target and refuses with ErrMalformed every one
// that two servers could read differently. It refuses instead of normalising:
// normalising is right only if the upstream does the same, refusing always is.
//
// In the path these are refused: a second slash in a row, segments "." and ".."
// however spelled, backslash, semicolon, "#", space, control bytes and bytes
// beyond ASCII, raw or encoded where they are not UTF-8, and broken
// percent-encoding. An encoded slash, backslash or semicolon is left to Match,
// which knows where ids stand. In the query only space, control bytes, "#" and
// broken percent-encoding are refused; clients do send raw UTF-8 there.
func ParseTarget(raw []byte) (Target, error) {
	t := Target{Raw: raw}
	if len(raw) == 0 || raw[0] != '/' {
		return t, malformed("the request target must be a path that begins with a slash")
	}
	t.Path = raw
	if i := bytes.IndexByte(raw, '?'); i >= 0 {
		t.Path, t.Query, t.HasQuery = raw[:i], raw[i+1:], true
	}
	if err := t.checkPath(); err != nil {
		return t, err
	}
	return t, checkQuery(t.Query)
}

func malformed(format string, args ...any) error {
	return authz.Refuse(authz.ErrMalformed, format, args...)
}

func (t *Target) checkPath() error {
	p := t.Path
	length, dots := 0, 0 // of the segment so far
	for i := 1; i < len(p); {
		c, n := p[i], 1
		switch pathClass[c] {
		case plain:
		case refused:
			return malformed("the path holds a byte that must be percent-encoded or is not allowed")
		case slash:
			if length == 0 {
				return malformed("the path holds an empty segment")
			}
			if dots == length && dots <= 2 {
				return malformed("the path holds a dot segment")
			}
			length, dots = 0, 0
			i++
			continue
		case percent:
			var ok bool
			if c, ok = unhex(p[i:]); !ok {
				return malformed("the path holds a broken percent-encoding")
			}
			n = 3
			switch {
			case c < 0x20 || c == 0x7f:
				return malformed("the path holds an encoded control byte")
			case c == '/' || c == '\\' || c == ';':
				t.separators = true
			case c >= utf8.RuneSelf:
				if n = encodedRune(p[i:]); n == 0 {
					return malformed("the path is not UTF-8")
				}
			}
		}
		length++
		if c == '.' {
			dots++
		}
		i += n
	}
	if length > 0 && dots == length && dots <= 2 {
		return malformed("the path holds a dot segment")
	}
	return nil
}

func checkQuery(q []byte) error {
	for i, c := range q {
		switch queryClass[c] {
		case refused:
			return malformed("the query holds a byte that must be percent-encoded")
		case percent:
			if _, ok := unhex(q[i:]); !ok {
				return malformed("the query holds a broken percent-encoding")
			}
		}
	}
	return nil
}

type class uint8

const (
	plain class = iota
	slash
	percent
	refused
)

var pathClass = func() (t [256]class) {
	for c := range t {
		if c <= ' ' || c >= 0x7f {
			t[c] = refused
		}
	}
	for _, c := range `\#;` {
		t[c] = refused
	}
	t['/'], t['%'] = slash, percent
	return t
}()

var queryClass = func() (t [256]class) {
	for c := range t {
		if c <= ' ' || c == 0x7f || c == '#' {
			t[c] = refused
		}
	}
	t['%'] = percent
	return t
}()

// encodedRune returns how many bytes the percent-encoded character at the start
// of p takes, 0 if it is not UTF-8. Since raw bytes beyond ASCII are refused, a
// character can only be a run of encoded bytes.
func encodedRune(p []byte) int {
	var seq [utf8.UTFMax]byte
	n := 0
	for n < len(seq) && 3*n < len(p) && p[3*n] == '%' {
		c, ok := unhex(p[3*n:])
		if !ok {
			break
		}
		seq[n] = c
		n++
	}
	r, size := utf8.DecodeRune(seq[:n])
	if r == utf8.RuneError && size <= 1 {
		return 0
	}
	return 3 * size
}

// unhex decodes the three bytes of a percent-encoded byte at the start of p.
func unhex(p []byte) (byte, bool) {
	if len(p) < 3 {
		return 0, false
	}
	hi, lo := nibble[p[1]], nibble[p[2]]
	return hi<<4 | lo&15, hi < 16 && lo < 16
}

var nibble = func() (t [256]byte) {
	for c := range t {
		switch {
		case c >= '0' && c <= '9':
			t[c] = byte(c - '0')
		case c >= 'a' && c <= 'f':
			t[c] = byte(c - 'a' + 10)
		case c >= 'A' && c <= 'F':
			t[c] = byte(c - 'A' + 10)
		default:
			t[c] = 0xff
		}
	}
	return t
}()

// appendDecoded appends s percent-decoded once. The encoding was checked by
// ParseTarget. In queries a plus sign is a space, in paths it is itself.
func appendDecoded(b, s []byte, plus bool) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '%':
			c, _ = unhex(s[i:])
			i += 2
		case c == '+' && plus:
			c = ' '
		}
		b = append(b, c)
	}
	return b
}
