package cwms.roles_test

import data.cwms.fixtures

# Where a role held at one office counts: who, office asked, allowed.
places := [
	["held at the office", {"SWT": ["water_manager"]}, ["SWT"], true],
	["held at another", {"SWT": ["water_manager"], "SPK": ["All Users"]}, ["SPK"], false],
	["held at headquarters, own office", {"SWT": ["All Users"], "HQ": ["water_manager"]}, ["SWT"], true],
	["held at headquarters, at headquarters", {"SWT": ["All Users"], "HQ": ["water_manager"]}, ["HQ"], true],
	["held at headquarters, both", {"SWT": ["All Users"], "HQ": ["water_manager"]}, ["HQ", "SWT"], true],
	["held at headquarters, not own", {"SWT": ["All Users"], "HQ": ["water_manager"]}, ["SPK"], false],
	["own and not own", {"SWT": ["All Users"], "HQ": ["water_manager"]}, ["SPK", "SWT"], false],
	["different roles at both", {"SWT": ["water_manager"], "SPK": ["data_manager"]}, ["SPK", "SWT"], true],
	["global, held at headquarters", {"HQ": ["system_admin"]}, ["SPK"], true],
	["global, held elsewhere, there", {"SPK": ["system_admin"], "SWT": ["All Users"]}, ["SPK"], true],
	["global, held elsewhere, not there", {"SPK": ["system_admin"], "SWT": ["All Users"]}, ["SWT"], false],
	["global of HEC", {"HQ": ["hec_employee"]}, ["SPK", "SWT"], true],
	["processor, held at headquarters", {"HQ": ["automated_processor"]}, ["SPK"], true],
	["processor, held elsewhere", {"SWT": ["automated_processor"]}, ["SPK"], false],
	["processor, held there", {"SPK": ["automated_processor"]}, ["SPK"], true],
]

test_places[label] if {
	some [label, roles_by_office, offices, allowed] in places
	question := fixtures.ask(fixtures.held("X", roles_by_office), "read", "timeseries", fixtures.naming(offices))
	fixtures.decide(question).allow == allowed
}

# Only the personas spread from headquarters: a role that an operator adds does
# not, unless it is listed.
test_other_roles_do_not_spread if {
	grants := {"timeseries": {"read": {"CWMS Users": []}}}
	question := fixtures.ask(fixtures.held("X", {"HQ": ["CWMS Users"], "SWT": []}), "read", "timeseries", fixtures.naming(["SWT"]))
	denied := fixtures.decide(question) with data.cwms.personas.grants as grants
	fixtures.code(denied) == "office_refused"
	allowed := fixtures.decide(question) with data.cwms.personas.grants as grants
		with data.cwms.roles.hq_wide_roles as ["CWMS Users"]
	allowed.allow
}

# Without roles_by_office the flat roles count at every office of the user, in
# whatever case it is written.
test_flat[label] if {
	some [label, roles, offices, asked, allowed] in [
		["own", ["water_manager"], ["SWT", "SPK"], ["SPK"], true],
		["own, in lower case", ["water_manager"], ["swt"], ["SWT"], true],
		["not own", ["water_manager"], ["SWT"], ["SPK"], false],
		["global", ["hec_employee"], [], ["SPK"], true],
		["no office", ["water_manager"], [], ["SWT"], false],
	]
	fixtures.decide(fixtures.ask(fixtures.flat(roles, offices), "read", "timeseries", fixtures.naming(asked))).allow == allowed
}

# A data manager named as such, with a region, reaches the districts of it.
test_region[label] if {
	some [label, changes, office, allowed] in [
		["district", {}, "SWF", true],
		["district by its old spelling", {}, "FTW", true],
		["the division is no district", {}, "SWD", false],
		["another region", {}, "SPK", false],
		["own office", {}, "SPL", true],
		["no persona", {"persona": "water_manager"}, "SWF", false],
		["no such region", {"region": "nowhere"}, "SWF", false],
		["no such role", {"roles": ["water_manager"]}, "SWF", false],
	]
	manager := object.union(fixtures.flat(["data_manager"], ["SPL"]), {"persona": "data_manager", "region": "southwestern"})
	question := fixtures.ask(object.union(manager, changes), "read", "timeseries", fixtures.naming([office]))
	fixtures.decide(question).allow == allowed
}

# The region makes a data manager of them, and nothing else.
test_region_spreads_no_other_role if {
	manager := object.union(
		fixtures.flat(["data_manager", "water_manager"], ["SPL"]),
		{"persona": "data_manager", "region": "southwestern"},
	)
	fixtures.decide(fixtures.ask(manager, "create", "timeseries", fixtures.naming(["SWF"]))).allow
	not fixtures.decide(fixtures.ask(manager, "create", "forecasts", fixtures.naming(["SWF"]))).allow
	fixtures.decide(fixtures.ask(manager, "create", "forecasts", fixtures.naming(["SPL"]))).allow
}

# The processor reaches every office by what it reads and calculates only.
test_processor[label] if {
	some [label, action, context, allowed] in [
		["reads", "read", {}, true],
		["creates calculated", "create", {"data_source": "CALCULATED", "calculation_metadata": {}}, true],
		["updates calculated", "update", {"data_source": "CALCULATED", "calculation_metadata": {}}, true],
		["deletes", "delete", {"data_source": "CALCULATED", "calculation_metadata": {}}, false],
	]
	every scope in [fixtures.naming(["SPK"]), fixtures.naming([]), fixtures.unclear, fixtures.masked("*")] {
		question := fixtures.ask(fixtures.user("APIPROCESSOR"), action, "timeseries", object.union(scope, context))
		fixtures.decide(question).allow == allowed
	}
}

test_cross_office_actions_are_listed if {
	question := fixtures.ask(fixtures.user("APIPROCESSOR"), "read", "timeseries", fixtures.naming(["SPK"]))
	decision := fixtures.decide(question) with data.cwms.roles.cross_office as {"create": ["automated_processor"]}
	fixtures.code(decision) == "office_refused"
}
