package pep

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"
)

const (
	connectionMax = 16 << 10          // connections served at once; 503 beyond
	addressMax    = connectionMax / 4 // of them those of one address: nobody has all
	turnedAwayMax = 256               // connections being told so at once; others are just closed
)

var _ = metrics.NewGauge("authorizer_proxy_connections_limit", func() float64 { return connectionMax })

var (
	crowded        = turnedAway("total")
	crowdedAddress = turnedAway("address")
)

func turnedAway(limit string) *metrics.Counter {
	return metrics.NewCounter(`authorizer_proxy_connections_refused_total{limit="` + limit + `"}`)
}

// Listen makes the connections of a listener keep the limits of this package. With
// a configuration of TLS they are TLS.
func Listen(l net.Listener, config *tls.Config) net.Listener {
	return &listener{
		Listener: l, config: config, max: connectionMax, each: addressMax,
		of: map[netip.Addr]int{}, telling: make(chan struct{}, turnedAwayMax),
	}
}

type listener struct {
	net.Listener
	config    *tls.Config
	max, each int
	telling   chan struct{}

	mu   sync.Mutex
	open int
	of   map[netip.Addr]int // the open ones of each address
}

// Accept returns the next connection for which there is room.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := origin(nc.RemoteAddr())
		full := l.enter(from)
		if full == nil {
			own := &conn{Conn: nc, from: from, leave: sync.OnceFunc(func() { l.leave(from) })}
			if l.config == nil {
				return plain{own}, nil
			}
			return &secure{tls.Server(own, l.config), own}, nil
		}
		full.Inc()
		select {
		case l.telling <- struct{}{}:
			go func() {
				turnAway(nc)
				<-l.telling
			}()
		default:
			_ = nc.Close()
		}
	}
}

// origin is what a client cannot change at will: its address or, of IPv6, the
// network of 64 bits that every host is given.
func origin(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return network(tcp.AddrPort().Addr())
}

// network is the network of an IPv6 address; all others are what they are.
func network(from netip.Addr) netip.Addr {
	from = from.Unmap().WithZone("")
	if from.Is6() {
		network, err := from.Prefix(64)
		if err != nil {
			panic("BUG: an IPv6 address without a network: " + err.Error())
		}
		return network.Addr()
	}
	return from
}

// enter counts a connection in, or returns the counter of the limit it is over.
func (l *listener) enter(from netip.Addr) *metrics.Counter {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.max:
		return crowded
	case l.of[from] >= l.each:
		return crowdedAddress
	}
	l.open++
	l.of[from]++
	return nil
}

func (l *listener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.of[from]--; l.of[from] == 0 {
		delete(l.of, from)
	}
}

// turnAway answers a connection that is not served. One that wanted TLS finds no
// TLS, which tells it as much.
func turnAway(nc net.Conn) {
	var id [idLength]byte
	newID(&id)
	body := appendError(nil, fasthttp.StatusServiceUnavailable, "too many connections", string(id[:]))
	_ = nc.SetDeadline(time.Now().Add(lingerFor))
	_, _ = io.WriteString(nc, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nRetry-After: "+retryAfter+
		"\r\nX-Request-Id: "+string(id[:])+"\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+string(body))
	lingeringClose(nc)
}
