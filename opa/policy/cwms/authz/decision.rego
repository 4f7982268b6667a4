# METADATA
# title: The decision
# description: |
#   The one entrypoint, data.cwms.authz.decision, and the bare answer beside it.
#   Both are total: a question that is not understood is denied.
package cwms.authz

import data.cwms.clock
import data.cwms.conditions
import data.cwms.constraints
import data.cwms.personas
import data.cwms.public
import data.cwms.request
import data.cwms.roles
import data.cwms.subjects

# METADATA
# entrypoint: true
decision := object.union(
	{
		"allow": allow,
		"reason": reason,
		"constraints": obligations,
	},
	lifetime,
)

# METADATA
# entrypoint: true
default allow := false

allow if grounds

# Why it is allowed, and what then holds. The first that applies counts: a grant
# by role gives more than what is open to anybody.
grounds := {"reason": "public: reference data is open to anybody", "constraints": constraints.reference} if public.reference

else := {"reason": "role_everywhere: a role of the user counts at every office", "constraints": constraints.everywhere} if granted_everywhere

else := {"reason": "role_at_office: a role of the user counts at every office asked for", "constraints": constraints.at_offices(granted_offices)} if granted_at_offices

else := {"reason": "own_account: users may manage their own account", "constraints": constraints.reference} if public.own_account

else := {"reason": "service: endpoints of the service are open to anybody", "constraints": constraints.reference} if public.service

else := {"reason": "public_label: the data is labelled as public", "constraints": constraints.labelled} if public.labelled

else := {"reason": "guest: the resource is open to guests", "constraints": constraints.everywhere} if public.guest

else := {"reason": "ungoverned: no rule knows the resource, and reads of such are let through", "constraints": constraints.everywhere} if public.let_through

granted_everywhere if count(personas.granting & roles.everywhere) > 0

granted_at_offices if {
	request.bounded
	every office in request.reached {
		office in granted_offices
	}
}

# The offices where the question would be allowed, those of the user in the order
# given.
granted_offices := [office |
	some office in array.concat(subjects.offices, regional_offices)
	roles.counts(personas.granting, office)
]

default regional_offices := []

regional_offices := sort(roles.regional - {office | some office in subjects.offices})

reason := value if value := grounds.reason

else := denial

denial := "malformed: the question names no action or no resource" if not understood

else := "authentication_required: only signed-in users may do this" if not subjects.authenticated

else := "no_rule: no rule knows the resource" if not public.governed

else := "no_role: no role of the user allows the action" if not personas.concerned

else := conditions.reason(personas.shortfall) if count(personas.granting) == 0

else := "office_required: the request could reach every office" if not request.bounded

else := "office_refused: no role of the user counts at every office asked for"

understood if {
	is_string(input.action)
	is_string(input.resource)
}

obligations := value if value := grounds.constraints

else := constraints.closed

# The decision lives until the first fact that it rests on may change.
changes contains change if {
	some condition in personas.asked
	change := conditions.until[condition]
}

changes contains conditions.until.released if input.context.classification

default lifetime := {}

lifetime := {"cache": {"ttl_ms": max([0, floor((min(changes) - clock.now) / 1000000)])}} if count(changes) > 0
