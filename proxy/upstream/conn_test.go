package upstream

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// A kept connection ends as the next request comes. What the API has not begun
// to answer is sent again only if that can do no harm.
func TestDeadConnection(t *testing.T) {
	post := "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
	for _, c := range []struct {
		name, request string
		status, seen  int // what the client gets, requests the API has read
	}{
		{"GET", get(""), 200, 3},
		{"HEAD", "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3},
		{"OPTIONS", "OPTIONS /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3},
		{"POST", post, 502, 2},
		{"POST without a body", "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 502, 2},
		{"PUT", strings.Replace(post, "POST", "PUT", 1), 502, 2},
		{"DELETE", "DELETE /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 502, 2},
		{"GET with a body", strings.Replace(post, "POST", "GET", 1), 502, 2},
		{"GET with a streamed body", "GET /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nok\r\n0\r\n\r\n", 502, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := serving(t, func(nc net.Conn, n int) bool {
				if n == 2 { // read, and not answered
					return false
				}
				io.WriteString(nc, strings.TrimSuffix(okAnswer, "ok"))
				if !strings.HasPrefix(c.request, "HEAD") || n == 1 {
					io.WriteString(nc, "ok")
				}
				return true
			})
			p := front(t, config(a.Addr().String()), nil)
			p.send(t, get(""))
			got := p.send(t, c.request)
			if want := fmt.Sprintf("HTTP/1.1 %d ", c.status); !strings.HasPrefix(got, want) {
				t.Errorf("got %q", got)
			}
			if n := len(a.requests()); n != c.seen {
				t.Errorf("the API saw %d requests, want %d", n, c.seen)
			}
		})
	}
}

// Only a kept connection is forgiven, and only once.
func TestRetryOnce(t *testing.T) {
	a := serving(t, func(nc net.Conn, n int) bool {
		if n == 1 {
			io.WriteString(nc, okAnswer)
		}
		return n == 1
	})
	p := front(t, config(a.Addr().String()), nil)
	p.send(t, get(""))
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 502 ") || len(a.requests()) != 3 {
		t.Errorf("the API saw %d requests, the client got %q", len(a.requests()), got)
	}
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 502 ") || len(a.requests()) != 4 {
		t.Errorf("the API saw %d requests, the client got %q", len(a.requests()), got)
	}
}

// The API closes each connection after its answer without saying so: nobody
// notices, writes included.
func TestClosedBehindTheAnswer(t *testing.T) {
	for name, request := range map[string]string{
		"POST, which cannot be repeated":                 "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
		"GET, whose connection is not looked at":         get(""),
		"HEAD, the same":                                 "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"GET of many bytes, which cannot all be written": get("X-Pad: " + strings.Repeat("x", 15<<10) + "\r\n"),
	} {
		for _, reset := range []bool{false, true} {
			closed := make(chan struct{}, 100)
			a := accepting(t, func(_ *api, nc net.Conn) {
				if _, err := readRequest(bufio.NewReader(nc)); err == nil {
					answer := okAnswer
					if strings.HasPrefix(request, "HEAD") {
						answer = strings.TrimSuffix(answer, "ok")
					}
					io.WriteString(nc, answer)
					if reset {
						_ = nc.(*net.TCPConn).SetLinger(0)
					}
					nc.Close()
					closed <- struct{}{}
				}
			})
			p := front(t, config(a.Addr().String()), nil)
			for range 20 {
				got := p.send(t, request)
				switch {
				case strings.HasPrefix(got, "HTTP/1.1 200 "):
				case reset && strings.HasPrefix(got, "HTTP/1.1 502 "):
					// The reset may have overtaken the answer itself.
				default:
					t.Fatalf("%s, reset %v: got %q", name, reset, got)
				}
				<-closed
			}
		}
	}
}

// Bytes that nobody asked for are nobody's answer, whether they come with an
// answer or later.
func TestUnaskedAnswer(t *testing.T) {
	for _, with := range []bool{true, false} {
		const stray = "HTTP/1.1 408 STRAY\r\nContent-Length: 0\r\n\r\n"
		later, sent := make(chan struct{}), make(chan struct{})
		a := serving(t, func(nc net.Conn, n int) bool {
			switch {
			case n > 1:
				io.WriteString(nc, okAnswer)
			case with:
				io.WriteString(nc, okAnswer+stray)
			default:
				io.WriteString(nc, okAnswer)
				<-later
				io.WriteString(nc, stray)
				close(sent)
			}
			return true
		})
		p := front(t, config(a.Addr().String()), nil)
		p.send(t, get(""))
		if close(later); !with {
			<-sent
		}
		got := p.send(t, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		if !strings.HasPrefix(got, "HTTP/1.1 200 ") || a.connections() != 2 {
			t.Errorf("%d connections, got %q", a.connections(), got)
		}
	}
}

// What came unasked after the answer to one user is nobody else's, however soon
// the next one asks.
func TestUnaskedAnswerOfAnother(t *testing.T) {
	bob := authz.NewSubject(&authz.Principal{Method: authz.JWT}, authz.User{ID: "bob"}, time.Time{})
	nobody := authz.NewSubject(&authz.Principal{Method: authz.None}, authz.User{ID: "anonymous"}, time.Time{})
	for _, c := range []struct{ first, second *authz.Subject }{{alice, bob}, {alice, nobody}, {nobody, alice}, {nobody, nobody}} {
		later, sent := make(chan struct{}), make(chan struct{})
		a := serving(t, func(nc net.Conn, n int) bool {
			io.WriteString(nc, okAnswer)
			if n == 1 {
				<-later
				io.WriteString(nc, "HTTP/1.1 200 STRAY\r\nContent-Length: 5\r\n\r\nstray")
				close(sent)
			}
			return true
		})
		who := make(chan *authz.Subject, 2)
		p := front(t, config(a.Addr().String()), func(_ *fasthttp.RequestCtx, g *authz.Grant) { g.Subject = <-who })
		who <- c.first
		p.send(t, get(""))
		close(later)
		<-sent
		// As if no time had passed.
		for i := range p.f.pool.shards {
			for _, kept := range p.f.pool.shards[i].idle {
				kept.idle = time.Now().Add(time.Hour)
			}
		}
		who <- c.second
		if got := p.send(t, get("")); !strings.HasSuffix(got, "\r\n\r\nok") || a.connections() != 2 {
			t.Errorf("%s after %s: %d connections, got %q", c.second.ID, c.first.ID, a.connections(), got)
		}
	}
}

// Many clients, an API that closes, breaks off and answers in every framing:
// nobody gets another's answer, and no write is seen twice.
func TestNoAnswerIsMixedUp(t *testing.T) {
	var mu sync.Mutex
	writes := map[string]int{}
	a := accepting(t, func(_ *api, nc net.Conn) {
		br := bufio.NewReader(nc)
		for n := 0; ; n++ {
			raw, err := readRequest(br)
			if err != nil {
				return
			}
			id := strings.Fields(raw)[1]
			if strings.HasPrefix(raw, "POST") {
				mu.Lock()
				writes[id]++
				mu.Unlock()
			}
			pad := strings.Repeat("x", len(id)*len(id)*n%200_000)
			switch n % 7 {
			case 0, 1:
				fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s%s", len(id)+len(pad), id, pad)
			case 2:
				fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(id), id)
			case 3:
				fmt.Fprintf(nc, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
			case 4:
				return
			case 5:
				fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id)+9, id)
				return
			case 6:
				fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", id)
				return
			}
		}
	})
	p := front(t, config(a.Addr().String()), nil)
	hc := client(t)
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			for n := range 40 {
				id := fmt.Sprintf("/%s-%d-%d", strings.Repeat("p", n%50), i, n)
				method, body := http.MethodGet, ""
				if n%3 == 0 {
					method, body = http.MethodPost, strings.Repeat("b", n*n*100)
				}
				req, _ := http.NewRequest(method, "http://"+p.addr+id, strings.NewReader(body))
				res, err := hc.Do(req)
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode == 200 && err == nil && strings.TrimRight(string(b), "x") != id {
					t.Errorf("%s got the answer %.40q", id, b)
				}
				if res.StatusCode != 200 && res.StatusCode != 502 {
					t.Errorf("%s got status %d", id, res.StatusCode)
				}
			}
		})
	}
	clients.Wait()
	mu.Lock()
	defer mu.Unlock()
	for id, n := range writes {
		if n != 1 {
			t.Errorf("%s was written %d times", id, n)
		}
	}
}

func TestUnreachable(t *testing.T) {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	addr := l.Addr().String()
	l.Close()
	p := front(t, config(addr), nil)
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 502 ") {
		t.Errorf("got %q", got)
	}
	if err := p.f.Ping(context.Background()); err == nil {
		t.Error("Ping says that it is reachable")
	}
	if n := p.f.Open(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
}

// An API that lets connections hang is not waited for longer than its answer
// would be.
func TestBlackHole(t *testing.T) {
	addr := blackHole(t)
	cfg := config(addr)
	cfg.FirstByteTimeout = 100 * time.Millisecond
	p := front(t, cfg, nil)
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 504 ") {
		t.Errorf("got %q", got)
	}
	if err := <-p.errs; !errors.Is(err, authz.ErrUpstreamTimeout) {
		t.Errorf("error %v", err)
	}
	if n := p.f.Open(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
}

// A name whose record changes is followed, by a busy connection at the end of its
// life.
func TestNameIsResolvedAgain(t *testing.T) {
	port := "0"
	for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, port))
		if err != nil {
			t.Skip("two loopback addresses are needed: ", err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, ip) })}
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		t.Cleanup(func() { s.Close(); <-done })
	}
	names := &resolver{}
	names.ip.Store("127.0.0.1")
	p := front(t, config("api.test:"+port), nil)
	p.f.pool.dialer.Resolver, p.f.pool.dialer.DNSCacheDuration = names, time.Millisecond
	servedBy := func(ip string) bool { return strings.HasSuffix(p.send(t, get("")), ip) }
	if !servedBy("127.0.0.1") {
		t.Error("the first address is not used")
	}
	names.ip.Store("127.0.0.2")
	if !servedBy("127.0.0.1") {
		t.Error("the kept connection is not used")
	}
	for i := range p.f.pool.shards {
		for _, c := range p.f.pool.shards[i].idle {
			c.born = time.Now().Add(-connLife)
		}
	}
	eventually(t, func() bool { return servedBy("127.0.0.2") })
}

// resolver gives every name the same address.
type resolver struct{ ip atomic.Value }

func (r *resolver) LookupIPAddr(context.Context, string) ([]net.IPAddr, error) {
	return []net.IPAddr{{IP: net.ParseIP(r.ip.Load().(string))}}, nil
}

// blackHole is an address where connections are neither made nor refused: a
// socket that listens and never accepts, with its queue full.
func blackHole(t *testing.T) (addr string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr = fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	for range 16 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("this system makes connections that nobody accepts without end")
	return ""
}

// Ping connects and asks nothing.
func TestPing(t *testing.T) {
	a := answering(t, okAnswer)
	p := front(t, config(a.Addr().String()), nil)
	if err := p.f.Ping(context.Background()); err != nil {
		t.Error(err)
	}
	if n := len(a.requests()); n != 0 {
		t.Errorf("the API saw %d requests", n)
	}
}

// IPv6 upstreams work, and their name is bracketed in Host.
func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip(err)
	}
	l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p := front(t, config("[::1]:"+port), nil)
	l, err = net.Listen("tcp", "[::1]:"+port)
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		req, _ := readRequest(bufio.NewReader(nc))
		if !strings.Contains(req, "\r\nHost: [::1]:"+port+"\r\n") {
			t.Errorf("the API saw %q", req)
		}
		io.WriteString(nc, okAnswer)
	}()
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("got %q", got)
	}
}

// Beyond MaxConns a request waits a little for a connection to come free, and
// is then told to come back.
func TestAllConnectionsBusy(t *testing.T) {
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	a := serving(t, func(nc net.Conn, _ int) bool {
		arrived <- struct{}{}
		<-release
		_, err := io.WriteString(nc, okAnswer)
		return err == nil
	})
	cfg := config(a.Addr().String())
	cfg.MaxConns = 2
	var users atomic.Int64
	p := front(t, cfg, func(_ *fasthttp.RequestCtx, g *authz.Grant) { // each of somebody else
		g.Subject = authz.NewSubject(&authz.Principal{Method: authz.JWT}, authz.User{ID: fmt.Sprint("user ", users.Add(1))}, time.Time{})
	})
	for i := range p.f.pool.subjects {
		p.f.pool.subjects[i].Store(-100) // whose share is where does not matter here
	}
	var held sync.WaitGroup
	for range 2 {
		held.Go(func() {
			if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
				t.Errorf("got %q", got)
			}
		})
		<-arrived
	}
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 503 ") {
		t.Errorf("got %q", got)
	}
	// Waiting requests are served as the connections come free, also when that
	// is by an end and not by an answer.
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
				t.Errorf("got %q", got)
			}
		})
	}
	eventually(t, func() bool { return p.f.pool.waiting.Load() == 4 })
	close(release)
	waiting.Wait()
	held.Wait()
	if n := a.connections(); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// An API by https: its certificate must lead to the CA file, which is read
// again when it changes.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	oldCA, newCA := newCA(t, "old"), newCA(t, "new")
	var served tls.Certificate
	var mu sync.Mutex
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		return &served, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }),
		ErrorLog: log.New(io.Discard, "", 0),
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	defer func() { s.Close(); <-done }()

	served = oldCA.issue(t)
	cfg := config(l.Addr().String())
	cfg.URL.Scheme = "https"
	cfg.CA = file
	said := make(chan string, 10)
	cfg.Said = func(message string) { said <- message }
	if _, err := New(cfg); err == nil {
		t.Error("a missing CA file is accepted")
	}
	oldCA.write(t, file)
	p := front(t, cfg, nil)
	for range 3 {
		if got := p.send(t, get("")); !strings.HasSuffix(got, "HTTP/1.1") {
			t.Fatalf("got %q", got)
		}
	}
	if n := p.f.Open(); n != 1 {
		t.Errorf("%d connections", n)
	}

	mu.Lock()
	served = newCA.issue(t)
	mu.Unlock()
	p.f.pool.drop(0)
	p.f.pool.tls.last.ClientSessionCache = nil
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 502 ") {
		t.Errorf("a certificate of another CA: got %q", got)
	}
	newCA.write(t, file)
	if got := p.send(t, get("")); !strings.HasSuffix(got, "HTTP/1.1") {
		t.Errorf("after the file changed: got %q", got)
	}
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.f.pool.drop(0)
	failed := failedReload.Get()
	if got := p.send(t, get("")); !strings.HasSuffix(got, "HTTP/1.1") {
		t.Errorf("after the file broke: got %q", got)
	}
	if n := failedReload.Get() - failed; n != 1 || len(said) != 1 || !strings.Contains(<-said, "holds no PEM certificate") {
		t.Errorf("a failed reload is counted %d times", n)
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T, name string) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &authority{ca, key}
}

func (a *authority) write(t *testing.T, file string) {
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(file, append(b, a.cert.Subject.CommonName...), 0o600); err != nil {
		t.Fatal(err)
	}
	// Two files written within one tick of the clock still differ.
	now := time.Now().Add(time.Duration(len(a.cert.Raw)) * time.Second)
	if err := os.Chtimes(file, now, now); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) issue(t *testing.T) tls.Certificate {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "api"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		want   string // part of the error
		change func(*Config)
	}{
		{"neither http nor https", func(c *Config) { c.URL = &url.URL{Scheme: "ftp", Host: "h"} }},
		{"names no host", func(c *Config) { c.URL = &url.URL{Scheme: "http", Host: ":80"} }},
		{"must be positive", func(c *Config) { c.FirstByteTimeout = 0 }},
		{"not a header name", func(c *Config) { c.ContextHeader = "a b" }},
		{"not a header name", func(c *Config) { c.ContextHeader = strings.Repeat("a", maxName) }},
	} {
		cfg := config("h:80")
		c.change(&cfg)
		f, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if f != nil {
			f.Close()
		}
	}
}

// One subject has half of the connections, and so have strangers together; what
// they give back counts again, however the connection ends.
func TestOneCallerHasHalf(t *testing.T) {
	nobody := authz.NewSubject(&authz.Principal{Method: authz.None}, authz.User{ID: "anonymous"}, time.Time{})
	other := authz.NewSubject(&authz.Principal{Method: authz.JWT}, authz.User{ID: "bob"}, time.Time{})
	for name, caller := range map[string]*authz.Subject{"a stranger": nobody, "a user": alice} {
		p := newPool("127.0.0.1:1", nil, 4, time.Second)
		defer p.close()
		for p.shareOf(alice.ID) == p.shareOf(other.ID) {
			p.seed = maphash.MakeSeed()
		}
		get := func() (*conn, error) {
			p.open.Add(1)
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
			return &conn{Conn: near, pool: p, born: time.Now(), br: bufio.NewReader(near)}, nil
		}
		take := func(s *authz.Subject) *conn {
			t.Helper()
			c, err := p.take(s, get)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return c
		}
		refused := func() {
			t.Helper()
			before := failedShare.Get()
			if _, err := p.take(caller, get); !errors.Is(err, authz.ErrUnavailable) || failedShare.Get() != before+1 {
				t.Errorf("%s: for the third time: %v, counted %d times; want a refusal", name, err, failedShare.Get()-before)
			}
		}
		a, b := take(caller), take(caller)
		refused()
		third := take(other)
		p.put(0, a)
		b2 := take(caller)
		refused()
		p.discard(b)
		p.discard(b2)
		p.discard(third)
		if _, err := p.take(caller, func() (*conn, error) { return nil, busy() }); err == nil {
			t.Error("no connection, but no error")
		}
		counted := p.strangers.Load()
		for i := range p.subjects {
			counted += p.subjects[i].Load()
		}
		if counted != 0 {
			t.Errorf("%s: %d connections are counted, want none", name, counted)
		}
	}
}

// A client that leaves while the API is silent ends the wait; one that stays gets
// its answer, however often it was looked for.
func TestClientLeavesBeforeTheAnswer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells that the other end has closed")
	}
	for _, c := range []struct{ name, request string }{
		{"GET", "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"a further request is there already", "GET /x HTTP/1.1\r\nHost: h\r\n\r\nGET /y HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"a small body", "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"},
		{"a body that streams", "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked, ended := make(chan struct{}, 2), make(chan error, 2)
			a := accepting(t, func(_ *api, nc net.Conn) {
				br := bufio.NewReader(nc)
				if _, err := readRequest(br); err != nil {
					return
				}
				asked <- struct{}{}
				_, err := br.ReadByte() // until the proxy gives up
				ended <- err
			})
			cfg := config(a.Addr().String())
			cfg.FirstByteTimeout = time.Hour
			p := front(t, cfg, nil)
			p.f.pool.look = 10 * time.Millisecond
			gone, failed := clientGone.Get(), failedAnswer.Get()+failedTimeout.Get()
			nc, err := net.Dial("tcp", p.addr)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(nc, c.request)
			<-asked
			nc.Close()
			if err := <-ended; err == nil {
				t.Error("the proxy goes on")
			}
			if err := <-p.errs; statusOf(err) != 400 || clientGone.Get() != gone+1 || failedAnswer.Get()+failedTimeout.Get() != failed {
				t.Errorf("%v; %d clients gone, %d failures", err, clientGone.Get()-gone, failedAnswer.Get()+failedTimeout.Get()-failed)
			}
			if n := len(a.requests()); n > 1 {
				t.Errorf("the API saw %d requests", n)
			}
			eventually(t, func() bool { return p.f.Open() == 0 })
		})
	}

	looked := make(chan struct{})
	a := serving(t, func(nc net.Conn, _ int) bool {
		<-looked
		_, err := io.WriteString(nc, okAnswer)
		return err == nil
	})
	p := front(t, config(a.Addr().String()), nil)
	p.f.pool.look = time.Millisecond
	time.AfterFunc(50*time.Millisecond, func() { close(looked) })
	if got := p.send(t, get("")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("a client that stays got %q", got)
	}
}

// Below TLS the end of a connection is seen as well, though bytes come before it.
func TestHungUpBelowTLS(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells that the other end has closed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	pair := newCA(t, "any").issue(t)
	server := tls.Server(near, &tls.Config{Certificates: []tls.Certificate{pair}})
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
	shaken := make(chan error, 1)
	go func() { shaken <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
	if hungUp(server) {
		t.Error("an open connection has hung up")
	}
	client.Close()
	eventually(t, func() bool { return hungUp(server) })
}
