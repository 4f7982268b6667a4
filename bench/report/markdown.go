package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteMarkdown writes the whole report as text.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Headgate: benchmark results\n\n%s\n\n", r.summary())
	fmt.Fprintf(&b, "`%s`\n\n", r.Command)
	for _, f := range r.Machine.Facts() {
		fmt.Fprintf(&b, "- %s: %s\n", f[0], f[1])
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&b, "\n**Beware:** %s\n", plain(warning))
	}
	fmt.Fprintf(&b, "\n%s\n", r.Legend())
	if len(r.Budgets) > 0 {
		b.WriteString("\n## Budgets\n\n| promise | limit | measured | |\n|---|---|---|---|\n")
		for _, x := range r.Budgets {
			fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s |\n", cell(x.Claim), x.Table, cell(x.Limit), cell(x.Measured), x.Verdict())
		}
	}
	for _, t := range r.Tables {
		t.markdown(&b)
	}
	if len(r.LeftOut) > 0 {
		b.WriteString("\n## Left out\n\n")
		for _, l := range r.LeftOut {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Legend explains what stands in every table.
func (r *Report) Legend() string {
	where := "Load generator, proxy, OPA, Redis and the stand-in API share this machine."
	if r.Target != "" {
		where = "The machine above is that of the load generator; the target and all that belongs to it may be elsewhere."
	}
	return legend + where
}

const legend = "± is half the spread between the slices that a number is the median of. The figures under “reference” are those that the earlier TypeScript proxy " +
	"published for a laptop of its own (M3 Max): they say what was promised before, not what it would do on this machine. Everything under one heading was measured " +
	"in the same run, with its slices interleaved. "

func (r *Report) summary() string {
	kind := "Full run"
	if r.Quick {
		kind = "Quick run (fewer points and shorter slices)"
	}
	s := fmt.Sprintf("%s of %s, %.0f s.", kind, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Seconds)
	if r.Target != "" {
		s += " Measured: " + r.Target + ", which was running already."
	}
	return s
}

// Facts are what the machine is, in the order to be read.
func (m Machine) Facts() [][2]string {
	facts := [][2]string{
		{"processor", fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)},
		{"memory", Bytes.Format(Of(m.Memory))},
		{"system", m.System},
		{"load average before the run", m.Load},
	}
	names := make([]string, 0, len(m.Versions))
	for name := range m.Versions {
		names = append(names, name)
	}
	slices.Sort(names)
	var versions []string
	for _, name := range names {
		versions = append(versions, name+" "+m.Versions[name])
	}
	if len(versions) > 0 { // those of a target are not known
		facts = append(facts, [2]string{"versions", strings.Join(versions, ", ")})
	}
	return facts
}

func (t Table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n<a id=\"%s\"></a>\n\n## %s\n\n%s\n", t.ID, t.Title, plain(t.About))
	for _, c := range t.Commands {
		fmt.Fprintf(b, "\n`%s`\n", c)
	}
	if t.Void != "" {
		fmt.Fprintf(b, "\n**No numbers:** %s\n", plain(t.Void))
		return
	}
	b.WriteByte('\n')
	t.grid(b)
	for _, n := range t.Notes {
		fmt.Fprintf(b, "\n%s\n", plain(n))
	}
	for _, c := range t.Charts {
		fmt.Fprintf(b, "\n%s: %s\n", c.Title, plain(c.Says))
	}
}

// grid writes the table proper.
func (t Table) grid(b *strings.Builder) {
	head, rule := "| "+cell(t.First), "|---"
	for _, c := range t.Columns {
		head += " | " + cell(c.Name)
		rule += "|---:"
	}
	if t.HasReference() {
		head += " | reference"
		rule += "|---"
	}
	fmt.Fprintf(b, "%s |\n%s|\n", head, rule)
	for _, r := range t.Rows {
		name := cell(r.Name)
		if r.Ours {
			name = "**" + name + "**"
		}
		fmt.Fprintf(b, "| %s", name)
		for i, text := range t.Cells(r) {
			fmt.Fprintf(b, " | %s", cell(text+spread(r, i)))
		}
		if t.HasReference() {
			fmt.Fprintf(b, " | %s", cell(r.Reference))
		}
		b.WriteString(" |\n")
	}
}

// spread is the noise of a number, where it is worth a word.
func spread(r Row, column int) string {
	if column < len(r.Values) && r.Values[column].Noise >= 0.01 {
		return fmt.Sprintf(" ±%.0f %%", r.Values[column].Noise*100)
	}
	return ""
}

// plain keeps a text from being taken for HTML.
func plain(s string) string { return strings.ReplaceAll(s, "<", "&lt;") }

func cell(s string) string {
	if s == "" {
		return " "
	}
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}
