// Command provider is an OpenID provider whose tokens, keys and grants are made by
// the certified server library github.com/zitadel/oidc, and by none of our code:
// the tests show that the proxy accepts tokens of others. It knows one kind of
// client, which gets JWT access tokens by the client credentials grant, with its
// name as its secret.
//
// It prints its URL, which is the issuer, when it listens, and ends with its input.
// POST /rotate is for the tests: it takes a new signing key, for RS256 or ES256
// (alg), and withdraws the old one unless overlap=true.
package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

func main() {
	log.SetFlags(0)
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}

func serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := new(storage)
	if err := s.rotate(jose.RS256, false); err != nil {
		return err
	}
	issuer := "http://" + l.Addr().String()
	provider, err := op.NewProvider(&op.Config{}, s, op.StaticIssuer(issuer), op.WithAllowInsecure())
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", provider)
	mux.HandleFunc("POST /rotate", func(w http.ResponseWriter, r *http.Request) {
		if err := s.rotate(jose.SignatureAlgorithm(r.FormValue("alg")), r.FormValue("overlap") == "true"); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	fmt.Println(issuer)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(l, mux)
}

// storage is what the library asks for. The methods that it does not have belong to
// grants and endpoints that are not used, and fail in their requests.
type storage struct {
	op.Storage

	mu   sync.Mutex
	keys []key // the last one signs
}

// key is a signing key and, as verifier, its public half.
type key struct {
	id        string
	algorithm jose.SignatureAlgorithm
	private   crypto.Signer
}

func (k key) ID() string                                  { return k.id }
func (k key) SignatureAlgorithm() jose.SignatureAlgorithm { return k.algorithm }
func (k key) Key() any                                    { return k.private }

type verifier struct{ key }

func (v verifier) Algorithm() jose.SignatureAlgorithm { return v.algorithm }
func (verifier) Use() string                          { return "sig" }
func (v verifier) Key() any                           { return v.private.Public() }

func (s *storage) rotate(algorithm jose.SignatureAlgorithm, overlap bool) error {
	k := key{id: rand.Text(), algorithm: algorithm}
	var err error
	switch algorithm {
	case jose.RS256:
		k.private, err = rsa.GenerateKey(rand.Reader, 2048)
	case jose.ES256:
		k.private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		err = fmt.Errorf("the algorithm is %q: want RS256 or ES256", algorithm)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !overlap {
		s.keys = nil
	}
	s.keys = append(s.keys, k)
	return nil
}

func (s *storage) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[len(s.keys)-1], nil
}

func (s *storage) KeySet(context.Context) ([]op.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var set []op.Key
	for _, k := range s.keys {
		set = append(set, verifier{k})
	}
	return set, nil
}

func (s *storage) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256}, nil
}

func (s *storage) ClientCredentials(_ context.Context, id, secret string) (op.Client, error) {
	if id == "" || secret != id {
		return nil, errors.New("no such client")
	}
	return client{id: id}, nil
}

func (s *storage) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return request{id, scopes}, nil
}

// request is what a client asked for.
type request struct {
	client string
	scopes []string
}

func (r request) GetSubject() string  { return r.client }
func (request) GetAudience() []string { return nil } // the library names the client
func (r request) GetScopes() []string { return r.scopes }

func (s *storage) CreateAccessToken(context.Context, op.TokenRequest) (id string, expires time.Time, err error) {
	return rand.Text(), time.Now().Add(time.Hour), nil
}

// GetPrivateClaimsFromScopes adds nothing: what the library itself puts into a
// token is enough.
func (s *storage) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	return nil, nil
}

func (s *storage) Health(context.Context) error { return nil }

// client is any client; see storage for what it does not have.
type client struct {
	op.Client
	id string
}

func (c client) GetID() string                     { return c.id }
func (client) GrantTypes() []oidc.GrantType        { return []oidc.GrantType{oidc.GrantTypeClientCredentials} }
func (client) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }
func (client) ClockSkew() time.Duration            { return 0 }

func (client) RestrictAdditionalAccessTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}
