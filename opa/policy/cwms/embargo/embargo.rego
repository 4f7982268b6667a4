# METADATA
# title: Embargo
# description: |
#   New data is held back from those who are not exempt. Most of it is carried
#   out by the API, by the hours in the constraints. A question that names a
#   group of time series and the time of a value is decided here.
package cwms.embargo

import data.cwms.clock
import data.cwms.request
import data.cwms.roles
import data.cwms.subjects

# Offices aside, exempt is who has a role of the list everywhere, or is named as
# such a persona by a trusted caller.
exempt_everywhere if {
	some role in roles.everywhere
	role in data.cwms.embargo.exempt_roles
}

exempt_everywhere if subjects.persona in data.cwms.embargo.exempt_roles

exempt_at(_) if exempt_everywhere

exempt_at(office) if {
	some role in data.cwms.embargo.exempt_roles
	roles.counts(role, office)
}

# The user is exempt for all that the question reaches.
default exempt := false

exempt if exempt_everywhere

exempt if {
	request.bounded
	every office in request.reached {
		exempt_at(office)
	}
}

# Hours by group of time series. The API gives 0 for a group name whose ending
# it does not read; the name counts then. Of two privileges for one group the
# longer embargo counts.
group_hours[group] := max(hours) if {
	some group in group_ids
	hours := [h |
		some privilege in input.user.ts_privileges
		group_id(privilege) == group
		h := privilege_hours(privilege)
	]
}

group_ids contains group_id(privilege) if some privilege in input.user.ts_privileges

group_id(privilege) := value if value := privilege.ts_group_id

else := privilege["ts-group-id"]

privilege_hours(privilege) := hours if {
	hours := stated_hours(privilege)
	hours > 0
} else := named_hours(group_id(privilege))

stated_hours(privilege) := value if value := privilege.embargo_hours

else := privilege["embargo-hours"]

# `-72h`, `_72h`, `-3d`, `_3d` at the end of the name.
default named_hours(_) := 0

named_hours(group) := to_number(amount) * unit_hours[unit] if {
	[[_, amount, unit]] := regex.find_all_string_submatch_n(`[-_](\d+)([hd])$`, group, 1)
}

unit_hours := {"h": 1, "d": 24}

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

hours_by_office := {"default": max([hours | some hours in group_hours])} if count(group_ids) > 0

hours_by_office := object.union(
	data.cwms.embargo.office_hours,
	{"default": data.cwms.embargo.default_hours},
) if {
	count(group_ids) == 0
}

default group_rules := {}

group_rules := {group: hours |
	some group, hours in group_hours
	hours > 0
} if {
	not exempt
	input.resource in data.cwms.embargo.resources
}

# The value that the question names is still held back.
value_hours := object.get(group_hours, input.context.ts_group_id, data.cwms.embargo.unknown_group_hours) if {
	not exempt
	is_string(input.context.ts_group_id)
	is_number(input.context.timestamp_ns)
}

default embargoed := false

embargoed if clock.now < embargoed_until

embargoed_until := input.context.timestamp_ns + (value_hours * clock.hour_ns) if {
	value_hours > 0
	clock.now < input.context.timestamp_ns + (value_hours * clock.hour_ns)
}
