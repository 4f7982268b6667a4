package measure

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
	"golang.org/x/sync/errgroup"

	"headgate/bench/load"
	"headgate/bench/report"
)

// stage is a part of what a proxy does with a request.
type stage struct {
	name      string
	added     bool     // the bare hop does nothing of the kind
	functions []string // a sample is of the first stage of which one function on its stack begins so
}

// stagesOf are the functions of the proxy, those first that others call.
var stagesOf = []stage{
	{"allocation and collection", false, []string{
		"runtime.mallocgc", "runtime.growslice", "runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcStart", "runtime.gcMark",
	}},
	{"scheduler and poller", false, []string{
		"runtime.mcall", "runtime.schedule", "runtime.mstart", "runtime.sysmon", "runtime.gopark", "runtime.goready", "runtime.ready", "runtime.morestack", "internal/poll.runtime_poll",
	}},
	{"decision record and metrics", true, []string{"headgate/proxy/pep.(*Handler).finish", "headgate/proxy/pep.(*Handler).end", "headgate/proxy/pep.(*Recorder)", "headgate/proxy/pep.(*Buffered)"}},
	{"user context", true, []string{"headgate/proxy/pep.(*Handler).describe"}},
	{"verify the credential", true, []string{"headgate/proxy/pep.(*Handler).identify"}},
	{"question and decision", true, []string{"headgate/proxy/pep.(*Handler).understand", "headgate/proxy/pep.(*Handler).decide", "headgate/proxy/pep.(*Handler).ask"}},
	{"forward and read the API's answer", false, []string{"headgate/proxy/pep.(*Handler).forward"}},
	{"write the answer", false, []string{"headgate/proxy/pep.(*conn).Write", "github.com/valyala/fasthttp.writeResponse", "github.com/valyala/fasthttp.(*Response", "bufio.(*Writer)"}},
	{"read and parse the request", false, []string{
		"headgate/proxy/pep.(*conn).Read", "headgate/proxy/pep.(*exchange).read", "headgate/proxy/pep.(*Handler).begin", "github.com/valyala/fasthttp.(*Request", "bufio.(*Reader)",
	}},
	{"between the stages", false, []string{"headgate/proxy/pep.", "github.com/valyala/fasthttp."}},
	{"cache upkeep and polling", true, []string{"headgate/proxy/", "main.", "github.com/maypok86/otter", "github.com/redis/rueidis", "net/http.", "runtime/pprof."}},
}

const unclassified = "not classified"

// kernel is where a stack ends while the processor is the kernel's.
var kernel = []string{"internal/runtime/syscall", "syscall.", "golang.org/x/sys/unix.", "runtime.futex", "runtime.usleep", "runtime.write1", "runtime.tgkill"}

// use is processor time in seconds.
type use struct{ program, kernel float64 }

func (u use) sum() float64 { return u.program + u.kernel }

func (u use) since(before use) use { return use{u.program - before.program, u.kernel - before.kernel} }

// usesOf adds up the samples of a profile by the name of their stage.
func usesOf(p *profile.Profile) (map[string]use, error) {
	cpu := slices.IndexFunc(p.SampleType, func(v *profile.ValueType) bool { return v.Type == "cpu" && v.Unit == "nanoseconds" })
	if cpu < 0 || len(p.Sample) == 0 {
		return nil, fmt.Errorf("the profile has %d samples, and of processor time none", len(p.Sample))
	}
	uses := map[string]use{}
	for _, s := range p.Sample {
		var stack []string // the innermost first
		for _, l := range s.Location {
			for _, line := range l.Line {
				stack = append(stack, line.Function.Name)
			}
		}
		name := unclassified
		if i := slices.IndexFunc(stagesOf, func(st stage) bool { return slices.ContainsFunc(stack, beginsLike(st.functions)) }); i >= 0 {
			name = stagesOf[i].name
		}
		u, seconds := uses[name], float64(s.Value[cpu])/1e9
		if len(stack) > 0 && beginsLike(kernel)(stack[0]) {
			u.kernel += seconds
		} else {
			u.program += seconds
		}
		uses[name] = u
	}
	return uses, nil
}

func beginsLike(prefixes []string) func(string) bool {
	return func(function string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(function, p) })
	}
}

// profilePart profiles a proxy at saturation, in a slice of its own: no other
// table's numbers are taken while the profiler runs.
func (b *bench) profilePart(ctx context.Context) ([]report.Table, error) {
	started, _, stopPeers, err := b.startPeers(ctx, peers[:1])
	if err != nil {
		return nil, err
	}
	defer stopPeers()
	s, stop, err := b.fresh(ctx, "profiled", map[string]string{"ADMIN_PPROF": "true"})
	if err != nil {
		return nil, err
	}
	defer stop()
	if len(started) == 0 {
		return nil, fmt.Errorf("%s does not run", peers[0].name)
	}
	bare := started[0]
	saturate := func(s *subject, o load.Options) (slice, error) {
		o.Connections = saturated
		return b.slice(ctx, s, o, same(b.read(s.url)), nil)
	}
	for _, one := range []*subject{bare, s} {
		if _, err := saturate(one, load.Options{Requests: 500}); err != nil {
			return nil, err
		}
	}
	// The bare hop before and after; what it spends in the kernel is Linux's word.
	before := ticksOf(bare.process.PID())
	var hops []slice
	var got slice
	var p *profile.Profile
	for range 2 {
		hop, err := saturate(bare, load.Options{Duration: b.size.Slice})
		if err != nil {
			return nil, err
		}
		hops = append(hops, hop)
		if len(hops) > 1 {
			break
		}
		var together errgroup.Group
		together.Go(func() (err error) {
			got, err = saturate(s, load.Options{Duration: b.size.Profile})
			return err
		})
		together.Go(func() (err error) {
			p, err = s.profile(ctx, int(b.size.Profile.Seconds()))
			return err
		})
		if err := together.Wait(); err != nil {
			return nil, err
		}
	}
	uses, err := usesOf(p)
	if err != nil {
		return nil, err
	}
	return []report.Table{b.profileTable(uses, got, hops, ticksOf(bare.process.PID()).since(before))}, nil
}

// profile takes a CPU profile of a proxy.
func (s *subject) profile(ctx context.Context, seconds int) (*profile.Profile, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.admin, seconds), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return nil, fmt.Errorf("the profile: %s: %s", res.Status, text)
	}
	return profile.Parse(res.Body)
}

func (b *bench) profileTable(uses map[string]use, got slice, hops []slice, hop use) report.Table {
	var all use
	for _, u := range uses {
		all.program += u.program
		all.kernel += u.kernel
	}
	cost := got.cost()
	ofHop := overSlices(hops, slice.cost)
	t := report.Table{
		ID: "profile", First: "what for",
		About: fmt.Sprintf("A CPU profile of this proxy, taken for %v with the request and the load of “side by side”, in a slice of its own: %.0f samples, one for each 10 ms of processor time. Each counts for the stage that its call stack is in; "+
			"what allocates, collects and schedules counts for the runtime, wherever it was called from. The kernel's part is that of system calls; the bare hop's, which has no profiler, is as Linux counts it.", b.size.Profile, all.sum()*100),
		Columns: []report.Column{
			{Name: "share", Unit: report.Share, Better: report.Less}, {Name: "in the program", Unit: report.Share}, {Name: "in the kernel", Unit: report.Share},
			{Name: "CPU per request", Unit: report.Seconds, Better: report.Less}, {Name: "bare hop too", Unit: report.Plain},
		},
	}
	chart := report.Chart{
		Title: "Processor time of a request, by what for", X: report.Axis{Label: "CPU per request", Unit: report.Seconds}, Legend: []string{"in the program", "in the kernel"},
	}
	added := 0.0
	for _, st := range append(slices.Clone(stagesOf), stage{name: unclassified}) {
		u := uses[st.name]
		of := func(seconds float64) report.Value { return report.Of(seconds / all.sum()) }
		does := report.Text("yes")
		switch {
		case st.name == unclassified:
			does = report.None
		case st.added:
			does = report.Text("no")
			added += u.sum()
		}
		t.Rows = append(t.Rows, report.Row{Name: st.name, Values: []report.Value{of(u.sum()), of(u.program), of(u.kernel), report.Of(u.sum() / all.sum() * cost), does}})
		chart.Bars = append(chart.Bars, report.Bar{Name: st.name, Parts: []float64{u.program / all.sum() * cost, u.kernel / all.sum() * cost}})
	}
	t.Rows = append(t.Rows,
		report.Row{Name: "headgate, together", Ours: true, Values: []report.Value{report.Of(1), report.Of(all.program / all.sum()), report.Of(all.kernel / all.sum()), report.Of(cost)}},
		report.Row{Name: peers[0].name, Values: []report.Value{report.None, report.None, report.None, ofHop}})
	if hop.sum() > 0 {
		hopRow := &t.Rows[len(t.Rows)-1]
		hopRow.Values = []report.Value{report.Of(1), report.Of(hop.program / hop.sum()), report.Of(hop.kernel / hop.sum()), ofHop}
	}
	if cost > 0 {
		micro := func(seconds float64) string { return report.Seconds.Format(report.Of(seconds)) }
		t.Notes = []string{fmt.Sprintf("This proxy took %s for a request while it was profiled, and the bare hop %s in the slices before and after: %s more. What the bare hop does not do at all takes %s.",
			micro(cost), micro(ofHop.Number), micro(max(cost-ofHop.Number, 0)), micro(added/all.sum()*cost))}
		if hop.sum() > 0 {
			t.Notes[0] += fmt.Sprintf(" In the kernel the two spend %s and %s.", micro(all.kernel/all.sum()*cost), micro(hop.kernel/hop.sum()*ofHop.Number))
		}
	}
	chart.Says = fmt.Sprintf("%s of the time is the kernel's, mostly for the two reads and two writes that a request costs any proxy; of %s no stage is known.",
		report.Share.Format(report.Of(all.kernel/all.sum())), report.Share.Format(report.Of(uses[unclassified].sum()/all.sum())))
	t.Charts = []report.Chart{chart}
	return t
}
