# METADATA
# title: Where a role counts
# description: |
#   A role counts at the office where it is held. Roles of `hq_wide_roles`, held
#   at headquarters, count at every office of their holder. Roles of
#   `global_roles`, and those of `cross_office` for the actions listed there,
#   count everywhere when held at headquarters. A question without
#   roles_by_office gives its roles flat: they count at every office of the user,
#   and as if held at headquarters.
package cwms.roles

import data.cwms.offices
import data.cwms.subjects

# Every role the user holds somewhere.
held contains role if {
	some roles in input.user.roles_by_office
	some role in roles
}

held contains role if {
	not input.user.roles_by_office
	some role in input.user.roles
}

at_headquarters contains role if {
	some role in input.user.roles_by_office[data.cwms.roles.headquarters]
}

at_headquarters contains role if {
	not input.user.roles_by_office
	some role in input.user.roles
}

# Roles that count at every office of their holder.
wide contains role if {
	some role in at_headquarters
	role in data.cwms.roles.hq_wide_roles
}

wide contains role if {
	not input.user.roles_by_office
	some role in input.user.roles
}

# Roles that count at every office there is, for the action asked.
everywhere contains role if {
	some role in at_headquarters
	role in data.cwms.roles.global_roles
}

everywhere contains role if {
	some role in at_headquarters
	input.action in data.cwms.roles.cross_office[role]
}

# A data manager named as such, with a region, is one at all its districts.
regional contains office if {
	subjects.persona == "data_manager"
	"data_manager" in held
	some office in offices.districts(subjects.region)
}

counts(role, office) if role in input.user.roles_by_office[office]

counts(role, office) if {
	role in wide
	office in subjects.offices
}

counts("data_manager", office) if office in regional
