package identity

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"

	"headgate/proxy/authz"
)

var (
	tokenHits   = metrics.NewCounter(`authorizer_proxy_token_cache_hits_total`)
	tokenMisses = metrics.NewCounter(`authorizer_proxy_token_cache_misses_total`)
)

// reason is why a credential was refused: a label for the operator, a text for
// the client. It is an error, so that it passes through the parser of tokens.
type reason struct {
	text    string
	refused *metrics.Counter
}

func newReason(label, text string) *reason {
	return &reason{text, metrics.NewCounter(fmt.Sprintf(`authorizer_proxy_credentials_refused_total{reason=%q}`, label))}
}

var (
	tokensOff       = newReason("tokens_off", "bearer tokens are not accepted here")
	tokenMalformed  = newReason("malformed", "the token is malformed")
	tokenHeader     = newReason("header", "the token's header is not acceptable")
	tokenType       = newReason("type", "this is not an access token")
	tokenBound      = newReason("bound", "the token is bound to its sender, which is not supported")
	tokenIncomplete = newReason("incomplete", "the token lacks a required claim")
	tokenKey        = newReason("key", "the token's signing key is not known")
	tokenSignature  = newReason("signature", "the token's signature is not valid")
	tokenIssuer     = newReason("issuer", "the token is of another issuer")
	tokenAudience   = newReason("audience", "the token is for another audience")
	tokenExpired    = newReason("expired", "the token has expired")
	tokenEarly      = newReason("early", "the token is not valid yet")
	badKey          = newReason("api_key", "this cannot be an API key")
	badSession      = newReason("session", "this cannot be a session cookie")
)

func (r *reason) Error() string { return r.text }

// refuse counts the refusal. The cause must not quote the credential.
func (r *reason) refuse(cause error) *authz.Refusal {
	r.refused.Inc()
	return authz.Refuse(authz.ErrUnauthenticated, "%s", r.text).Because(cause)
}
