//go:build !race

package pep

const raceEnabled = false
