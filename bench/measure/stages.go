package measure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"headgate/bench/load"
	"headgate/bench/report"
)

// stages are the times that decision records tell of, in seconds, by stage.
type stages struct{ identify, context, decide, forward, total []float64 }

func (s *stages) add(r *record) {
	s.identify = append(s.identify, r.Identify/1e6)
	s.context = append(s.context, r.Context/1e6)
	s.decide = append(s.decide, r.Decide/1e6)
	s.forward = append(s.forward, r.Forward/1e6)
	s.total = append(s.total, r.Total/1e6)
}

// overhead is what a request took beside being forwarded.
func (s *stages) overhead() (all []float64) {
	for i := range s.total {
		all = append(all, s.total[i]-s.forward[i])
	}
	return all
}

// oneByOne sends requests one after the other, and wants the decision of each from
// the given source: with a few strays, such as a question asked again because the
// policy's lease had run out, which are left out.
func (b *bench) oneByOne(ctx context.Context, s *subject, n int64, source string, next func(int64) *load.Call) (*stages, error) {
	var got stages
	_, err := b.slice(ctx, s, load.Options{Connections: 1, Requests: n}, next, func(r *record) {
		if r.Source == source {
			got.add(r)
		}
	})
	if err == nil && 2*int64(len(got.total)) < n {
		err = fmt.Errorf("only %d of %d decisions came from %s", len(got.total), n, source)
	}
	return &got, err
}

const (
	fromOPA   = "opa"
	fromCache = "cache"
)

// stagesPart makes each cache miss by itself, one request after the other, so that
// nothing waits for anything else.
func (b *bench) stagesPart(ctx context.Context) ([]report.Table, error) {
	at := b.front.url
	warmCall := b.read(at)
	if _, err := b.slice(ctx, b.front, load.Options{Connections: 1, Requests: 50}, same(warmCall), nil); err != nil {
		return nil, err
	}
	before, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	warm, err := b.oneByOne(ctx, b.front, b.size.Warm, fromCache, same(warmCall))
	if err != nil {
		return nil, err
	}
	after, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	during := after.since(before)

	b.say("        users that are not cached: %d times %v", 2*b.size.Slow, profileDelay)
	var failed error
	cold := func(call func(int64) *load.Call) func(int64) *load.Call {
		return func(n int64) *load.Call {
			failed = errors.Join(failed, b.invalidate(ctx, b.front.admin, reader))
			return call(n)
		}
	}
	coldUser, err := b.oneByOne(ctx, b.front, b.size.Slow, fromCache, cold(same(warmCall)))
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	tokens, err := b.mint(ctx, repeat(reader, int(b.size.Cold+b.size.Slow)))
	if err != nil {
		return nil, err
	}
	coldToken, err := b.oneByOne(ctx, b.front, b.size.Cold, fromCache, func(n int64) *load.Call { return b.readOf(at, office, tokens[n], "Elev") })
	if err != nil {
		return nil, err
	}
	allCold, err := b.oneByOne(ctx, b.front, b.size.Slow, fromOPA, cold(func(n int64) *load.Call {
		return b.readOf(at, office, tokens[b.size.Cold+n], fmt.Sprintf("Cold%d", n))
	}))
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}

	b.say("        decisions that are not cached, and a plain client that asks OPA the same")
	tcp, socket, err := b.questionsByTransport(ctx)
	if err != nil {
		return nil, err
	}
	b.found["miss"], b.found["miss by socket"] = tcp.ratio().Number, socket.ratio().Number

	calls, err := b.herd(ctx, warmCall)
	if err != nil {
		return nil, err
	}
	b.found["herd"] = float64(calls)
	return []report.Table{
		missTable(warm, coldUser, &tcp.allow, allCold, calls),
		opaTable(tcp, socket),
		breakdownTable(warm, coldToken, coldUser, &tcp.allow, during),
	}, nil
}

// questions are what a proxy and a plain client got from OPA over one transport.
type questions struct {
	s           *subject
	socket      string // where the plain client finds OPA; empty: at its address
	name        string // makes the questions over this transport its own
	allow, deny stages
	asked       []slice   // by the plain client
	ratios      []float64 // by slice
}

func (q *questions) ratio() report.Value { return report.Median(q.ratios) }

// questionsByTransport asks OPA over TCP and over a Unix socket, by this proxy and by the
// plain client, all in turns.
func (b *bench) questionsByTransport(ctx context.Context) (tcp, socket *questions, err error) {
	ask, err := b.plainQuestion(ctx)
	if err != nil {
		return nil, nil, err
	}
	local, stop, err := b.fresh(ctx, "socket", map[string]string{"OPA_URL": b.st.OPASocket})
	if err != nil {
		return nil, nil, err
	}
	defer stop()
	// The user, the token and the connections are there before it counts.
	if _, err := b.slice(ctx, local, load.Options{Connections: 1, Requests: 50}, same(b.read(local.url)), nil); err != nil {
		return nil, nil, err
	}
	tcp = &questions{s: b.front, name: "TCP"}
	socket = &questions{s: local, name: "Unix", socket: strings.TrimPrefix(b.st.OPASocket, "unix://")}
	// Short turns, and many: what disturbs the machine for a second shall not be
	// one transport's alone.
	turns := 3 * int64(b.size.Rounds)
	each := max(1, b.size.Cold/turns)
	for turn := range turns {
		for _, q := range []*questions{tcp, socket} {
			if err := b.askInTurns(ctx, q, ask, turn*each, each); err != nil {
				return nil, nil, err
			}
		}
	}
	return tcp, socket, nil
}

// askInTurns asks n questions from the given one on: the plain client, then the
// proxy those that are allowed, then those that are denied.
func (b *bench) askInTurns(ctx context.Context, q *questions, ask func(string) *load.Call, from, n int64) error {
	token := b.tokens[reader]
	plain, err := b.slice(ctx, &subject{name: "OPA", url: b.st.OPA}, load.Options{Connections: 1, Requests: n}, func(i int64) *load.Call {
		c := ask(fmt.Sprintf("Plain%s%d", q.name, from+i))
		c.Socket = q.socket
		return c
	}, nil)
	if err != nil {
		return err
	}
	allowed, err := b.oneByOne(ctx, q.s, n, fromOPA, func(i int64) *load.Call {
		return b.readOf(q.s.url, office, token, fmt.Sprintf("Allow%s%d", q.name, from+i))
	})
	if err != nil {
		return err
	}
	denied, err := b.oneByOne(ctx, q.s, n, fromOPA, func(i int64) *load.Call {
		c := b.readOf(q.s.url, "SPK", token, fmt.Sprintf("Deny%s%d", q.name, from+i))
		c.Status, c.Contains = http.StatusForbidden, "incidentIdentifier"
		return c
	})
	if err != nil {
		return err
	}
	q.asked = append(q.asked, plain)
	q.ratios = append(q.ratios, report.Quantile(allowed.decide, .5)/plain.Total.Quantile(.5).Seconds())
	q.allow.join(allowed)
	q.deny.join(denied)
	return nil
}

func (s *stages) join(o *stages) {
	s.identify = append(s.identify, o.identify...)
	s.context = append(s.context, o.context...)
	s.decide = append(s.decide, o.decide...)
	s.forward = append(s.forward, o.forward...)
	s.total = append(s.total, o.total...)
}

func repeat(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// plainQuestion makes the calls by which a client without any cache would ask OPA
// what the proxy asks: with the same input document, about a parameter of the
// caller's choice.
func (b *bench) plainQuestion(ctx context.Context) (func(parameter string) *load.Call, error) {
	p, err := b.st.AddProxy(ctx, "talkative", map[string]string{"LOG_INPUTS": "true"})
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	s, err := proxySubject(ctx, "talkative", p.URL, p.Admin, p.Child)
	if err != nil {
		return nil, err
	}
	input := ""
	_, err = b.slice(ctx, s, load.Options{Connections: 1, Requests: 1}, same(b.readOf(p.URL, office, b.tokens[reader], "Plain")), func(r *record) { input = string(r.Input) })
	if err == nil && !strings.Contains(input, "Plain") {
		err = fmt.Errorf("the input document does not name the parameter: %s", input)
	}
	return func(parameter string) *load.Call {
		return &load.Call{
			Method: http.MethodPost, URL: b.st.OPA + "/v1/data/cwms/authz/decision?provenance=true&strict-builtin-errors=true",
			Header:   [][2]string{{"Content-Type", "application/json"}},
			Body:     []byte(`{"input":` + strings.Replace(input, "Plain", parameter, 1) + `}`),
			Contains: `"allow":true`,
		}
	}, err
}

// herd is how many profiles are read when fifty requests of a user who is not
// cached come at once.
func (b *bench) herd(ctx context.Context, call *load.Call) (calls uint64, err error) {
	if err := b.invalidate(ctx, b.front.admin, reader); err != nil {
		return 0, err
	}
	before, err := b.st.Stats(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := b.slice(ctx, b.front, load.Options{Connections: 50, Requests: 50}, same(call), nil); err != nil {
		return 0, err
	}
	after, err := b.st.Stats(ctx)
	return after.ProfileCalls - before.ProfileCalls, err
}

// stamp is a quantile of times that were recorded in whole microseconds.
func stamp(samples []float64, q float64) report.Value {
	n := report.Quantile(samples, q)
	if n < 1e-6 {
		return report.Text("< 1 µs")
	}
	return report.Of(n)
}

func missTable(warm, user, decision, all *stages, calls uint64) report.Table {
	row := func(name, reference string, hit, miss []float64) report.Row {
		return report.Row{Name: name, Reference: reference, Values: []report.Value{stamp(hit, .5), stamp(miss, .5), stamp(miss, .99)}}
	}
	plural := "s"
	if calls == 1 {
		plural = ""
	}
	return report.Table{
		ID: "miss", First: "what is missing",
		About: fmt.Sprintf("One request after the other, each of which misses one cache: the user's context (the API takes %v for a profile), the decision, or both and the token too. "+
			"The times are those of the proxy's own decision records; the whole is everything but forwarding.", profileDelay),
		Columns: []report.Column{
			{Name: "cached p50", Unit: report.Seconds, Better: report.Less}, {Name: "not cached p50", Unit: report.Seconds, Better: report.Less},
			{Name: "not cached p99", Unit: report.Seconds, Better: report.Less},
		},
		Rows: []report.Row{
			row("user context", "< 1 ms, 175 ms", warm.context, user.context),
			row("decision", "< 0.1 ms, 6-11 ms", warm.decide, decision.decide),
			row("whole overhead", "2-3 ms, 180-200 ms", warm.overhead(), all.overhead()),
		},
		Notes: []string{fmt.Sprintf("Fifty requests at once of a user who was not cached: %d profile call%s.", calls, plural)},
	}
}

func opaTable(tcp, socket *questions) report.Table {
	t := report.Table{
		ID: "opa", First: "decision",
		About: "Questions that were never asked before, one after the other: the stage “decide” with its round trip to OPA on a kept connection, over TCP and over a Unix socket of the same OPA. " +
			"The plain client does nothing but send the same questions over a kept connection, in slices in between.",
		Columns: []report.Column{
			{Name: "count", Unit: report.Count}, {Name: "average", Unit: report.Seconds, Better: report.Less},
			{Name: "p50", Unit: report.Seconds, Better: report.Less}, {Name: "p95", Unit: report.Seconds, Better: report.Less},
			{Name: "p50, of the plain client's", Unit: report.Ratio, Better: report.Less},
		},
	}
	row := func(name, reference string, samples []float64) {
		t.Rows = append(t.Rows, report.Row{Name: name, Reference: reference, Values: []report.Value{
			report.Of(float64(len(samples))), report.Of(report.Mean(samples)), stamp(samples, .5), stamp(samples, .95),
		}})
	}
	for _, q := range []*questions{tcp, socket} {
		over := "" // TCP, as usual
		if q.socket != "" {
			over = ", Unix socket"
		}
		row("allow"+over, "6.4 ms average, 10 ms p95", q.allow.decide)
		last := &t.Rows[len(t.Rows)-1]
		last.Values = append(last.Values, q.ratio())
		row("deny"+over, "11 ms average, 25 ms p95", q.deny.decide)
		t.Rows = append(t.Rows, report.Row{Name: "plain client, allow" + over, Values: []report.Value{
			report.Of(float64(merged(q.asked, "").Requests)), latency(q.asked, "", mean), latency(q.asked, "", quantile(.5)), latency(q.asked, "", quantile(.95)), report.Of(1),
		}})
	}
	p50 := func(q *questions) string {
		return report.Seconds.Format(report.Of(report.Quantile(q.allow.decide, .5)))
	}
	t.Notes = []string{fmt.Sprintf("A miss takes %s what the plain client takes over TCP, and %s over the socket (p50, median of %d interleaved slices); the socket answers in %s instead of %s.",
		report.Ratio.Format(tcp.ratio()), report.Ratio.Format(socket.ratio()), len(tcp.asked), p50(socket), p50(tcp))}
	return t
}

func breakdownTable(warm, token, user, decision *stages, during metrics) report.Table {
	parts := []struct {
		name, stage, reference string
		hit, miss              []float64
	}{
		{"verify the credential", "identify", "< 1 ms", warm.identify, token.identify},
		{"user context", "context", "0.23 ms, 1.2 ms", warm.context, user.context},
		{"decision", "decide", "< 0.1 ms, 6-11 ms", warm.decide, decision.decide},
		{"forward", "forward", "", warm.forward, nil},
		{"everything", "", "", warm.total, nil},
	}
	t := report.Table{
		ID: "breakdown", First: "stage",
		About: "Each stage when its cache has the answer, and when it has not. The misses are those of requests that miss this cache alone; forwarding has no cache, " +
			"and waits for the API.",
		Columns: []report.Column{
			{Name: "hit average", Unit: report.Seconds, Better: report.Less}, {Name: "hit p50", Unit: report.Seconds, Better: report.Less},
			{Name: "hit p99", Unit: report.Seconds, Better: report.Less}, {Name: "miss p50", Unit: report.Seconds, Better: report.Less},
			{Name: "miss p99", Unit: report.Seconds, Better: report.Less},
		},
		Notes: []string{"Records tell whole microseconds; the averages are from the proxy's histograms, which are exact."},
	}
	for _, p := range parts {
		average := report.Of(report.Mean(p.hit))
		if p.stage != "" {
			average = report.Of(during.mean("authorizer_proxy_stage_duration_seconds", `{stage="`+p.stage+`"}`))
		}
		values := []report.Value{average, stamp(p.hit, .5), stamp(p.hit, .99)}
		if p.miss != nil {
			values = append(values, stamp(p.miss, .5), stamp(p.miss, .99))
		}
		t.Rows = append(t.Rows, report.Row{Name: p.name, Reference: p.reference, Values: values})
	}
	chart := report.Chart{
		Title: "Where a request spends its time, on average",
		X:     report.Axis{Label: "time in the proxy", Unit: report.Seconds}, Legend: []string{"verify", "context", "decide", "forward and wait for the API", "read and write"},
	}
	for _, bar := range []struct {
		name string
		of   *stages
	}{{"all cached", warm}, {"new token", token}, {"new question", decision}} {
		s := bar.of
		stage := []float64{report.Mean(s.identify), report.Mean(s.context), report.Mean(s.decide), report.Mean(s.forward)}
		rest := report.Mean(s.total)
		for _, x := range stage {
			rest -= x
		}
		chart.Bars = append(chart.Bars, report.Bar{Name: bar.name, Parts: append(stage, max(rest, 0))})
	}
	chart.Says = fmt.Sprintf("With everything cached a request is the wait for the API and little else; a new token costs a signature check, a new question a round trip to OPA. A user who is not cached waits for the API's profile (%s here), which would leave nothing else to see.",
		report.Seconds.Format(report.Of(report.Quantile(user.context, .5))))
	t.Charts = []report.Chart{chart}
	return t
}
