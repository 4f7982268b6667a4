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
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"headgate/proxy/authz"
)

// maxAuthorizeBody is the largest body of POST /authorize, in bytes.
const maxAuthorizeBody = 8 << 10

// question is the body of POST /authorize.
type question struct {
	Resource string
	Action   string
	Context  map[string]json.RawMessage
	Token    string          // jwt_token
	User     json.RawMessage // an object; nil without
}

// authorize decides for another service. It goes through the stages and the
// caches of a proxied request; the answer is 200 whether policy allows or denies.
func (h *Handler) authorize(x *exchange) error {
	body, err := readAll(x.rc, maxAuthorizeBody, func(int64) error { return nil })
	if errors.Is(err, authz.ErrBodyTooLarge) {
		return authz.Refuse(authz.ErrMalformed, "the body is over %d bytes", maxAuthorizeBody)
	}
	if err != nil {
		return err
	}
	q, faults, err := readQuestion(body)
	if err != nil {
		return err
	}
	x.event.Resource, x.event.Action = q.Resource, q.Action
	about, err := h.Routes.Stated(q.Resource, q.Action, q.Context)
	var more *authz.Refusal
	if errors.As(err, &more) {
		faults = append(faults, more.Message)
	}
	if faults != nil {
		return authz.Refuse(authz.ErrMalformed, "%s", strings.Join(faults, "; "))
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
	x.answer(fasthttp.StatusOK)
	x.rc.Response.Header.SetContentType("application/json")
	x.rc.Response.Header.Set("Cache-Control", "no-store")
	x.rc.Response.SetBodyRaw(x.appendAnswer(nil))
	return nil
}

// asker is whom the question is about: the user that a trusted caller names, or
// whoever the token, key or cookie belongs to.
func (h *Handler) asker(x *exchange, q question) (*authz.Principal, error) {
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

// readQuestion reads the body of POST /authorize. faults are the members of a
// wrong type; resource and action are looked at by Table.Stated, which knows what
// they may be. Members that are not ours are left alone.
func readQuestion(body []byte) (q question, faults []string, err error) {
	if err := readable(body); err != nil {
		return q, nil, err
	}
	members, err := object(body)
	if err != nil {
		return q, nil, authz.Refuse(authz.ErrMalformed, "the body is no JSON object, or has a member twice").Because(err)
	}
	_ = json.Unmarshal(members["resource"], &q.Resource)
	_ = json.Unmarshal(members["action"], &q.Action)
	if raw := members["context"]; raw != nil {
		if q.Context, err = object(raw); err != nil {
			faults = append(faults, "context must be an object without a member twice")
		}
	}
	if raw := members["jwt_token"]; raw != nil && json.Unmarshal(raw, &q.Token) != nil {
		faults = append(faults, "jwt_token must be a string")
	}
	if q.User = members["user"]; q.User != nil && q.User[0] != '{' {
		faults = append(faults, "user must be an object")
	}
	return q, faults, nil
}

// readable refuses what would come out otherwise than it went in: text that is no
// UTF-8 or has half a character, which would turn into U+FFFD and make different
// questions equal, and numbers that OPA cannot hold.
func readable(body []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil // its end, or what object will say better
		}
		switch v := token.(type) {
		case string:
			if strings.ContainsRune(v, utf8.RuneError) {
				return authz.Refuse(authz.ErrMalformed, "the body has text that is no UTF-8")
			}
		case json.Number:
			if _, exponent, ok := strings.Cut(strings.ToLower(v.String()), "e"); ok && len(exponent) > 4 {
				return authz.Refuse(authz.ErrMalformed, "the body has a number with an exponent of more than three digits")
			}
		}
	}
}

// object splits a JSON object into its members, those that are null left out.
// Which of two members of one name counts is a matter of taste, so it has no two.
func object(raw []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	members, seen := map[string]json.RawMessage{}, map[string]bool{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		if key := name.(string); seen[key] {
			return nil, errors.New("a member is there twice")
		} else if seen[key] = true; string(value) != "null" {
			members[key] = value
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("something follows the object")
	}
	return members, nil
}

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
	if d.Constraints == nil {
		b = append(b, "{}"...)
	} else {
		b = append(b, d.Constraints...)
	}
	b = append(b, `,"timestamp":"`...)
	b = append(b, timestamp(time.Now())...)
	return append(b, `"}`...)
}
