# METADATA
# title: What a role may do
# description: |
#   The table in data.json: role, actions, resources, and the conditions
#   (package cwms.conditions) that must all hold. A new role is a new row.
package cwms.personas

import data.cwms.conditions
import data.cwms.roles

# Rows for the action and resource asked, of the roles that the user holds.
rows contains {"role": role, "if": row["if"]} if {
	some role in roles.held
	some row in data.cwms.personas.grants[role]
	named(input.action, row.actions)
	named(input.resource, row.resources)
}

named(_, names) if "*" in names

named(name, names) if name in names

# Roles with a row whose conditions hold.
granting contains row.role if {
	some row in rows
	every condition in row["if"] {
		condition in conditions.holding
	}
}

# Conditions that were looked at, and those of them that do not hold.
conditions_asked contains condition if {
	some row in rows
	some condition in row["if"]
}

failing contains condition if {
	some condition in conditions_asked
	not condition in conditions.holding
}

# True of a resource that some row of some role knows.
knows(resource) if {
	some role, table in data.cwms.personas.grants
	some row in table
	resource in row.resources
}
