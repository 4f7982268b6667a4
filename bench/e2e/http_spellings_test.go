package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"headgate/proxy/route"
)

// spelling is a request target and what a Tomcat does with it: the status, and the
// path that it serves, decoded and below /cwms-data, by each way it has with an
// encoded slash. The path is empty where it serves nothing of that context.
type spelling struct {
	Target string            `json:"target"`
	Served map[string]string `json:"served"` // way -> path; a way that refuses is absent
}

const spellingsFile = "testdata/tomcat/spellings.jsonl"

var builtIn = route.Default("/cwms-data")

// judged is what policy is asked about a target, or that it is not asked.
type judged struct {
	refused                       bool
	resource, action, route, rest string
}

func judgedAs(target string) judged {
	parsed, err := route.ParseTarget([]byte(target))
	if err != nil || !builtIn.InPrefix(parsed.Path) {
		return judged{refused: true}
	}
	var m route.Match
	if err := builtIn.Match(&m, []byte("GET"), parsed); err != nil {
		return judged{refused: true}
	}
	c := m.Context
	return judged{
		resource: m.Resource, action: m.Action, route: c.Route,
		rest: fmt.Sprint(c.Subresource, c.Params, c.Scope, c.Offices, c.Mask, c.Attributes),
	}
}

// plainly is the one spelling of a served path that nobody can read in two ways.
func plainly(path, query, way string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
		if way == "passthrough" {
			// It leaves encoded slashes as they are, and so the percent sign too.
			segments[i] = strings.ReplaceAll(segments[i], "%25", "%")
		}
	}
	target := "/cwms-data" + strings.Join(segments, "/")
	if query != "" {
		target += "?" + query
	}
	return target
}

// agree compares what policy was asked about a target with what Tomcat served.
func (s spelling) agree() error {
	if judgedAs(s.Target).refused {
		return nil
	}
	_, query, _ := strings.Cut(s.Target, "?")
	for way, path := range s.Served {
		if way == "decode" {
			// Behind a decoded slash an encoded semicolon stands in a segment of its own,
			// where it is refused when it is written so; it is a character like any other.
			path = strings.ReplaceAll(path, ";", "_")
		}
		got, want := judgedAs(s.Target), judgedAs(plainly(path, query, way))
		if way == "decode" {
			// The id of a rating may hold a slash. Where it is decoded before the
			// segments are told apart, the path has more of them than was judged, below
			// the same first one.
			got.resource, _, _ = strings.Cut(got.resource, "/")
			want.resource, _, _ = strings.Cut(want.resource, "/")
			got.route, got.rest, want.route, want.rest = "", "", "", ""
		}
		if got != want {
			return fmt.Errorf("policy judged %q as %+v, and Tomcat (%s) served %q, which is %+v", s.Target, got, way, path, want)
		}
	}
	return nil
}

// Whatever the spelling of a path, either it is refused or policy judged what a
// Tomcat then served. The table is what Tomcat was seen to do; TestTomcat makes it.
func TestSpellings(t *testing.T) {
	refused, served := 0, 0
	for _, s := range readSpellings(t) {
		if err := s.agree(); err != nil {
			t.Error(err)
		}
		switch {
		case judgedAs(s.Target).refused:
			refused++
		case len(s.Served) > 0:
			served++
		}
	}
	t.Logf("%d refused, %d judged and served", refused, served)
	if refused < 100 || served < 100 {
		t.Error("the table has lost its meaning")
	}
}

func readSpellings(t *testing.T) (all []spelling) {
	t.Helper()
	f, err := os.Open(spellingsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var s spelling
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}
