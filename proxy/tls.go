package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"

	"headgate/proxy/pep"
)

// listen opens the public listener, with TLS where a certificate is given.
func (p *proxy) listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("HOST and PORT: %w", err)
	}
	if p.config.TLSCert == "" {
		return pep.Listen(l, nil), nil
	}
	c := &certificate{cert: p.config.TLSCert, key: p.config.TLSKey, said: sayOnce(p.log)}
	if _, err := c.get(nil); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("TLS_CERT and TLS_KEY: %w", err)
	}
	p.certificate = c
	return pep.Listen(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}), nil
}

var failedReload = metrics.NewCounter(metricPrefix + `tls_reload_failures_total{file="tls_cert"}`)

// certificate is read again when its file has changed. A new one that cannot be
// read leaves the last good one in place, and is said and counted.
type certificate struct {
	cert, key string
	said      func(message string)

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
	if err != nil {
		failedReload.Inc()
		c.said("TLS_CERT and TLS_KEY are not read again, the certificate from before stays in use: " + err.Error())
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

// sayOnce returns a function that warns, of what is met again and again once a
// minute. It is safe for concurrent use.
func sayOnce(log zerolog.Logger) func(message string) {
	var mu sync.Mutex
	var last time.Time
	repeated := 0
	return func(message string) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) < time.Minute {
			repeated++
		} else {
			log.Warn().Int("repeated", repeated).Msg(message)
			last, repeated = now, 0
		}
	}
}
