package upstream

import "bytes"

// Servers disagree on which spellings name the same header: behind CGI and
// servlet bridges X_Auth_Context is X-Auth-Context. So names are
// compared folded: lower case, '_' and '.' as '-', runs of '-' as one. A header
// whose folded name is ours, or belongs to one hop, does not pass.

// defaultContext is the usual name of the context header. It is ours even where
// another or none is sent: the API may trust it.
const defaultContext = "x-cwms-auth-context"

// maxName bounds a folded name; a longer one is cut, so it can still begin like
// one of ours but not be equal to one.
const maxName = 64

// nameChars holds what a byte of a header name folds to; zero marks a byte that
// no name may have (RFC 9110, 5.6.2).
var nameChars = func() (t [256]byte) {
	for c := '0'; c <= '9'; c++ {
		t[c] = byte(c)
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c] = byte(c)
		t[c-'a'+'A'] = byte(c)
	}
	for _, c := range "!#$%&'*+^`|~" {
		t[c] = byte(c)
	}
	t['-'], t['_'], t['.'] = '-', '-', '-'
	return t
}()

// fold writes the folded name to dst and reports whether it is a header name.
func fold(dst *[maxName]byte, name []byte) ([]byte, bool) {
	n := 0
	last := byte(0)
	for _, b := range name {
		c := nameChars[b]
		if c == 0 {
			return nil, false
		}
		if c == '-' && last == '-' {
			continue
		}
		last = c
		if n < maxName {
			dst[n] = c
			n++
		}
	}
	return dst[:n], n > 0
}

// class says what becomes of a header of the client.
type class uint8

const (
	pass class = iota
	drop
	connection
	cookie
	authorization
	forwardedFor
	forwardedProto
	forwardedHost
)

// classify takes a folded name. context is the folded name of the context
// header, nil without.
func classify(name, context []byte) class {
	switch string(name) {
	case "authorization":
		return authorization
	case "cookie":
		return cookie
	case "connection":
		return connection
	case "x-forwarded-for":
		return forwardedFor
	case "x-forwarded-proto":
		return forwardedProto
	case "x-forwarded-host":
		return forwardedHost
	case
		// Written anew from what was parsed.
		"host", "content-length",
		// One hop only (RFC 9110, 7.6.1), and what would change the protocol.
		"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "expect", "proxy",
		// Ours.
		"x-request-id", "x-authorize-secret", "x-test-user", "x-decision", defaultContext,
		// Would let the API see another client, method or path than was decided.
		"forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-http-method-override", "x-http-method", "x-method-override",
		// What gateways tell an API about the user they let through: here that is us.
		"remote-user", "x-remote-user", "x-authenticated-user":
		return drop
	}
	if bytes.Equal(name, context) || ours(name) {
		return drop
	}
	return pass
}

// ours reports whether a folded name is of a family that does not pass.
func ours(name []byte) bool {
	switch name[0] {
	case 'x':
		return bytes.HasPrefix(name, []byte("x-forwarded-")) ||
			bytes.HasPrefix(name, []byte("x-original-")) ||
			bytes.HasPrefix(name, []byte("x-rewrite-"))
	case 'p':
		return bytes.HasPrefix(name, []byte("proxy-"))
	}
	return false
}
