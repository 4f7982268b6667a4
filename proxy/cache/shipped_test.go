package cache

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/proxy/cache/redistest"
)

func TestShippedRedis(t *testing.T) {
	server := redistest.Shipped(t, "redis.conf", nil)
	r, heard := open(t, "redis://proxy:headgate@"+server.Addr)
	if r.Away() || !r.Tracking() {
		t.Fatalf("said %q", heard)
	}
	// It keeps nothing.
	if err := r.Set(t.Context(), "user:a", "1", time.Hour); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.Start()
	redistest.Eventually(t, "Redis is back", func() bool { v, err := r.Load("user:a", time.Minute, false); return err == nil && v.Text == "" })
}

// The users of every form are those of the single server, and more.
func TestShippedUsersAgree(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(redistest.Config(t, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	single := read("users.acl")
	for _, file := range []string{"sentinel/users.acl", "cluster/users.acl"} {
		if !strings.HasPrefix(read(file), single) {
			t.Errorf("the users of %s are others", file)
		}
	}
}

// Three servers and three Sentinels with the files as they are shipped: a failover
// works with the permissions that their users have.
func TestShippedSentinel(t *testing.T) {
	first, _, url := redistest.HighAvailability(t)
	r, heard := open(t, url)
	redistest.Eventually(t, "Redis takes writes", func() bool { return r.Set(t.Context(), "user:a", "1", time.Hour) == nil })
	before, err := r.RunID(t.Context(), "user:a")
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.DeleteEverywhere(t.Context(), "user:a")
	if want := (Deletion{Was: true, Replicas: 2, Acknowledged: 2}); d != want || err != nil {
		t.Errorf("got %+v, %v", d, err)
	}

	first.Kill()
	start := time.Now()
	redistest.Eventually(t, "another process answers", func() bool {
		now, err := r.RunID(t.Context(), "user:a")
		return err == nil && now != before && r.Set(t.Context(), "user:a", "2", time.Hour) == nil
	})
	t.Logf("after %v; said %q", time.Since(start).Round(time.Millisecond), heard)
}

func TestShippedCluster(t *testing.T) {
	var nodes []*redistest.Server
	create := []string{"--user", "cluster", "--pass", "cluster", "--no-auth-warning", "--cluster", "create"}
	for range 3 {
		s := redistest.Shipped(t, "cluster/redis.conf", []string{"/tmp/nodes.conf", t.TempDir() + "/nodes.conf"})
		nodes = append(nodes, s)
		create = append(create, s.Addr)
	}
	nodes[0].Do(append(create, "--cluster-yes")...)
	r, heard := open(t, "redis://proxy:headgate@"+nodes[0].Addr+"?addr="+nodes[1].Addr+"&addr="+nodes[2].Addr)
	for i := range 20 {
		key := fmt.Sprint("user:", i)
		redistest.Eventually(t, "a key is kept on some node", func() bool { return r.Set(t.Context(), key, "1", time.Hour) == nil })
		if v := load(t, r, key); v != "1" {
			t.Errorf("%s is %q, said %q", key, v, heard)
		}
	}
	found := map[string]bool{}
	err := r.Keys(t.Context(), "user:1", func(keys []string) error {
		for _, key := range keys {
			found[key] = true
		}
		return nil
	})
	if len(found) != 11 || err != nil { // 1 and 10 to 19
		t.Errorf("found %v, %v", found, err)
	}
}

// rediss:// checks the certificate of the server against the roots of the system.
func TestRedisTLS(t *testing.T) {
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfSigned(t, certificate, key)
	server := redistest.Start(t)
	port := redistest.Free(t)
	for _, set := range [][2]string{{"tls-cert-file", certificate}, {"tls-key-file", key}, {"tls-ca-cert-file", certificate}, {"tls-auth-clients", "no"}, {"tls-port", port}} {
		if out := server.Do("config", "set", set[0], set[1]); out != "OK" {
			t.Fatalf("%s: %s", set[0], out)
		}
	}

	unchecked, _ := open(t, "rediss://127.0.0.1:"+port+"?skip_verify=1")
	redistest.Eventually(t, "Redis is found", func() bool { return !unchecked.Away() && unchecked.Tracking() })
	checked, heard := open(t, "rediss://127.0.0.1:"+port)
	if !checked.Away() {
		t.Errorf("a certificate that nobody signed is accepted, said %q", heard)
	}
}

func selfSigned(t *testing.T, certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
