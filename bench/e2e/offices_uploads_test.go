package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench/stack"
)

// Fifty uploads whose offices must be read stand at their last byte at once: the
// memory for them is bounded, whoever does not fit in is told so, and the others
// are served.
func TestLargeUploadsAtOnce(t *testing.T) {
	const (
		uploads = 50
		size    = 4 << 20
		most    = 300 << 20 // bytes: BODY_INSPECT_TOTAL twice, as Go's collector wants, and the rest of the program
	)
	st := stack.New(t, stack.Options{Env: map[string]string{"BODY_INSPECT_TOTAL": "96MiB"}})
	body := []byte(`{"office-id":"SWT","name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev","values":[` + strings.Repeat("[1767225600000,723.1,0],", size/23) + `[1767225600000,723.1,0]]}`)
	head := fmt.Sprintf("POST /cwms-data/timeseries HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		bearer(st.Tokens["M5HECTEST"]), len(body))

	var mu sync.Mutex
	statuses := map[int]int{}
	var sent, answered sync.WaitGroup
	sent.Add(uploads)
	last := make(chan struct{})
	for range uploads {
		answered.Go(func() {
			status, err := upload(st, head, body, &sent, last)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	sent.Wait()
	close(last)
	answered.Wait()

	used := peak(t, st.Replicas[0].PID())
	t.Logf("answers by status: %v; most memory: %d MiB", statuses, used>>20)
	if statuses[http.StatusOK] == 0 || statuses[http.StatusServiceUnavailable] == 0 || statuses[http.StatusOK]+statuses[http.StatusServiceUnavailable] != uploads {
		t.Errorf("answers by status: %v, want some 200, some 503 and no others", statuses)
	}
	if used > most {
		t.Errorf("the proxy took %d MiB of memory, want at most %d", used>>20, most>>20)
	}
	// What was refused is taken now.
	if status, err := upload(st, head, body, nil, last); status != http.StatusOK {
		t.Errorf("an upload afterwards: %d, %v", status, err)
	}
}

// upload sends a request, the last byte of its body not before last is closed, and
// returns the status of the answer. sent is told when all but that byte is sent, or
// when the proxy has taken enough.
func upload(st *stack.Stack, head string, body []byte, sent *sync.WaitGroup, last <-chan struct{}) (int, error) {
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(st.Proxy, "http://"), deadline)
	if err == nil {
		defer c.Close()
		err = c.SetDeadline(time.Now().Add(time.Minute))
	}
	if err != nil {
		if sent != nil {
			sent.Done()
		}
		return 0, err
	}
	go func() {
		_, err := io.WriteString(c, head)
		if err == nil {
			_, err = c.Write(body[:len(body)-1])
		}
		if sent != nil {
			sent.Done()
		}
		if <-last; err == nil {
			_, _ = c.Write(body[len(body)-1:]) // it may have been refused: then nobody reads it
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, nil
}

// peak is the most memory that a process ever had, in bytes.
func peak(t *testing.T, pid int) (bytesUsed int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc here:", err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	if _, err := fmt.Sscanf(string(rest), "%d kB", &bytesUsed); err != nil {
		t.Fatal(err)
	}
	return bytesUsed << 10
}
