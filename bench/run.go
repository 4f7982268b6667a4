package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"headgate/bench/measure"
	"headgate/bench/report"
)

// runBench measures and writes the page of results, or compares two of them.
func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "fewer points and shorter slices: under 2 minutes instead of under 15")
	out := flags.String("out", filepath.Join(".bin", "results"), "`directory` for results.json, results.md and results.html")
	only := flags.String("only", "", "measure these `tables` alone, separated by commas:\n"+strings.Join(measure.TableIDs(), ", "))
	target := flags.String("target", "", "`URL` of a proxy that runs already; what needs control of its stack is left out")
	issuer := flags.String("issuer", "", "`URL` of the issuer of the target's tokens, which must know the test users")
	compare := flags.Bool("compare", false, "measure nothing: print what changed between two results.json")
	all := flags.Bool("all", false, "with --compare: also what is within noise")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Measure the proxy and write the page of results.\n\n  go run ./bench run [--quick] [--out DIR] [--only TABLES] [--target URL --issuer URL]\n  go run ./bench run --compare BEFORE.json AFTER.json [--all]\n\n")
		flags.PrintDefaults()
	}
	files, err := parse(flags, args)
	if err != nil {
		return err
	}
	if *compare {
		if len(files) != 2 {
			return fmt.Errorf("--compare has %d files: want two, the earlier first", len(files))
		}
		return compareFiles(stdout, files[0], files[1], *all)
	}
	if len(files) > 0 {
		return fmt.Errorf("unknown argument %q", files[0])
	}
	o := measure.Options{
		Quick: *quick, Target: *target, Issuer: *issuer, Progress: stderr,
		Command: strings.TrimSpace("go run ./bench run " + strings.Join(args, " ")),
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	r, err := measure.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := writeResults(*out, r); err != nil {
		return err
	}
	for _, b := range r.Budgets {
		fmt.Fprintf(stdout, "%-13s %s: %s (%s)\n", b.Verdict(), b.Claim, b.Measured, b.Limit)
	}
	fmt.Fprintf(stdout, "%.0f s; see %s\n", r.Seconds, filepath.Join(*out, "results.html"))
	if void := r.Voided(); len(void) > 0 {
		return fmt.Errorf("no numbers for %s", strings.Join(void, ", "))
	}
	return nil
}

// parse takes flags before, between and after the other arguments.
func parse(flags *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
}

func compareFiles(w io.Writer, before, after string, all bool) error {
	var reports [2]*report.Report
	for i, file := range []string{before, after} {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		reports[i], err = report.Read(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("cannot read %q: %w", file, err)
		}
	}
	changes, doubts := report.Compare(reports[0], reports[1])
	return report.WriteChanges(w, changes, doubts, all)
}

func writeResults(dir string, r *report.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for name, write := range map[string]func(io.Writer) error{"results.json": r.WriteJSON, "results.md": r.WriteMarkdown, "results.html": r.WriteHTML} {
		var b bytes.Buffer
		err := write(&b)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
