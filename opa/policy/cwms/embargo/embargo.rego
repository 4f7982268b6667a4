# METADATA
# title: Embargo
# description: |
#   New data is held back from those who are not exempt. Most of it is carried
#   out by the API, by the hours in the constraints. A question that names a
#   group of time series and the time of a value is decided here.
package cwms.embargo

import data.cwms.clock
import data.cwms.groups
import data.cwms.roles

exempting := {role | some role in data.cwms.embargo.exempt_roles}

# The user is exempt for all that the question reaches.
exempt := roles.stands(exempting)

# What the API shall hold back, by office. A key with 0 hours would still hide
# rows of the future, so there is none.
default office_rules := {}

office_rules := {office: hours |
	some office, hours in hours_by_office
	hours > 0
} if {
	not exempt
	input.resource in data.cwms.embargo.resources
}

hours_by_office := {"default": max([hours | some hours in groups.hours])} if count(groups.hours) > 0

hours_by_office := object.union(
	data.cwms.embargo.office_hours,
	{"default": data.cwms.embargo.default_hours},
) if {
	count(groups.hours) == 0
}

default group_rules := {}

group_rules := {group: hours |
	some group, hours in groups.hours
	hours > 0
} if {
	not exempt
	input.resource in data.cwms.embargo.resources
}

# The value that the question names is still held back: it belongs to a group,
# and is younger than the embargo of that group.
value_hours := object.get(groups.hours, input.context.ts_group_id, data.cwms.embargo.unknown_group_hours) if {
	not exempt
	is_string(input.context.ts_group_id)
}

embargoed_until := released if {
	is_number(input.context.timestamp_ns)
	value_hours > 0
	released := input.context.timestamp_ns + (value_hours * clock.hour_ns)
	clock.now < released
}

default embargoed := false

embargoed if embargoed_until

# Of a time that is no number it can not be told that it is past.
embargoed if {
	value_hours > 0
	value_time := input.context.timestamp_ns
	not is_null(value_time)
	not is_number(value_time)
}
