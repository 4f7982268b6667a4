package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/rs/zerolog"

	"headgate/proxy/cache"
)

// Config is every setting, read from the environment once at start. Tags: env is
// the variable, envDefault its default, doc the line of the README's table,
// secret marks values that are never shown and may come from <NAME>_FILE.
type Config struct {
	Port       int          `env:"PORT" envDefault:"3001" doc:"port of the public listener; 0 takes a free one"`
	Host       string       `env:"HOST" envDefault:"0.0.0.0" doc:"address of the public listener"`
	LogLevel   logLevel     `env:"LOG_LEVEL" envDefault:"info" doc:"of what is said on stderr: debug, info, warn or error. Decision records on stdout are always written"`
	AdminAddr  string       `env:"ADMIN_ADDR" envDefault:"127.0.0.1:9091" doc:"address of the admin listener"`
	AdminToken secretString `env:"ADMIN_TOKEN" secret:"true" doc:"bearer token for /invalidate and /explain, and for everything but /livez, /readyz and /metrics when ADMIN_ADDR is not loopback"`
	AdminPprof bool         `env:"ADMIN_PPROF" envDefault:"false" doc:"serve /debug/pprof/ on the admin listener"`

	Upstream        httpURL `env:"UPSTREAM_URL" envDefault:"http://localhost:7001/cwms-data" doc:"the API; its path is the prefix that is guarded. CWMS_API_URL is another name for it"`
	UpstreamTimeout millis  `env:"UPSTREAM_TIMEOUT" envDefault:"300000" doc:"ms to the first byte of an answer of the API"`
	UpstreamHeader  size    `env:"UPSTREAM_HEADER_MAX" envDefault:"32KiB" doc:"most bytes of request line and headers together that the API takes, ours counted in: Tomcat's maxHttpHeaderSize, 8KiB unless set there"`
	UpstreamCA      string  `env:"UPSTREAM_CA" doc:"PEM file of certificates that the API's certificate must lead to; reloaded when changed"`
	APITimeout      millis  `env:"CWMS_API_TIMEOUT" envDefault:"30000" doc:"ms for profile and readiness calls"`

	OPA           opaURL        `env:"OPA_URL" envDefault:"http://localhost:8181" doc:"the OPA server, also unix:///path/of/socket"`
	OPAPath       string        `env:"OPA_POLICY_PATH" envDefault:"/v1/data/cwms/authz/decision" doc:"the rule that decides: an object or a boolean"`
	OPATimeout    millis        `env:"OPA_TIMEOUT" envDefault:"1000" doc:"ms for a question, waiting for a slot included"`
	PolicyPoll    time.Duration `env:"POLICY_POLL_INTERVAL" envDefault:"250ms" doc:"how often OPA is asked which policy it runs"`
	PolicyLease   time.Duration `env:"POLICY_LEASE" envDefault:"1s" doc:"how long its answer counts: the most that a cached decision can outlive its policy"`
	Enforce       enforcement   `env:"ENFORCE" envDefault:"true" doc:"report forwards what policy denies, and says so in the record: for adoption only"`
	DebugHeaders  bool          `env:"DEBUG_HEADERS" envDefault:"false" doc:"add X-Decision to every answer"`
	LogInputs     bool          `env:"LOG_INPUTS" envDefault:"false" doc:"add the input document and the constraints to every decision record, for proxy replay"`
	CacheTTL      seconds       `env:"CACHE_TTL_SECONDS" envDefault:"300" doc:"longest life of a cached allow"`
	CacheDenyTTL  seconds       `env:"CACHE_DENY_TTL_SECONDS" envDefault:"30" doc:"longest life of a cached deny"`
	CacheMax      int           `env:"CACHE_MAX_SIZE" envDefault:"100000" doc:"most decisions cached"`
	RoutesFile    string        `env:"ROUTES_FILE" doc:"YAML route table in place of the built-in one of CWMS"`
	ContextHeader string        `env:"CONTEXT_HEADER" envDefault:"x-cwms-auth-context" doc:"name of the header that tells the API the decision; none sends none"`

	Redis          redisURL     `env:"REDIS_URL" envDefault:"redis://localhost:6379" secret:"true" doc:"redis://, rediss://, Sentinel and Cluster forms; set but empty: in-process only"`
	ContextURL     string       `env:"USER_CONTEXT_URL" doc:"where user context is read; default <UPSTREAM_URL>/user/profile; none: verified claims alone; redis: the operator writes user:context:<sub>"`
	ContextLife    seconds      `env:"USER_CONTEXT_TTL_SECONDS" envDefault:"1800" doc:"hard life of a user context"`
	ContextRefresh seconds      `env:"USER_CONTEXT_REFRESH_SECONDS" envDefault:"300" doc:"age at which a background refresh starts"`
	LookupURL      string       `env:"USER_LOOKUP_URL" doc:"where the service key reads a user, with {name} for the name; default <UPSTREAM_URL>/users/{name}?include-roles=true"`
	ServiceKey     secretString `env:"CWMS_API_KEY" secret:"true" doc:"service credential for pre-warming and background refresh"`

	PrewarmFile string `env:"PREWARM_FILE" doc:"names of users, one a line, whose contexts are read at start, with the service key"`

	AuthMode  authMode `env:"AUTH_MODE" envDefault:"jwt" doc:"none: no token is accepted (keys and sessions are); must be said aloud to start without JWT_ISSUER"`
	Issuer    string   `env:"JWT_ISSUER" doc:"exact issuer of accepted tokens"`
	JWKS      httpURL  `env:"JWT_JWKS_URL" doc:"where the issuer publishes its keys"`
	Audience  list     `env:"JWT_AUDIENCE" doc:"audiences of which a token must name one, separated by commas; unset: not checked, with one warning"`
	Claims    list     `env:"JWT_CLAIMS" doc:"claims passed to policy as user.claims, separated by commas"`
	TestUsers bool     `env:"TEST_USERS" envDefault:"false" doc:"accept x-test-user: gives anybody any identity; loopback HOST only"`
	Bypass    bool     `env:"BYPASS_AUTH" envDefault:"false" doc:"not supported: true is a start-up error"`

	AuthorizeSecret secretString `env:"AUTHORIZE_SECRET" secret:"true" doc:"who sends it may name a user in POST /authorize"`

	BodyMax          size     `env:"BODY_MAX" envDefault:"0" doc:"largest request body, such as 64MiB; 0: no limit"`
	BodyInspectMax   size     `env:"BODY_INSPECT_MAX" envDefault:"16MiB" doc:"largest body that is read for its attributes"`
	BodyInspectTotal size     `env:"BODY_INSPECT_TOTAL" envDefault:"128MiB" doc:"all such bodies together"`
	Origins          list     `env:"CORS_ORIGINS" doc:"origins whose pages may use the API with credentials, separated by commas"`
	TrustedProxies   prefixes `env:"TRUSTED_PROXIES" doc:"addresses or CIDR ranges whose X-Forwarded-* are believed, separated by commas"`
	TLSCert          string   `env:"TLS_CERT" doc:"PEM certificate of the public listener; reloaded when changed"`
	TLSKey           string   `env:"TLS_KEY" doc:"its PEM key"`

	ShutdownDelay   time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s" doc:"how long to serve on, unready, after SIGTERM"`
	ShutdownTimeout time.Duration `env:"SHUTDOWN_TIMEOUT" envDefault:"310s" doc:"how long requests in flight may take after that"`
}

// aliases are other names of settings, kept from the earlier proxy.
var aliases = map[string]string{"CWMS_API_URL": "UPSTREAM_URL"}

// LoadConfig reads the settings. The error holds every fault, one a line, each
// with the variable, its value unless secret, and what is accepted. Warnings are
// about settings that have no effect.
func LoadConfig(environ []string) (c Config, warnings []string, err error) {
	vars := env.ToMap(environ)
	faults := prepare(vars)
	// env skips variables that are set to nothing when there is a default; of
	// REDIS_URL that is a value of its own.
	redis, given := vars["REDIS_URL"]
	bad := map[string]bool{} // settings that hold their zero for want of a value
	if err := env.ParseWithOptions(&c, env.Options{Environment: vars}); err != nil {
		faults = append(faults, explain(err, vars, bad)...)
	}
	if given && redis == "" {
		c.Redis = ""
	}
	for _, f := range c.check() {
		if name := f[:strings.IndexAny(f, "=: ")]; !bad[name] {
			faults = append(faults, f)
		}
	}
	if vars["OPA_WHITELIST_ENDPOINTS"] != "" {
		warnings = append(warnings, "OPA_WHITELIST_ENDPOINTS is ignored: every request is decided; what is public is a rule in policy")
	}
	if c.AuthMode == "jwt" && len(c.Audience) == 0 {
		warnings = append(warnings, "JWT_AUDIENCE is not set: tokens that the issuer made for other services are accepted")
	}
	if len(faults) > 0 {
		return c, warnings, errors.New(strings.Join(faults, "\n"))
	}
	return c, warnings, nil
}

// prepare resolves aliases and reads secrets from files.
func prepare(vars map[string]string) (faults []string) {
	for alias, name := range aliases {
		switch value, ok := vars[alias]; {
		case !ok:
		case vars[name] != "" && vars[name] != value:
			faults = append(faults, fmt.Sprintf("%s=%q and %s=%q differ: want one of them", alias, value, name, vars[name]))
		default:
			vars[name] = value
		}
	}
	for _, s := range settings() {
		file := vars[s.Name+"_FILE"]
		if !s.Secret || file == "" {
			continue
		}
		content, err := os.ReadFile(file)
		switch {
		case vars[s.Name] != "":
			faults = append(faults, fmt.Sprintf("%s and %s_FILE are both set: want one of them", s.Name, s.Name))
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s_FILE=%q: %v", s.Name, file, err))
		case len(bytes.TrimSpace(content)) == 0:
			faults = append(faults, fmt.Sprintf("%s_FILE=%q: want a secret in it, it is empty", s.Name, file))
		default:
			vars[s.Name] = strings.TrimRight(string(content), "\r\n")
		}
	}
	return faults
}

// explain turns env's errors into lines that name the variable, and notes it in bad.
func explain(err error, vars map[string]string, bad map[string]bool) (faults []string) {
	var all env.AggregateError
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	byField := map[string]setting{}
	for _, s := range settings() {
		byField[s.field] = s
	}
	for _, err := range all.Errors {
		var parse env.ParseError
		if !errors.As(err, &parse) {
			faults = append(faults, err.Error())
			continue
		}
		s := byField[parse.Name]
		bad[s.Name] = true
		value := fmt.Sprintf("=%q", vars[s.Name])
		if s.Secret {
			value = ""
		}
		faults = append(faults, fmt.Sprintf("%s%s: %s", s.Name, value, want(parse)))
	}
	return faults
}

// want says what is accepted where the type's own error does not.
func want(e env.ParseError) string {
	switch e.Type {
	case reflect.TypeFor[bool]():
		return "want true or false"
	case reflect.TypeFor[int]():
		return "want a whole number"
	case reflect.TypeFor[time.Duration]():
		return "want a duration such as 250ms, 1s or 5m"
	}
	return e.Err.Error()
}

// check looks at what no setting can know alone.
func (c *Config) check() (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if c.Port < 0 || c.Port > 65535 {
		fault("PORT=%d: want 0 to 65535", c.Port)
	}
	if c.UpstreamHeader < 4<<10 || c.UpstreamHeader > 1<<20 {
		fault("UPSTREAM_HEADER_MAX=%d: want 4KiB to 1MiB", c.UpstreamHeader)
	}
	if c.Upstream.RawQuery != "" {
		fault("UPSTREAM_URL=%q: want no query", c.Upstream.url())
	}
	if c.Bypass {
		fault("BYPASS_AUTH=true: not supported, since it would forward every request undecided while OPA is away; ENFORCE=report shows what policy would deny without denying it")
	}
	if c.AuthMode == "jwt" {
		if c.Issuer == "" {
			fault("JWT_ISSUER: want the issuer of your tokens, or AUTH_MODE=none to accept none")
		}
		if c.JWKS.Host == "" && c.Issuer != "" {
			fault("JWT_JWKS_URL: want the URL of the issuer's keys")
		}
	}
	if !loopback(c.Host) && c.TestUsers {
		fault("TEST_USERS=true: want HOST to be a loopback address, since it gives anybody any identity; HOST=%q", c.Host)
	}
	if c.TestUsers && len(c.TrustedProxies) > 0 {
		fault("TEST_USERS=true: want TRUSTED_PROXIES unset, since requests would come from elsewhere")
	}
	host, port, err := net.SplitHostPort(c.AdminAddr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		fault("ADMIN_ADDR=%q: want host:port", c.AdminAddr)
	} else if !loopback(host) && c.AdminToken == "" {
		fault("ADMIN_TOKEN: want a token, since ADMIN_ADDR=%q can be reached from elsewhere", c.AdminAddr)
	}
	for name, d := range map[string]time.Duration{
		"POLICY_POLL_INTERVAL": c.PolicyPoll, "POLICY_LEASE": c.PolicyLease, "OPA_TIMEOUT": time.Duration(c.OPATimeout),
		"UPSTREAM_TIMEOUT": time.Duration(c.UpstreamTimeout), "CWMS_API_TIMEOUT": time.Duration(c.APITimeout), "SHUTDOWN_TIMEOUT": c.ShutdownTimeout,
	} {
		if d <= 0 {
			fault("%s=%v: want more than 0", name, d)
		}
	}
	if c.ShutdownDelay < 0 {
		fault("SHUTDOWN_DELAY=%v: want 0 or more", c.ShutdownDelay)
	}
	if !strings.HasPrefix(c.OPAPath, "/") {
		fault("OPA_POLICY_PATH=%q: want a path such as /v1/data/cwms/authz/decision", c.OPAPath)
	}
	if c.PolicyLease > 0 && c.PolicyPoll >= c.PolicyLease {
		fault("POLICY_POLL_INTERVAL=%v: want less than POLICY_LEASE=%v, or every lease runs out", c.PolicyPoll, c.PolicyLease)
	}
	if c.ContextLife < 1 {
		fault("USER_CONTEXT_TTL_SECONDS=%d: want 1 or more", c.ContextLife)
	}
	if c.ContextRefresh < 1 {
		fault("USER_CONTEXT_REFRESH_SECONDS=%d: want 1 or more", c.ContextRefresh)
	}
	if c.ContextLife > 0 && c.ContextRefresh > c.ContextLife {
		fault("USER_CONTEXT_REFRESH_SECONDS=%d: want at most USER_CONTEXT_TTL_SECONDS=%d", c.ContextRefresh, c.ContextLife)
	}
	if c.CacheMax < 1 {
		fault("CACHE_MAX_SIZE=%d: want 1 or more", c.CacheMax)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		fault("TLS_CERT and TLS_KEY: want both or none")
	}
	if !strings.EqualFold(c.ContextHeader, "none") && !headerName.MatchString(c.ContextHeader) {
		fault("CONTEXT_HEADER=%q: want the name of a header, or none", c.ContextHeader)
	}
	switch {
	case c.ContextURL == "" || c.ContextURL == "none":
	case c.ContextURL == "redis":
		if c.Redis == "" {
			fault("USER_CONTEXT_URL=redis: want REDIS_URL, too")
		}
	default:
		if _, err := parseHTTP(c.ContextURL); err != nil {
			fault("USER_CONTEXT_URL=%q: %v, or none, or redis", c.ContextURL, err)
		}
	}
	if c.PrewarmFile != "" && c.ServiceKey == "" {
		fault("PREWARM_FILE=%q: want CWMS_API_KEY, too", c.PrewarmFile)
	}
	if c.LookupURL != "" {
		if _, err := parseHTTP(c.LookupURL); err != nil {
			fault("USER_LOOKUP_URL=%q: %v", c.LookupURL, err)
		} else if !strings.Contains(c.LookupURL, "{name}") {
			fault("USER_LOOKUP_URL=%q: want {name} where the name of the user goes", c.LookupURL)
		}
	}
	for _, o := range c.Origins {
		if u, err := url.Parse(o); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			fault("CORS_ORIGINS: %q: want origins such as https://maps.example.org", o)
		}
	}
	slices.Sort(faults)
	return faults
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// Prefix is the guarded path, such as "/v2", or "" for an API at the root.
func (c *Config) Prefix() string { return strings.TrimSuffix(c.Upstream.Path, "/") }

// OwnPrefix is where this proxy's own endpoints live: the root, unless that is the
// API's.
func (c *Config) OwnPrefix() string {
	if c.Prefix() == "" {
		return "/-"
	}
	return ""
}

// below is a path of the API as a URL.
func (c *Config) below(path string) string {
	u := url.URL(c.Upstream)
	return u.Scheme + "://" + u.Host + c.Prefix() + path
}

// setting describes one setting, for the help text and the README.
type setting struct {
	Name, Default, Doc string
	Secret             bool
	field              string
}

func settings() (all []setting) {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		f := t.Field(i)
		all = append(all, setting{
			Name: f.Tag.Get("env"), Default: f.Tag.Get("envDefault"), Doc: f.Tag.Get("doc"),
			Secret: f.Tag.Get("secret") != "", field: f.Name,
		})
	}
	return all
}

// The types of settings. Each says in its error what it accepts.

type secretString string

func (secretString) String() string   { return "[secret]" }
func (secretString) GoString() string { return "[secret]" }

type logLevel zerolog.Level

func (l *logLevel) UnmarshalText(b []byte) error {
	level, err := zerolog.ParseLevel(string(b))
	if err != nil || level < zerolog.DebugLevel || level > zerolog.ErrorLevel {
		return errors.New("want debug, info, warn or error")
	}
	*l = logLevel(level)
	return nil
}

type millis time.Duration

func (m *millis) UnmarshalText(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 32)
	if err != nil || n < 0 {
		return errors.New("want a whole number of milliseconds")
	}
	*m = millis(time.Duration(n) * time.Millisecond)
	return nil
}

type seconds int

func (s *seconds) UnmarshalText(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 32)
	if err != nil || n < 0 {
		return errors.New("want a whole number of seconds")
	}
	*s = seconds(n)
	return nil
}

func (s seconds) duration() time.Duration { return time.Duration(s) * time.Second }

type size int64

func (s *size) UnmarshalText(b []byte) error {
	digits, unit := string(b), int64(1)
	for suffix, n := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = strings.TrimSpace(rest), n
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 40)
	if err != nil || n < 0 {
		return errors.New("want a number of bytes such as 65536, 64KiB, 16MiB or 2GiB")
	}
	*s = size(n * unit)
	return nil
}

type httpURL url.URL

func (u *httpURL) UnmarshalText(b []byte) error {
	parsed, err := parseHTTP(string(b))
	if err == nil {
		*u = httpURL(*parsed)
	}
	return err
}

func (u *httpURL) url() *url.URL { return (*url.URL)(u) }

func parseHTTP(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("want an http or https URL without user, such as http://localhost:7001/v2")
	}
	return u, nil
}

type opaURL url.URL

func (u *opaURL) UnmarshalText(b []byte) error {
	parsed, err := url.Parse(string(b))
	if err == nil && parsed.Scheme == "unix" && parsed.Host == "" && strings.HasPrefix(parsed.Path, "/") {
		*u = opaURL(*parsed)
		return nil
	}
	if parsed, err = parseHTTP(string(b)); err != nil || strings.Trim(parsed.Path, "/") != "" {
		return errors.New("want http://host:port, https://host:port or unix:///path/of/socket")
	}
	*u = opaURL(*parsed)
	return nil
}

func (u *opaURL) url() *url.URL { return (*url.URL)(u) }

type redisURL string

func (r *redisURL) UnmarshalText(b []byte) error {
	*r = redisURL(b)
	return cache.CheckURL(string(b))
}

func (redisURL) String() string   { return "[secret]" }
func (redisURL) GoString() string { return "[secret]" }

type enforcement string

func (e *enforcement) UnmarshalText(b []byte) error {
	if s := string(b); s != "true" && s != "report" {
		return errors.New("want true or report")
	}
	*e = enforcement(b)
	return nil
}

type authMode string

func (m *authMode) UnmarshalText(b []byte) error {
	if s := string(b); s != "jwt" && s != "none" {
		return errors.New("want jwt or none")
	}
	*m = authMode(b)
	return nil
}

type list []string

func (l *list) UnmarshalText(b []byte) error {
	for item := range strings.SplitSeq(string(b), ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l = append(*l, item)
		}
	}
	return nil
}

type prefixes []netip.Prefix

func (p *prefixes) UnmarshalText(b []byte) error {
	var items list
	_ = items.UnmarshalText(b) // a list has no bad values
	for _, item := range items {
		if addr, err := netip.ParseAddr(item); err == nil {
			*p = append(*p, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return fmt.Errorf("want addresses or CIDR ranges such as 10.0.0.0/8, got %q", item)
		}
		*p = append(*p, prefix)
	}
	return nil
}
