# METADATA
# title: The policy of the earlier proxy, as it was
# description: |
#   Wraps the boolean rule data.cwms.authz.allow of the earlier proxy, unchanged,
#   and adds the constraints that were computed outside policy there. Differences
#   are in README.md beside this file.
# scope: package
# schemas:
# - input: schema.input
package cwms.compat

import data.cwms.groups

# METADATA
# entrypoint: true
decision := object.union(
	{
		"allow": allow,
		"reason": reason,
		"constraints": constraints,
	},
	lifetime,
)

default allow := false

allow if data.cwms.authz.allow == true

reason := "allowed: a rule of the earlier policy allows it" if allow

else := "denied: no rule of the earlier policy allows it"

# Those rules read the clock and do not say for how long their answer holds. Where
# a question gives them something to compare with the clock, it is asked each time.
default lifetime := {}

lifetime := {"cache": {"ttl_ms": 0}} if clocked

clocked if input.context.timestamp_ns

clocked if input.context.created_ns

clocked if input.user.shift_start

clocked if input.user.partnership_expiry_ns

constraints := {
	"allowed_offices": offices,
	"embargo_rules": embargo_rules,
	"embargo_exempt": exempt,
	"ts_group_embargo": group_embargo,
	"time_window": time_window,
	"data_classification": classification,
}

# Never empty on an allow: that would show nothing.
offices := [] if not allow

else := ["*"] if everywhere

else := [upper(office) | some office in input.user.offices] if count(input.user.offices) > 0

else := named if count(named) > 0

else := ["*"]

named := [upper(office) | some office in input.context.offices] if input.context.offices

else := [upper(input.context.office_id)]

everywhere if input.resource in data.cwms.compat.reference_data

everywhere if input.user.persona in data.cwms.compat.everywhere_personas

everywhere if {
	some role in input.user.roles
	role in data.cwms.compat.everywhere_roles
}

default exempt := false

exempt if {
	some role in input.user.roles
	role in data.cwms.compat.exempt_roles
}

exempt if input.user.persona in data.cwms.compat.exempt_roles

default time_window := null

time_window := {"restrict_hours": hours} if hours := data.cwms.compat.persona_hours[input.user.persona]

# The longest embargo of the groups stands for all data. Only what is longer than
# nothing is a rule, and none stands beside a window.
embargoed_groups := {group: hours |
	not exempt
	is_null(time_window)
	some group, hours in groups.hours
	hours > 0
}

default embargo_rules := {}

embargo_rules := {"default": max([hours | some hours in embargoed_groups])} if count(embargoed_groups) > 0

default group_embargo := null

group_embargo := embargoed_groups if count(embargoed_groups) > 0

default classification := ["public"]

classification := ["public", "internal", "restricted", "sensitive"] if cleared

else := ["public", "internal"] if input.user.authenticated

cleared if {
	some role in input.user.roles
	role in data.cwms.compat.cleared_roles
}

cleared if input.user.persona in data.cwms.compat.cleared_roles
