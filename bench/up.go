package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"headgate/bench/stack"
)

// up runs a stack until ctx ends. With --json, stdout gets one line when
// everything is ready and nothing else.
func up(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print one line of JSON instead of text")
	replicas := flags.Int("replicas", 1, "`number` of proxies")
	portChoice := flags.String("ports", "fixed", "fixed: those of the documentation; free: any that are free")
	delay := flags.Duration("profile-delay", 175*time.Millisecond, "time that the API takes for a profile")
	example := flags.String("example", "", "another API than the stand-in of CWMS: `orders`")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Start Redis, OPA, the stand-in API and the proxy. The environment variables of the\nproxy pass through to it. Ctrl-C stops everything.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	case *portChoice != "fixed" && *portChoice != "free":
		return fmt.Errorf("--ports=%q: want fixed or free", *portChoice)
	case *replicas < 1:
		return fmt.Errorf("--replicas=%d: want 1 or more", *replicas)
	}
	s, err := stack.Start(ctx, stack.Options{
		Replicas: *replicas, FixedPorts: *portChoice == "fixed", ProfileDelay: *delay, Progress: stderr, Example: *example,
	})
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(s.Info)
	} else {
		err = describe(stdout, s, *example)
	}
	if err == nil {
		stay(ctx, s, stderr)
		fmt.Fprintln(stderr, "stopping")
	}
	if stopped := s.Stop(); stopped != nil {
		fmt.Fprintln(stderr, "bench:", stopped)
	}
	return err
}

// stay waits for the end of ctx and tells meanwhile of processes that end by
// themselves. They are not started again: whoever kills one wants to see what
// happens.
func stay(ctx context.Context, s *stack.Stack, stderr io.Writer) {
	ended := make(chan *stack.Child)
	for _, c := range s.Children() {
		go func() {
			select {
			case <-c.Exited():
				select {
				case ended <- c:
				case <-ctx.Done():
				}
			case <-ctx.Done():
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-ended:
			fmt.Fprintf(stderr, "%s ended; the end of its log:\n%s\n", c.Name, c.Log())
		}
	}
}

// Users of the examples: what they may read is in the policy's own cases.
const (
	reader  = "M5HECTEST"  // manages water, reads at SWT
	revoked = "DATAMGR001" // manages data, reads at SWT until its roles are gone
	series  = "/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office="
)

// example is a command line to paste, with what it shows.
type example struct{ shows, line string }

func examples(s *stack.Stack, of string) []example {
	if of == "orders" {
		return ordersExamples(s)
	}
	get := func(token, office string) string {
		return fmt.Sprintf("-H 'Authorization: Bearer %s' '%s%s%s'", token, s.Proxy, series, office)
	}
	// One command line of four requests: read, take the roles away, say so, read again.
	revocation := "curl -s -o /dev/null -w 'before: %{http_code}\\n' " + get(s.Tokens[revoked], "SWT") +
		fmt.Sprintf(" --next -s -X PUT -d '{\"roles\":{\"SWT\":[\"All Users\"]}}' '%s/users/%s'", s.Control, revoked) +
		fmt.Sprintf(" --next -s -o /dev/null -X POST -H 'Authorization: Bearer %s' -d '{\"user\":\"%s\"}' '%s/invalidate'", s.AdminToken, revoked, s.Admin) +
		" --next -s -o /dev/null -w 'after: %{http_code}\\n' " + get(s.Tokens[revoked], "SWT")
	return []example{
		{"allowed read: " + reader + " at its own office, 200", "curl -s -i " + get(s.Tokens[reader], "SWT")},
		{"denied read: the same user at another office, 403", "curl -s -i " + get(s.Tokens[reader], "SPK")},
		{"bad token: 401, never taken for a guest", "curl -s -i " + get(s.Tokens[reader]+"x", "SWT")},
		{"revocation: 200 before, 403 after " + revoked + " lost its roles", revocation},
	}
}

// ordersExamples show the same of the orders API, where a right ends with its token.
func ordersExamples(s *stack.Stack) []example {
	const clerk = "acme-clerk"
	path := func(tenant string) string { return fmt.Sprintf("'%s/tenants/%s/orders'", s.Proxy, tenant) }
	get := func(token, tenant string) string {
		return fmt.Sprintf("-H \"Authorization: Bearer %s\" %s", token, path(tenant))
	}
	status := func(when string) string {
		return "curl -s -o /dev/null -w '" + when + ": %{http_code}\\n' " + get("$TOKEN", "acme")
	}
	all := []example{
		{"allowed: a clerk orders for its own tenant, 201", "curl -s -i -d '{\"item\":\"a valve\"}' " + get(s.Tokens[clerk], "acme")},
		{"denied: the same clerk reads another tenant's orders, 403", "curl -s -i " + get(s.Tokens[clerk], "globex")},
		{"bad token: 401, never taken for a guest", "curl -s -i " + get(s.Tokens[clerk]+"x", "acme")},
		{"revocation: 200 before, 401 after the token has ended", fmt.Sprintf("TOKEN=$(curl -s -d '{\"user\":\"%s\",\"ttl_s\":5}' '%s/tokens' | cut -d '\"' -f 4); ", clerk, s.Control) +
			status("before") + "; sleep 11; " + status("after")},
	}
	if os.Getenv("USER_CONTEXT_URL") == "redis" {
		all = append(all, example{"revocation at once, by what the operator writes", fmt.Sprintf(`redis-cli -u '%s' SET user:context:%s '{"suspended":true}'`, s.Redis, clerk)})
	}
	return all
}

func describe(w io.Writer, s *stack.Stack, of string) error {
	path, kind := "/cwms-data", "stand-in"
	if of != "" {
		path, kind = "", of
	}
	redis := s.Redis
	if redis == "" {
		redis = "none: each proxy keeps user contexts in its own process"
	}
	text := "Everything runs. Ctrl-C stops it.\n\n"
	for i, url := range s.Proxies {
		text += fmt.Sprintf("  proxy    %s%s\n  admin    %s (ADMIN_TOKEN=%s)\n", url, path, s.Admins[i], s.AdminToken)
	}
	text += fmt.Sprintf("  OPA      %s\n  Redis    %s\n  API      %s%s (%s)\n  issuer   %s (password of a user: its name)\n  control  %s\n  bundle   %s\n",
		s.OPA, redis, s.API, path, kind, s.Issuer, s.Control, s.Bundle)
	for _, e := range examples(s, of) {
		text += "\n# " + e.shows + "\n" + e.line + "\n"
	}
	_, err := fmt.Fprint(w, text)
	return err
}
