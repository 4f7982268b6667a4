package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"headgate/proxy/pdp"
	"headgate/proxy/pip"
)

// parseFlags parses a subcommand's arguments; flags and other arguments may stand in
// any order.
func parseFlags(name string, args []string, declare func(*flag.FlagSet)) (rest []string, err error) {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	declare(f)
	for {
		if err := f.Parse(args); err != nil {
			var usage strings.Builder
			f.SetOutput(&usage)
			f.PrintDefaults()
			if errors.Is(err, flag.ErrHelp) {
				return nil, flagHelp(usage.String())
			}
			return nil, fmt.Errorf("%w; want:\n%s", err, usage.String())
		}
		if args = f.Args(); len(args) == 0 {
			return rest, nil
		}
		rest, args = append(rest, args[0]), args[1:]
	}
}

// flagHelp lists the flags of a subcommand for whoever asks for help.
type flagHelp string

func (h flagHelp) Error() string { return string(h) }

const explainArgs = "METHOD TARGET [BODY-FILE]"

// explainCommand asks the running proxy why.
func explainCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	var r rehearsal
	var token, tokenFile string
	var asJSON bool
	rest, err := parseFlags("explain", args, func(f *flag.FlagSet) {
		f.StringVar(&r.User, "user", "", "the `NAME` of a user, in place of a credential")
		f.StringVar(&token, "token", "", "a bearer `TOKEN`")
		f.StringVar(&tokenFile, "token-file", "", "a `FILE` that holds one; - is stdin")
		f.Func("header", "a `HEADER` of the request, \"Name: value\", or @FILE with one a line; may be given again", func(h string) error {
			if file, ok := strings.CutPrefix(h, "@"); ok {
				content, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				r.Headers = append(r.Headers, strings.FieldsFunc(string(content), func(c rune) bool { return c == '\r' || c == '\n' })...)
				return nil
			}
			r.Headers = append(r.Headers, h)
			return nil
		})
		f.StringVar(&r.Trace, "trace", "", "OPA's own trace, too: `notes|full`")
		f.BoolVar(&asJSON, "json", false, "print JSON")
	})
	if err != nil {
		return err
	}
	if len(rest) != 2 && len(rest) != 3 {
		return fmt.Errorf("want [--user NAME | --token TOKEN | --token-file FILE | --header \"Name: value\"] [--trace notes|full] [--json] %s", explainArgs)
	}
	r.Method, r.Target = rest[0], rest[1]
	if len(rest) == 3 {
		body, err := os.ReadFile(rest[2])
		if err != nil {
			return err
		}
		r.Body = string(body)
	}
	if tokenFile != "" {
		if token != "" {
			return errors.New("--token and --token-file: want one of them")
		}
		if token, err = readToken(tokenFile); err != nil {
			return err
		}
	}
	if token != "" {
		r.Headers = append(r.Headers, "Authorization: Bearer "+token)
	}
	if err := r.check(); err != nil {
		return err
	}
	status, answer, err := callAdmin(ctx, environ, http.MethodPost, "/explain", r)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("the proxy answered %d: %s", status, bytes.TrimSpace(answer))
	case asJSON:
		var b bytes.Buffer
		if err := json.Indent(&b, answer, "", "  "); err != nil {
			return err
		}
		_, err = b.WriteTo(out)
		return err
	}
	var e explanation
	if err := json.Unmarshal(answer, &e); err != nil {
		return fmt.Errorf("cannot read the answer of the proxy: %w", err)
	}
	_, err = out.Write(e.text())
	return err
}

func readToken(file string) (string, error) {
	in := io.ReadCloser(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		in = f
	}
	defer in.Close()
	content, err := io.ReadAll(io.LimitReader(in, maxExplain))
	return strings.TrimSpace(string(content)), err
}

// text is the explanation for people.
func (e *explanation) text() []byte {
	var b bytes.Buffer
	t := page{tw: tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)}
	fmt.Fprintf(&b, "%s %s: %s\n\n", e.Request.Method, e.Request.Path, e.outcome())
	if i := e.Identity; i != nil {
		switch {
		case i.Error != "":
			t.line("identity", i.Error)
		case i.Assumed:
			t.line("identity", i.Name+", assumed")
		default:
			t.line("identity", strings.TrimSpace(string(i.Method)+" "+cmp.Or(i.Name, i.Subject)))
		}
		t.some("  issuer", i.Issuer)
		t.some("  subject", i.Subject)
		if i.Expires != nil {
			t.line("  until", at(*i.Expires))
		}
		t.some("  note", i.Note)
	}
	t.context(e.Context)
	if e.Route != nil {
		var route bytes.Buffer
		_ = e.Route.Print(&route) // memory does not fail
		t.block("route", route.String())
	}
	if e.Input != nil {
		t.block("input", outline(e.Input))
	}
	if e.Explanation != nil {
		t.cache(&e.Cache)
		t.opa(&e.OPA)
	}
	if d := e.Decision; d != nil {
		t.line("decision", fmt.Sprintf("%s, from %s", verdict(d.Allow), d.Source))
		t.some("  reason", d.Reason)
		t.some("  id", d.DecisionID)
		t.some("  revision", d.Revision)
		if !d.Enforced {
			t.line("  not enforced", "ENFORCE=report lets it through")
		}
	}
	if f := e.Forward; f != nil {
		t.line("forward", "with "+cmp.Or(f.Header, "no context header"))
		t.line("  authorization", kept(f.Authorization))
		t.line("  session cookies", kept(f.Cookies))
		if f.Value != nil {
			t.block("  header", outline(f.Value))
		}
	}
	if a := &e.Answer; a.Forwarded {
		t.line("answer", "the API's")
	} else {
		t.line("answer", fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status)))
		for _, name := range []string{"Allow", "Retry-After", "WWW-Authenticate"} {
			t.some("  "+name, a.Headers[name])
		}
		t.some("  body", a.Body)
		t.some("  because", a.Error)
	}
	if tr := e.Trace; tr != nil {
		t.some("trace", tr.Error)
		t.block("trace", strings.Join(tr.Lines, "\n"))
		if tr.Cut {
			t.line("", "… and more")
		}
	}
	t.tw.Flush()
	return b.Bytes()
}

// outcome is all of it in a few words.
func (e *explanation) outcome() string {
	switch d, a := e.Decision, &e.Answer; {
	case a.Forwarded && d.Enforced:
		return "allowed, " + d.Reason
	case a.Forwarded:
		return "forwarded although denied, " + d.Reason
	case d != nil && !d.Allow && a.Status == http.StatusForbidden:
		return "denied, " + d.Reason
	default:
		return fmt.Sprintf("answered %d", a.Status)
	}
}

// page is text in two columns.
type page struct{ tw *tabwriter.Writer }

func (t *page) line(name, value string) { fmt.Fprintf(t.tw, "%s\t%s\n", name, value) }

func (t *page) some(name, value string) {
	if value != "" {
		t.line(name, value)
	}
}

// block is a value of several lines.
func (t *page) block(name, text string) {
	for line := range strings.Lines(text) {
		t.line(name, strings.TrimRight(line, "\n"))
		name = ""
	}
}

func (t *page) context(c *pip.Explanation) {
	if c == nil {
		return
	}
	from := c.Source
	if c.Age != nil {
		from += fmt.Sprintf(", read from the API %v ago", ms(*c.Age))
	}
	if c.User != "" {
		from = c.User + ", from " + from
	}
	t.line("context", from)
	t.some("  note", c.Note)
	t.some("  error", c.Error)
	name := "  ends"
	for _, end := range c.Ends {
		what := end.What
		if end.At != nil {
			what += ": " + at(*end.At)
		}
		t.line(name, what)
		name = ""
	}
}

func (t *page) cache(c *pdp.Cached) {
	t.line("cache", c.State)
	t.some("  why", c.Why)
	if c.Allow != nil {
		t.line("  entry", fmt.Sprintf("%s, asked %v ago, %v left", verdict(*c.Allow), ms(*c.Age), ms(*c.Left)))
	}
	policy := "OPA has not said yet what it runs"
	if c.LeaseAge != nil {
		policy = fmt.Sprintf("epoch %d, %s, confirmed %v ago (lease %v)", c.Epoch, cmp.Or(c.Revision, "no revision"), ms(*c.LeaseAge), ms(c.Lease))
	}
	t.line("  policy", policy)
	t.line("  key", c.Key)
	name := "  ends"
	for _, end := range c.Ends {
		t.line(name, end)
		name = ""
	}
}

// opa is what OPA says now, which may be another thing than a hit says.
func (t *page) opa(a *pdp.Asked) {
	if a.Error != "" {
		t.line("opa", a.Error)
		return
	}
	t.line("opa", fmt.Sprintf("%s, reusable for %v", verdict(*a.Allow), ms(a.Lifetime)))
	t.some("  reason", a.Reason)
	t.some("  constraints", string(a.Constraints))
	t.some("  id", a.DecisionID)
	t.some("  revision", a.Revision)
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// at is a moment, and how far it is.
func at(when time.Time) string {
	distance := time.Until(when).Round(time.Second)
	if distance < 0 {
		return fmt.Sprintf("%s (%v ago)", when.UTC().Format(time.RFC3339), -distance)
	}
	return fmt.Sprintf("%s (in %v)", when.UTC().Format(time.RFC3339), distance)
}

func verdict(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

func kept(yes bool) string {
	if yes {
		return "as the client sent"
	}
	return "not forwarded"
}

// outline is a JSON object with a line for each member of its own and of the
// objects directly in it, and everything below on one line.
func outline(raw json.RawMessage) string {
	var b bytes.Buffer
	appendOutline(&b, raw, "", 2)
	return b.String()
}

func appendOutline(b *bytes.Buffer, raw json.RawMessage, indent string, depth int) {
	members := json.NewDecoder(bytes.NewReader(raw))
	if start, err := members.Token(); depth == 0 || err != nil || start != json.Delim('{') || !members.More() {
		b.Write(raw)
		return
	}
	for separator := "{"; members.More(); separator = "," {
		name, err := members.Token()
		var value json.RawMessage
		if err != nil || members.Decode(&value) != nil {
			return // it was made by us and is JSON
		}
		fmt.Fprintf(b, "%s\n%s  %q: ", separator, indent, name)
		appendOutline(b, value, indent+"  ", depth-1)
	}
	fmt.Fprintf(b, "\n%s}", indent)
}
