package cwms.embargo_test

import data.cwms.fixtures

privileges := [
	{"ts_group_code": 1, "ts_group_id": "a", "privilege": "read", "embargo_hours": 24},
	{"ts_group_code": 2, "ts_group_id": "b_72h", "privilege": "read", "embargo_hours": 0},
	{"ts_group_code": 3, "ts_group_id": "c", "privilege": "read", "embargo_hours": 0},
	{"ts_group_code": 4, "ts_group_id": "d-1d", "privilege": "read"},
	{"ts_group_code": 5, "ts_group_id": "a", "privilege": "write", "embargo_hours": 48},
]

viewer := object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"ts_privileges": privileges})

read(who, context) := fixtures.ask(who, "read", "timeseries", object.union(fixtures.naming(["SWT"]), context))

# A value of a group is held back for the hours of that group.
test_value[label] if {
	some [label, group, hours_ago, allowed] in [
		["known, young", "a", 47, false],
		["known, old enough", "a", 48, true],
		["by name, young", "b_72h", 71, false],
		["by name, old enough", "b_72h", 72, true],
		["without embargo", "c", 0, true],
		["unknown, young", "zzz", 167, false],
		["unknown, old enough", "zzz", 168, true],
	]
	question := read(viewer, {"ts_group_id": group, "timestamp_ns": fixtures.now - (hours_ago * fixtures.hour)})
	fixtures.decide(question).allow == allowed
}

test_value_not_named[label] if {
	some label, context in {
		"no group": {"timestamp_ns": fixtures.now},
		"no time": {"ts_group_id": "a"},
		"null": {"ts_group_id": "a", "timestamp_ns": null},
	}
	fixtures.decide(read(viewer, context)).allow
}

# A time that is no number can not be shown to be past.
test_value_of_no_time[label] if {
	some [label, group, allowed] in [["known", "a", false], ["without embargo", "c", true]]
	fixtures.decide(read(viewer, {"ts_group_id": group, "timestamp_ns": "2020"})).allow == allowed
}

# Who is exempt. Dam operators are not.
test_exempt[label] if {
	some [label, who, exempt] in [
		["water manager", fixtures.flat(["water_manager"], ["SWT"]), true],
		["data manager", fixtures.flat(["data_manager"], ["SWT"]), true],
		["administrator", fixtures.flat(["system_admin"], []), true],
		["HEC", fixtures.flat(["hec_employee"], []), true],
		["dam operator", fixtures.flat(["dam_operator"], ["SWT"]), false],
		["viewer", fixtures.flat(["Viewer Users"], ["SWT"]), false],
		["processor", fixtures.flat(["automated_processor"], ["SWT"]), false],
		["named as such", object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"persona": "water_manager"}), true],
		["named otherwise", object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"persona": "dam_operator"}), false],
		["elsewhere only", fixtures.held("X", {"SPK": ["water_manager"], "SWT": ["Viewer Users"]}), false],
		["here", fixtures.held("X", {"SWT": ["water_manager"], "SPK": ["Viewer Users"]}), true],
	]
	decision := fixtures.decide(read(who, {}))
	decision.allow
	decision.constraints.embargo_exempt == exempt
	young := fixtures.decide(read(who, {"ts_group_id": "x", "timestamp_ns": fixtures.now}))
	young.allow == exempt
}

# At two offices, exempt is who is so at both.
test_exempt_at_both if {
	both := fixtures.naming(["SPK", "SWT"])
	one := fixtures.held("X", {"SPK": ["water_manager"], "SWT": ["Viewer Users"]})
	two := fixtures.held("X", {"SPK": ["water_manager"], "SWT": ["data_manager"]})
	not fixtures.decide(fixtures.ask(one, "read", "timeseries", both)).constraints.embargo_exempt
	fixtures.decide(fixtures.ask(two, "read", "timeseries", both)).constraints.embargo_exempt
}

# What the API is told to hold back.
test_rules[label] if {
	some [label, who, resource, rules, groups] in [
		["nothing known of groups", fixtures.flat(["dam_operator"], ["SWT"]), "timeseries", {"default": 168, "SPK": 168, "SWT": 72}, null],
		["no groups", object.union(fixtures.flat(["dam_operator"], ["SWT"]), {"ts_privileges": []}), "timeseries", {"default": 168, "SPK": 168, "SWT": 72}, null],
		["the longest of the groups", viewer, "timeseries", {"default": 72}, {"a": 48, "b_72h": 72, "d-1d": 24}],
		["no hours: no key", object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"ts_privileges": [{"ts_group_id": "c", "embargo_hours": 0}]}), "timeseries", {}, null],
		["exempt", object.union(fixtures.flat(["water_manager"], ["SWT"]), {"ts_privileges": privileges}), "timeseries", {}, null],
		["not under embargo", object.union(fixtures.flat(["system_admin"], ["SWT"]), {"ts_privileges": privileges}), "users", {}, null],
		["reference data", viewer, "offices", {}, null],
		["a window", object.union(fixtures.flat(["dam_operator"], ["SWT"]), {"persona": "dam_operator", "ts_privileges": privileges}), "timeseries", {}, null],
	]
	decision := fixtures.decide(fixtures.ask(who, "read", resource, fixtures.naming(["SWT"])))
	decision.allow
	decision.constraints.embargo_rules == rules
	decision.constraints.ts_group_embargo == groups
}

test_no_hours_in_data_is_no_key if {
	decision := fixtures.decide(read(fixtures.flat(["dam_operator"], ["SWT"]), {})) with data.cwms.embargo.default_hours as 0
		with data.cwms.embargo.office_hours as {"SWT": 0, "SPK": 5}
	decision.constraints.embargo_rules == {"SPK": 5}
}

test_resources_without_embargo if {
	decision := fixtures.decide(read(viewer, {})) with data.cwms.embargo.resources as ["levels"]
	decision.constraints.embargo_rules == {}
	decision.constraints.ts_group_embargo == null
}
