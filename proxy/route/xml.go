package route

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"
)

// parseXMLPath reads a path of element names in which "*" is any element, and
// the name of an attribute if its last step is one, "@name". "/**/name" and
// "/**/@name" match at any depth. Names are local ones: a namespace prefix is the
// author's choice.
func parseXMLPath(s string) (steps []string, attribute string, deep bool, err error) {
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return nil, "", false, errors.New("is not an XML path: it must begin with a slash")
	}
	steps = strings.Split(strings.ToLower(rest), "/")
	if deep = steps[0] == anyDepth; deep {
		steps = steps[1:]
		if len(steps) != 1 {
			return nil, "", false, errors.New("may have ** only as /**/name")
		}
	}
	for i, step := range steps {
		name := step
		if i == len(steps)-1 {
			name = strings.TrimPrefix(step, "@")
		}
		if name != everyElement && !isName(name) {
			return nil, "", false, errors.New("is not an XML path: a step is not a name")
		}
	}
	last := len(steps) - 1
	if attribute, ok = strings.CutPrefix(steps[last], "@"); ok {
		return steps[:last], attribute, deep, nil
	}
	return steps, "", deep, nil
}

// The declaration may say nothing but what is true of every body that is read.
var declaration = regexp.MustCompile(`^[ \t\r\n]+version[ \t\r\n]*=[ \t\r\n]*["']1\.0["']([ \t\r\n]+encoding[ \t\r\n]*=[ \t\r\n]*["'](?i:utf-8)["'])?([ \t\r\n]+standalone[ \t\r\n]*=[ \t\r\n]*["'](yes|no)["'])?[ \t\r\n]*$`)

// xmlScanner walks one document and builds nothing. It accepts a part of XML 1.0
// that every parser reads alike: UTF-8, names in ASCII, no document type and so no
// entities but the five that are built in, no processing instructions. Prefixes
// of namespaces are not resolved. Whatever is not well-formed is refused.
type xmlScanner struct {
	b        []byte
	i        int
	m        *Match
	locators []*locator
	rooted   bool // the root element has begun
	open     [maxDepth]xmlName
	depth    int // how many are open
	seen     [maxAttributes]xmlName

	reading *locator // the first of those that read the innermost open element
	from    int      // where its text begins in the buffer of the match
}

// xmlName is a name as written.
type xmlName struct {
	raw    []byte
	prefix int // length of the namespace prefix with its colon
}

func (n xmlName) local() []byte { return n.raw[n.prefix:] }

const maxAttributes = 64 // of one element: each is compared with those before it

func (m *Match) scanXML(locators []*locator, body []byte) error {
	if !utf8.Valid(body) {
		return malformed("the body is not UTF-8")
	}
	s := xmlScanner{b: body, m: m, locators: locators}
	if bytes.Contains(body, []byte("\uFFFE")) || bytes.Contains(body, []byte("\uFFFF")) {
		return s.invalid() // the only characters beyond the controls that XML leaves out
	}
	if err := s.declaration(); err != nil {
		return err
	}
	for s.i < len(s.b) {
		var err error
		switch {
		case s.b[s.i] != '<':
			err = s.chars()
		case s.follows("</"):
			err = s.end()
		case s.follows("<!--"):
			err = s.comment()
		case s.follows("<![CDATA["):
			err = s.cdata()
		case s.follows("<!"):
			err = malformed("the body has a document type, which is not allowed")
		case s.follows("<?"):
			err = malformed("the body has a processing instruction, which is not allowed")
		default:
			err = s.start()
		}
		if err != nil {
			return err
		}
	}
	if !s.rooted || s.depth > 0 {
		return malformed("the body is not one XML document")
	}
	return nil
}

func (s *xmlScanner) invalid() error {
	return malformed("the body is not valid XML at byte %d", s.i)
}

func (s *xmlScanner) follows(text string) bool {
	return len(s.b)-s.i >= len(text) && string(s.b[s.i:s.i+len(text)]) == text
}

// declaration scans the first line, which need not be there.
func (s *xmlScanner) declaration() error {
	const begin = "<?xml"
	if !s.follows(begin) {
		return nil
	}
	n := bytes.Index(s.b, []byte("?>"))
	if n < 0 || !declaration.Match(s.b[len(begin):n]) {
		return malformed("the body must be XML 1.0 in UTF-8")
	}
	s.i = n + 2
	return nil
}

// onlyText refuses what cuts the text of a located element in two: parsers differ
// in which part they take.
func (s *xmlScanner) onlyText() error {
	if s.reading != nil {
		return malformed("%s must be text", s.reading)
	}
	return nil
}

func (s *xmlScanner) comment() error {
	if err := s.onlyText(); err != nil {
		return err
	}
	s.i += len("<!--")
	n := bytes.Index(s.b[s.i:], []byte("--"))
	if n < 0 || hasControl(s.b[s.i:s.i+n]) {
		return s.invalid()
	}
	s.i += n
	if !s.follows("-->") {
		return s.invalid()
	}
	s.i += len("-->")
	return nil
}

func (s *xmlScanner) cdata() error {
	if s.depth == 0 {
		return s.outside()
	}
	s.i += len("<![CDATA[")
	n := bytes.Index(s.b[s.i:], []byte("]]>"))
	if n < 0 || hasControl(s.b[s.i:s.i+n]) {
		return s.invalid()
	}
	text := s.b[s.i : s.i+n]
	s.i += n + len("]]>")
	if s.reading == nil {
		return nil
	}
	return s.take(text, false)
}

// chars scans text between tags.
func (s *xmlScanner) chars() error {
	if s.depth == 0 {
		if !s.space() {
			return s.outside()
		}
		return nil
	}
	text, err := s.text('<')
	if err != nil || s.reading == nil {
		return err
	}
	return s.take(text, true)
}

func (s *xmlScanner) outside() error {
	return malformed("the body has text outside its root element")
}

// take adds to the text of the located element that is open.
func (s *xmlScanner) take(text []byte, references bool) error {
	if len(s.m.buf)-s.from+len(text) > maxKept {
		return malformed("%s is longer than %d bytes", s.reading, maxKept)
	}
	s.m.buf = appendXMLText(s.m.buf, text, references)
	return nil
}

func (s *xmlScanner) start() error {
	if err := s.onlyText(); err != nil {
		return err
	}
	if s.rooted && s.depth == 0 {
		return malformed("the body has more than one root element")
	}
	if s.depth == maxDepth {
		return malformed("the body is nested deeper than %d", maxDepth)
	}
	s.i++
	name, err := s.name()
	if err != nil {
		return err
	}
	s.rooted = true
	s.open[s.depth] = name
	s.depth++
	closed, err := s.attributes()
	if err != nil {
		return err
	}
	s.from = len(s.m.buf)
	for _, at := range s.locators {
		if at.attribute == "" && s.within(at) {
			s.reading = at
			break
		}
	}
	if closed {
		return s.leave()
	}
	return nil
}

// attributes scans the rest of a start tag and reports whether it is its own end
// tag.
func (s *xmlScanner) attributes() (closed bool, err error) {
	for n := 0; ; n++ {
		spaced := s.space()
		switch {
		case s.follows(">"):
			s.i++
			return false, nil
		case s.follows("/>"):
			s.i += 2
			return true, nil
		case !spaced:
			return false, s.invalid()
		case n == maxAttributes:
			return false, malformed("the body has an element with more than %d attributes", maxAttributes)
		}
		name, err := s.name()
		if err != nil {
			return false, err
		}
		s.space()
		if !s.follows("=") {
			return false, s.invalid()
		}
		s.i++
		s.space()
		if !s.follows(`"`) && !s.follows("'") {
			return false, s.invalid()
		}
		quote := s.b[s.i]
		s.i++
		value, err := s.text(quote)
		if err != nil {
			return false, err
		}
		s.i++
		for _, other := range s.seen[:n] {
			if bytes.Equal(name.raw, other.raw) {
				return false, malformed("the body has the attribute %s twice in one element", name.raw)
			}
		}
		if err := s.attribute(name.local(), value, s.seen[:n]); err != nil {
			return false, err
		}
		s.seen[n] = name
	}
}

// attribute takes the value of a located attribute in. Names are compared without
// case and without their prefix, and two that match are refused.
func (s *xmlScanner) attribute(name, raw []byte, before []xmlName) error {
	for _, at := range s.locators {
		if at.attribute == "" || !equalFold(name, at.attribute, true) || !s.within(at) {
			continue
		}
		for _, other := range before {
			if equalFold(other.local(), at.attribute, true) {
				return malformed("the body has the attribute %s twice in one element", name)
			}
		}
		value := raw
		switch {
		case bytes.ContainsAny(raw, "\t\r\n"):
			return malformed("%s must be text on one line", at) // parsers differ in what they make of the others
		case bytes.IndexByte(raw, '&') >= 0:
			from := len(s.m.buf)
			s.m.buf = appendXMLText(s.m.buf, raw, true)
			value = s.m.buf[from:]
		}
		if err := s.m.add(at, value); err != nil {
			return err
		}
	}
	return nil
}

func (s *xmlScanner) end() error {
	if s.depth == 0 {
		return s.invalid()
	}
	s.i += len("</")
	name := s.open[s.depth-1].raw
	if !bytes.HasPrefix(s.b[s.i:], name) {
		return s.invalid()
	}
	s.i += len(name)
	s.space()
	if !s.follows(">") {
		return s.invalid()
	}
	s.i++
	return s.leave()
}

// leave closes the innermost open element.
func (s *xmlScanner) leave() error {
	if s.reading != nil {
		text := s.m.buf[s.from:]
		for _, at := range s.locators {
			if at.attribute != "" || !s.within(at) {
				continue
			}
			if err := s.m.add(at, text); err != nil {
				return err
			}
		}
		s.reading = nil
	}
	s.depth--
	return nil
}

// within reports whether the innermost open element is the one, or has the
// attribute, that a locator names.
func (s *xmlScanner) within(at *locator) bool {
	open := s.open[:s.depth]
	if at.deep {
		open = open[len(open)-len(at.steps):]
	}
	if len(open) != len(at.steps) {
		return false
	}
	for i := len(open) - 1; i >= 0; i-- {
		if step := at.steps[i]; step != everyElement && !equalFold(open[i].local(), step, true) {
			return false
		}
	}
	return true
}

// name scans a name with at most one prefix.
func (s *xmlScanner) name() (n xmlName, err error) {
	b, start := s.b, s.i
	i := start
	for ; i < len(b); i++ {
		if nameBytes[b[i]] {
			continue
		}
		if b[i] != ':' || n.prefix > 0 {
			break
		}
		n.prefix = i + 1 - start
	}
	s.i = i
	if i < len(b) && b[i] >= utf8.RuneSelf {
		return n, malformed("the body has a name that is not ASCII")
	}
	n.raw = b[start:i]
	if !startsName(n.raw) || !startsName(n.local()) {
		return n, s.invalid()
	}
	return n, nil
}

// nameBytes are the ASCII characters of a name, but the colon.
var nameBytes = func() (is [256]bool) {
	for c := range is {
		is[c] = c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '-' || c == '.' || c == '_'
	}
	return is
}()

func startsName(name []byte) bool {
	return len(name) > 0 && nameBytes[name[0]] && name[0] > '9'
}

// space skips white space and reports whether there was any.
func (s *xmlScanner) space() bool {
	start := s.i
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
	return s.i > start
}

// text scans up to the next tag or, in the value of an attribute, up to its quote.
func (s *xmlScanner) text(end byte) ([]byte, error) {
	b, start := s.b, s.i
	for i := start; i < len(b); i++ {
		if plainBytes[b[i]] {
			continue
		}
		s.i = i
		switch c := b[i]; {
		case c == end:
			return b[start:i], nil
		case c == '"', c == '\'':
		case c == ']':
			if end == '<' && s.follows("]]>") {
				return nil, s.invalid()
			}
		case c == '&':
			_, n := reference(b[i:])
			if n == 0 {
				return nil, s.invalid()
			}
			i += n - 1
		default:
			return nil, s.invalid()
		}
	}
	s.i = len(b)
	return nil, s.invalid()
}

// plainBytes need no second look in a text.
var plainBytes = func() (is [256]bool) {
	for c := range is {
		is[c] = !isControl(byte(c)) && !strings.ContainsRune("<&]\"'", rune(c))
	}
	return is
}()

func isControl(c byte) bool { return c < ' ' && c != '\t' && c != '\n' && c != '\r' }

func hasControl(text []byte) bool {
	for _, c := range text {
		if isControl(c) {
			return true
		}
	}
	return false
}

// reference reads the reference at the start of b: its character and its length,
// 0 if it is none.
func reference(b []byte) (r rune, n int) {
	b = b[:min(len(b), 32)] // none that means well is longer
	n = bytes.IndexByte(b, ';') + 1
	if n == 0 {
		return 0, 0
	}
	name := b[1 : n-1]
	switch string(name) {
	case "lt":
		return '<', n
	case "gt":
		return '>', n
	case "amp":
		return '&', n
	case "apos":
		return '\'', n
	case "quot":
		return '"', n
	}
	digits, ok := bytes.CutPrefix(name, []byte("#"))
	base := rune(10)
	if hex, is := bytes.CutPrefix(digits, []byte("x")); is {
		digits, base = hex, 16
	}
	if !ok || len(digits) == 0 {
		return 0, 0
	}
	for _, c := range digits {
		digit := rune(nibble[c])
		if digit >= base {
			return 0, 0
		}
		if r = r*base + digit; r > utf8.MaxRune {
			return 0, 0
		}
	}
	if r < utf8.RuneSelf && isControl(byte(r)) || !utf8.ValidRune(r) || r == '\uFFFE' || r == '\uFFFF' {
		return 0, 0
	}
	return r, n
}

// appendXMLText appends a text that was scanned: lines end in a line feed (XML
// 1.0, 2.11) and, outside of CDATA, references are what they stand for.
func appendXMLText(b, text []byte, references bool) []byte {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\r':
			b = append(b, '\n')
			if i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
		case c == '&' && references:
			r, n := reference(text[i:])
			b = utf8.AppendRune(b, r)
			i += n - 1
		default:
			b = append(b, c)
		}
	}
	return b
}
