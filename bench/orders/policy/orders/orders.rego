# METADATA
# title: Who may do what with orders
# description: |
#   The status is public. Whoever belongs to a tenant may do there what the scopes of
#   the token say, unless the operator has suspended them.
package orders

default decision := {"allow": false, "reason": "denied: not the tenant or not the scopes of the token"}

decision := {"allow": true, "reason": "public: the status"} if input.resource == "status"

decision := {"allow": true, "reason": "scope: of the token"} if {
	input.resource == "orders"
	input.context.params.tenant == input.user.claims.tenant
	concat(":", ["orders", input.action]) in split(input.user.claims.scope, " ")
	not input.user.attributes.suspended
}
