package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"headgate/proxy/authz"
)

// maxDepth bounds the nesting of JSON from outside.
const maxDepth = 32

var (
	errNotText   = errors.New("a string is not valid UTF-8")
	errNotObject = errors.New("not an object")
	errTooDeep   = fmt.Errorf("nested deeper than %d", maxDepth)
)

// object returns the members of a JSON object as they came. Two members of one
// name are an error: which one counts depends on who reads them.
func object(raw []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(raw) {
		return nil, errNotText
	}
	if !json.Valid(raw) {
		return nil, errors.New("not valid JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errNotObject
	}
	members := make(map[string]json.RawMessage)
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name := token.(string)
		if strings.ContainsRune(name, utf8.RuneError) {
			return nil, errNotText
		}
		if _, twice := members[name]; twice {
			return nil, errors.New("two members of one name")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		members[name] = value
	}
	return members, nil
}

// appendCanonical appends valid JSON without white space, members sorted by name,
// strings in ASCII, numbers as they are written: equal documents become equal
// bytes.
func appendCanonical(b []byte, raw json.RawMessage, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, errTooDeep
	}
	switch raw = bytes.TrimSpace(raw); raw[0] {
	case '{':
		members, err := object(raw)
		if err != nil {
			return nil, err
		}
		return appendObject(b, members, depth)
	case '[':
		var list []json.RawMessage
		err := json.Unmarshal(raw, &list)
		if err != nil {
			return nil, err
		}
		b = append(b, '[')
		for i, value := range list {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, value, depth-1); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case '"':
		s, err := text(raw)
		if err != nil {
			return nil, err
		}
		return authz.AppendString(b, s), nil
	}
	return append(b, raw...), nil
}

func appendObject(b []byte, members map[string]json.RawMessage, depth int) ([]byte, error) {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = authz.AppendString(b, name)
		b = append(b, ':')
		var err error
		if b, err = appendCanonical(b, members[name], depth-1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// text decodes a JSON string. The decoder puts U+FFFD for what it cannot read
// (half a surrogate pair), so two different strings could come out alike: a
// string with it is an error.
func text(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || raw[0] != '"' { // null would leave the string empty
		return "", errors.New("not a string")
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	if strings.ContainsRune(s, utf8.RuneError) {
		return "", errNotText
	}
	return s, nil
}
