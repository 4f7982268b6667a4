package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/bench/stack"
)

// authority signs certificates of tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, made, made, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// issue signs a certificate for an address.
func (a *authority) issue(t *testing.T, serial int64, ip string) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.ParseIP(ip)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.cert, own.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// replace writes a file as a certificate manager does: whole, and at once.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".next", content, 0o600), os.Rename(file+".next", file)); err != nil {
		t.Fatal(err)
	}
}

// The public listener's certificate is replaced while clients are connected: none
// of them notices, and new ones see the new one.
func TestTLSListener(t *testing.T) {
	ca := newAuthority(t, "clients trust it")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	put := func(serial int64) {
		cert, key := ca.issue(t, serial, "127.0.0.1")
		replace(t, keyFile, key)
		replace(t, certFile, cert)
	}
	put(11)
	st := stack.New(t, stack.Options{Env: map[string]string{"TLS_CERT": certFile, "TLS_KEY": keyFile}})
	addr := strings.TrimPrefix(st.Proxy, "https://")
	secure := &tls.Config{RootCAs: ca.pool(), NextProtos: []string{"h2", "http/1.1"}}
	connect := func() *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", addr, secure)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(deadline))
		return c
	}
	ask := func(c net.Conn, br *bufio.Reader) (int, error) {
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", reading, bearer(st.Tokens["M5HECTEST"])); err != nil {
			return 0, err
		}
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, err
	}

	kept := connect()
	defer kept.Close()
	keptReader := bufio.NewReader(kept)
	if status, err := ask(kept, keptReader); status != http.StatusOK || err != nil {
		t.Fatalf("%d, %v", status, err)
	}
	if state := kept.ConnectionState(); state.Version < tls.VersionTLS12 || state.NegotiatedProtocol == "h2" {
		t.Errorf("TLS %x, protocol %q", state.Version, state.NegotiatedProtocol)
	}
	seen, err := st.Seen(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := seen[0].Header("X-Forwarded-Proto"); len(got) != 1 || got[0] != "https" {
		t.Errorf("X-Forwarded-Proto %q", got)
	}

	// What is no TLS 1.2 is no connection.
	if c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ca.pool(), MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is accepted")
		c.Close()
	}
	if a, err := try("http://"+addr, get(reading, bearer(st.Tokens["M5HECTEST"]))); err == nil && a.status == http.StatusOK {
		t.Errorf("without TLS: %d", a.status)
	}

	// Requests go on, on kept and on new connections, while the files change.
	var failed, sent atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			var c *tls.Conn
			var br *bufio.Reader
			for i := 0; ; i++ {
				select {
				case <-stop:
					if c != nil {
						c.Close()
					}
					return
				default:
				}
				if c == nil || n%2 == 0 && i%10 == 0 {
					if c != nil {
						c.Close()
					}
					var err error
					if c, err = tls.Dial("tcp", addr, secure); err != nil {
						failed.Add(1)
						t.Errorf("a new connection: %v", err)
						return
					}
					br = bufio.NewReader(c)
				}
				_ = c.SetDeadline(time.Now().Add(deadline))
				if status, err := ask(c, br); status != http.StatusOK || err != nil {
					failed.Add(1)
					t.Errorf("%d, %v", status, err)
					return
				}
				sent.Add(1)
			}
		})
	}
	serial := func() int64 {
		c := connect()
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	for n := int64(12); n < 14; n++ {
		put(n)
		await(t, "the new certificate", func() bool { return serial() == n })
	}
	// A broken file leaves the last good certificate in place.
	replace(t, certFile, []byte("nothing"))
	before := sent.Load()
	await(t, "more requests", func() bool { return sent.Load() > before+200 || failed.Load() > 0 })
	if n := serial(); n != 13 {
		t.Errorf("serial %d", n)
	}
	await(t, "the broken file is counted", func() bool {
		serial()
		return sum(scrape(t, st), `authorizer_proxy_tls_reload_failures_total{file="tls_cert"}`) > 1
	})
	if said, err := os.ReadFile(st.Replicas[0].ErrFile()); err != nil || strings.Count(string(said), "TLS_CERT and TLS_KEY are not read again") != 1 {
		t.Errorf("it is not said once: %s, %v", said, err)
	}
	if ends := sum(scrape(t, st), "authorizer_proxy_tls_certificate_expires_seconds "); ends < float64(time.Now().Unix()) || ends > float64(time.Now().Add(time.Hour).Unix()) {
		t.Errorf("the certificate ends at %v", ends)
	}
	close(stop)
	clients.Wait()
	_ = kept.SetDeadline(time.Now().Add(deadline))
	if status, err := ask(kept, keptReader); status != http.StatusOK || err != nil {
		t.Errorf("on the oldest connection: %d, %v", status, err)
	}
	t.Logf("%d requests, %d failed", sent.Load(), failed.Load())
}

// An API by https must show a certificate that leads to UPSTREAM_CA, for forwarded
// requests and for profiles; the file is read again when it has changed.
func TestTLSUpstream(t *testing.T) {
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	pair := func(a *authority, ip string) *tls.Certificate {
		cert, key := a.issue(t, 1, ip)
		made, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return &made
	}
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(pair(first, "127.0.0.1"))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown.Load(), nil },
		SessionTicketsDisabled: true, // each connection proves itself
	})
	if err != nil {
		t.Fatal(err)
	}
	api := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cwms-data/user/profile" {
			io.WriteString(w, `{"user-name":"HECADMIN","roles":{"HQ":["system_admin"]}}`)
			return
		}
		w.Header().Set("Connection", "close") // so that the next request connects anew
		io.WriteString(w, r.Proto)
	})}
	go api.Serve(l)
	t.Cleanup(func() { api.Close() })

	caFile := filepath.Join(t.TempDir(), "ca.pem")
	replace(t, caFile, first.pem())
	st := stack.New(t, stack.Options{Env: map[string]string{"UPSTREAM_URL": "https://" + l.Addr().String() + "/cwms-data", "UPSTREAM_CA": caFile}})
	asked := get(reading, bearer(st.Tokens["HECADMIN"]))
	if a := send(t, st.Proxy, asked); a.status != http.StatusOK || a.body != "HTTP/1.1" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	shown.Store(pair(second, "127.0.0.1"))
	if a := send(t, st.Proxy, asked); a.status != http.StatusBadGateway {
		t.Errorf("a certificate of another authority: %d %s", a.status, a.body)
	}
	replace(t, caFile, second.pem())
	if a := send(t, st.Proxy, asked); a.status != http.StatusOK {
		t.Errorf("after UPSTREAM_CA has changed: %d %s", a.status, a.body)
	}
	redis(t, st.Redis, "DEL", "user:context:hecadmin")
	if a := send(t, st.Proxy, asked); a.status != http.StatusOK {
		t.Errorf("and for the profile: %d %s", a.status, a.body)
	}
	shown.Store(pair(second, "127.0.0.9"))
	if a := send(t, st.Proxy, asked); a.status != http.StatusBadGateway {
		t.Errorf("a certificate for another address: %d %s", a.status, a.body)
	}
}
