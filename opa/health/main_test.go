package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	status := http.StatusOK
	asked := ""
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		w.WriteHeader(status)
	})
	tcp := httptest.NewServer(handler)
	defer tcp.Close()
	socket := filepath.Join(t.TempDir(), "opa.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	file := httptest.NewUnstartedServer(handler)
	file.Listener.Close()
	file.Listener = l
	file.Start()
	defer file.Close()

	for _, url := range []string{tcp.URL, "unix://" + socket} {
		status, asked = http.StatusOK, ""
		if err := check([]string{url}); err != nil || asked != "/health?bundles" {
			t.Errorf("%s: %v, asked %q", url, err, asked)
		}
		status = http.StatusInternalServerError // no bundle yet
		if err := check([]string{url}); err == nil || !strings.Contains(err.Error(), "500") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, args := range [][]string{nil, {"unix://" + socket + ".none"}, {"a", "b"}} {
		if check(args) == nil {
			t.Errorf("%q passes", args)
		}
	}
}
