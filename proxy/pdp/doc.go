// Package pdp is the side of the policy decision point that lives in the proxy:
// it puts questions to OPA and reuses an answer only while everything that made
// it is unchanged.
//
// A question is the exact bytes sent to OPA, and its SHA-256 is the cache key, so
// whatever policy can see is in the key. The policy's side is the epoch and the
// lease (policy.go), which one serial poller maintains. The lifetime that policy
// gives a decision counts from when the question was sent and can only shorten
// the operator's. Errors are never stored.
//
// Equal questions in flight are asked once. The asking runs on its own and under
// its own deadline, so a client that leaves fails nobody else. To those that
// joined it the answer is a reused one and meets the same rules as a cached one.
// The number of questions in flight is bounded, that of anonymous callers to
// half: a flood of strangers leaves the other half to everybody else.
//
// A Decider is safe for concurrent use. Run must be running for decisions to be
// cached; without it every request asks OPA.
package pdp
