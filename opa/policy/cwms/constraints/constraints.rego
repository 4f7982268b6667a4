# METADATA
# title: Constraints
# description: |
#   What the API must hold back of an allowed answer. Whatever is said holds at
#   every office that is listed: an exemption that the user has only at the
#   offices asked for leaves the other offices out.
package cwms.constraints

import data.cwms.embargo
import data.cwms.request
import data.cwms.roles
import data.cwms.subjects

# Nothing may be read by a denied question.
closed := {
	"allowed_offices": [],
	"embargo_rules": {},
	"embargo_exempt": false,
	"ts_group_embargo": null,
	"time_window": null,
	"data_classification": [],
}

# For an answer that is the same for everybody, at all offices.
reference := {
	"allowed_offices": ["*"],
	"embargo_rules": {},
	"embargo_exempt": embargo.exempt,
	"ts_group_embargo": null,
	"time_window": null,
	"data_classification": classification,
}

# For data that anybody may read because of its label: no more than that label.
labelled := object.union(everywhere, {
	"allowed_offices": labelled_offices,
	"data_classification": data.cwms.constraints.classifications.anyone,
})

labelled_offices := sort(request.reached) if request.bounded

else := ["*"]

everywhere := at(["*"])

# `granted` are the offices of the user where the question would be allowed.
at_offices(granted) := at(roles.narrowed(roles.narrowed(granted, embargo.exempting), clearing))

at(allowed) := {
	"allowed_offices": allowed,
	"embargo_rules": embargo_rules,
	"embargo_exempt": embargo.exempt,
	"ts_group_embargo": group_embargo,
	"time_window": time_window,
	"data_classification": classification,
}

# A window for the last hours and an embargo of the last hours together would
# leave nothing: where there is a window there is no embargo.
default time_window := null

time_window := {"restrict_hours": hours} if hours := data.cwms.constraints.persona_hours[subjects.persona]

default embargo_rules := {}

embargo_rules := embargo.office_rules if is_null(time_window)

default group_embargo := null

group_embargo := embargo.group_rules if {
	is_null(time_window)
	count(embargo.group_rules) > 0
}

default classification := ["public"]

classification := data.cwms.constraints.classifications.cleared if cleared == true

else := data.cwms.constraints.classifications.known if subjects.authenticated

clearing := {role | some role in data.cwms.constraints.cleared_roles}

cleared := roles.stands(clearing)
