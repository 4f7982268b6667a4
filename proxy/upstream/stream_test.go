package upstream

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"headgate/proxy/authz"

	"github.com/valyala/fasthttp"
)

// Each event reaches the client before the API sends the next one.
func TestEventsAreNotHeldBack(t *testing.T) {
	next := make(chan struct{})
	a := serving(t, func(c net.Conn, _ int) bool {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 3 {
			io.WriteString(c, "9\r\ndata: x\n\n\r\n")
			<-next
		}
		// A chunk comes through in parts as well.
		io.WriteString(c, "a\r\ndata:")
		<-next
		io.WriteString(c, " yy\n\n\r\n0\r\n\r\n")
		return true
	})
	p := front(t, config(a.Addr().String()), nil)
	res, err := client(t).Get("http://" + p.addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for _, want := range []string{"data: x\n\n", "data: x\n\n", "data: x\n\n", "data:", " yy\n\n"} {
		b := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != want {
			t.Fatalf("got %q, %v", b, err)
		}
		if want != " yy\n\n" {
			next <- struct{}{}
		}
	}
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
		t.Errorf("got %q, %v", rest, err)
	}
}

// Each part of an upload reaches the API before the client sends the next one.
func TestUploadIsNotHeldBack(t *testing.T) {
	got := make(chan string)
	a := accepting(t, func(_ *api, c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		for b := make([]byte, 4); ; {
			if _, err := io.ReadFull(req.Body, b); err != nil {
				break
			}
			got <- string(b)
		}
		io.WriteString(c, okAnswer)
	})
	p := front(t, config(a.Addr().String()), nil)
	r, w := io.Pipe()
	go func() {
		for i := range 3 {
			part := fmt.Sprintf("p%03d", i)
			io.WriteString(w, part)
			if s := <-got; s != part {
				t.Errorf("got %q", s)
			}
		}
		w.Close()
	}()
	res, err := client(t).Post("http://"+p.addr+"/x", "a/b", r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "ok" {
		t.Errorf("got %q, %v", b, err)
	}
}

// An answer that overtakes the end of our last write costs the client its connection
// only if the body had not come to its end.
func TestUploadThatIsAboutToEnd(t *testing.T) {
	u := &upload{done: make(chan struct{})}
	if u.finished() {
		t.Error("a body that still comes was taken for one that had ended")
	}
	u.ending.Store(true)
	time.AfterFunc(3*earlyGrace, func() { close(u.done) })
	if !u.finished() {
		t.Error("the end of the last write was not waited for")
	}
}

// The API answers before it has read the body: the client gets the answer, and
// nobody waits for the rest.
func TestEarlyAnswer(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"small", "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge", "413 large"},
		{"without a body", "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "401 "},
		{"streamed", "HTTP/1.1 413 Too Large\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nlarge\r\n0\r\n\r\n", "413 large"},
		{"until the connection ends", "HTTP/1.1 413 Too Large\r\n\r\nlarge", "413 large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := accepting(t, func(_ *api, nc net.Conn) {
				br := bufio.NewReader(nc)
				if _, err := http.ReadRequest(br); err == nil {
					io.WriteString(nc, c.answer)
					nc.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, br)
				}
			})
			p := front(t, config(a.Addr().String()), nil)
			nc, err := net.Dial("tcp", p.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			// The client says 1 GB, sends a part and waits.
			io.WriteString(nc, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
			nc.Write(make([]byte, 100_000))
			res, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			if got := fmt.Sprintf("%d %s", res.StatusCode, b); got != c.want || err != nil || !res.Close {
				t.Errorf("got %q, %v, close %v", got, err, res.Close)
			}
		})
	}
}

// An API that answers while it reads, and needs its answer read to go on, is
// served both ways at once.
func TestBothWaysAtOnce(t *testing.T) {
	a := accepting(t, func(_ *api, c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+req.Header.Get("Content-Length")+"\r\n\r\n")
		io.Copy(c, req.Body)
	})
	p := front(t, config(a.Addr().String()), nil)
	nc, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	const size = 20 << 20
	sent, got, done := sha256.New(), sha256.New(), make(chan struct{})
	go func() {
		defer close(done)
		fmt.Fprintf(nc, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", size)
		io.CopyN(io.MultiWriter(nc, sent), noise(), size)
	}()
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(got, res.Body); n != size || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	<-done
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("the bytes differ")
	}
}

func noise() io.Reader { return rand.NewChaCha8([32]byte{}) }

// 96 MB pass each way, by length and in chunks, in far less memory; client and API
// are counted too.
func TestLargeBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const size = 96 << 20
	body := make([]byte, 1<<20)
	a := accepting(t, func(_ *api, c net.Conn) {
		br := bufio.NewReaderSize(c, 64<<10)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			n, err := io.Copy(io.Discard, req.Body)
			if err != nil {
				return
			}
			switch {
			case req.Method == http.MethodPost:
				s := strconv.FormatInt(n, 10)
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(s), s)
			case req.URL.Path == "/chunked":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for range size / len(body) {
					fmt.Fprintf(c, "%x\r\n", len(body))
					c.Write(body)
					io.WriteString(c, "\r\n")
				}
				io.WriteString(c, "0\r\n\r\n")
			default:
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
				for range size / len(body) {
					c.Write(body)
				}
			}
		}
	})
	p := front(t, config(a.Addr().String()), nil)
	peak := watchHeap(t)
	hc := client(t)
	for _, path := range []string{"/fixed", "/chunked"} {
		res, err := hc.Get("http://" + p.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
			t.Errorf("%s: %d bytes, %v", path, n, err)
		}
		res.Body.Close()
	}
	for _, length := range []int64{size, -1} {
		req, _ := http.NewRequest(http.MethodPost, "http://"+p.addr+"/x", io.LimitReader(zeros{}, size))
		req.ContentLength = length
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); string(b) != strconv.Itoa(size) || err != nil {
			t.Errorf("the API read %q bytes, %v", b, err)
		}
		res.Body.Close()
	}
	if mb := peak() >> 20; mb > 64 {
		t.Errorf("the heap grew to %d MB", mb)
	}
	if n := a.connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// watchHeap samples the heap until the returned function is called, which
// returns the most that was in use.
func watchHeap(t *testing.T) (peak func() uint64) {
	stop, done := make(chan struct{}), make(chan struct{})
	var most uint64
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			}
		}
	}()
	return func() uint64 { close(stop); <-done; return most }
}

// An answer that breaks off does not look whole.
func TestAnswerBreaksOff(t *testing.T) {
	for _, in := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 50000),
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
	} {
		a := serving(t, func(c net.Conn, _ int) bool {
			io.WriteString(c, in)
			return false
		})
		p := front(t, config(a.Addr().String()), nil)
		res, err := client(t).Get("http://" + p.addr + "/x")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%d bytes and no error of %q", len(b), in[:60])
		}
		res.Body.Close()
	}
}

// A stream that falls silent is given up.
func TestSilentStream(t *testing.T) {
	release := make(chan struct{})
	a := serving(t, func(c net.Conn, _ int) bool {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		<-release
		return false
	})
	defer close(release)
	cfg := config(a.Addr().String())
	cfg.IdleTimeout = 50 * time.Millisecond
	p := front(t, cfg, nil)
	res, err := client(t).Get("http://" + p.addr + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

// A client that leaves during an answer ends the API's work.
func TestClientLeavesDuringAnswer(t *testing.T) {
	ended := make(chan struct{})
	a := serving(t, func(c net.Conn, _ int) bool {
		defer close(ended)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			if _, err := io.WriteString(c, "5\r\nhello\r\n"); err != nil {
				return false
			}
		}
	})
	p := front(t, config(a.Addr().String()), nil)
	res, err := client(t).Get("http://" + p.addr + "/x")
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(res.Body, make([]byte, 5))
	res.Body.Close()
	<-ended
	eventually(t, func() bool { return p.f.Open() == 0 })
}

// A client that leaves during an upload does not make it look whole, and is no
// failure of the API.
func TestClientLeavesDuringUpload(t *testing.T) {
	for _, framing := range []string{"Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		read := make(chan error, 1)
		a := accepting(t, func(_ *api, c net.Conn) {
			req, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, err = io.Copy(io.Discard, req.Body)
			}
			read <- err
		})
		p := front(t, config(a.Addr().String()), nil)
		failed := failedAnswer.Get()
		nc, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(nc, "POST /x HTTP/1.1\r\nHost: h\r\n"+framing+"\r\n\r\n")
		if framing[0] == 'T' {
			io.WriteString(nc, "5\r\nhello\r\n")
		} else {
			nc.Write(make([]byte, 100000))
		}
		nc.Close()
		if err := <-read; err == nil {
			t.Errorf("%s: the upload looks whole", framing)
		}
		if status := statusOf(<-p.errs); status != 400 || failedAnswer.Get() != failed {
			t.Errorf("%s: status %d, %d failures", framing, status, failedAnswer.Get()-failed)
		}
		eventually(t, func() bool { return p.f.Open() == 0 })
	}
}

// A client that stalls in its body is not waited for; with a small body it does
// not even hold a connection to the API.
func TestStalledUpload(t *testing.T) {
	for _, c := range []struct{ length, conns int }{{20_000, 0}, {1_000_000, 1}} {
		a := answering(t, okAnswer)
		cfg := config(a.Addr().String())
		cfg.IdleTimeout = 50 * time.Millisecond
		p := front(t, cfg, nil)
		got := p.send(t, fmt.Sprintf("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", c.length, strings.Repeat("x", 10_000)))
		err := <-p.errs
		if !strings.HasPrefix(got, "HTTP/1.1 408 ") || !errors.Is(err, authz.ErrSlowClient) {
			t.Errorf("error %v, got %q", err, got)
		}
		eventually(t, func() bool { return a.connections() >= c.conns }) // it accepts when it comes to it
		if n := len(a.requests()); n != 0 || a.connections() != c.conns {
			t.Errorf("the API saw %d requests, %d connections", n, a.connections())
		}
	}
}

// A reader that package pep put before the body has the last word, and a panic
// in it ends the request alone.
func TestBodyReaderRefuses(t *testing.T) {
	tooLarge := authz.Refuse(authz.ErrBodyTooLarge, "over the limit")
	for _, c := range []struct {
		body io.Reader
		want error
	}{
		{io.MultiReader(strings.NewReader("hello"), iotest.ErrReader(tooLarge)), authz.ErrBodyTooLarge},
		{bufio.NewReader(nil), errPanic},
	} {
		a := answering(t, okAnswer)
		p := front(t, config(a.Addr().String()), func(rc *fasthttp.RequestCtx, _ *authz.Grant) {
			rc.Request.SetBodyStream(c.body, -1)
		})
		p.send(t, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		if err := <-p.errs; !errors.Is(err, c.want) || len(a.requests()) != 0 {
			t.Errorf("the API saw %q, error %v", a.requests(), err)
		}
	}
}

// eventually waits for a condition that holds soon.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("never")
}
