package main

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"time"

	"headgate/proxy/pep"
)

// listen opens the public listener, with TLS where a certificate is given.
func (p *proxy) listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l = pep.Listen(l)
	if p.config.TLSCert == "" {
		return l, nil
	}
	c := &certificate{cert: p.config.TLSCert, key: p.config.TLSKey}
	if _, err := c.get(nil); err != nil {
		return nil, err
	}
	p.certificate = c
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}), nil
}

// certificate is read again when its file has changed. A new one that cannot be
// read leaves the last good one in place.
type certificate struct {
	cert, key string

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed time.Time
	looked  time.Time
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < time.Second {
		return c.loaded, nil
	}
	c.looked = time.Now()
	info, err := os.Stat(c.cert)
	if err == nil && c.loaded != nil && info.ModTime().Equal(c.changed) {
		return c.loaded, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.cert, c.key); err == nil {
			c.loaded, c.changed = &pair, info.ModTime()
		}
	}
	if c.loaded == nil {
		return nil, err
	}
	return c.loaded, nil
}

// expires is when the certificate ends, in Unix time; 0 if there is none.
func (c *certificate) expires() float64 {
	if c == nil {
		return 0
	}
	pair, err := c.get(nil)
	if err != nil || pair.Leaf == nil {
		return 0
	}
	return float64(pair.Leaf.NotAfter.Unix())
}
