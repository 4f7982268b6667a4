package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"headgate/bench/stack"
	"headgate/proxy/conformance"
)

// The byte strings of package conformance, sent to the program itself: with real
// policy, a real token and the API that forgives nothing.
func TestConformance(t *testing.T) {
	api := conformance.Listen(t)
	api.Silently("/cwms-data/user/profile", `{"user-name":"HECADMIN","roles":{"HQ":["system_admin"]}}`)
	st := stack.New(t, stack.Options{Env: map[string]string{"UPSTREAM_URL": "http://" + api.Addr() + "/cwms-data"}})
	conformance.Run(t, conformance.Target{
		Addr: strings.TrimPrefix(st.Proxy, "http://"), API: api, Auth: bearer(st.Tokens["HECADMIN"]) + "\r\n",
		Allowed: func() int {
			return int(sum(scrape(t, st), `authorizer_proxy_authorization_decisions_total{decision="allow"`))
		},
	})
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
