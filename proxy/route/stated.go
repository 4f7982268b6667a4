package route

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"headgate/proxy/authz"
)

// Stated reads the resource, the action and the context object of a caller of
// /authorize, who states what a proxied request would show. Members office_id,
// office and offices, each a string or a list of strings, name offices;
// office_mask is a pattern; every other member is passed to policy as it is, in
// a form that is the same for equal values. A null is an absent member.
//
// The error is ErrMalformed and names every bad field.
func (t *Table) Stated(resource, action string, context map[string]json.RawMessage) (authz.Context, error) {
	s := stating{c: authz.Context{Offices: []string{}}}
	if resource == "" || len(resource) > maxValue {
		s.bad("resource", "must be text of 1 to 1024 bytes")
	}
	if !slices.Contains(t.actions, action) {
		s.bad("action", "must be one of "+strings.Join(t.actions, ", "))
	}
	names := make([]string, 0, len(context))
	for name := range context {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if raw := bytes.TrimSpace(context[name]); string(raw) != "null" {
			s.member(name, raw)
		}
	}
	slices.Sort(s.c.Offices)
	s.c.Offices = slices.Compact(s.c.Offices)
	switch n := len(s.c.Offices); {
	case s.c.Mask != "":
		s.c.Scope = authz.ScopeMask
	case n == 0:
		s.c.Scope = authz.ScopeNone
	case n == 1:
		s.c.Scope = authz.ScopeOne
	default:
		s.c.Scope = authz.ScopeMany
	}
	if s.faults != nil {
		return authz.Context{}, malformed("%s", strings.Join(s.faults, "; "))
	}
	return s.c, nil
}

type stating struct {
	c      authz.Context
	faults []string
}

func (s *stating) bad(field, what string) { s.faults = append(s.faults, field+" "+what) }

func (s *stating) member(name string, raw []byte) {
	field := "context." + name
	switch name {
	case "office_id", "office", "offices":
		list, ok := stringOrList(raw)
		if !ok {
			s.bad(field, "must be an office id or a list of them")
			return
		}
		for _, id := range list {
			if !isOffice([]byte(id)) {
				s.bad(field, "must hold office ids: 1 to 16 letters and digits")
				return
			}
			s.c.Offices = append(s.c.Offices, strings.ToUpper(id))
		}
	case "office_mask":
		if json.Unmarshal(raw, &s.c.Mask) != nil || s.c.Mask == "" || len(s.c.Mask) > maxMask {
			s.bad(field, "must be text of 1 to 256 bytes")
		}
	case "office_scope":
		s.bad(field, "is not stated: it follows from the offices")
	default:
		value, err := canonical(raw)
		if err != nil {
			s.bad(field, "is not JSON")
			return
		}
		if s.c.Stated == nil {
			s.c.Stated = map[string]json.RawMessage{}
		}
		s.c.Stated[name] = value
	}
}

func stringOrList(raw []byte) ([]string, bool) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, true
	}
	var list []*string
	if json.Unmarshal(raw, &list) != nil {
		return nil, false
	}
	ids := make([]string, 0, len(list))
	for _, id := range list {
		if id == nil {
			return nil, false
		}
		ids = append(ids, *id)
	}
	return ids, true
}

// canonical rewrites a JSON value so that equal values have equal bytes: members
// sorted, strings escaped in one way, no white space. Numbers stay as written;
// policy may compare more digits than a float64 holds.
func canonical(raw []byte) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	return appendCanonical(nil, v), nil
}

func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		if v {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	case json.Number:
		return append(b, v...)
	case string:
		return authz.AppendString(b, v)
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, item)
		}
		return append(b, ']')
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = authz.AppendString(b, name)
			b = append(b, ':')
			b = appendCanonical(b, v[name])
		}
		return append(b, '}')
	}
	panic("BUG: a JSON value of another type")
}
