package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Stats counts what arrived since the start.
type Stats struct {
	ProfileCalls uint64 `json:"profile_calls"` // made by the proxy itself
	KeyCalls     uint64 `json:"key_calls"`
	Requests     uint64 `json:"requests"` // all other API requests
}

// controlRoutes is the control listener. A refused call answers 400 or 404 with
// {"error": text}.
func (s *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()

	// What arrived. ?calls=profile and ?calls=keys show the calls that the proxy
	// makes for itself, which are not among the requests.
	kinds := map[string]*recorder{"": &s.requests, "profile": &s.profiles, "keys": &s.keyCalls}
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, r *http.Request) {
		kind, ok := kinds[r.FormValue("calls")]
		n, err := strconv.Atoi(r.FormValue("last"))
		if r.FormValue("last") == "" {
			n, err = 100, nil
		}
		if !ok || err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, errors.New("want ?last=N, and ?calls=profile or keys for those"))
			return
		}
		writeJSON(w, http.StatusOK, kind.last(n))
	})
	mux.HandleFunc("DELETE /seen", func(w http.ResponseWriter, _ *http.Request) {
		for _, kind := range kinds {
			kind.forget()
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, Stats{
			ProfileCalls: s.profiles.count.Load(), KeyCalls: s.keyCalls.count.Load(), Requests: s.requests.count.Load(),
		})
	})

	// Who there is.
	mux.HandleFunc("PUT /users/{name}", func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = s.people.put(r.PathValue("name"), raw)
		}
		finish(w, nil, err)
	})
	mux.HandleFunc("DELETE /users/{name}", func(w http.ResponseWriter, r *http.Request) {
		found(w, s.people.remove(r.PathValue("name")))
	})

	// Credentials.
	mux.HandleFunc("POST /tokens", func(w http.ResponseWriter, r *http.Request) {
		var ask TokenRequest
		err := read(r, &ask)
		var token string
		if err == nil {
			token, err = s.mint(ask)
		}
		finish(w, map[string]string{"token": token}, err)
	})
	mux.HandleFunc("POST /apikeys", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			User string `json:"user"`
			Key  string `json:"key"` // a key of one's own choice
		}
		err := read(r, &ask)
		var key string
		if err == nil {
			key, err = s.people.newKey(ask.User, ask.Key)
		}
		finish(w, map[string]string{"key": key}, err)
	})
	mux.HandleFunc("DELETE /apikeys/{key}", func(w http.ResponseWriter, r *http.Request) {
		found(w, s.people.withdraw(r.PathValue("key")))
	})
	mux.HandleFunc("POST /sessions", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			User string `json:"user"`
		}
		err := read(r, &ask)
		var id string
		if err == nil {
			id, err = s.people.newSession(ask.User)
		}
		finish(w, map[string]string{"cookie": "JSESSIONIDSSO=" + id}, err)
	})
	mux.HandleFunc("DELETE /sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		found(w, s.people.withdraw(r.PathValue("id")))
	})
	mux.HandleFunc("POST /keys/rotate", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			Overlap bool `json:"overlap"`
		}
		err := read(r, &ask)
		var kid string
		if err == nil {
			kid, err = s.keys.rotate(ask.Overlap)
			s.verified.clear()
		}
		finish(w, map[string]string{"kid": kid}, err)
	})

	// What goes wrong.
	mux.HandleFunc("PUT /fault", func(w http.ResponseWriter, r *http.Request) {
		var fault Fault
		err := read(r, &fault)
		if err == nil {
			err = s.faults.set(fault)
		}
		finish(w, nil, err)
	})
	mux.HandleFunc("DELETE /fault", func(w http.ResponseWriter, _ *http.Request) {
		s.faults.clear()
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// read decodes a JSON body strictly. An empty body is an empty object.
func read(r *http.Request, v any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot read the body: %w", err)
	}
	return nil
}

// finish answers v, or 204 without one, or the error.
func finish(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, errNoUser):
		refuse(w, http.StatusNotFound, err)
	case err != nil:
		refuse(w, http.StatusBadRequest, err)
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, v)
	}
}

func found(w http.ResponseWriter, ok bool) {
	if ok {
		w.WriteHeader(http.StatusNoContent)
	} else {
		refuse(w, http.StatusNotFound, errors.New("not known here"))
	}
}

func refuse(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"error": err.Error()})
}
