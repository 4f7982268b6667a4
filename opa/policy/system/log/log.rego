# METADATA
# title: What OPA's decision log holds
# description: |
#   The proxy polls the list of bundles several times a second: that is no
#   decision. Who a user is, is told by the id; the rest of a person's data stays
#   out of the log.
# schemas:
# - input: schema.event
package system.log

drop if input.path == "system/bundles"

mask contains path if some path in [
	"/input/user/email",
	"/input/user/claims",
	"/input/user/attributes",
]
