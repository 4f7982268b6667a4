# METADATA
# title: What the question reaches
# description: |
#   Which offices a request names, and whether it may reach offices that it does
#   not name. A question from the proxy says so itself (offices, office_scope,
#   office_mask); one put to OPA by hand may give office_id alone.
package cwms.request

import data.cwms.offices

scope := input.context.office_scope

scope := "one" if {
	not input.context.office_scope
	input.context.office_id
}

scope := "none" if {
	not input.context.office_scope
	not input.context.office_id
}

named contains upper(office) if {
	some office in input.context.offices
}

named contains upper(input.context.office_id) if not input.context.offices

# The offices that a mask stands for count as if they were named.
reached contains office if {
	some office in named
}

reached contains office if {
	scope == "mask"
	some office in offices.matching(input.context.office_mask)
}

# True when every office that the API could act on is in `reached`. A mask that
# matches no known office reaches nothing that can be told.
default bounded := false

bounded if {
	scope in {"one", "many"}
	count(reached) > 0
}

bounded if {
	scope == "mask"
	offices.plain(input.context.office_mask)
	count(offices.matching(input.context.office_mask)) > 0
}

# The office when there is exactly one; undefined otherwise.
office := o if {
	bounded
	count(reached) == 1
	some o in reached
}
