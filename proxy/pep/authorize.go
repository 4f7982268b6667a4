package pep

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// maxAuthorizeBody is the largest body of POST /authorize, in bytes.
const maxAuthorizeBody = 8 << 10

// question is the body of POST /authorize.
type question struct {
	Resource string                     `json:"resource"`
	Action   string                     `json:"action"`
	Context  map[string]json.RawMessage `json:"context"`
	Token    string                     `json:"jwt_token"`
	User     json.RawMessage            `json:"user"`
}

// authorize decides for another service. It goes through the stages and the
// caches of a proxied request; the answer is 200 whether policy allows or denies.
func (h *Handler) authorize(x *exchange) error {
	q, err := readQuestion(x.rc)
	if err != nil {
		return err
	}
	x.event.Resource, x.event.Action = q.Resource, q.Action
	about, err := h.Routes.Stated(q.Resource, q.Action, q.Context)
	if err != nil {
		return err
	}
	if x.principal, err = h.asker(x, q); err != nil {
		return err
	}
	x.lap(&x.event.Identify)
	if err := h.describe(x); err != nil {
		return err
	}
	if err := h.ask(x, &authz.Input{Subject: x.subject, Resource: q.Resource, Action: q.Action, Context: about}); err != nil {
		return err
	}
	x.rc.Response.Header.SetContentType("application/json")
	x.rc.Response.Header.Set("Cache-Control", "no-store")
	x.rc.Response.SetBodyRaw(x.appendAnswer(nil))
	return nil
}

// asker is whom the question is about: the user that a trusted caller names, or
// whoever the token, key or cookie belongs to.
func (h *Handler) asker(x *exchange, q *question) (*authz.Principal, error) {
	switch {
	case q.User != nil && q.Token != "":
		return nil, authz.Refuse(authz.ErrMalformed, "user and jwt_token: want one of them")
	case q.User != nil:
		if !h.trusted(x.head.secret) {
			return nil, authz.Refuse(authz.ErrForbidden, "user: wants the header X-Authorize-Secret with the secret of this proxy")
		}
		return h.AssertedUser(q.User)
	case q.Token == "":
		return h.Identify(h.Base, x.credentials)
	case x.credentials.Authorization != nil && !sameToken(x.credentials.Authorization, q.Token):
		return nil, authz.Refuse(authz.ErrMalformed, "jwt_token and the Authorization header differ")
	}
	return h.Token(h.Base, q.Token)
}

// trusted compares in constant time; hashing first hides the length, too.
func (h *Handler) trusted(secret []byte) bool {
	given, want := sha256.Sum256(secret), sha256.Sum256([]byte(h.AuthorizeSecret))
	return h.AuthorizeSecret != "" && subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

func sameToken(authorization []byte, token string) bool {
	fields := strings.Fields(string(authorization))
	return len(fields) == 2 && strings.EqualFold(fields[0], "Bearer") && fields[1] == token
}

func readQuestion(rc *fasthttp.RequestCtx) (*question, error) {
	body, err := readAll(rc, maxAuthorizeBody)
	if errors.Is(err, fasthttp.ErrBodyTooLarge) {
		return nil, authz.Refuse(authz.ErrMalformed, "the body is over %d bytes", maxAuthorizeBody)
	}
	if err != nil {
		return nil, err
	}
	var q question
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(&q); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return nil, authz.Refuse(authz.ErrMalformed, "%s: want %s, got %s", wrong.Field, kindName[wrong.Field], wrong.Value)
		}
		return nil, authz.Refuse(authz.ErrMalformed, "the body is no JSON object").Because(err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, authz.Refuse(authz.ErrMalformed, "something follows the JSON object")
	}
	var faults []string
	if q.Resource == "" {
		faults = append(faults, "resource: want the name of a resource")
	}
	if !actions[q.Action] {
		faults = append(faults, "action: want read, create, update or delete")
	}
	if bytes.Equal(q.User, []byte("null")) {
		q.User = nil
	}
	if q.User != nil && q.User[0] != '{' {
		faults = append(faults, "user: want an object")
	}
	if faults != nil {
		return nil, authz.Refuse(authz.ErrMalformed, "%s", strings.Join(faults, "; "))
	}
	return &q, nil
}

var (
	actions  = map[string]bool{"read": true, "create": true, "update": true, "delete": true}
	kindName = map[string]string{"resource": "a string", "action": "a string", "context": "an object", "jwt_token": "a string"}
)

func (x *exchange) appendAnswer(b []byte) []byte {
	d := &x.decision
	b = append(b, `{"decision":{"allow":`...)
	if d.Allow {
		b = append(b, "true"...)
	} else {
		b = append(b, "false"...)
	}
	b = append(b, `,"decision_id":`...)
	b = authz.AppendString(b, d.ID)
	b = append(b, `,"reason":`...)
	b = authz.AppendString(b, d.Reason)
	b = append(b, `},"user":`...)
	b = append(b, x.subject.HeaderJSON()...)
	b = append(b, `,"constraints":`...)
	b = append(b, d.Constraints...)
	b = append(b, `,"timestamp":"`...)
	b = append(b, timestamp(time.Now())...)
	return append(b, `"}`...)
}
