package e2e

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"headgate/bench/stack"
	"headgate/proxy/conformance"
)

// The byte strings of package conformance, sent to the program itself: with real
// policy, a real token and the API that forgives nothing.
func TestConformance(t *testing.T) {
	ca, dir := newAuthority(t, "clients trust it"), t.TempDir()
	cert, key := ca.issue(t, 1, "127.0.0.1")
	secured := map[string]string{"TLS_CERT": filepath.Join(dir, "cert.pem"), "TLS_KEY": filepath.Join(dir, "key.pem")}
	replace(t, secured["TLS_CERT"], cert)
	replace(t, secured["TLS_KEY"], key)
	for _, c := range []struct {
		name string
		env  map[string]string
		with *tls.Config
	}{
		{"plain", map[string]string{}, nil},
		{"TLS", secured, &tls.Config{RootCAs: ca.pool()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := conformance.Listen(t)
			api.Silently("/cwms-data/user/profile", `{"user-name":"HECADMIN","roles":{"HQ":["system_admin"]}}`)
			c.env["UPSTREAM_URL"] = "http://" + api.Addr() + "/cwms-data"
			st := stack.New(t, stack.Options{Env: c.env})
			_, addr, _ := strings.Cut(st.Proxy, "://")
			target := conformance.Target{
				Addr: addr, TLS: c.with, API: api, Auth: bearer(st.Tokens["HECADMIN"]) + "\r\n",
				Allowed: func() int {
					return int(sum(scrape(t, st), `authorizer_proxy_authorization_decisions_total{decision="allow"`))
				},
			}
			conformance.Run(t, target)
			t.Run("mixed", func(t *testing.T) { conformance.Mix(t, target, 200, 2) })
			t.Run("garbled", func(t *testing.T) { conformance.Garble(t, target, 200, 2) })
		})
	}
}

// scrape reads the metrics of the first proxy.
func scrape(t *testing.T, st *stack.Stack) string {
	t.Helper()
	a := send(t, st.Admin, get("/metrics"))
	if a.status != http.StatusOK {
		t.Fatalf("/metrics: %d %s", a.status, a.body)
	}
	return a.body
}

// sum adds up the series whose name begins so.
func sum(metrics, series string) (total float64) {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, series) {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):]), 64)
			total += v
		}
	}
	return total
}
