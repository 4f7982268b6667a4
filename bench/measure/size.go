package measure

import "time"

// Size is how much a run measures: how long, how often, how far.
type Size struct {
	Rounds  int           // slices that a number is the median of
	Slice   time.Duration // of a slice at saturation or at a constant rate
	Rung    time.Duration // of a slice of a ladder
	Profile time.Duration // of the slice that is profiled
	Think   time.Duration // of a slice of a closed loop with think time
	VUs     []int         // steps of the ramp
	Warm    int64         // requests one after the other
	Cold    int64         // requests that are each a cache miss
	Slow    int64         // requests that each wait for a profile
	URLs    int64         // distinct ones

	Revocations, Activations int

	Cores     []int
	Users     []int
	Decisions []int
	Of        int // users that the decisions are about
	Roles     []int
	Header    []int // bytes
}

var full = Size{
	Rounds: 3, Slice: 3 * time.Second, Rung: 2 * time.Second, Profile: 10 * time.Second, Think: 10 * time.Second, VUs: []int{5, 10, 20, 30, 40, 50},
	Warm: 5000, Cold: 1000, Slow: 50, URLs: 10_000,
	Revocations: 150, Activations: 15,
	Cores: []int{1, 2}, Users: []int{1, 100, 1000, 10_000, 100_000}, Decisions: []int{1000, 10_000, 30_000, 100_000}, Of: 1000,
	Roles: []int{1, 10, 50, 200, 500}, Header: []int{256, 2 << 10, 6 << 10, 12 << 10},
}

var quick = Size{
	Rounds: 2, Slice: 700 * time.Millisecond, Rung: 600 * time.Millisecond, Profile: 2 * time.Second, Think: 4 * time.Second, VUs: []int{5, 20, 50},
	Warm: 1000, Cold: 200, Slow: 10, URLs: 10_000,
	Revocations: 24, Activations: 3,
	Cores: []int{1, 2}, Users: []int{1, 100, 1000}, Decisions: []int{1000, 5000}, Of: 100,
	Roles: []int{1, 50, 500}, Header: []int{256, 4 << 10, 12 << 10},
}
