package route

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
)

// parseXMLPath reads a path of element names in which "*" is any element. Its
// last step may be an attribute, "@name". "/**/name" and "/**/@name" match at any
// depth. Names are local ones: a namespace prefix is the author's choice.
func parseXMLPath(s string) (steps []string, deep bool, err error) {
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return nil, false, errors.New("is not an XML path: it must begin with a slash")
	}
	steps = strings.Split(strings.ToLower(rest), "/")
	if deep = steps[0] == anyDepth; deep {
		steps = steps[1:]
		if len(steps) != 1 {
			return nil, false, errors.New("may have ** only as /**/name")
		}
	}
	for i, step := range steps {
		name := step
		if i == len(steps)-1 {
			name = strings.TrimPrefix(step, "@")
		}
		if name != everyElement && !isName(name) {
			return nil, false, errors.New("is not an XML path: a step is not a name")
		}
	}
	return steps, deep, nil
}

// The declaration may say nothing but what is true of every body that is read:
// encoding/xml overlooks an encoding that is written with unusual spacing.
var declaration = regexp.MustCompile(`^version\s*=\s*["']1\.0["'](\s+encoding\s*=\s*["'](?i:utf-8)["'])?(\s+standalone\s*=\s*["'](yes|no)["'])?\s*$`)

// xmlScanner walks one document, token by token.
type xmlScanner struct {
	m        *Match
	locators []*locator
	raw      []xml.Name // open elements as written
	local    []string   // the same, local names without case
	text     []byte     // of the located element that is open
	reading  []*locator
	depth    int // of that element
}

func (m *Match) scanXML(locators []*locator, body []byte) error {
	dec := xml.NewDecoder(bytes.NewReader(body))
	s := xmlScanner{m: m, locators: locators}
	roots := 0
	for {
		first := dec.InputOffset() == 0
		tok, err := dec.RawToken()
		if err == io.EOF {
			break
		}
		if err != nil {
			return malformed("the body is not valid XML")
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if len(s.raw) == 0 {
				roots++
			}
			err = s.start(tok)
		case xml.EndElement:
			err = s.end(tok)
		case xml.CharData:
			switch {
			case len(s.raw) == 0 && len(bytes.TrimSpace(tok)) > 0:
				err = malformed("the body has text outside its root element")
			case s.reading != nil:
				s.text = append(s.text, tok...)
			}
		case xml.Comment:
			err = s.onlyText()
		case xml.ProcInst:
			switch {
			case !strings.EqualFold(tok.Target, "xml"):
				err = s.onlyText()
			case !first || !declaration.Match(tok.Inst):
				err = malformed("the body must be XML 1.0 in UTF-8")
			}
		case xml.Directive:
			err = malformed("the body has a document type, which is not allowed")
		}
		if err != nil {
			return err
		}
	}
	if roots != 1 || len(s.raw) > 0 {
		return malformed("the body is not one XML document")
	}
	return nil
}

// onlyText refuses what cuts the text of a located element in two: parsers differ
// in which part they take.
func (s *xmlScanner) onlyText() error {
	if s.reading != nil {
		return malformed("%s must be text", s.reading[0])
	}
	return nil
}

func (s *xmlScanner) start(tok xml.StartElement) error {
	if err := s.onlyText(); err != nil {
		return err
	}
	if len(s.raw) == maxDepth {
		return malformed("the body is nested deeper than %d", maxDepth)
	}
	s.raw = append(s.raw, tok.Name)
	s.local = append(s.local, strings.ToLower(tok.Name.Local))
	for i, attr := range tok.Attr {
		for _, other := range tok.Attr[:i] {
			if strings.EqualFold(attr.Name.Local, other.Name.Local) && (attr.Name.Space == other.Name.Space || s.planned("@"+strings.ToLower(attr.Name.Local)) != nil) {
				return malformed("the body has the attribute %s twice in one element", attr.Name.Local)
			}
		}
		for _, at := range s.planned("@" + strings.ToLower(attr.Name.Local)) {
			if err := s.m.add(at, []byte(attr.Value)); err != nil {
				return err
			}
		}
	}
	if s.reading = s.planned(""); s.reading != nil {
		s.text, s.depth = s.text[:0], len(s.raw)
	}
	return nil
}

func (s *xmlScanner) end(tok xml.EndElement) error {
	last := len(s.raw) - 1
	if last < 0 || s.raw[last] != tok.Name {
		return malformed("the body is not valid XML")
	}
	s.raw, s.local = s.raw[:last], s.local[:last]
	for _, at := range s.reading {
		if err := s.m.add(at, s.text); err != nil {
			return err
		}
	}
	s.reading = nil
	return nil
}

// planned returns the locators of the innermost open element, or of an attribute
// of it, "@name".
func (s *xmlScanner) planned(attribute string) (found []*locator) {
	for _, at := range s.locators {
		path := s.local
		steps := at.steps
		if last := len(steps) - 1; strings.HasPrefix(steps[last], "@") {
			if steps[last] != attribute {
				continue
			}
			if at.deep {
				found = append(found, at)
				continue
			}
			steps = steps[:last]
		} else if attribute != "" {
			continue
		}
		if at.deep {
			path = path[len(path)-1:]
		}
		if slices.EqualFunc(steps, path, func(step, name string) bool { return step == everyElement || step == name }) {
			found = append(found, at)
		}
	}
	return found
}
