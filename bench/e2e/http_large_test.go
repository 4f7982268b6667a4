package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/stack"
)

// largeBody is 256 MB, or 2 GB with HEADGATE_LONG=1.
func largeBody() int64 {
	if os.Getenv("HEADGATE_LONG") != "" {
		return 2 << 30
	}
	return 256 << 20
}

const mostMemory = 128 << 20

// pattern is a body of which every byte depends on where it stands, so that what is
// lost, doubled or swapped changes its digest.
type pattern struct{ at, end int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.at == p.end {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), p.end-p.at))
	for i := range b[:n] {
		at := p.at + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16)
	}
	p.at += int64(n)
	return n, nil
}

// Bodies of any size stream both ways, with and without a length, and the program
// takes no memory for them.
func TestLargeBodies(t *testing.T) {
	size := largeBody()
	digest := sha256.New()
	if _, err := io.Copy(digest, &pattern{0, size}); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(digest.Sum(nil))

	api := newAPI(t)
	api.on("/large", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if r.URL.Query().Has("length") {
				w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
			}
			_, _ = io.Copy(w, &pattern{0, size}) // the client says what is missing
			return
		}
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, sum.Sum(nil), err)
	})
	st := api.before(t, map[string]string{})
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	ask := func(method, query string, length int64) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, st.Proxy+"/cwms-data/large"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodPut {
			req.Body, req.ContentLength = io.NopCloser(&pattern{0, size}), length
		}
		req.Header.Set("Authorization", "Bearer "+st.Tokens["HECADMIN"])
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", method, res.Status)
		}
		return res
	}
	for _, query := range []string{"", "?length"} {
		start, sum := time.Now(), sha256.New()
		res := ask(http.MethodGet, query, 0)
		n, err := io.Copy(sum, res.Body)
		res.Body.Close()
		if got := hex.EncodeToString(sum.Sum(nil)); n != size || err != nil || got != want {
			t.Errorf("down%s: %d bytes, digest %s, %v", query, n, got, err)
		}
		t.Logf("down%s: %d MB in %v, the program takes %d MB at most", query, n>>20, time.Since(start).Round(time.Millisecond), memory(t, st, "VmHWM")>>20)
	}
	for _, length := range []int64{size, -1} {
		start := time.Now()
		res := ask(http.MethodPut, "", length)
		said, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(said) != fmt.Sprintf("%d %s <nil>", size, want) || err != nil {
			t.Errorf("up, length %d: the API has %s, %v", length, said, err)
		}
		t.Logf("up, length %d: %d MB in %v, the program takes %d MB at most", length, size>>20, time.Since(start).Round(time.Millisecond), memory(t, st, "VmHWM")>>20)
	}
	if most := memory(t, st, "VmHWM"); most > mostMemory {
		t.Errorf("the program takes %d MB", most>>20)
	}
}

// A client that stalls is told so, wherever it does: in its header after 10 s, in a
// body after 30 s.
func TestSlowClients(t *testing.T) {
	if os.Getenv("HEADGATE_LONG") == "" {
		t.Skip("takes minutes: set HEADGATE_LONG=1")
	}
	api := newAPI(t)
	st := api.before(t, map[string]string{})
	head := " HTTP/1.1\r\nHost: h\r\n" + bearer(st.Tokens["HECADMIN"]) + "\r\n"
	var clients sync.WaitGroup
	for name, said := range map[string]string{
		"in the header":                 "GET /cwms-data/states HTTP/1.1\r\nHost:",
		"in a body":                     "PUT /cwms-data/large" + head + "Content-Length: 1000000\r\n\r\nbegun",
		"in a small body":               "PUT /cwms-data/large" + head + "Content-Length: 20000\r\n\r\nbegun",
		"in chunks":                     "PUT /cwms-data/large" + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
		"in a body that is looked into": "POST /cwms-data/locations" + head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"in a body that was waited for": "PUT /cwms-data/large" + head + "Expect: 100-continue\r\nContent-Length: 100000\r\n\r\nbegun",
	} {
		clients.Go(func() {
			c := dialAndSay(t, st.Proxy, said)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
			start := time.Now()
			b, err := io.ReadAll(c)
			got := strings.TrimPrefix(string(b), "HTTP/1.1 100 Continue\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 408 ") || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			t.Logf("%s: after %v", name, time.Since(start).Round(time.Second))
		})
	}
	// Who is only idle may be so for two minutes, and is told nothing.
	clients.Go(func() {
		c := dialAndSay(t, st.Proxy, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
		start, br := time.Now(), bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = io.Copy(io.Discard, res.Body)
		if rest, closed := io.ReadAll(br); err != nil || closed != nil || len(rest) > 0 || time.Since(start) < 2*time.Minute {
			t.Errorf("idle: %q, %v, %v after %v", rest, err, closed, time.Since(start))
		}
		t.Logf("idle: after %v", time.Since(start).Round(time.Second))
	})
	clients.Wait()
	if seen := api.seen(); len(seen) > 0 {
		t.Errorf("the API sees %d whole requests", len(seen))
	}
	slow := 0.0
	for line := range strings.Lines(scrape(t, st)) {
		if strings.HasPrefix(line, "authorizer_proxy_http_requests_total{") && strings.Contains(line, `status_code="408"`) {
			slow += sum(line, "")
		}
	}
	if slow != 6 {
		t.Errorf("%v slow clients are counted, want 6", slow)
	}
	await(t, "no connection is left but the one that asks", func() bool {
		return sum(scrape(t, st), "authorizer_proxy_active_connections ") == 0
	})
}

// memory reads a line of the first proxy's process status, in bytes: VmRSS is what
// it has now, VmHWM the most it had.
func memory(t *testing.T, st *stack.Stack, line string) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.Replicas[0].PID()))
	if err != nil {
		t.Skip("this system does not tell what memory a process takes: ", err)
	}
	for l := range bytes.Lines(b) {
		if name, value, _ := strings.Cut(string(l), ":"); name == line {
			kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s in the process status", line)
	return 0
}
