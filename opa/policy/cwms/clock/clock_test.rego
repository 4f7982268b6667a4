package cwms.clock_test

import data.cwms.authz
import data.cwms.fixtures

# A shift-bound write at a local time of a day in June.

worker(start, end, zone) := object.union(
	fixtures.flat(["dam_operator"], ["SWT"]),
	{"shift_start": start, "shift_end": end, "timezone": zone},
)

write(who) := fixtures.ask(who, "create", "timeseries", object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL"}))

on(clock) := time.parse_rfc3339_ns(clock)

# start, end, zone, time, on shift, seconds until that changes
shifts := [
	[6, 18, "UTC", "2026-06-15T05:59:59Z", false, 1],
	[6, 18, "UTC", "2026-06-15T06:00:00Z", true, 46800],
	[6, 18, "UTC", "2026-06-15T18:59:59Z", true, 1], # the end hour counts to its last minute
	[6, 18, "UTC", "2026-06-15T19:00:00Z", false, 39600],
	[22, 6, "UTC", "2026-06-15T21:30:00Z", false, 1800], # over midnight
	[22, 6, "UTC", "2026-06-15T22:00:00Z", true, 32400],
	[22, 6, "UTC", "2026-06-15T23:59:00Z", true, 25260],
	[22, 6, "UTC", "2026-06-16T00:00:00Z", true, 25200],
	[22, 6, "UTC", "2026-06-16T06:30:00Z", true, 1800],
	[22, 6, "UTC", "2026-06-16T07:00:00Z", false, 54000],
	[8, 8, "UTC", "2026-06-15T08:15:00Z", true, 2700], # one hour
	[8, 8, "UTC", "2026-06-15T09:00:00Z", false, 82800],
	[6, 18, "America/Los_Angeles", "2026-06-15T12:30:00Z", false, 1800], # 05:30 there
	[6, 18, "America/Los_Angeles", "2026-06-15T13:00:00Z", true, 46800],
	[6, 18, "Asia/Kolkata", "2026-06-15T00:20:00Z", false, 600], # half an hour off
	[0, 3, "America/Chicago", "2026-03-08T07:30:00Z", true, 5400], # 01:30, the clock goes ahead at 02:00
	[0, 3, "America/Chicago", "2026-11-01T05:30:00Z", true, 16200], # 00:30, the clock goes back at 02:00
]

test_shift[label] if {
	some [start, end, zone, clock, on_shift, seconds] in shifts
	label := sprintf("%d to %d %s at %s", [start, end, zone, clock])
	decision := fixtures.at(on(clock), write(worker(start, end, zone)))
	decision.allow == on_shift
	decision.cache.ttl_ms == seconds * 1000
}

# All day long: nothing ever changes, so there is no lifetime.
test_shift_all_day[clock] if {
	some clock in ["2026-06-15T00:00:00Z", "2026-06-15T12:30:00Z", "2026-06-15T23:59:59Z"]
	decision := fixtures.at(on(clock), write(worker(0, 23, "UTC")))
	decision.allow
	not decision.cache
}

test_shift_unknown[label] if {
	some label, changes in {
		"start": {"shift_start": "6"},
		"end": {"shift_end": null},
		"zone": {"timezone": 5},
	}
	decision := fixtures.decide(write(object.union(worker(0, 23, "UTC"), changes)))
	fixtures.code(decision) == "shift_unknown"
	not decision.cache
}

# The answer stays the same to the last millisecond of its lifetime, and is another
# one then. One line for each rule that reads the clock.

limited := {
	"on shift": write(worker(7, 8, "America/Chicago")),
	"off shift": write(worker(9, 10, "America/Chicago")),
	"young enough": fixtures.ask(
		worker(0, 23, "UTC"), "update", "timeseries",
		object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL", "created_ns": fixtures.now - (23 * fixtures.hour)}),
	),
	"partner": fixtures.ask(
		object.union(
			fixtures.flat(["external_cooperator"], ["SWT"]),
			{"allowed_parameters": ["Stage"], "partnership_expiry_ns": fixtures.now + fixtures.hour},
		),
		"create", "timeseries", object.union(fixtures.naming(["SWT"]), {"parameter": "Stage"}),
	),
	"under embargo": fixtures.ask(
		fixtures.flat(["Viewer Users"], ["SWT"]), "read", "timeseries",
		object.union(fixtures.naming(["SWT"]), {"ts_group_id": "x", "timestamp_ns": fixtures.now - (167 * fixtures.hour)}),
	),
	"public, under embargo": fixtures.ask(
		fixtures.anonymous, "read", "timeseries",
		{"classification": "public", "ts_group_id": "x", "timestamp_ns": fixtures.now - (167 * fixtures.hour)},
	),
}

test_lifetime[label] if {
	some label, question in limited
	decision := fixtures.decide(question)
	lifetime := decision.cache.ttl_ms * 1000000
	lifetime > 0
	fixtures.at((fixtures.now + lifetime) - 1000000, question).allow == decision.allow
	fixtures.at(fixtures.now + lifetime, question).allow != decision.allow
}

# The nearest change counts.
test_nearest_change if {
	question := fixtures.ask(
		worker(7, 8, "America/Chicago"), "update", "timeseries",
		object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL", "created_ns": fixtures.now - ((24 * fixtures.hour) - 60000000000)}),
	)
	fixtures.decide(question).cache.ttl_ms == 60000
	fixtures.at(fixtures.now + 120000000000, question).cache.ttl_ms == 88 * 60000
}

# Less than a millisecond is not worth keeping.
test_no_lifetime_left if {
	question := fixtures.ask(
		worker(0, 23, "UTC"), "update", "timeseries",
		object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL", "created_ns": fixtures.now - ((24 * fixtures.hour) - 1)}),
	)
	decision := fixtures.decide(question)
	decision.allow
	decision.cache.ttl_ms == 0
}

# What does not depend on the clock lives as long as the operator lets it.
test_no_lifetime[label] if {
	some label, question in {
		"no clock": fixtures.ask(fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SWT"])),
		"released": fixtures.ask(
			fixtures.user("DAMOP001"), "read", "timeseries",
			object.union(fixtures.naming(["SPK"]), {"ts_group_id": "x", "timestamp_ns": 0}),
		),
		"too old": fixtures.ask(
			worker(0, 23, "UTC"), "update", "timeseries",
			object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL", "created_ns": 0}),
		),
		"no time known": fixtures.ask(
			worker(0, 23, "UTC"), "update", "timeseries",
			object.union(fixtures.naming(["SWT"]), {"data_source": "MANUAL", "created_ns": "now"}),
		),
	}
	not fixtures.decide(question).cache
}

# Unmocked, the clock is the real one.
test_real_clock if {
	question := write(worker(0, 23, "UTC"))
	authz.allow with input as question
	data.cwms.clock.now > fixtures.now - ((3650 * 24) * fixtures.hour)
}
