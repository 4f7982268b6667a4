# METADATA
# title: What needs no role
# description: |
#   Reference data, one's own account, data that is labelled public, and the two
#   switches of a migration: `guest_read` (shipped apart, see data/cda-guest.json)
#   and `ungoverned`.
package cwms.public

import data.cwms.embargo
import data.cwms.subjects

# Reference data: the same for everybody, at all offices.
reference if {
	input.action == "read"
	input.resource in data.cwms.public.public_read
}

# The endpoints of the service itself, as another service may ask for them. A
# request to the API is not one: it has a method.
service if {
	input.resource in data.cwms.public.service_endpoints
	not input.context.method
}

own_account if {
	input.user.authenticated == true
	input.action in data.cwms.public.own_account_actions[input.resource]
}

labelled if {
	input.action == "read"
	input.context.classification == data.cwms.public.public_label[input.resource]
	not embargo.embargoed
}

# What the API serves to guests today: resource -> the parts of it, found in the
# rest of the path, that it does not.
guest if {
	input.action == "read"
	closed := data.cwms.public.guest_read[input.resource]
	not within(closed)
}

within(parts) if {
	some part in parts
	contains(input.context.subresource, part)
}

# Reads of what no rule knows, while an operator gets to know it.
let_through if {
	data.cwms.public.ungoverned == "read"
	input.action == "read"
	subjects.authenticated
	not governed
}

governed if data.cwms.personas.grants[input.resource]

governed if data.cwms.public.own_account_actions[input.resource]

governed if input.resource in data.cwms.public.public_read

governed if input.resource in data.cwms.public.service_endpoints
