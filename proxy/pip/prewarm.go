package pip

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/proxy/authz"
)

const (
	// Pre-warming leaves the API free for those who wait for it.
	prewarmers  = 4
	prewarmRate = 20 // users a second
)

// Warming says what became of a pre-warming.
type Warming struct {
	Warmed      int
	NotWarmable []string // users whom the API gives no principal: their first token is not known
	Failed      []Failure
}

// Failure is a user who could not be warmed, and why.
type Failure struct {
	User string
	Err  error
}

var errNoPrincipal = errors.New("the profile names no principal")

// Prewarm reads the contexts of users before they come, with the service
// credential. progress, if not nil, is told after each user how many of them are
// done; it is called by one goroutine at a time.
func (s *Source) Prewarm(ctx context.Context, users []string, progress func(done, of int)) (Warming, error) {
	if !s.calls.canLookUp() {
		return Warming{}, errors.New("pre-warming needs a look-up URL and a service key")
	}
	var (
		w    Warming
		mu   sync.Mutex
		done int
		wg   sync.WaitGroup
		next = make(chan string)
	)
	for range prewarmers {
		wg.Go(func() {
			for user := range next {
				err := s.prewarm(ctx, user)
				mu.Lock()
				switch {
				case err == nil:
					w.Warmed++
				case errors.Is(err, errNoPrincipal):
					w.NotWarmable = append(w.NotWarmable, user)
				default:
					w.Failed = append(w.Failed, Failure{user, err})
				}
				if done++; progress != nil {
					progress(done, len(users))
				}
				mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Second / prewarmRate)
	defer tick.Stop()
feed:
	for _, user := range users {
		select {
		case next <- user:
		case <-ctx.Done():
			break feed
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	slices.Sort(w.NotWarmable)
	slices.SortFunc(w.Failed, func(a, b Failure) int { return strings.Compare(a.User, b.User) })
	return w, ctx.Err()
}

func (s *Source) prewarm(ctx context.Context, user string) error {
	if s.redis == nil {
		return s.prewarmHere(ctx, user)
	}
	key := contextPrefix + lower(user)
	there, err := s.redis.Get(ctx, key)
	if err != nil {
		return err
	}
	old := there[0].Text
	var warm *record
	token, runID, err := "", "", error(nil)
	if !isClaim(old) {
		token, runID, err = s.claim(ctx, key, old, func(runID string) bool {
			warm = s.read(old, user, runID, &authz.Principal{})
			return warm != nil && warm.Principal != "" && time.Since(warm.Fetched) < s.cfg.RefreshAfter
		})
	}
	switch {
	case err != nil:
		return err
	case token == "" && warm != nil: // another replica was first
		return s.alias(ctx, principalOf(warm), user)
	case token == "":
		return fmt.Errorf("the context of %q is just being read", user)
	}
	r, err := s.named(ctx, user)
	if err == nil {
		_, err = s.store(ctx, key, token, r, runID)
	}
	if err != nil {
		s.release(ctx, key, token)
		return err
	}
	return s.alias(ctx, principalOf(r), r.Username)
}

func (s *Source) prewarmHere(ctx context.Context, user string) error {
	began := s.own.revocations()
	r, err := s.named(ctx, user)
	if err != nil {
		return err
	}
	if !s.own.keep(digest(lower(user)), &held{record: r}, s.cfg.Life, began) {
		return fmt.Errorf("%q was revoked meanwhile", user)
	}
	s.names.Set(principalOf(r).Alias, alias{r.Username, s.now() + s.cfg.Life}, s.cfg.Life)
	return nil
}

// named is the profile of a user whose tokens will be known by it.
func (s *Source) named(ctx context.Context, user string) (*record, error) {
	r, err := s.calls.byName(ctx, user)
	if err == nil && r.Principal == "" {
		return nil, errNoPrincipal
	}
	return r, err
}

// principalOf is the principal that a token of the user will be.
func principalOf(r *record) *authz.Principal {
	return &authz.Principal{Method: authz.JWT, Alias: sha256.Sum256([]byte(r.Principal))}
}
