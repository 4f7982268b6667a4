package route

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"
)

// A cursor of the API of the built-in table is the standard base64 of fields joined by "||".
// Some cursors carry the office of the first page, and the API then ignores the
// office of the query. Two layouts are known:
//
//   - catalog (class Catalog.CatalogPage): OFFICE/name, office searched, id mask,
//     then up to nine more, among them the mask of bounding offices.
//   - users (class UsersPageCursor): user, page size, total, office, name mask.
//
// An office that was not given is written "null" or left empty. A cursor that
// does not fit its layout says nothing: the reach of the request is unknown.
type layout uint8

const (
	catalogCursor layout = iota + 1
	usersCursor
)

var layouts = map[string]layout{"catalog": catalogCursor, "users": usersCursor}

const maxCursor = 4096

// The API does not insist on padding.
var padded, unpadded = base64.StdEncoding.Strict(), base64.RawStdEncoding.Strict()

func (m *Match) addCursor(at *locator, value []byte) error {
	m.note(at, nil)
	if len(value) == 0 {
		return nil // the API takes it for the first page
	}
	m.paged = true
	fields, n, ok := m.cursorFields(value)
	var searched []byte
	switch {
	case !ok:
	case at.layout == catalogCursor && n >= 3:
		first, _, named := bytes.Cut(fields[0], []byte("/"))
		if ok = named && isOffice(first); ok {
			searched = fields[1]
			if err := m.nameOffice(at, first); err != nil {
				return err
			}
		}
	case at.layout == usersCursor && n == 5:
		searched = fields[3]
	default:
		ok = false
	}
	switch {
	case !ok:
		m.unclear = true
	case len(searched) == 0 || bytes.EqualFold(searched, []byte("null")):
		m.pageAll = true
	case !isOffice(searched):
		m.unclear = true
	default:
		return m.nameOffice(at, searched)
	}
	return nil
}

// cursorFields decodes a cursor. More fields than a layout has are counted, not
// returned.
func (m *Match) cursorFields(value []byte) (fields [12][]byte, n int, ok bool) {
	if len(value) > maxCursor {
		return fields, 0, false
	}
	start := len(m.buf)
	enc := padded
	if len(value)%4 != 0 {
		enc = unpadded
	}
	b, err := enc.AppendDecode(m.buf, value)
	if err != nil || !utf8.Valid(b[start:]) {
		return fields, 0, false
	}
	m.buf = b
	for rest, more := b[start:], true; more; n++ {
		var field []byte
		field, rest, more = bytes.Cut(rest, []byte("||"))
		if n < len(fields) {
			fields[n] = field
		}
	}
	return fields, n, n <= len(fields)
}
