// Command health asks OPA whether it is well and has its bundles, for images that
// have no shell:
//
//	health unix:///run/opa/opa.sock
//	health http://127.0.0.1:8181
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "health:", err)
		os.Exit(1)
	}
}

func check(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the URL of OPA, such as http://127.0.0.1:8181 or unix:///path/of/socket")
	}
	base := args[0]
	transport := &http.Transport{DisableKeepAlives: true}
	if socket, ok := strings.CutPrefix(base, "unix://"); ok {
		base = "http://opa"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	res, err := client.Get(base + "/health?bundles")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("OPA answers %s", res.Status)
	}
	return nil
}
