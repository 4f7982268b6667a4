package pip

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"headgate/proxy/authz"
)

const (
	// refreshRetry is how soon an entry is considered for a refresh again.
	refreshRetry = 5 * time.Second
	// refreshBusy is the same where all refreshers are busy.
	refreshBusy = 50 * time.Millisecond
	// refreshPause is how long the fleet waits after a refresh that failed.
	refreshPause = 10 * time.Second
)

// refreshLater reads a context again in the background, so that whoever stays
// active never waits for the API. Where too many refreshes run already, the next
// request of the user tries again.
func (s *Source) refreshLater(e *entry, p *authz.Principal) {
	select {
	case s.refreshing <- struct{}{}:
	default:
		e.refresh.Store(int64(s.now() + refreshBusy))
		return
	}
	if !s.working() {
		<-s.refreshing
		return
	}
	go func() {
		defer s.work.Done()
		defer func() { <-s.refreshing }()
		ctx, cancel := context.WithTimeout(s.base, s.cfg.Timeout+claimLife)
		defer cancel()
		err := s.refreshNow(ctx, e, p)
		switch {
		case err == nil:
		case errors.Is(err, errNotAUser), errors.Is(err, errNoUser):
			refreshedEnded.Inc()
		default:
			refreshedFailed.Inc()
		}
	}()
}

func (s *Source) refreshNow(ctx context.Context, e *entry, p *authz.Principal) (err error) {
	defer survive(&err)
	if e.here {
		return s.refreshHere(ctx, e, p)
	}
	return s.refreshShared(ctx, e, p)
}

// again reads the profile of e's user: with the credential that p shows, else
// with the service credential.
func (s *Source) again(ctx context.Context, e *entry, p *authz.Principal) (*record, error) {
	if !p.Expires.IsZero() && time.Until(p.Expires) < 0 {
		if !s.calls.canLookUp() {
			return nil, errExpired
		}
		return s.calls.byName(ctx, e.name)
	}
	start := time.Now()
	r, err := s.ask(ctx, p)
	if errors.Is(err, errNoRights) {
		return e.record.withoutRoles(start), nil
	}
	return r, err
}

var errExpired = errors.New("there is no credential left to ask with")

// refreshShared lets one replica of the fleet refresh a context in Redis. The new
// context takes the place of the very one that was to be refreshed; if that is no
// longer there the user was revoked, or refreshed by another, and the answer is
// thrown away.
func (s *Source) refreshShared(ctx context.Context, e *entry, p *authz.Principal) error {
	user := lower(e.name)
	key, turn := contextPrefix+user, refreshPrefix+user
	if s.now()-e.fetched < s.cfg.RefreshAfter { // the alias alone is near its end
		turn = refreshPrefix + hex.EncodeToString(p.Alias[:])
		if p.Guessable {
			turn = "" // and is this process's alone
		}
	}
	if turn != "" {
		mine, _, err := s.redis.Claim(ctx, turn, newClaim(), s.cfg.Timeout+claimLife)
		if err != nil || !mine {
			return err
		}
	}
	pause, err := s.renew(ctx, key, e, p)
	switch {
	case turn == "":
	case pause > 0:
		s.redis.Extend(ctx, turn, pause)
	default:
		s.redis.Delete(ctx, turn)
	}
	return err
}

// renew is the turn of one replica. It says how long the next turn must wait.
func (s *Source) renew(ctx context.Context, key string, e *entry, p *authz.Principal) (pause time.Duration, err error) {
	there, err := s.redis.Get(ctx, key)
	if err != nil || there[0].Text != e.context.Text {
		return 0, err
	}
	runID, err := s.redis.RunID(ctx, key)
	if err != nil {
		return 0, err
	}
	r, err := s.again(ctx, e, p)
	switch {
	case errors.Is(err, errNotAUser):
		s.disown(ctx, p)
		return 0, err
	case errors.Is(err, errNoUser):
		s.redis.Swap(ctx, key, e.context.Text, "", 0)
		return 0, err
	case err != nil:
		return refreshPause, err
	case r.Username != e.name: // the next request finds out what became of the user
		s.redis.Swap(ctx, key, e.context.Text, "", 0)
		s.disown(ctx, p)
		return 0, nil
	}
	stored, err := s.store(ctx, key, e.context.Text, r, runID)
	if err != nil || stored == nil {
		return 0, err
	}
	refreshedOK.Inc()
	if err := s.alias(ctx, p, e.name); err != nil {
		return 0, err
	}
	s.readAhead(ctx, e, p)
	return 0, nil
}

// readAhead reads what took the place of e, so that no request of the user finds
// it gone and waits for Redis.
func (s *Source) readAhead(ctx context.Context, e *entry, p *authz.Principal) {
	for e.context.Stands() || e.shared && e.alias.Stands() { // Redis has yet to tell of the change
		if sleep(ctx, glance/10) != nil {
			return
		}
	}
	<-s.flight(p, credentialOf(p))
}

// refreshHere is refreshShared without Redis.
func (s *Source) refreshHere(ctx context.Context, e *entry, p *authz.Principal) error {
	began := s.own.revocations()
	r, err := s.again(ctx, e, p)
	switch {
	case errors.Is(err, errNotAUser):
		s.disown(ctx, p)
		s.known.Delete(p.Alias)
		return err
	case errors.Is(err, errNoUser):
		s.own.revoke(e.key)
		return err
	case err != nil:
		return err
	case r.Username != e.name:
		s.own.revoke(e.key)
		s.disown(ctx, p)
		return nil
	}
	life, aliasLife := s.cfg.Life, s.cfg.Life
	if s.redis != nil {
		life, aliasLife = min(life, awayLife), awayLife
	}
	if stranger(p) {
		aliasLife = min(aliasLife, keyAliasLife)
	}
	if s.own.keep(e.key, &held{r, e.outage}, life, began) {
		refreshedOK.Inc()
		s.names.Set(p.Alias, alias{r.Username, s.now() + aliasLife}, aliasLife)
	}
	return nil
}
