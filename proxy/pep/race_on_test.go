//go:build race

package pep

const raceEnabled = true
