package conformance

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"headgate/proxy/authz"
	"headgate/proxy/pep"
	"headgate/proxy/route"
	"headgate/proxy/upstream"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*TCPDialer).tcpAddrsClean"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// The request path and the real forwarder, with everything allowed to whoever
// shows a credential.
func TestRequestPath(t *testing.T) {
	api := Listen(t)
	forward, err := upstream.New(upstream.Config{
		URL:              &url.URL{Scheme: "http", Host: api.Addr(), Path: "/cwms-data"},
		FirstByteTimeout: patience, ContextHeader: "x-cwms-auth-context",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Close()
	var allowed atomic.Int64
	h := &pep.Handler{
		Routes: route.Default("/cwms-data"),
		Identify: func(_ context.Context, c authz.Credentials) (*authz.Principal, error) {
			if c.Authorization == nil {
				return &authz.Principal{Method: authz.None}, nil
			}
			return &authz.Principal{Method: authz.JWT}, nil
		},
		Subject: func(_ context.Context, p *authz.Principal) (*authz.Subject, error) {
			return authz.NewSubject(p, authz.User{ID: "somebody", Username: "somebody"}, time.Time{}), nil
		},
		Decide: func(_ context.Context, q authz.Question) (authz.Decision, error) {
			return authz.Decision{Allow: !q.Anonymous, Constraints: []byte("{}")}, nil
		},
		Forward: forward.Forward,
		Record: func(e *pep.Event) {
			if e.Decision != nil && e.Decision.Allow {
				allowed.Add(1)
			}
		},
		Ready:  func() pep.Readiness { return pep.NewReadiness(nil, nil, nil, nil, time.Now()) },
		Bodies: &pep.BodyLimit{Each: 1 << 20, Total: 16 << 20},
		Base:   context.Background(),
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := h.Server()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(pep.Listen(l))
	}()
	defer func() {
		_ = s.Shutdown()
		<-done
	}()
	Run(t, Target{
		Addr: l.Addr().String(), API: api, Auth: "Authorization: Bearer t\r\n",
		Allowed: func() int { return int(allowed.Load()) },
	})
}

func TestCasesHaveNames(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Cases {
		if names[c.Name] {
			t.Errorf("%q is there twice", c.Name)
		}
		names[c.Name] = true
	}
	t.Logf("%d cases", len(Cases))
}
