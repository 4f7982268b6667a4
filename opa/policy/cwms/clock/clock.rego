# METADATA
# title: The clock
# description: |
#   The only place that reads the clock. Each fact has a companion that says when
#   it changes next, in nanoseconds since 1970; the decision lives no longer than
#   that. A fact that can not change any more has none.
package cwms.clock

import data.cwms.subjects

hour_ns := 3600000000000

now := time.now_ns()

# The shift.

shift_known if {
	is_number(subjects.shift_start)
	is_number(subjects.shift_end)
	is_string(subjects.timezone)
}

in_shift if {
	shift_known
	shift_hour(hour_at(now))
}

in_shift_until := change if {
	shift_known
	started := shift_hour(hour_at(now))
	change := min({boundary |
		some boundary in coming_hours
		shift_hour(hour_at(boundary)) != started
	})
}

hour_at(ns) := time.clock([ns, subjects.timezone])[0]

# The full hours of the next day and a bit: the change of a shift is one of
# them, also on the days when the clock is set.
coming_hours := [boundary |
	[_, minute, second] := time.clock([now, subjects.timezone])
	begun := now - ((((minute * 60) + second) * 1000000000) + (now % 1000000000))
	some ahead in numbers.range(1, 25)
	boundary := begun + (ahead * hour_ns)
]

# The end hour counts to its last minute. A shift whose end is before its start
# goes over midnight.
default shift_hour(_) := false

shift_hour(hour) if {
	subjects.shift_start <= subjects.shift_end
	hour >= subjects.shift_start
	hour <= subjects.shift_end
}

shift_hour(hour) if {
	subjects.shift_start > subjects.shift_end
	hour >= subjects.shift_start
}

shift_hour(hour) if {
	subjects.shift_start > subjects.shift_end
	hour <= subjects.shift_end
}

# The time in which a value may be modified.

modification_window_ns := data.cwms.clock.modification_hours * hour_ns

recent if {
	is_number(input.context.created_ns)
	now < input.context.created_ns + modification_window_ns
}

recent_until := input.context.created_ns + modification_window_ns if recent

# The partnership of a cooperator.

partner if {
	is_number(subjects.partnership_expiry_ns)
	now < subjects.partnership_expiry_ns
}

partner_until := subjects.partnership_expiry_ns if partner
