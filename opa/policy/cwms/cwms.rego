# METADATA
# title: The policy of a CWMS deployment
# description: |
#   What a question looks like is in schemas/input.json: `opa check` refuses a rule
#   that reads anything else.
# scope: subpackages
# schemas:
# - input: schema.input
package cwms
