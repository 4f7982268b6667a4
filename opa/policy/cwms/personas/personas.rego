# METADATA
# title: What a role may do
# description: |
#   The table in data.json: resource, action, role, and the conditions (package
#   cwms.conditions) that must all hold. A new role is a new entry there.
package cwms.personas

import data.cwms.conditions
import data.cwms.roles

# What the table says of the action and resource asked: role -> conditions.
default granted := {}

granted := data.cwms.personas.grants[input.resource][input.action]

# The conditions of the roles that the user holds, and those that do not hold.
asked := {condition |
	some role in roles.held
	some condition in granted[role]
}

failing := {condition |
	some condition in asked
	not condition in conditions.holding
}

# The condition that the user is told of: the first of the first role.
shortfall := [condition |
	some role in sort(roles.held)
	some condition in granted[role]
	condition in failing
][0]

# The roles that allow it, at the offices where they count.
granting := {role |
	some role in roles.held
	allows(role)
}

allows(role) if role in data.cwms.personas.unrestricted_roles

allows(role) if {
	required := granted[role]
	every condition in required {
		not condition in failing
	}
}

# Some role of the user is in the table here, whatever its conditions.
default concerned := false

concerned if {
	some role in roles.held
	granted[role]
}
