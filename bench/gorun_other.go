//go:build !linux

package main

// endWithGoRun does nothing: only Linux tells a process of its parent's death.
func endWithGoRun() {}
