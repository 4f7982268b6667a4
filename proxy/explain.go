package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
	"headgate/proxy/pdp"
	"headgate/proxy/pep"
	"headgate/proxy/pip"
	"headgate/proxy/route"
)

// How an explanation is made: a Handler of its own runs the very request path, as
// bytes through the server, over stages that tell what they did. They look where
// the real ones look and answer as those would; but nothing is forwarded,
// recorded, counted as a request or stored. What is left behind is what
// verification remembers of a credential, for a minute, and the count of one
// evaluation of OPA.

const (
	maxExplain      = 1 << 20 // bytes of a body of POST /explain
	explainTime     = 30 * time.Second
	maxExplanations = 4 // at once; an explanation costs far more than a request
)

// rehearsal is the body of POST /explain: a request, and who would send it.
type rehearsal struct {
	Method  string   `json:"method"`
	Target  string   `json:"target"`
	Headers []string `json:"headers,omitempty"` // "Name: value", credentials included
	Body    string   `json:"body,omitempty"`
	User    string   `json:"user,omitempty"`  // by name, in place of a credential
	Trace   string   `json:"trace,omitempty"` // notes or full: OPA's own explanation
}

// check names what is wrong with it, all at once.
func (r *rehearsal) check() error {
	var faults []string
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, text)
		}
	}
	line := func(s string) bool { return !strings.ContainsAny(s, "\r\n") }
	fault(r.Method == "" || strings.ContainsAny(r.Method, " \r\n"), "method: want one such as GET")
	fault(r.Target == "" || !line(r.Target), "target: want the path and query of a request line, such as /v2/orders?status=open")
	credential := false
	for i, h := range r.Headers {
		name, _, ok := strings.Cut(h, ":")
		fault(!ok || !line(h), fmt.Sprintf("headers[%d]: want \"Name: value\"", i)) // not the header itself: it may be a credential
		credential = credential || strings.EqualFold(name, "Authorization") || strings.EqualFold(name, "Cookie") || strings.EqualFold(name, "x-test-user")
	}
	fault(r.User != "" && credential, "user and a credential in headers: want one of them")
	// "." and ".." would be another path where a user is looked up.
	fault(len(r.User) > 256 || r.User == "." || r.User == ".." || strings.ContainsFunc(r.User, unicode.IsControl) || !utf8.ValidString(r.User), "user: want the name of a user")
	fault(r.Trace != "" && r.Trace != "notes" && r.Trace != "full", "trace: want notes, full or nothing")
	if faults != nil {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

// bytes are those that a client would send.
func (r *rehearsal) bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", r.Method, r.Target)
	host, length := false, r.Body == ""
	for _, h := range r.Headers {
		b.WriteString(h + "\r\n")
		name, _, _ := strings.Cut(h, ":")
		host = host || strings.EqualFold(name, "Host")
		length = length || strings.EqualFold(name, "Content-Length") || strings.EqualFold(name, "Transfer-Encoding")
	}
	if !host {
		b.WriteString("Host: localhost\r\n")
	}
	if !length {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.Body))
	}
	b.WriteString("\r\n" + r.Body)
	return b.Bytes()
}

// explanation is what became of a rehearsal, stage by stage in the order of the
// request path. A stage that the request does not reach is missing. No credential
// is in it, nor what was sent in headers or body.
type explanation struct {
	Request struct {
		Method string `json:"method"`
		Path   string `json:"path"` // without the query, where a credential may stand
	} `json:"request"`
	Identity *identityPart      `json:"identity,omitempty"`
	Context  *pip.Explanation   `json:"context,omitempty"`
	Route    *route.Explanation `json:"route,omitempty"`
	Input    json.RawMessage    `json:"input,omitempty"` // the exact document put to OPA
	*pdp.Explanation
	Decision *decisionPart `json:"decision,omitempty"`
	Forward  *forwardPart  `json:"forward,omitempty"`
	Answer   answerPart    `json:"answer"`
	Trace    *pdp.Trace    `json:"trace,omitempty"`
}

type identityPart struct {
	Method  authz.Method `json:"method,omitempty"`
	Issuer  string       `json:"issuer,omitempty"`
	Subject string       `json:"subject,omitempty"`
	Name    string       `json:"name,omitempty"`
	Expires *time.Time   `json:"expires,omitempty"`
	Assumed bool         `json:"assumed,omitempty"` // no credential was shown: the user was named
	Note    string       `json:"note,omitempty"`
	Error   string       `json:"error,omitempty"`
}

type decisionPart struct {
	Allow      bool         `json:"allow"`
	Reason     string       `json:"reason"`
	Source     authz.Source `json:"source"` // cache or opa
	DecisionID string       `json:"decision_id"`
	Revision   string       `json:"revision"`
	Enforced   bool         `json:"enforced"` // false: a deny that ENFORCE=report lets through
}

type forwardPart struct {
	Header        string          `json:"header,omitempty"` // name of the context header
	Value         json.RawMessage `json:"value,omitempty"`
	Authorization bool            `json:"authorization"` // the client's is forwarded
	Cookies       bool            `json:"session_cookies"`
}

type answerPart struct {
	Forwarded bool              `json:"forwarded"` // the API answers
	Status    int               `json:"status,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"` // those that tell the client what to do
	Body      string            `json:"body,omitempty"`
	Error     string            `json:"error,omitempty"` // as the decision record has it
}

// explain rehearses a request.
func (p *proxy) explain(ctx context.Context, r rehearsal) (*explanation, error) {
	e := &explanation{}
	e.Request.Method = r.Method
	e.Request.Path, _, _ = strings.Cut(r.Target, "?")
	var named struct {
		principal *authz.Principal
		subject   *authz.Subject
		context   pip.Explanation
	}
	if r.User != "" {
		var err error
		if named.principal, named.subject, named.context, err = p.users.ExplainUser(ctx, r.User); err != nil {
			return nil, err
		}
	}
	var question authz.Question
	decided := func() (authz.Decision, error) { panic("BUG: nothing was decided yet") }

	identified := func(principal *authz.Principal, err error) (*authz.Principal, error) {
		e.Identity = describeIdentity(principal, err)
		return principal, err
	}
	c := &p.config
	h := &pep.Handler{
		Routes: p.routes,
		Identify: func(ctx context.Context, shown authz.Credentials) (*authz.Principal, error) {
			if named.principal == nil {
				return identified(p.verifier.Verify(ctx, shown))
			}
			e.Identity = p.assumed(r.User)
			return named.principal, nil
		},
		Token: func(ctx context.Context, token string) (*authz.Principal, error) {
			return identified(p.verifier.VerifyToken(ctx, token))
		},
		AssertedUser: func(user json.RawMessage) (*authz.Principal, error) {
			return identified(p.handler.AssertedUser(user))
		},
		Subject: func(ctx context.Context, principal *authz.Principal) (*authz.Subject, error) {
			if principal == named.principal {
				e.Context = &named.context
				return named.subject, nil
			}
			subject, x, err := p.users.Explain(ctx, principal)
			e.Context = &x
			return subject, err
		},
		Decide: func(ctx context.Context, q authz.Question) (authz.Decision, error) {
			if bytes.Equal(q.Body, question.Body) {
				return decided() // the request path asks again after a wait
			}
			question = q
			question.Body = bytes.Clone(q.Body)
			decision, x, err := p.decider.Explain(ctx, question)
			decided = func() (authz.Decision, error) { return decision, err }
			e.Input, e.Explanation = json.RawMessage(question.Input()), &x
			return decision, err
		},
		Forward: func(_ *fasthttp.RequestCtx, g *authz.Grant) (err error) {
			e.Forward, err = describeForward(c.contextHeader(), g)
			e.Answer.Forwarded = err == nil
			return err
		},
		// Of /forward-auth, a gateway that is trusted is told why.
		Trusts: func(*fasthttp.RequestCtx) bool { return true },
		Vouch: func(_ *fasthttp.RequestCtx, g *authz.Grant) (err error) {
			e.Forward, err = describeForward(c.contextHeader(), g)
			return err
		},
		Record: func(event *pep.Event) { e.finish(event) },

		AuthorizeSecret: p.handler.AuthorizeSecret, Ready: p.handler.Ready,
		OwnPrefix: p.handler.OwnPrefix, Origins: p.handler.Origins, Report: p.handler.Report, BodyMax: p.handler.BodyMax,
		// The memory of the listener's requests is theirs.
		Bodies: &pep.BodyLimit{Each: p.handler.Bodies.Each, Total: p.handler.Bodies.Total},
		Base:   ctx,
	}
	e.answered(h.Rehearse(r.bytes()))
	if r.Trace != "" && question.Body != nil {
		t := p.decider.Trace(question, r.Trace)
		e.Trace = &t
	}
	return e, nil
}

func describeIdentity(p *authz.Principal, err error) *identityPart {
	if err != nil {
		return &identityPart{Error: err.Error()}
	}
	i := &identityPart{Method: p.Method, Issuer: p.Issuer, Subject: p.ID, Name: p.Name}
	if !p.Expires.IsZero() {
		i.Expires = &p.Expires
	}
	switch p.Method {
	case authz.None:
		i.Note = "no credential that this proxy knows, so the caller is anonymous"
	case authz.APIKey, authz.Session:
		i.Note = "the API says whose it is, and is asked again within a minute"
	case authz.Asserted:
		i.Note = "named by who knows AUTHORIZE_SECRET"
	case authz.Test:
		i.Note = "TEST_USERS=true: named by the request"
	}
	return i
}

// describeForward tells what the API would be told.
func describeForward(header string, g *authz.Grant) (*forwardPart, error) {
	f := &forwardPart{Header: header, Authorization: !g.DropAuthorization, Cookies: !g.DropCookies}
	if header == "" {
		return f, nil
	}
	value, _, err := g.AppendHeader(nil, authz.MaxContextHeader, time.Now())
	if err != nil {
		return nil, err
	}
	f.Value = value
	return f, nil
}

// assumed is the identity of a user who was named by the operator.
func (p *proxy) assumed(user string) *identityPart {
	i := &identityPart{Method: authz.JWT, Name: user, Assumed: true, Note: "no credential was shown: asked as if the user came with a token"}
	if len(p.config.Claims) > 0 {
		i.Note += ", whose claims are not known (JWT_CLAIMS)"
	}
	if p.config.AuthMode == "none" {
		i.Note += "; but AUTH_MODE=none refuses every token"
	}
	return i
}

// finish takes what the Event says.
func (e *explanation) finish(event *pep.Event) {
	if event.Match != nil {
		x := event.Match.Explain()
		e.Route = &x
	}
	if d := event.Decision; d != nil {
		e.Decision = &decisionPart{
			Allow: d.Allow, Reason: d.Reason, Source: d.Source, DecisionID: d.ID, Revision: strings.Clone(d.Revision), Enforced: !event.Reported,
		}
	}
	if event.Err != nil {
		e.Answer.Error = event.Err.Error()
	}
}

// answered takes what the client would read, unless the API would have written it.
func (e *explanation) answered(raw []byte) {
	if e.Answer.Forwarded {
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	for err == nil && resp.StatusCode < 200 { // 100 Continue
		_, raw, _ = bytes.Cut(raw, []byte("\r\n\r\n"))
		resp, err = http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	}
	if err != nil {
		panic("BUG: cannot read an answer of ours: " + err.Error())
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // all of it is in memory
	e.Answer.Status, e.Answer.Body = resp.StatusCode, string(body)
	for _, name := range []string{"Allow", "Retry-After", "WWW-Authenticate"} {
		if v := resp.Header.Get(name); v != "" {
			if e.Answer.Headers == nil {
				e.Answer.Headers = map[string]string{}
			}
			e.Answer.Headers[name] = v
		}
	}
}

// explainer answers POST /explain.
func (p *proxy) explainer() http.HandlerFunc {
	turns := make(chan struct{}, maxExplanations)
	return func(w http.ResponseWriter, r *http.Request) {
		// Whoever is slow holds nobody up: the turn is taken when the question is here.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(explainTime)) // it is a connection, and has one
		var want rehearsal
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExplain))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&want)
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			answer(w, http.StatusRequestEntityTooLarge, failure{"Request Entity Too Large", fmt.Sprintf("want at most %d bytes", maxExplain)})
			return
		case err != nil:
			answer(w, http.StatusBadRequest, failure{"Bad Request", `want {"method","target","headers":["Name: value"],"body","user","trace"}, of which method and target must be given`})
			return
		}
		if err := want.check(); err != nil {
			answer(w, http.StatusBadRequest, failure{"Bad Request", err.Error()})
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		default:
			w.Header().Set("Retry-After", "1")
			answer(w, http.StatusServiceUnavailable, failure{"Service Unavailable", fmt.Sprintf("%d explanations are being made, try again", maxExplanations)})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), explainTime)
		defer cancel()
		e, err := p.explain(ctx, want)
		switch {
		case errors.Is(err, pip.ErrNoUser):
			answer(w, http.StatusNotFound, failure{"Not Found", err.Error()})
		case err != nil:
			w.Header().Set("Retry-After", "1")
			answer(w, http.StatusServiceUnavailable, failure{"Service Unavailable", err.Error()})
		default:
			answer(w, http.StatusOK, e)
		}
	}
}
