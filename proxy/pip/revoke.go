package pip

import (
	"context"
	"errors"
	"time"

	"headgate/proxy/cache"
)

// Revocation says what became of an invalidation.
type Revocation struct {
	Contexts int `json:"contexts"` // contexts that were there and are gone
	// The replicas of Redis, and those that have deleted the context too. A replica
	// that has not may take over with the old context in it, which no proxy uses
	// then: it names another process.
	Replicas     int `json:"replicas"`
	Acknowledged int `json:"acknowledged"`
}

func (s *Source) contextKey(user string) string {
	if s.cfg.ProfileURL == RedisProfile {
		return contextPrefix + user // as the operator spelt it
	}
	return contextPrefix + lower(user)
}

// Invalidate ends what is known of a user, whatever credentials the user comes
// with and whether anything is known or is just being read: the next request of
// the user, at any proxy, reads it anew. With Redis away it does so for this
// process and the error says so.
func (s *Source) Invalidate(ctx context.Context, user string) (Revocation, error) {
	revocations.Inc()
	here := s.own.revoke(digest(lower(user)))
	s.refused.Clear()
	if s.redis == nil {
		if here {
			return Revocation{Contexts: 1}, nil
		}
		return Revocation{}, nil
	}
	if err := s.mark(ctx, lower(user)); err != nil {
		return Revocation{}, err
	}
	d, err := s.redis.DeleteEverywhere(ctx, s.contextKey(user))
	r := Revocation{Replicas: d.Replicas, Acknowledged: d.Acknowledged}
	if d.Was {
		r.Contexts = 1
	}
	return r, err
}

// InvalidateAll is Invalidate for all users.
func (s *Source) InvalidateAll(ctx context.Context) (Revocation, error) {
	revocations.Inc()
	n := s.own.revokeAll()
	s.refused.Clear()
	if s.redis == nil {
		return Revocation{Contexts: n}, nil
	}
	if err := s.mark(ctx, everyone); err != nil {
		return Revocation{}, err
	}
	var r Revocation
	err := s.redis.Keys(ctx, contextPrefix, func(keys []string) error {
		for _, key := range keys {
			was, err := s.redis.Delete(ctx, key)
			if err != nil {
				return err
			}
			if was {
				r.Contexts++
			}
		}
		return nil
	})
	return r, err
}

// mark leaves word of a revocation for fetches that do not know their user's name
// yet.
func (s *Source) mark(ctx context.Context, user string) error {
	err := s.redis.Set(ctx, revokedPrefix+user, time.Now().UTC().Format(time.RFC3339Nano), markLife)
	if errors.Is(err, cache.ErrAway) {
		s.warn("an invalidation reached this process alone: redis is away")
	}
	return err
}
