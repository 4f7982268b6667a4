package pdp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rs/zerolog"
)

// A problem is said once, whatever its cause each time; again when it has been
// gone, and when it has stayed for a while.
func TestWarning(t *testing.T) {
	var log bytes.Buffer
	w := warning{log: zerolog.New(&log)}
	w.about("", nil)
	w.about("cannot ask", errors.New("port 1"))
	w.about("cannot ask", errors.New("port 2"))
	w.about("cannot ask", errors.New("port 3"))
	w.about("not cached", nil)
	w.about("", nil)
	w.about("", nil)
	w.about("cannot ask", errors.New("port 4"))
	w.about("cannot ask", errors.New("port 5"))
	w.said = w.said.Add(-warnEvery)
	w.about("cannot ask", errors.New("port 6"))
	const want = `{"level":"warn","error":"port 1","repeated":0,"message":"cannot ask"}
{"level":"warn","repeated":0,"message":"not cached"}
{"level":"info","message":"OPA is as it should be again"}
{"level":"warn","error":"port 4","repeated":0,"message":"cannot ask"}
{"level":"warn","error":"port 6","repeated":1,"message":"cannot ask"}
`
	if got := log.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
