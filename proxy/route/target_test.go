package route

import (
	"bytes"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseTarget(t *testing.T) {
	accepted := []struct{ raw, path, query string }{
		{"/", "/", ""},
		{"/cwms-data/timeseries/", "/cwms-data/timeseries/", ""},
		{"/a?", "/a", ""},
		{"/a?&&x", "/a", "&&x"},
		{"/a?b?c", "/a", "b?c"},
		{"/a?x=//../;\\", "/a", "x=//../;\\"}, // the query has no segments
		{"/a?id=%2FTIME%20SERIES%20TEXT%2F6261044", "/a", "id=%2FTIME%20SERIES%20TEXT%2F6261044"},
		{"/a?x=\xc3\xa9|[1]", "/a", "x=\xc3\xa9|[1]"}, // clients send raw UTF-8 and brackets
		{"/[a]/b|c/'(d)'", "/[a]/b|c/'(d)'", ""},
		{"/a%20b/%C3%A9/%e2%82%ac/%F0%9F%8C%8A", "/a%20b/%C3%A9/%e2%82%ac/%F0%9F%8C%8A", ""},
		{"/.../a..b/.x", "/.../a..b/.x", ""},   // three dots are a name
		{"/%252e%252e/a", "/%252e%252e/a", ""}, // decoded once it is the name %2e%2e
		{"/a%2Fb%5cc%3B", "/a%2Fb%5cc%3B", ""}, // left to Match
		{"/" + strings.Repeat("a", 8000), "/" + strings.Repeat("a", 8000), ""},
	}
	for _, c := range accepted {
		got, err := ParseTarget([]byte(c.raw))
		if err != nil || string(got.Path) != c.path || string(got.Query) != c.query || got.HasQuery != strings.Contains(c.raw, "?") {
			t.Errorf("%q: got path %q, query %q, has query %v, error %v", c.raw, got.Path, got.Query, got.HasQuery, err)
		}
	}
	refused := []string{
		// Not origin form.
		"", "*", "a", "?a", "http://api/cwms-data/timeseries", "//api/timeseries", "api:443",
		// Empty segments.
		"/cwms-data//timeseries", "/a//", "//",
		// Dot segments.
		"/.", "/..", "/./", "/../", "/a/.", "/a/..", "/a/./b", "/a/../b", "/cwms-data/docs/../timeseries",
		"/cwms-data/x/%2E%2E/timeseries", "/a/%2e/b", "/a/.%2e/b", "/a/%2E./b", "/a/%2e%2E", "/%2e?x",
		// What servers read in different ways.
		`/cwms-data/x\..\timeseries`, `/\`, "/cwms-data/timeseries;a=b", "/cwms-data/;/timeseries", "/docs/..;/timeseries",
		"/a#b", "/a#?office=SWT", "/a?b#c",
		// Bytes that have no place in a target.
		"/a b", "/a\tb", "/a\x00b", "/a\x7fb", "/a\r\nb", "/\xc3\xa9", "/a?b c", "/a?b\tc", "/a?\x00", "/a?\x7f",
		// Broken percent-encoding.
		"/%", "/%4", "/%zz", "/a%2", "/a%g0", "/a?%", "/a?x=%4", "/a?x=%zz", "/%u0041",
		// Encoded control bytes, and what is not UTF-8: overlong, surrogate, cut, beyond the last character.
		"/%00", "/a%0d%0a", "/%1f", "/%7F", "/%ff", "/%C3", "/%C3/%A9", "/%C3a", "/%c0%ae%c0%ae/x", "/%c0%af", "/%ED%A0%80", "/%F4%90%80%80", "/%E2%82",
	}
	for _, raw := range refused {
		if _, err := ParseTarget([]byte(raw)); err == nil {
			t.Errorf("%q is accepted", raw)
		}
	}
}

// Whatever is accepted has one meaning: net/url reads the same path and query,
// and no segment of it is empty or a dot segment.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{commonRead, "/", "/a/%2e%2e/b", "/a//b", "/a;b", "/%C3%A9?%2", "/a%2f..%2fb?x=%00", "/a/b/?x#y", "*", "http://x/"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		target, err := ParseTarget(raw)
		if err != nil {
			return
		}
		u, err := url.ParseRequestURI(string(raw))
		if err != nil {
			t.Fatalf("%q: accepted, but net/url refuses it: %v", raw, err)
		}
		decoded := appendDecoded(nil, target.Path, false)
		if u.Path != string(decoded) || u.RawQuery != string(target.Query) || u.Host != "" {
			t.Fatalf("%q: net/url reads path %q, query %q, host %q; here path %q, query %q", raw, u.Path, u.RawQuery, u.Host, decoded, target.Query)
		}
		if !utf8.Valid(decoded) {
			t.Fatalf("%q: the path is not UTF-8", raw)
		}
		segments := bytes.Split(target.Path[1:], []byte("/"))
		for i, s := range segments {
			s = appendDecoded(nil, s, false)
			if string(s) == "." || string(s) == ".." || len(s) == 0 && i < len(segments)-1 {
				t.Fatalf("%q: segment %q is accepted", raw, s)
			}
		}
	})
}

// Query names and values: net/url must read the same ones.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{"office=SPK", "o%66fice=spk&office=SWT", "office=S+K", "a;office=SPK", "&office&", "office==", "page=AAAA&x=%ff", "Office=SPK&office%00=SWT"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, query []byte) {
		target, err := ParseTarget(append([]byte("/cwms-data/locations?"), query...))
		if err != nil {
			return
		}
		var m Match
		if table.Match(&m, []byte("GET"), target) != nil {
			return
		}
		want := map[string]bool{}
		for pair := range strings.SplitSeq(string(query), "&") {
			name, value, _ := strings.Cut(pair, "=")
			if name, _ = url.QueryUnescape(name); name == "office" {
				value, _ = url.QueryUnescape(value)
				want[strings.ToUpper(value)] = true
			}
		}
		if len(want) != len(m.Context.Offices) {
			t.Fatalf("%q: found %v, want %v", query, m.Context.Offices, want)
		}
		for _, office := range m.Context.Offices {
			if !want[office] {
				t.Fatalf("%q: found %v, want %v", query, m.Context.Offices, want)
			}
		}
	})
}

// The path of a request and nothing else says which route it takes, and the
// question has only valid text in it.
func FuzzMatch(f *testing.F) {
	f.Add("GET", []byte(commonRead))
	f.Add("PATCH", []byte("/cwms-data/timeseries/A%2FB"))
	f.Add("DELETE", []byte("/cwms-data/projects/locks/a/gate-changes/"))
	f.Add("OPTIONS", []byte("/cwms-data/x%C3%A9/y"))
	f.Fuzz(func(t *testing.T, method string, raw []byte) {
		target, err := ParseTarget(raw)
		if err != nil {
			return
		}
		var m, again Match
		if table.Match(&m, []byte(method), target) != nil {
			return
		}
		if b := m.Context.AppendJSON(nil); !utf8.ValidString(m.Resource) || !jsonValid(b) {
			t.Fatalf("%s %q: resource %q, context %s", method, raw, m.Resource, b)
		}
		bare := target
		bare.Query, bare.HasQuery = nil, false
		if table.Match(&again, []byte(method), bare) != nil || again.Resource != m.Resource || again.Context.Route != m.Context.Route {
			t.Fatalf("%s %q: the query changes the route", method, raw)
		}
	})
}
