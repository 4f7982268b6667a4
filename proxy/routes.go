package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"headgate/proxy/authz"
	"headgate/proxy/route"
)

// loadRoutes is the route table of the settings: the operator's, or the built-in one.
func loadRoutes(c Config) (*route.Table, error) {
	if c.RoutesFile == "" {
		return route.Default(c.Prefix()), nil
	}
	yaml, err := os.ReadFile(c.RoutesFile)
	if err != nil {
		return nil, fmt.Errorf("ROUTES_FILE: %w", err)
	}
	t, err := route.Load(yaml, c.Prefix())
	if err != nil {
		return nil, fmt.Errorf("ROUTES_FILE=%q:\n%w", c.RoutesFile, err)
	}
	return t, nil
}

// routesCommand prints the table or, given a request line, what the request means
// to policy, attribute by attribute.
func routesCommand(_ context.Context, args, environ []string, out io.Writer) error {
	c, _, _ := LoadConfig(environ) // faults of other settings are none here
	t, err := loadRoutes(c)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return t.Print(out)
	}
	if len(args) > 3 || len(args) == 1 {
		return errors.New("want nothing, or METHOD TARGET and perhaps a file with the body")
	}
	target, err := route.ParseTarget([]byte(args[1]))
	if err != nil {
		return err
	}
	if !t.InPrefix(target.Path) {
		return fmt.Errorf("%s is not below %s", target.Path, c.Upstream.url())
	}
	var m route.Match
	switch err := t.Match(&m, []byte(args[0]), target); {
	case errors.Is(err, authz.ErrMethodNotAllowed):
		return fmt.Errorf("method %q: want GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS", args[0])
	case err != nil:
		return err
	}
	switch {
	case len(args) == 3:
		body, err := os.ReadFile(args[2])
		if err != nil {
			return err
		}
		if err := t.Body(&m, nil, nil, body); err != nil {
			return err
		}
	case m.NeedsBody:
		fmt.Fprintln(out, "The body of this request is read before the decision; name a file to see what it adds.")
	}
	e := m.Explain()
	return e.Print(out)
}
