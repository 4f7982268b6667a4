package pdp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// maxReply bounds an answer of OPA. A decision is a few hundred bytes; the list
// of bundles carries their manifests.
const maxReply = 1 << 20

// opa is the client of one OPA process, over TCP or a Unix socket.
type opa struct {
	client *fasthttp.HostClient
	ask    *fasthttp.URI // of the decision, built once: no request data ever goes into it
	list   *fasthttp.URI // of the list of bundles
	health *fasthttp.URI
	path   string // path of the decision rule, "orders/decision"
}

// newOPA takes http://host:port or unix:///path/of/socket, and the path of the
// rule below the server's root, "/v1/data/…".
func newOPA(address *url.URL, path string, timeout time.Duration, conns int) (*opa, error) {
	rule, ok := strings.CutPrefix(path, "/v1/data/")
	if !ok || rule == "" || strings.ContainsAny(rule, "?#% ") || strings.HasSuffix(rule, "/") {
		return nil, fmt.Errorf("cannot use policy path %q: want /v1/data/<package>/<rule>", path)
	}
	c := &fasthttp.HostClient{
		Addr:                          fasthttp.AddMissingPort(address.Host, address.Scheme == "https"),
		IsTLS:                         address.Scheme == "https",
		MaxConns:                      conns,
		MaxConnDuration:               time.Hour,
		MaxIdleConnDuration:           time.Minute,
		ReadTimeout:                   timeout,
		WriteTimeout:                  timeout,
		MaxResponseBodySize:           maxReply,
		NoDefaultUserAgentHeader:      true,
		DisablePathNormalizing:        true,
		DisableHeaderNamesNormalizing: true,
		DialTimeout: func(addr string, timeout time.Duration) (net.Conn, error) {
			return net.DialTimeout("tcp", addr, timeout)
		},
		MaxIdemponentCallAttempts: 2,
	}
	// A question changes nothing in OPA, so one retry is safe; it is for the kept
	// connection that OPA closed meanwhile, never for a timeout. The others are
	// likely to be dead as well, so the retry dials.
	c.RetryIfErr = func(_ *fasthttp.Request, _ int, err error) (resetTimeout, retry bool) {
		retry = errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if retry {
			c.CloseIdleConnections()
		}
		return false, retry
	}
	base := address.Scheme + "://" + address.Host
	if address.Scheme == "unix" {
		base, c.Addr = "http://opa", "opa"
		c.DialTimeout = func(_ string, timeout time.Duration) (net.Conn, error) {
			return net.DialTimeout("unix", address.Path, timeout)
		}
	}
	o := &opa{client: c, path: rule}
	for uri, target := range map[**fasthttp.URI]string{
		// A built-in's failure shall be an error that is counted, not a rule that
		// silently does not hold.
		&o.ask:    path + "?provenance=true&strict-builtin-errors=true",
		&o.list:   "/v1/data/system/bundles",
		&o.health: "/health?bundles",
	} {
		*uri = &fasthttp.URI{DisablePathNormalizing: true}
		if err := (*uri).Parse(nil, []byte(base+target)); err != nil {
			return nil, fmt.Errorf("cannot use address %q: %w", address.Redacted(), err)
		}
	}
	return o, nil
}

// call sends one request and hands the body of a 200 to read, which must not
// keep it.
func (o *opa) call(method string, uri *fasthttp.URI, body []byte, deadline time.Time, read func([]byte) error) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod(method)
	req.SetURI(uri)
	if body != nil {
		req.Header.SetContentType("application/json")
		req.SetBodyRaw(body)
	}
	if err := o.client.DoDeadline(req, resp, deadline); err != nil {
		return err
	}
	if resp.StatusCode() != fasthttp.StatusOK {
		return fmt.Errorf("OPA answered %d", resp.StatusCode())
	}
	return read(resp.Body())
}

// poll asks which bundles OPA runs.
// https://www.openpolicyagent.org/docs/management-bundles: data.system.bundles
func (o *opa) poll(deadline time.Time) (b bundles, err error) {
	err = o.call(fasthttp.MethodGet, o.list, nil, deadline, func(body []byte) error {
		b, err = parseBundles(body, o.path)
		return err
	})
	if err != nil || b.loaded {
		return b, err
	}
	// No bundle holds the rule: either it came from files or a push, or its bundle
	// has not been loaded yet. Only the second is unhealthy.
	unhealthy := o.call(fasthttp.MethodGet, o.health, nil, deadline, func([]byte) error { return nil })
	b.loaded = unhealthy == nil
	return b, nil
}

func parseBundles(body []byte, rule string) (bundles, error) {
	var doc struct {
		Result map[string]struct {
			ETag     string `json:"etag"`
			Manifest struct {
				Revision string    `json:"revision"`
				Roots    *[]string `json:"roots"`
			} `json:"manifest"`
		} `json:"result"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return bundles{}, fmt.Errorf("cannot read list of bundles: %w", err)
	}
	if len(doc.Result) == 0 {
		return bundles{uncached: "OPA runs no bundle, so its policy has no revision"}, nil
	}
	b := bundles{revisions: map[string]string{}}
	var tag []string
	for _, name := range slices.Sorted(maps.Keys(doc.Result)) {
		bundle := doc.Result[name]
		m := bundle.Manifest
		b.revisions[name] = m.Revision
		tag = append(tag, fmt.Sprintf("%q=%q %q", name, m.Revision, bundle.ETag))
		if m.Revision == "" {
			b.uncached = fmt.Sprintf("bundle %q has no revision", name)
		}
		// No roots in the manifest means the whole document.
		b.loaded = b.loaded || m.Roots == nil
		if m.Roots != nil {
			for _, root := range *m.Roots {
				b.loaded = b.loaded || root == "" || root == rule || strings.HasPrefix(rule, root+"/")
			}
		}
	}
	if !b.loaded && b.uncached == "" {
		b.uncached = fmt.Sprintf("no bundle has %q under its roots, so the rule can change without a revision", rule)
	}
	b.tag = strings.Join(tag, ";")
	b.revision = revision(b.revisions)
	return b, nil
}

// revision is how a set of bundles is named: the revision of a single bundle, or
// every name with its revision.
func revision(bundles map[string]string) string {
	if len(bundles) == 1 {
		for _, r := range bundles {
			return r
		}
	}
	names := slices.Sorted(maps.Keys(bundles))
	for i, name := range names {
		names[i] = name + "=" + bundles[name]
	}
	return strings.Join(names, ",")
}

// reply is OPA's answer to a question.
type reply struct {
	allow       bool
	reason      string
	constraints json.RawMessage // nil if policy gave none
	life        time.Duration   // what policy allows; negative if it says nothing
	id          string
	revision    string
}

// question puts the question. Any answer but a decision of the right shape is an
// error: undefined, a warning, another status, a body too large or not JSON.
func (o *opa) question(body []byte, deadline time.Time) (r reply, err error) {
	err = o.call(fasthttp.MethodPost, o.ask, body, deadline, func(body []byte) error {
		r, err = parseReply(body)
		return err
	})
	return r, err
}

// errMalformed marks an answer that came but holds no decision.
var errMalformed = errors.New("malformed answer of OPA")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...)
}

// maxLife is the longest lifetime that policy may name, in milliseconds: more is
// taken for a mistake of units.
const maxLife = 7 * 24 * 3600 * 1000

func parseReply(body []byte) (reply, error) {
	// DataResponseV1 of OPA's REST API.
	var doc struct {
		DecisionID string          `json:"decision_id"`
		Result     json.RawMessage `json:"result"`
		Warning    json.RawMessage `json:"warning"`
		Provenance struct {
			Revision string `json:"revision"`
			Bundles  map[string]struct {
				Revision string `json:"revision"`
			} `json:"bundles"`
		} `json:"provenance"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return reply{}, malformed("%v", err)
	}
	if doc.Warning != nil {
		return reply{}, malformed("warning %.200s", doc.Warning)
	}
	r := reply{life: -1, id: doc.DecisionID, revision: doc.Provenance.Revision}
	if doc.Provenance.Bundles != nil {
		revisions := make(map[string]string, len(doc.Provenance.Bundles))
		for name, b := range doc.Provenance.Bundles {
			revisions[name] = b.Revision
		}
		r.revision = revision(revisions)
	}
	switch result := bytes.TrimSpace(doc.Result); {
	case len(result) == 0:
		return reply{}, malformed("the rule is undefined")
	case bytes.Equal(result, []byte("true")):
		r.allow = true
		return r, nil
	case bytes.Equal(result, []byte("false")):
		return r, nil
	case result[0] != '{':
		return reply{}, malformed("want an object or a boolean, got %.40s", result)
	}
	var decision struct {
		Allow       *bool           `json:"allow"`
		Reason      string          `json:"reason"`
		Constraints json.RawMessage `json:"constraints"`
		Cache       struct {
			TTL *float64 `json:"ttl_ms"`
		} `json:"cache"`
	}
	if err := json.Unmarshal(doc.Result, &decision); err != nil {
		return reply{}, malformed("%v", err)
	}
	if decision.Allow == nil {
		return reply{}, malformed("the decision has no allow")
	}
	r.allow, r.reason = *decision.Allow, decision.Reason
	if ttl := decision.Cache.TTL; ttl != nil {
		if *ttl < 0 || *ttl > maxLife {
			return reply{}, malformed("cache.ttl_ms is %v, want 0 to %d", *ttl, maxLife)
		}
		r.life = time.Duration(*ttl * float64(time.Millisecond))
	}
	if c := bytes.TrimSpace(decision.Constraints); len(c) > 0 && !bytes.Equal(c, []byte("null")) {
		if c[0] != '{' {
			return reply{}, malformed("constraints are no object")
		}
		r.constraints = c
	}
	return r, nil
}
