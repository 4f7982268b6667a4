# A small stand-in for the policy of the earlier proxy: its package, its one rule,
# its way to read the question, and its clock. Written for tests.
package cwms.authz

import data.cwms.helpers.office_access

default allow := false

allow if {
	input.action == "read"
	input.resource in ["offices", "units"]
}

allow if {
	"dam_operator" in input.user.roles
	input.action == "read"
	input.resource == "timeseries"
	office_access.own(input.user, input.context.office_id)
}

allow if {
	"dam_operator" in input.user.roles
	input.user.persona == "dam_operator"
	input.action == "create"
	input.context.data_source == "MANUAL"
	office_access.own(input.user, input.context.office_id)
	[hour, _, _] := time.clock([time.now_ns(), input.user.timezone])
	hour >= input.user.shift_start
	hour < input.user.shift_end
}

allow if "system_admin" in input.user.roles
