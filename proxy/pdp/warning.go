package pdp

import (
	"time"

	"github.com/rs/zerolog"
)

// warnEvery is how often a problem that stays is said again.
const warnEvery = time.Minute

// warning says a problem when it appears and then once a minute, with the number
// of times it was met meanwhile. Causes differ from time to time; the problem is
// the same.
type warning struct {
	log   zerolog.Logger
	last  string
	said  time.Time
	since int
}

func (w *warning) about(problem string, cause error) {
	if problem != w.last {
		w.since = 0
	}
	switch {
	case problem == "" && w.last != "":
		w.log.Info().Msg("OPA is as it should be again")
	case problem == "":
	case problem != w.last || time.Since(w.said) >= warnEvery:
		w.log.Warn().Err(cause).Int("repeated", w.since).Msg(problem)
		w.said, w.since = time.Now(), 0
	default:
		w.since++
	}
	w.last = problem
}
