package report

import (
	_ "embed"
	"html/template"
	"io"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg":    func(c Chart) template.HTML { return template.HTML(c.SVG()) }, // all its text is escaped
	"spread": spread,
}).Parse(pageText))

// WriteHTML writes the page: one file with its style and pictures in it.
func (r *Report) WriteHTML(w io.Writer) error {
	return page.Execute(w, map[string]any{"R": r, "Summary": r.summary()})
}
