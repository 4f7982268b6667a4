package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// hub is what OPA talks to: it serves the bundle file with an ETag, without
// which each poll would activate it anew, and passes OPA's status reports on to
// every proxy, since OPA has one address for them.
type hub struct {
	file   string
	server *http.Server
	client *http.Client
	served chan struct{} // closed when the listener has ended

	admins atomic.Pointer[[]string]
	deaf   atomic.Bool // reports are dropped
	posts  sync.WaitGroup
}

func newHub(l net.Listener, file string) *hub {
	h := &hub{file: file, client: &http.Client{Transport: &http.Transport{}, Timeout: 2 * time.Second}, served: make(chan struct{})}
	h.admins.Store(&[]string{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bundle.tar.gz", h.bundle)
	mux.HandleFunc("POST /opa/status", h.status)
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(h.served)
		_ = h.server.Serve(l) // ends when it is closed
	}()
	return h
}

func (h *hub) close() {
	_ = h.server.Close()
	<-h.served
	h.posts.Wait()
	h.client.CloseIdleConnections()
}

func (h *hub) bundle(w http.ResponseWriter, r *http.Request) {
	b, err := os.ReadFile(h.file)
	if err != nil {
		http.Error(w, "no bundle", http.StatusNotFound)
		return
	}
	sum := sha256.Sum256(b)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	w.Header().Set("Content-Type", "application/gzip")
	http.ServeContent(w, r, "bundle.tar.gz", time.Time{}, bytes.NewReader(b))
}

// status answers at once: a proxy that hangs must not hold up OPA.
func (h *hub) status(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	if err != nil || h.deaf.Load() {
		return
	}
	for _, admin := range *h.admins.Load() {
		h.posts.Go(func() {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, admin+"/opa/status", bytes.NewReader(body))
			if err != nil {
				return
			}
			req.Header = r.Header.Clone()
			res, err := h.client.Do(req)
			if err != nil {
				return // as lost as any report may be
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		})
	}
}
