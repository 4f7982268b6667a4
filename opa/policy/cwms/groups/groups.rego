# METADATA
# title: Groups of time series
# description: |
#   For how many hours new data of each group is held back from the user, by the
#   privileges in the profile.
package cwms.groups

# The API gives 0 for a group name whose ending it does not read; the name counts
# then. Of two privileges for one group the longer embargo counts.
hours[group] := max(given) if some group, given in given_hours

given_hours[group] contains privilege_hours(privilege) if {
	some privilege in input.user.ts_privileges
	group := privilege.ts_group_id
	is_string(group)
}

privilege_hours(privilege) := hours if {
	hours := stated_hours(privilege)
	hours > 0
} else := named_hours(privilege.ts_group_id)

stated_hours(privilege) := hours if {
	hours := privilege.embargo_hours
	is_number(hours)
}

# `-72h`, `_72h`, `-3d`, `_3d` at the end of the name.
default named_hours(_) := 0

named_hours(group) := to_number(amount) * unit_hours[unit] if {
	[[_, amount, unit]] := regex.find_all_string_submatch_n(`[-_](\d+)([hd])$`, group, 1)
}

unit_hours := {"h": 1, "d": 24}
