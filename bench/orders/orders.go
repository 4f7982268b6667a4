// Package orders is a second API to guard, as unlike the first as can be: orders
// that belong to tenants, tokens with scopes, a policy of ten lines. Beside the API
// there are its token issuer and, for tests, a control listener that mints tokens,
// rotates the key and tells what reached the API.
//
// It is an example and a test double: tokens are for the asking, so it belongs on
// loopback addresses. All methods are safe for concurrent use.
package orders

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ContextHeader is the header by which the API learns who asks. It believes the
// header, since only the proxy can reach it.
const ContextHeader = "x-orders-context"

// order is all that the API keeps.
type order struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Item   string `json:"item"`
	By     string `json:"by"` // the user of the context header
}

// Seen is a request as it reached the API.
type Seen struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Headers [][2]string `json:"headers"`
	BodyLen int64       `json:"body_len"`
}

// server holds the orders of all tenants.
type server struct {
	issuer *issuer

	mu     sync.Mutex
	orders []order
	made   int // ids given so far
	seen   []Seen
}

const remembered = 1000 // requests that can be looked at afterwards

// Command runs API, issuer and control listener until ctx ends.
func Command(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	api := flags.String("api", "127.0.0.1:7001", "`address` of the API")
	issuer := flags.String("issuer", "127.0.0.1:8080", "`address` of the token issuer")
	control := flags.String("control", "127.0.0.1:7002", "`address` of the control listener: keep it on loopback")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	keys, err := newIssuer("http://" + *issuer)
	if err != nil {
		return err
	}
	s := &server{issuer: keys}
	failed := make(chan error, 3)
	var servers []*http.Server
	for _, part := range []struct {
		address string
		handler http.Handler
	}{{*api, s.api()}, {*issuer, keys.routes()}, {*control, s.control()}} {
		l, err := net.Listen("tcp", part.address)
		if err != nil {
			return fmt.Errorf("cannot listen on %q: %w", part.address, err)
		}
		server := &http.Server{Handler: part.handler, ReadHeaderTimeout: time.Minute}
		servers = append(servers, server)
		go func() { failed <- server.Serve(l) }()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	for _, server := range servers {
		err = errors.Join(err, server.Close())
	}
	return err
}

func (s *server) api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "open"})
	})
	mux.HandleFunc("GET /tenants/{tenant}/orders", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		list := []order{}
		for _, o := range s.orders {
			if o.Tenant == r.PathValue("tenant") {
				list = append(list, o)
			}
		}
		writeJSON(w, http.StatusOK, list)
	})
	mux.HandleFunc("POST /tenants/{tenant}/orders", s.create)
	mux.HandleFunc("GET /tenants/{tenant}/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := s.find(r); i >= 0 {
			writeJSON(w, http.StatusOK, s.orders[i])
			return
		}
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "no such order"})
	})
	mux.HandleFunc("DELETE /tenants/{tenant}/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := s.find(r); i >= 0 {
			s.orders = slices.Delete(s.orders, i, i+1)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.see(r)
		mux.ServeHTTP(w, r)
	})
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	var context struct{ User struct{ ID string } }
	if err := json.Unmarshal([]byte(r.Header.Get(ContextHeader)), &context); err != nil {
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "nobody vouches for this request"})
		return
	}
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil || o.Item == "" {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": `want {"item":"…"}`})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	o.ID, o.Tenant, o.By = strconv.Itoa(s.made), r.PathValue("tenant"), context.User.ID
	s.orders = append(s.orders, o)
	w.Header().Set("Location", "/tenants/"+o.Tenant+"/orders/"+o.ID)
	writeJSON(w, http.StatusCreated, o)
}

// find is the index of the order that the path names, or -1.
func (s *server) find(r *http.Request) int {
	return slices.IndexFunc(s.orders, func(o order) bool {
		return o.Tenant == r.PathValue("tenant") && o.ID == r.PathValue("id")
	})
}

func (s *server) see(r *http.Request) {
	seen := Seen{Method: r.Method, Target: r.RequestURI, BodyLen: r.ContentLength}
	for name, values := range r.Header {
		for _, value := range values {
			seen.Headers = append(seen.Headers, [2]string{name, value})
		}
	}
	slices.SortFunc(seen.Headers, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen[max(0, len(s.seen)+1-remembered):], seen)
}

func (s *server) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, r *http.Request) {
		last, err := strconv.Atoi(r.URL.Query().Get("last"))
		if err != nil {
			last = 1
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		writeJSON(w, http.StatusOK, append([]Seen{}, s.seen[max(0, len(s.seen)-last):]...))
	})
	mux.HandleFunc("DELETE /seen", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = nil
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		writeJSON(w, http.StatusOK, map[string]int{"requests": len(s.seen)})
	})
	mux.HandleFunc("POST /tokens", func(w http.ResponseWriter, r *http.Request) {
		var ask TokenRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&ask); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		token, err := s.issuer.mint(ask)
		if err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"token": token})
	})
	mux.HandleFunc("POST /keys/rotate", func(w http.ResponseWriter, _ *http.Request) {
		kid, err := s.issuer.rotate()
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"kid": kid})
	})
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has left
}
