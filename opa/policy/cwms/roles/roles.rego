# METADATA
# title: Where a role counts
# description: |
#   A role counts at the office where it is held. Roles of `hq_wide_roles`, held
#   at headquarters, count at every office of their holder. Roles of
#   `global_roles`, and those of `cross_office` for the actions listed
#   there, count everywhere when held at headquarters. A question without
#   roles_by_office gives its roles flat: they count at every office of the user,
#   and as if held at headquarters.
package cwms.roles

import data.cwms.offices
import data.cwms.request
import data.cwms.subjects

default by_office := false

by_office if input.user.roles_by_office

# Every role that the user holds somewhere.
held := {role | some role in input.user.roles} if not by_office

else := {role |
	some roles in input.user.roles_by_office
	some role in roles
}

at_headquarters := held if not by_office

else := {role | some role in input.user.roles_by_office[data.cwms.roles.headquarters]}

# These count at every office of their holder.
spread := held if not by_office

else := at_headquarters & hq_wide

hq_wide := {role | some role in data.cwms.roles.hq_wide_roles}

# These count at every office there is, for the action asked.
everywhere := at_headquarters & (global | crossing)

global := {role | some role in data.cwms.roles.global_roles}

default crossing := set()

crossing := {role | some role in data.cwms.roles.cross_office[input.action]}

# One of the given roles counts at the office.
counts(roles, office) if {
	office in subjects.offices
	count(roles & spread) > 0
}

counts(roles, office) if {
	some role in input.user.roles_by_office[office]
	role in roles
}

counts(roles, office) if {
	"data_manager" in roles
	office in regional
}

# One of the listed roles counts wherever the question reaches, or the user is
# named as such a persona by a trusted caller.
default stands(_) := false

stands(listed) if stands_everywhere(listed)

stands(listed) if {
	request.bounded
	own := held & listed
	count(own) > 0
	every office in request.reached {
		counts(own, office)
	}
}

stands_everywhere(listed) if count(everywhere & listed) > 0

stands_everywhere(listed) if subjects.persona in listed

# The offices of the list where one of the listed roles counts too.
narrowed(given, listed) := given if not stands(listed)

else := given if stands_everywhere(listed)

else := [office |
	some office in given
	counts(held & listed, office)
]

# A data manager named as such, with a region, is one at all its districts.
regional := offices.districts(subjects.region) if {
	subjects.persona == "data_manager"
	"data_manager" in held
}
