# METADATA
# title: What the question reaches
# description: |
#   Which offices a request names, and whether it may reach offices that it does
#   not name. A question from the proxy says so itself (offices, office_scope,
#   office_mask); one put to OPA by hand may give office_id alone.
package cwms.request

import data.cwms.offices

# Every office that is named, and those that a mask can match: they count as if
# they were named.
reached := named | offices.matching(input.context.office_mask) if input.context.office_scope == "mask"

else := named

named := {upper(office) | some office in input.context.offices} if input.context.offices

else := {upper(input.context.office_id)} if input.context.office_id

else := set()

# True when every office that the API could act on is in `reached`. Of a mask
# that matches no known office, or of an unknown scope, that can not be told.
default bounded := false

bounded if {
	scope in {"one", "many"}
	count(reached) > 0
}

bounded if {
	scope == "mask"
	count(offices.matching(input.context.office_mask)) > 0
}

scope := value if value := input.context.office_scope

else := "one"

# The office when there is exactly one; undefined otherwise.
office := o if {
	bounded
	count(reached) == 1
	some o in reached
}
