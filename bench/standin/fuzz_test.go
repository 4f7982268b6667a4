package standin

import "testing"

// Whatever a client sends as target or cursor, the stand-in answers.
func FuzzTarget(f *testing.F) {
	f.Add("/cwms-data/timeseries", "office=SWT&name=X&page=MTc2NzIyNTYwMDAwMHx8NDB8fDQw")
	f.Add("/cwms-data/%zz/", "page=!&page-size=-1&%=+&name=%")
	f.Add("/cwms-data//x", "")
	f.Add("/cwms-data/v2/blobs/a%2Fb", "bytes=99999999999999999999")
	f.Fuzz(func(t *testing.T, path, query string) {
		c := call{query: []byte(query)}
		if !c.split(path) {
			return
		}
		c.isProfile()
		if s, refused := c.renderSeries(); (s == nil) == (refused == nil) {
			t.Errorf("%q?%q: %v %v", path, query, s, refused)
		}
	})
}
