//go:build race

package upstream

// Under the race detector pools drop at random, and allocations mean nothing.
const raceEnabled = true
