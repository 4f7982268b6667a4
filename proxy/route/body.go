package route

import (
	"bytes"
	"strings"

	"headgate/proxy/authz"
)

// Body adds to m what the body of its request names, and settles the scope. It
// is called once, with the whole body, after a Match that said NeedsBody.
//
// The Content-Type decides how the body is read: JSON or XML, in UTF-8. Without
// one the first character does, which is safe because no JSON document of ours is
// an XML document. Everything that cannot be read in exactly one way is refused:
// with ErrUnsupportedBody (another type, a content encoding) or ErrMalformed (not
// well-formed, trailing data, one member twice). A body is never judged unread.
func (t *Table) Body(m *Match, contentType, contentEncoding []byte, body []byte) error {
	if !m.NeedsBody {
		return nil
	}
	if enc := bytes.TrimSpace(contentEncoding); len(enc) > 0 && !bytes.EqualFold(enc, []byte("identity")) {
		return unsupported("a body with Content-Encoding cannot be authorized; send it plain")
	}
	r := m.route
	form, err := formOf(contentType, body)
	if err != nil {
		return err
	}
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return malformed("the body is empty")
	case form == jsonForm && r.json != nil:
		err = m.scanJSON(r.json, body)
	case form == xmlForm && r.xml != nil:
		err = m.scanXML(r.xml, body)
	default:
		err = unsupported("the body must be %s", r.forms())
	}
	if err != nil {
		return err
	}
	m.NeedsBody = false
	m.settle()
	return nil
}

func unsupported(format string, args ...any) error {
	return authz.Refuse(authz.ErrUnsupportedBody, format, args...)
}

type form uint8

const (
	otherForm form = iota
	jsonForm
	xmlForm
)

func (r *route) forms() string {
	var forms []string
	if r.json != nil {
		forms = append(forms, "JSON")
	}
	if r.xml != nil {
		forms = append(forms, "XML")
	}
	return strings.Join(forms, " or ")
}

func formOf(contentType, body []byte) (form, error) {
	media, params, _ := bytes.Cut(contentType, []byte(";"))
	media = bytes.TrimSpace(media)
	for len(params) > 0 {
		var param []byte
		param, params, _ = bytes.Cut(params, []byte(";"))
		name, value, _ := bytes.Cut(param, []byte("="))
		if bytes.EqualFold(bytes.TrimSpace(name), []byte("charset")) && !bytes.EqualFold(bytes.Trim(value, "\" \t"), []byte("utf-8")) {
			return otherForm, unsupported("the body must be in UTF-8")
		}
	}
	switch {
	case len(media) == 0:
		switch start := bytes.TrimLeft(body, " \t\r\n"); {
		case bytes.HasPrefix(start, []byte("{")), bytes.HasPrefix(start, []byte("[")):
			return jsonForm, nil
		case bytes.HasPrefix(start, []byte("<")):
			return xmlForm, nil
		}
	case bytes.ContainsAny(media, ", \t\""):
	case isMedia(media, "json"):
		return jsonForm, nil
	case isMedia(media, "xml"):
		return xmlForm, nil
	}
	return otherForm, nil
}

// isMedia reports whether a media type is application/x, text/x or any of the
// types whose syntax is x (RFC 6839).
func isMedia(media []byte, x string) bool {
	base, name, _ := bytes.Cut(media, []byte("/"))
	if i := bytes.LastIndexByte(name, '+'); i >= 0 {
		return strings.EqualFold(string(name[i+1:]), x)
	}
	return strings.EqualFold(string(name), x) && (strings.EqualFold(string(base), "application") || strings.EqualFold(string(base), "text"))
}
