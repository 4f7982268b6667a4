# METADATA
# title: The truth table
# description: |
#   Who may do what, by role, as people would say it: written down a second time,
#   so that a slip in the table of package cwms.personas is seen. Every role is
#   asked for every action on every governed resource.
package cwms.truth_table_test

import data.cwms.fixtures

read := {"read"}

write := {"create", "update"}

any := {"create", "read", "update", "delete"}

# role, actions, resources, and what must be true beside
table := [
	["Viewer Users", read, {"timeseries", "locations", "levels"}, {"released"}],
	["dam_operator", read, {"timeseries", "measurements", "levels", "gates", "locations"}, {"released"}],
	["dam_operator", {"create"}, {"timeseries", "measurements"}, {"manual", "on_shift"}],
	["dam_operator", {"update"}, {"timeseries", "measurements"}, {"manual", "on_shift", "young"}],
	["water_manager", read, {"timeseries", "locations", "forecasts", "models", "scenarios", "ratings", "levels"}, set()],
	["water_manager", write, {"timeseries", "locations", "forecasts", "models", "scenarios"}, set()],
	["data_manager", (read | write), {"timeseries", "locations", "catalog", "catalogs", "ratings", "measurements", "levels"}, set()],
	["data_manager", {"delete"}, {"timeseries", "locations", "catalog", "catalogs", "ratings"}, {"approved", "by_another"}],
	["automated_collector", {"create"}, {"timeseries"}, {"automated", "api_key"}],
	["automated_processor", read, {"timeseries"}, {"raw", "released"}],
	["automated_processor", write, {"timeseries"}, {"calculated", "described"}],
	["external_cooperator", read, {"timeseries"}, {"parameter", "partner", "harmless", "released"}],
	["external_cooperator", {"create"}, {"timeseries"}, {"parameter", "partner"}],
	["system_admin", any, resources, set()],
	["hec_employee", any, resources, set()],
]

# Roles of the API's own, and unknown ones, give nothing.
powerless := {"CWMS Users", "All Users", "TS ID Creator", "CWMS User Admins", "public_user", "cwms_user", "none"}

resources := {"timeseries", "locations", "levels", "measurements", "gates", "forecasts", "models", "scenarios", "ratings", "catalog", "catalogs", "basins", "users"}

# What makes a fact true, and what makes it false.
facts := {
	"manual": {"yes": context({"data_source": "MANUAL"}), "no": context({"data_source": "CALCULATED"})},
	"automated": {"yes": context({"data_source": "AUTOMATED"}), "no": context({"data_source": "MANUAL"})},
	"calculated": {"yes": context({"data_source": "CALCULATED"}), "no": context({"data_source": "MANUAL"})},
	"raw": {"yes": context({"data_source": "AUTOMATED"}), "no": context({"data_source": "CALCULATED"})},
	"described": {"yes": context({"calculation_metadata": {"model": "x"}}), "no": context({"calculation_metadata": null})},
	"released": {"yes": value_of_hours_ago(168), "no": value_of_hours_ago(167)},
	"young": {"yes": created_hours_ago(23), "no": created_hours_ago(24)},
	"approved": {"yes": context({"approval_status": "approved"}), "no": context({"approval_status": "pending"})},
	"by_another": {"yes": context({"approver_id": "OTHER"}), "no": context({"approver_id": "FLAT01"})},
	"harmless": {"yes": context({"classification": "restricted"}), "no": context({"classification": "sensitive"})},
	"on_shift": {"yes": shift(7, 8), "no": shift(8, 9)},
	"api_key": {"yes": user({"auth_method": "api_key"}), "no": user({"auth_method": "jwt"})},
	"partner": {"yes": user({"partnership_expiry_ns": fixtures.now + 1}), "no": user({"partnership_expiry_ns": fixtures.now})},
	"parameter": {"yes": user({"allowed_parameters": ["Stage"]}), "no": user({"allowed_parameters": ["Flow"]})},
}

context(members) := {"context": members}

user(members) := {"user": members}

value_of_hours_ago(n) := context({"ts_group_id": "unknown", "timestamp_ns": fixtures.now - (n * fixtures.hour)})

created_hours_ago(n) := context({"created_ns": fixtures.now - (n * fixtures.hour)})

shift(start, end) := user({"shift_start": start, "shift_end": end, "timezone": "America/Chicago"})

# A question at the role's own office, where the facts are so.
question(role, action, resource, holds, fails) := object.union_n(array.concat(
	[fixtures.ask(
		object.union(fixtures.flat([role], ["SWT"]), {"auth_method": "jwt"}), action, resource,
		object.union(fixtures.naming(["SWT"]), {"method": "GET", "parameter": "Stage"}),
	)],
	array.concat(
		[facts[fact].yes | some fact in holds],
		[facts[fact].no | some fact in fails],
	),
))

cells[role] contains [action, resource, row[3]] if {
	some row in table
	role := row[0]
	some action in row[1]
	some resource in row[2]
}

test_allowed[label] if {
	some role, granted in cells
	label := role
	every cell in granted {
		fixtures.decide(question(role, cell[0], cell[1], cell[2], set())).allow
	}
}

# Each condition is needed: without it the answer is no.
test_condition_missing[label] if {
	some role, granted in cells
	some cell in granted
	some fact in cell[2]
	label := sprintf("%s, %s %s, not %s", [role, cell[0], cell[1], fact])
	not fixtures.decide(question(role, cell[0], cell[1], cell[2] - {fact}, {fact})).allow
}

# No other office, not a second one, not all.
test_only_at_own_office[label] if {
	some role, granted in cells
	not role in {"system_admin", "hec_employee", "automated_processor"}
	label := role
	every cell in granted {
		asked := question(role, cell[0], cell[1], cell[2], set())
		every elsewhere in [fixtures.naming(["SPK"]), fixtures.naming(["SPK", "SWT"]), fixtures.naming([]), fixtures.unclear] {
			context_elsewhere := object.union(object.remove(asked.context, ["office_id"]), elsewhere)
			not fixtures.decide(object.union(object.remove(asked, ["context"]), {"context": context_elsewhere})).allow
		}
	}
}

# Everything else is denied, though every fact that can be true is.
test_denied[label] if {
	some role in ({row[0] | some row in table} | powerless)
	label := role
	helpful := {"manual", "described", "released", "young", "approved", "by_another", "harmless", "on_shift", "partner", "parameter"}
	every action in any {
		every resource in resources - {cell[1] | some cell in cells[role]; cell[0] == action} {
			not fixtures.decide(question(role, action, resource, helpful, set())).allow
		}
	}
}

reference := ["", "swagger-docs", "offices", "units", "parameters", "timezones", "states", "counties"]

# Every role reads reference data.
test_reference_data[label] if {
	some role in ({row[0] | some row in table} | powerless)
	label := role
	every resource in reference {
		fixtures.decide(question(role, "read", resource, set(), set())).allow
	}
}

# Only those who may do all change it.
test_reference_data_is_fixed[label] if {
	some role in {"Viewer Users", "data_manager", "water_manager", "none"}
	label := role
	every resource in reference {
		every action in {"create", "update", "delete"} {
			not fixtures.decide(question(role, action, resource, set(), set())).allow
		}
	}
}
