package standin

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
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
	name := flags.String("name", "", "`host:port` that the API is known by: refuse to start when CWMS_API_URL names another")
	hint := flags.String("hint", "", "`URL` of the proxy as clients know it: say how to make a first call there")
	hintWhen := flags.String("hint-when", "", "`URL` that answers 200 when the proxy is ready for it (default: at once)")
	serviceKey := flags.String("service-key", "", "an API key of the user "+ServiceUser+", who may read the profile of others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if err := alone(*name, os.Getenv("CWMS_API_URL")); err != nil {
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
	if *hint != "" {
		go sayHint(ctx, stderr, *hint, s.opts.IssuerURL, *hintWhen)
	}
	return s.Serve(ctx)
}

// alone is an error when the deployment is one of a real API: the stand-in gives
// a token of anybody to everybody, and its issuer must not be believed there.
func alone(name, api string) error {
	if name == "" || api == "" {
		return nil
	}
	if u, err := url.Parse(api); err == nil && u.Host == name {
		return nil
	}
	return fmt.Errorf("cannot run beside a real API: CWMS_API_URL is %q and not the stand-in, which gives tokens to everybody; "+
		"want STANDIN_REPLICAS=0 with JWT_ISSUER and JWT_JWKS_URL of the API's own issuer, or no CWMS_API_URL", api)
}

// sayHint tells how to get a token and read with it, once the proxy answers.
func sayHint(ctx context.Context, w io.Writer, proxy, issuer, when string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	for when != "" {
		res, err := client.Get(when)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
	fmt.Fprintf(w, `
The proxy is ready on %[1]s. Get a token (the password is the user's name), and read with it:

TOKEN=$(curl -s -d grant_type=password -d client_id=cwms -d username=m5hectest -d password=m5hectest %[2]s/protocol/openid-connect/token | sed 's/.*"access_token":"\([^"]*\).*/\1/')
curl -i -H "Authorization: Bearer $TOKEN" '%[1]s/cwms-data/timeseries?name=KEYS.Elev.Inst.1Hour.0.Ccp-Rev&office=SWT'

`, proxy, issuer)
}
