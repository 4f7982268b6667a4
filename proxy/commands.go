package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
)

// command is a subcommand. Without one the program serves.
type command struct {
	name, args, doc string
	run             func(ctx context.Context, args, environ []string, stdout io.Writer) error
}

// commands is a function because help lists them, itself included.
func commands() []command {
	return []command{
		{"check-config", "", "check the settings of this environment and say every fault", checkConfig},
		{"explain", "[FLAGS] METHOD TARGET [BODY-FILE]", "tell why a request is allowed or denied, stage by stage, through the admin listener", explainCommand},
		{"healthcheck", "", "exit 0 if the proxy of this environment can decide", healthcheck},
		{"invalidate", "--user NAME | --all", "make every replica read a user's context anew, through the admin listener", invalidateCommand},
		{"make-secret", "FILE...", "write a random secret into each file that is not there yet, for settings by file", makeSecret},
		{"prewarm", "--users FILE", "read the contexts of users, a name a line, with the service key before they come", prewarmCommand},
		{"replay", "--log FILE --opa URL [FLAGS]", "ask a candidate OPA the questions of a decision log; exit 1 if an answer changes, 2 if they cannot be asked", replayCommand},
		{"report", "[--log FILE] [FLAGS]", "summarise a decision log: who was or would be denied what, how often and why", reportCommand},
		{"routes", "[METHOD TARGET [BODY-FILE]]", "print the route table, or what a request means by it", routesCommand},
		{"version", "", "print the version", func(_ context.Context, _, _ []string, out io.Writer) error {
			_, err := fmt.Fprintln(out, version())
			return err
		}},
		{"help", "", "print subcommands and settings", func(_ context.Context, _, _ []string, out io.Writer) error { return help(out) }},
	}
}

func subcommand(ctx context.Context, args, environ []string, stdout io.Writer) error {
	name, args := args[0], args[1:]
	if asksHelp(name) {
		name = "help"
	}
	var names []string
	for _, c := range commands() {
		switch {
		case c.name != name:
		case len(args) > 0 && asksHelp(args[0]):
			return c.help(ctx, stdout)
		case len(args) > 0 && c.args == "":
			return fmt.Errorf("%s: want no arguments, got %q", name, args)
		default:
			return c.run(ctx, args, environ, stdout)
		}
		names = append(names, c.name)
	}
	return fmt.Errorf("no subcommand %q: want %s, or none to serve", name, strings.Join(names, ", "))
}

func asksHelp(arg string) bool { return arg == "--help" || arg == "-help" || arg == "-h" }

// help is about one subcommand.
func (c *command) help(ctx context.Context, out io.Writer) error {
	text := fmt.Sprintf("Usage: %s\n\n%s\n", strings.TrimSpace("proxy "+c.name+" "+c.args), c.doc)
	if strings.Contains(c.args, "[FLAGS]") {
		var flags flagHelp
		errors.As(c.run(ctx, []string{"--help"}, nil, io.Discard), &flags)
		text += "\n" + string(flags)
	}
	_, err := io.WriteString(out, text)
	return err
}

func help(out io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Headgate forwards to a REST API only what an OPA server allows.\n\nUsage: proxy [subcommand]\n\nWithout a subcommand it serves. Subcommands:\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %s %s\t%s\n", c.name, c.args, c.doc)
	}
	w.Flush()
	fmt.Fprintf(&b, "\nSettings, from the environment; secrets also as <NAME>_FILE:\n")
	for _, s := range settings() {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", s.Name, s.Default, s.Doc)
	}
	w.Flush()
	_, err := out.Write(b.Bytes())
	return err
}

func checkConfig(_ context.Context, _, environ []string, out io.Writer) error {
	c, warnings, err := LoadConfig(environ)
	for _, w := range warnings {
		fmt.Fprintln(out, "warning:", w)
	}
	if err == nil {
		err = checkFiles(c)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "the settings are good")
	return err
}

// checkFiles reads the files that settings name, as the start does.
func checkFiles(c Config) error {
	_, routes := loadRoutes(c)
	p := &proxy{config: c, log: zerolog.Nop()}
	_, ca := p.userConfig()
	var pair, names error
	if c.TLSCert != "" {
		if _, pair = tls.LoadX509KeyPair(c.TLSCert, c.TLSKey); pair != nil {
			pair = fmt.Errorf("TLS_CERT and TLS_KEY: %w", pair)
		}
	}
	if c.PrewarmFile != "" {
		if _, names = userNames(c.PrewarmFile); names != nil {
			names = fmt.Errorf("PREWARM_FILE: %w", names)
		}
	}
	return errors.Join(routes, ca, pair, names)
}

// version is the module's version where the build knows it, else the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	if v == "" {
		v = "(devel)"
	}
	return v + " " + info.GoVersion
}

func (c *Config) contextHeader() string {
	if strings.EqualFold(c.ContextHeader, "none") {
		return ""
	}
	return c.ContextHeader
}

// callAdmin calls the admin listener of the proxy that runs in this environment.
func callAdmin(ctx context.Context, environ []string, method, path string, body any) (int, []byte, error) {
	c, _, _ := LoadConfig(environ) // faults of other settings are none here
	host, port, err := net.SplitHostPort(c.AdminAddr)
	if err != nil {
		return 0, nil, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(host, port)+path, content)
	if err != nil {
		return 0, nil, err
	}
	if c.AdminToken != "" {
		req.Header.Set("Authorization", "Bearer "+string(c.AdminToken))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("no answer from ADMIN_ADDR=%q, want that of the running proxy: %w", c.AdminAddr, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return resp.StatusCode, answer, err
}

func healthcheck(ctx context.Context, _, environ []string, _ io.Writer) error {
	status, answer, err := callAdmin(ctx, environ, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("not ready: %s", bytes.TrimSpace(answer))
	}
	return nil
}

func invalidateCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	var body map[string]any
	switch {
	case len(args) == 2 && args[0] == "--user" && args[1] != "":
		body = map[string]any{"user": args[1]}
	case len(args) == 1 && args[0] == "--all":
		body = map[string]any{"all": true}
	default:
		return errors.New("want --user NAME or --all")
	}
	status, answer, err := callAdmin(ctx, environ, http.MethodPost, "/invalidate", body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("the proxy answered %d: %s", status, bytes.TrimSpace(answer))
	}
	_, err = out.Write(answer)
	return err
}
