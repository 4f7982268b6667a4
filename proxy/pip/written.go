package pip

import (
	"bytes"
	"encoding/json"
	"errors"

	"headgate/proxy/authz"
)

var errNotJSON = errors.New("the context that the operator wrote is not JSON")

// written is the subject where an operator writes contexts, under
// user:context:<sub>: any JSON, which policy sees as user.attributes. A user
// without one has no attributes.
func (s *Source) written(p *authz.Principal) (*authz.Subject, error) {
	if p.Method != authz.JWT {
		return refusal{err: errNotAUser}.subject(p)
	}
	now := s.now()
	e := &entry{user: byClaims(p), checked: now, ends: now + readLife}
	var err error
	if e.context, err = s.redis.Load(contextPrefix+p.ID, readLife, false); err == nil && e.context.Text != "" {
		e.user.Attributes, err = compact(e.context.Text)
	}
	if err != nil {
		return nil, authz.Refuse(authz.ErrUnavailable, "the user context is not available").Because(err)
	}
	s.known.Set(p.Alias, e, s.cfg.Life)
	return e.subject(p), nil
}

func compact(text string) (json.RawMessage, error) {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return nil, errNotJSON
	}
	return bytes.ToValidUTF8(b.Bytes(), []byte("\uFFFD")), nil
}
