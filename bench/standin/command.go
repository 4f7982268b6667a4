package standin

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"time"
)

// Command runs a Server by command line arguments until ctx ends.
func Command(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("standin", flag.ContinueOnError)
	flags.SetOutput(stderr)
	api := flags.String("api", "127.0.0.1:7001", "address of the API")
	issuer := flags.String("issuer", "127.0.0.1:8080", "address of the token issuer")
	control := flags.String("control", "127.0.0.1:7002", "address of the control listener: keep it on loopback")
	issuerURL := flags.String("issuer-url", "", "issuer as clients know it (default http://ISSUER"+realmPath+")")
	delay := flags.Duration("profile-delay", 175*time.Millisecond, "time that a profile call takes")
	life := flags.Duration("token-life", 8*time.Hour, "life of a token")
	serviceKey := flags.String("service-key", "", "an API key of the user "+ServiceUser+", who may read the profile of others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := Options{IssuerURL: *issuerURL, ProfileDelay: *delay, TokenLife: *life}
	for _, l := range []struct {
		to      *net.Listener
		address string
	}{{&o.API, *api}, {&o.Issuer, *issuer}, {&o.Control, *control}} {
		var err error
		if *l.to, err = net.Listen("tcp", l.address); err != nil {
			return fmt.Errorf("cannot listen on %q: %w", l.address, err)
		}
	}
	s, err := New(o)
	if err != nil {
		return err
	}
	if *serviceKey != "" {
		if _, err := s.people.newKey(ServiceUser, *serviceKey); err != nil {
			return err
		}
	}
	return s.Serve(ctx)
}
