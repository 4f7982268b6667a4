package route

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonPlan says which values of a document are read: a tree of the pointers of a
// route. The document itself is never built; the scanner walks it once, checks
// that it is valid JSON (RFC 8259) and stops at the planned places.
type jsonPlan struct {
	root jsonNode
	deep []deepKey // members read wherever they stand
}

type jsonNode struct {
	keys   []jsonKey
	each   *jsonNode // the elements of an array
	at     []*locator
	bounds bool // a value at or below it bounds the request
}

type jsonKey struct {
	name string
	node *jsonNode
}

type deepKey struct {
	name string
	at   []*locator
}

const (
	everyElement = "*"  // in pointers: each element of an array
	anyDepth     = "**" // in pointers and XML paths: any number of steps
	maxDepth     = 128
	maxKeys      = 64 // planned members of one object
)

// parsePointer reads a JSON pointer (RFC 6901) in which "*" stands for each
// element of an array. "/**/name" is the member called name at any depth.
func parsePointer(s string) ([]string, error) {
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return nil, errors.New("is not a pointer: it must begin with a slash")
	}
	steps := strings.Split(rest, "/")
	for i, step := range steps {
		if step == anyDepth && (i > 0 || len(steps) != 2 || steps[1] == everyElement) {
			return nil, errors.New("may have ** only as /**/name")
		}
		if step == "" {
			return nil, errors.New("is not a pointer: a step is empty")
		}
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return steps, nil
}

func (p *jsonPlan) add(at *locator) error {
	steps, err := parsePointer(at.name)
	if err != nil {
		return nil // reported where it was parsed
	}
	if steps[0] == anyDepth {
		for i := range p.deep {
			if strings.EqualFold(p.deep[i].name, steps[1]) {
				p.deep[i].at = append(p.deep[i].at, at)
				return nil
			}
		}
		if len(p.deep) == maxKeys {
			return fmt.Errorf("more than %d members are planned for one object", maxKeys)
		}
		p.deep = append(p.deep, deepKey{steps[1], []*locator{at}})
		return nil
	}
	n := &p.root
	n.bounds = n.bounds || at.bounds
	for _, step := range steps {
		if n.at != nil {
			return errNested
		}
		if n, err = n.step(step); err != nil {
			return err
		}
		n.bounds = n.bounds || at.bounds
	}
	if n.keys != nil || n.each != nil {
		return errNested
	}
	n.at = append(n.at, at)
	return nil
}

var errNested = errors.New("is a value and holds another: a value is text")

// locators lists what the plan reads.
func (p *jsonPlan) locators() (list []*locator) {
	if p == nil {
		return nil
	}
	var walk func(n *jsonNode)
	walk = func(n *jsonNode) {
		list = append(list, n.at...)
		for _, k := range n.keys {
			walk(k.node)
		}
		if n.each != nil {
			walk(n.each)
		}
	}
	walk(&p.root)
	for _, d := range p.deep {
		list = append(list, d.at...)
	}
	return list
}

func (n *jsonNode) step(name string) (*jsonNode, error) {
	if name == everyElement {
		if n.each == nil {
			n.each = &jsonNode{}
		}
		return n.each, nil
	}
	for i := range n.keys {
		if strings.EqualFold(n.keys[i].name, name) {
			return n.keys[i].node, nil
		}
	}
	if len(n.keys) == maxKeys {
		return nil, fmt.Errorf("more than %d members are planned for one object", maxKeys)
	}
	n.keys = append(n.keys, jsonKey{name, &jsonNode{}})
	return n.keys[len(n.keys)-1].node, nil
}

// jsonScanner walks one document.
type jsonScanner struct {
	b    []byte
	i    int
	m    *Match
	plan *jsonPlan
}

func (m *Match) scanJSON(p *jsonPlan, body []byte) error {
	s := jsonScanner{b: body, m: m, plan: p}
	s.space()
	if err := s.value(&p.root, 0); err != nil {
		return err
	}
	s.space()
	if s.i != len(s.b) {
		return s.invalid()
	}
	return nil
}

func (s *jsonScanner) invalid() error {
	return malformed("the body is not valid JSON at byte %d", s.i)
}

// space skips white space, of which compact documents have none.
func (s *jsonScanner) space() {
	if s.i < len(s.b) && s.b[s.i] <= ' ' {
		s.skipSpace()
	}
}

func (s *jsonScanner) skipSpace() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// value scans a value. n is nil where nothing is planned at it or below.
func (s *jsonScanner) value(n *jsonNode, depth int) error {
	if s.i == len(s.b) {
		return s.invalid()
	}
	if n != nil && n.at != nil {
		return s.located(n.at)
	}
	switch c := s.b[s.i]; c {
	case '{':
		return s.object(n, depth+1)
	case '[':
		return s.array(n, depth+1)
	case '"':
		_, err := s.str()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *jsonScanner) object(n *jsonNode, depth int) error {
	if depth > maxDepth {
		return malformed("the body is nested deeper than %d", maxDepth)
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		return nil
	}
	var seen, seenDeep uint64
	for {
		if s.i == len(s.b) || s.b[s.i] != '"' {
			return s.invalid()
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		s.space()
		if s.i == len(s.b) || s.b[s.i] != ':' {
			return s.invalid()
		}
		s.i++
		s.space()
		child, deep, err := s.planned(n, key, &seen, &seenDeep)
		if err != nil {
			return err
		}
		if deep != nil {
			at := deep
			if child != nil {
				at = append(at[:len(at):len(at)], child.at...)
			}
			err = s.located(at)
		} else {
			err = s.value(child, depth)
		}
		if err != nil {
			return err
		}
		s.space()
		if s.i == len(s.b) {
			return s.invalid()
		}
		switch s.b[s.i] {
		case ',':
			s.i++
			s.space()
		case '}':
			s.i++
			return nil
		default:
			return s.invalid()
		}
	}
}

// planned looks a member up. Parsers differ in whether "Office-Id" is
// "office-id" and in which of two equal members wins, so that names are compared
// without case and two that match are refused.
func (s *jsonScanner) planned(n *jsonNode, key token, seen, seenDeep *uint64) (*jsonNode, []*locator, error) {
	if (n == nil || n.keys == nil) && s.plan.deep == nil {
		return nil, nil, nil
	}
	name := key.raw
	if key.escaped {
		start := len(s.m.buf)
		s.m.buf, _ = appendUnescaped(s.m.buf, key.raw)
		name = s.m.buf[start:]
		s.m.buf = s.m.buf[:start]
	}
	var child *jsonNode
	if n != nil {
		for i := range n.keys {
			if k := &n.keys[i]; equalFold(name, k.name, key.ascii) {
				if *seen&(1<<i) != 0 {
					return nil, nil, malformed("the body has the member %s twice in one object", k.name)
				}
				*seen |= 1 << i
				child = k.node
			}
		}
	}
	for i := range s.plan.deep {
		if d := &s.plan.deep[i]; equalFold(name, d.name, key.ascii) {
			if *seenDeep&(1<<i) != 0 {
				return nil, nil, malformed("the body has the member %s twice in one object", d.name)
			}
			*seenDeep |= 1 << i
			return child, d.at, nil
		}
	}
	return child, nil, nil
}

func equalFold(name []byte, planned string, ascii bool) bool {
	if ascii && len(name) != len(planned) {
		return false
	}
	return string(name) == planned || bytes.EqualFold(name, []byte(planned))
}

func (s *jsonScanner) array(n *jsonNode, depth int) error {
	if depth > maxDepth {
		return malformed("the body is nested deeper than %d", maxDepth)
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
		return nil
	}
	var each *jsonNode
	if n != nil {
		each = n.each
	}
	every := each != nil && each.bounds
	for {
		if every {
			s.m.named = false
		}
		if err := s.value(each, depth); err != nil {
			return err
		}
		if every && !s.m.named {
			s.m.unclear = true // an element without an office lands in whichever the API takes
		}
		s.space()
		if s.i == len(s.b) {
			return s.invalid()
		}
		switch s.b[s.i] {
		case ',':
			s.i++
			s.space()
		case ']':
			s.i++
			return nil
		default:
			return s.invalid()
		}
	}
}

// located takes in a planned value.
func (s *jsonScanner) located(at []*locator) error {
	if s.i == len(s.b) {
		return s.invalid()
	}
	start := s.i
	var value []byte
	switch c := s.b[s.i]; c {
	case '"':
		t, err := s.str()
		if err != nil {
			return err
		}
		value = t.raw
		if t.escaped {
			from := len(s.m.buf)
			var ok bool
			if s.m.buf, ok = appendUnescaped(s.m.buf, t.raw); !ok {
				return malformed("%s is not text", at[0])
			}
			value = s.m.buf[from:]
		}
	case 'n':
		return s.literal("null") // absent
	case '{', '[':
		return malformed("%s must be text", at[0])
	default:
		if err := s.scalar(); err != nil {
			return err
		}
		value = s.b[start:s.i]
		for _, l := range at {
			if l.kind != param && l.kind != attribute {
				return malformed("%s must be text", l)
			}
		}
	}
	for _, l := range at {
		if err := s.m.add(l, value); err != nil {
			return err
		}
	}
	return nil
}

func (s *jsonScanner) scalar() error {
	switch s.b[s.i] {
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	default:
		return s.number()
	}
}

func (s *jsonScanner) literal(word string) error {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return s.invalid()
	}
	s.i += len(word)
	return nil
}

func (s *jsonScanner) number() error {
	b, i := s.b, s.i
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	i = digits(b, i)
	ok := i > first && (b[first] != '0' || i == first+1)
	if ok && i < len(b) && b[i] == '.' {
		i++
		fraction := i
		i = digits(b, i)
		ok = i > fraction
	}
	if ok && i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		exponent := i
		i = digits(b, i)
		ok = i > exponent
	}
	s.i = i
	if !ok {
		return s.invalid()
	}
	return nil
}

// digits returns the end of the digits that begin at i.
func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	return i
}

// token is the inside of a string.
type token struct {
	raw            []byte
	escaped, ascii bool
}

// str scans the string that begins at the cursor.
func (s *jsonScanner) str() (token, error) {
	s.i++
	b, i := s.b, s.i
	t := token{ascii: true}
	for {
		// Eight bytes at a time while none of them ends the string or needs a
		// second look.
		for i+8 <= len(b) {
			if stop := special(binary.LittleEndian.Uint64(b[i:])); stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		if i == len(b) {
			s.i = i
			return t, s.invalid()
		}
		switch c := b[i]; {
		case c == '"':
			t.raw = b[s.i:i]
			if !t.ascii && !utf8.Valid(t.raw) {
				return t, malformed("the body is not UTF-8")
			}
			s.i = i + 1
			return t, nil
		case c == '\\':
			n := escapeLen(b[i:])
			if n == 0 {
				s.i = i
				return t, s.invalid()
			}
			t.escaped = true
			i += n
		case c < 0x20:
			s.i = i
			return t, s.invalid()
		case c >= utf8.RuneSelf:
			t.ascii = false
			i++
		default:
			i++
		}
	}
}

// special marks, with the top bit of each byte, the bytes of w that are a quote,
// a backslash, below 0x20 or beyond ASCII. The lowest mark is exact.
func special(w uint64) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((w - ones*0x20) | (quote - ones) | (slash - ones) | w) & tops
}

// escapeLen returns the length of the escape at the start of b, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && nibble[b[2]]|nibble[b[3]]|nibble[b[4]]|nibble[b[5]] < 16 {
			return 6
		}
	}
	return 0
}

// appendUnescaped appends the text of a valid JSON string. It reports false, and
// puts U+FFFD in its place, if half of a surrogate pair stands alone: that is no
// text.
func appendUnescaped(b, raw []byte) ([]byte, bool) {
	ok := true
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			b = append(b, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r := unicodeEscape(raw[i:])
			i += 6
			if utf16.IsSurrogate(r) {
				low := rune(0)
				if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
					low = unicodeEscape(raw[i:])
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					ok = false
				} else {
					i += 6
				}
			}
			b = utf8.AppendRune(b, r)
			continue
		default:
			b = append(b, c)
		}
		i += 2
	}
	return b, ok
}

func unicodeEscape(b []byte) rune {
	return rune(nibble[b[2]])<<12 | rune(nibble[b[3]])<<8 | rune(nibble[b[4]])<<4 | rune(nibble[b[5]])
}
