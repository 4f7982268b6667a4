// Command bench runs the proxy with all that it needs on one machine: a local
// stack to try it out, the stand-in API and load, and the page of results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"headgate/bench/orders"
	"headgate/bench/standin"
)

const usage = `Headgate on one machine.

  go run ./bench up        start Redis, OPA, the stand-in API and the proxy
  go run ./bench run       measure, and write the page of results
  go run ./bench standin   start the stand-in API alone
  go run ./bench orders    start the orders API, the second example, alone
  bench healthcheck URL    exit 0 if that answers 200, in an image without a shell

Each command lists its flags with --help.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
		args = args[1:]
	}
	switch command {
	case "up":
		endWithGoRun()
		return up(ctx, args, stdout, stderr)
	case "run":
		endWithGoRun()
		return runBench(ctx, args, stdout, stderr)
	case "standin":
		return standin.Command(ctx, args, stderr)
	case "orders":
		return orders.Command(ctx, args, stderr)
	case "healthcheck":
		return healthcheck(ctx, args)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	fmt.Fprint(stderr, usage)
	if command == "" {
		return errors.New("want a command")
	}
	return fmt.Errorf("unknown command %q", command)
}

// healthcheck is for the container of the stand-in.
func healthcheck(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("healthcheck: want one URL")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", args[0], res.Status)
	}
	return nil
}
