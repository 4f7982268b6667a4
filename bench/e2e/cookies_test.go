package e2e

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"testing"
)

// A browser keeps what it is given and sends it beside its token. Its hundredth
// call is answered like its first, and the API never takes it for a session.
func TestBrowserKeepsCookiesBesideItsToken(t *testing.T) {
	st := sharedStack(t)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: deadline}
	defer browser.CloseIdleConnections()
	for n := range 100 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, st.Proxy+reading, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+st.Tokens["M5HECTEST"])
		if n > 0 { // what it kept from signing on elsewhere on this host
			req.AddCookie(&http.Cookie{Name: "JSESSIONIDSSO", Value: "ABCDEF0123456789ABCDEF0123456789"})
			req.AddCookie(&http.Cookie{Name: "theme", Value: "dark"})
		}
		res, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("call %d: %d %s %v", n, res.StatusCode, body, err)
		}
		if given := res.Header.Values("Set-Cookie"); len(given) > 0 {
			t.Errorf("call %d: the answer sets %v", n, given)
		}
	}
	seen, err := st.Seen(t.Context(), 1)
	if err != nil || len(seen) != 1 {
		t.Fatalf("%v, %v", seen, err)
	}
	if got := seen[0].Header("Cookie"); len(got) != 1 || got[0] != "theme=dark" {
		t.Errorf("the API saw the cookies %q, want those that are no credential", got)
	}
}
