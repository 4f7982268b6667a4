// Package pdp is the side of the policy decision point that lives in the proxy:
// it puts questions to OPA and reuses an answer only while everything that made
// it is unchanged.
//
// A question is the exact bytes sent to OPA, and a SHA-256 of them the cache key, so
// whatever policy can see is in the key. The policy's side is the epoch and the
// lease (policy.go), which one serial poller maintains. The lifetime that policy
// gives a decision counts from when the question was sent and can only shorten
// the operator's. Errors are never stored.
//
// Equal questions in flight are asked once, by the first and under its deadline,
// whether or not its client still waits. To those that joined it the answer is a
// reused one and meets the same rules as a cached one.
// The number of questions in flight is bounded, that of anonymous callers to
// half: a flood of strangers leaves the other half to everybody else.
//
// What comes of what OPA does (each row is tested with a real OPA):
//
//	OPA                               | ready           | decisions     | cache
//	----------------------------------+-----------------+---------------+---------------------------
//	runs a bundle with a revision     | yes             | the bundle's  | on
//	activates another one             | yes             | the new one's | new epoch, on
//	cannot activate another one       | yes             | the old one's | on, entries stay
//	dies, also while it activates     | until the lease | none          | entries serve out the lease
//	restarts with an older bundle     | yes             | the older's   | new epoch, on
//	restarts without a bundle         | no              | none          | nothing to keep
//	is replaced by one with another   | yes             | the other's   | new epoch, on
//	runs a bundle without a revision  | yes             | the bundle's  | off, one warning
//	runs bundles whose roots leave    | yes             | those of a    | off, one warning
//	  the rule out                    |                 | pushed rule   |
//	has its policy from files         | yes             | the files'    | off, one warning
//	has its bundle from a file        | yes             | the bundle's  | on
//
// A bundle from a file has no content tag: there the revision alone tells one
// from another, so it must change with the content. Data outside the roots that a
// rule reads all the same can change without a revision; keep it inside.
//
// A Decider is safe for concurrent use. Run must be running for decisions to be
// cached; without it every request asks OPA.
package pdp
