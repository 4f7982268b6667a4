package pep

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"headgate/proxy/authz"
)

// A rehearsal gets what a client gets that sends the same bytes and no more.
func TestRehearseAnswersAsTheListenerDoes(t *testing.T) {
	const json = `{"office":"SPK"}`
	user := "Authorization: Bearer u"
	for name, request := range map[string]string{
		"a read":                   get("/api/items?office=swt"),
		"HEAD":                     request("HEAD", "/api/items?office=swt", ""),
		"a bad token":              get("/api/items", "Authorization: Bearer bad"),
		"a body that is judged":    request("POST", "/api/items", json, user),
		"a body that is no JSON":   request("POST", "/api/items", "{x}", user, "Content-Type: application/json"),
		"a chunked body":           request("POST", "/api/items", "", user, "Transfer-Encoding: chunked") + "10\r\n" + json + "\r\n0\r\n\r\n",
		"an expectation":           request("POST", "/api/items", json, user, "Expect: 100-continue"),
		"another request after it": get("/api/files") + get("/api/files"),
		"a dot segment":            get("/api/../x"),
		"a method that is not":     request("TRACE", "/api/items", ""),
		"two lengths":              request("POST", "/api/files", "ab", "Content-Length: 1"),
		"not HTTP":                 "hello\r\n\r\n",
		"a large header":           get("/api/files", "X: "+strings.Repeat("x", headerMax)),
		"our own endpoint":         get("/health"),
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, nil)
			c := f.dial(t)
			c.send(request)
			method, _, _ := strings.Cut(request, " ")
			if strings.Contains(request, "Expect") {
				c.read("") // 100 Continue
			}
			served := c.read(method)

			h, events := stages(), 0
			h.Record = func(*Event) { events++ }
			raw := h.Rehearse([]byte(request))
			raw = bytes.TrimPrefix(raw, []byte("HTTP/1.1 100 Continue\r\n\r\n"))
			resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%v: %q", err, raw)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			same := func(b string) string {
				b, _, _ = strings.Cut(b, `"incidentIdentifier"`)
				b, _, _ = strings.Cut(b, `"timestamp"`)
				return b
			}
			if resp.StatusCode != served.status || same(string(body)) != same(served.body) {
				t.Errorf("rehearsed %d %s\n   served %d %s", resp.StatusCode, body, served.status, served.body)
			}
			if events != 1 || h.InFlight() != 0 {
				t.Errorf("%d events, %d in flight", events, h.InFlight())
			}
		})
	}
}

// A rehearsed body that breaks off ends; nobody waits for the rest.
func TestRehearseBrokenBody(t *testing.T) {
	h := stages()
	h.Record = func(*Event) {}
	answer := h.Rehearse([]byte("POST /api/items HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer u\r\nContent-Length: 99\r\n\r\n{\"office\":\"SPK\"}"))
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("answered %q", answer)
	}
}

// The Event of a rehearsal says what the route table found.
func TestEventHasTheMatch(t *testing.T) {
	h := stages()
	h.Decide = func(context.Context, authz.Question) (authz.Decision, error) { return deny(), nil }
	found := ""
	h.Record = func(e *Event) {
		x := e.Match.Explain().Found[0]
		found = x.Attribute + " " + x.Value + " " + x.At
	}
	h.Rehearse([]byte(get("/api/items?office=swt")))
	if found != "office SWT query office" {
		t.Errorf("found %q", found)
	}
}
