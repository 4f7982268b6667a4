# METADATA
# title: Conditions
# description: |
#   What the rows of the persona table can ask for beside role, action and
#   resource. Rules are named for what is true. Labels of the data are trusted as
#   the question gives them: it is the route table that decides which of them a
#   client can set.
package cwms.conditions

import data.cwms.clock
import data.cwms.embargo
import data.cwms.subjects

# Where data comes from. A write that does not say is by hand when a person
# writes and automatic when an API key does, unless the switch is off.
data_source := value if value := input.context.data_source

else := data.cwms.conditions.assumed_data_source[input.user.auth_method] if {
	data.cwms.conditions.assume_data_source
	input.action in {"create", "update"}
}

holding contains "manual" if data_source == "MANUAL"

holding contains "automated" if data_source == "AUTOMATED"

holding contains "calculated" if data_source == "CALCULATED"

holding contains "raw" if not input.context.data_source

holding contains "raw" if {
	is_string(input.context.data_source)
	upper(input.context.data_source) != "CALCULATED"
}

holding contains "calculation_described" if input.context.calculation_metadata != null

holding contains "by_api_key" if input.user.auth_method == "api_key"

holding contains "in_shift" if clock.in_shift

holding contains "recent" if clock.recent

holding contains "partner" if clock.partner

holding contains "own_parameter" if input.context.parameter in subjects.allowed_parameters

holding contains "not_sensitive" if classification in data.cwms.conditions.not_sensitive

classification := value if value := input.context.classification

else := data.cwms.conditions.unlabelled

holding contains "approved" if input.context.approval_status == "approved"

holding contains "approved_by_another" if {
	is_string(input.context.approver_id)
	is_string(input.user.id)
	not upper(input.context.approver_id) in itself
}

# The names that the user goes by.
itself contains upper(input.user.id)

itself contains upper(input.user.username)

holding contains "released" if not embargo.embargoed

# When a condition that reads the clock changes next.
until["in_shift"] := clock.in_shift_until

until["recent"] := clock.recent_until

until["partner"] := clock.partner_until

until["released"] := embargo.embargoed_until

# Why a condition does not hold: "<code>: <text>".
reason(condition) := "shift_unknown: no shift is known of the user" if {
	condition == "in_shift"
	not clock.shift_known
} else := data.cwms.conditions.reasons[condition]
