package cwms.constraints_test

import data.cwms.fixtures

everything := ["public", "internal", "restricted", "sensitive"]

# For each person of the shared cases: a question that is allowed, and which
# offices, exemption, window and classes come with it.
allowed := [
	["DAMOP001", "read", "timeseries", ["SPK"], ["HQ", "SPK"], false, ["public", "internal"]],
	["M5HECTEST", "read", "timeseries", ["SWT"], ["HQ", "SWT"], true, everything],
	["DATAMGR001", "update", "ratings", ["SWT"], ["HQ", "SWT"], true, everything],
	["MIXED01", "read", "timeseries", ["SWT"], ["SWT"], true, everything],
	["APIPROCESSOR", "read", "timeseries", ["SPK"], ["*"], false, ["public", "internal"]],
	["HECADMIN", "delete", "blobs", ["SPK"], ["*"], true, everything],
	["L1HECTEST", "read", "offices", [], ["*"], false, ["public", "internal"]],
	["M5HECTEST", "read", "offices", [], ["*"], false, ["public", "internal"]],
	["L2HECTEST", "read", "user/profile", [], ["*"], false, ["public", "internal"]],
]

test_people[label] if {
	some [name, action, resource, asked, offices, exempt, classes] in allowed
	label := sprintf("%s %s %s", [name, action, resource])
	decision := fixtures.decide(fixtures.ask(fixtures.user(name), action, resource, fixtures.naming(asked)))
	decision.allow
	decision.constraints.allowed_offices == offices
	decision.constraints.embargo_exempt == exempt
	decision.constraints.data_classification == classes
	decision.constraints.time_window == null
}

test_collector if {
	who := object.union(fixtures.user("APICOLLECTOR"), {"auth_method": "api_key"})
	decision := fixtures.decide(fixtures.ask(who, "create", "timeseries", fixtures.naming(["SPK"])))
	decision.constraints.allowed_offices == ["SPK"]
}

test_guest if {
	decision := fixtures.decide(fixtures.ask(fixtures.anonymous, "read", "offices", fixtures.naming([])))
	decision.constraints == {
		"allowed_offices": ["*"],
		"embargo_rules": {},
		"embargo_exempt": false,
		"ts_group_embargo": null,
		"time_window": null,
		"data_classification": ["public"],
	}
}

# Offices come in the order of the question, those of a region after them.
test_order if {
	flat := fixtures.flat(["data_manager"], ["SWT", "SPK"])
	one := fixtures.decide(fixtures.ask(flat, "read", "timeseries", fixtures.naming(["SWT"])))
	one.constraints.allowed_offices == ["SWT", "SPK"]
	regional := object.union(flat, {"persona": "data_manager", "region": "southwestern"})
	all := fixtures.decide(fixtures.ask(regional, "read", "timeseries", fixtures.naming(["SWT"])))
	all.constraints.allowed_offices == ["SWT", "SPK", "FTW", "GAL", "SWF", "SWG", "SWL"]
}

# Data with a public label: no more than the label, and no office but those asked for.
test_public_label if {
	asked := object.union(fixtures.naming(["SPK"]), {"classification": "public"})
	one := fixtures.decide(fixtures.ask(fixtures.user("L2HECTEST"), "read", "timeseries", asked))
	one.constraints.allowed_offices == ["SPK"]
	one.constraints.data_classification == ["public"]
	all := fixtures.decide(fixtures.ask(fixtures.anonymous, "read", "timeseries", {"classification": "public"}))
	all.constraints.allowed_offices == ["*"]
}

# An exemption or a clearance that is had at some offices only leaves the others
# out, for what is said of the question must hold at every office listed.
test_narrowed if {
	who := fixtures.held("X", {"SPK": ["Viewer Users"], "SWT": ["Viewer Users", "water_manager"]})
	here := fixtures.decide(fixtures.ask(who, "read", "timeseries", fixtures.naming(["SWT"])))
	[here.constraints.allowed_offices, here.constraints.embargo_exempt] == [["SWT"], true]
	there := fixtures.decide(fixtures.ask(who, "read", "timeseries", fixtures.naming(["SPK"])))
	[there.constraints.allowed_offices, there.constraints.embargo_exempt] == [["SPK", "SWT"], false]
	there.constraints.data_classification == ["public", "internal"]
}

test_narrowed_by_clearance if {
	who := fixtures.held("X", {"SPK": ["water_manager"], "SWT": ["water_manager", "cleared"]})
	here := fixtures.decide(fixtures.ask(who, "read", "timeseries", fixtures.naming(["SWT"]))) with data.cwms.constraints.cleared_roles as ["cleared"]
	here.constraints.allowed_offices == ["SWT"]
	here.constraints.data_classification == everything
}

test_clearance_by_persona if {
	named := object.union(fixtures.flat(["Viewer Users"], ["SPK", "SWT"]), {"persona": "water_manager"})
	decision := fixtures.decide(fixtures.ask(named, "read", "timeseries", fixtures.naming(["SWT"])))
	decision.constraints.data_classification == everything
	decision.constraints.allowed_offices == ["SPK", "SWT"]
}

# The window is for a named persona only.
test_window[label] if {
	some [label, persona, window] in [
		["dam operator", "dam_operator", {"restrict_hours": 8}],
		["water manager", "water_manager", null],
	]
	who := object.union(fixtures.flat(["dam_operator"], ["SWT"]), {"persona": persona})
	fixtures.decide(fixtures.ask(who, "read", "timeseries", fixtures.naming(["SWT"]))).constraints.time_window == window
}

# The consumer. It shows a row if no part of the constraints holds it back; where
# a part is missing it holds nothing back, and an empty list holds back all.

shows(constraints, asked, row) if {
	office_shown(constraints.allowed_offices, asked, row.office)
	age_shown(constraints, row)
	window_shown(constraints.time_window, row)
	class_shown(constraints.data_classification, row)
}

office_shown(offices, _, _) if "*" in offices

office_shown(offices, asked, office) if {
	office in offices
	asked in {office, "all"}
}

age_shown(constraints, _) if constraints.embargo_exempt

age_shown(constraints, _) if count(constraints.embargo_rules) == 0

age_shown(constraints, row) if {
	not constraints.embargo_exempt
	hours := object.get(constraints.embargo_rules, row.office, object.get(constraints.embargo_rules, "default", -1000000))
	row.age > hours
}

window_shown(window, _) if window == null

window_shown(window, row) if row.age <= window.restrict_hours

class_shown(classes, row) if row.class in classes

class_shown(_, row) if row.class == null

# Rows of two offices, new, old, of the future, and each class.
rows := {
	"SPK now": {"office": "SPK", "age": 1, "class": null},
	"SPK 4 days": {"office": "SPK", "age": 96, "class": null},
	"SPK 8 days": {"office": "SPK", "age": 192, "class": null},
	"SWT now": {"office": "SWT", "age": 1, "class": null},
	"SWT 4 days": {"office": "SWT", "age": 96, "class": null},
	"SWT 8 days": {"office": "SWT", "age": 192, "class": null},
	"SWT forecast": {"office": "SWT", "age": -24, "class": null},
	"SWT sensitive": {"office": "SWT", "age": 192, "class": "sensitive"},
	"SWT internal": {"office": "SWT", "age": 192, "class": "internal"},
	"SWT public": {"office": "SWT", "age": 192, "class": "public"},
}

tulsa := {"SWT now", "SWT 4 days", "SWT 8 days", "SWT forecast", "SWT sensitive", "SWT internal", "SWT public"}

no_embargo := [{"ts_group_id": "raw", "embargo_hours": 0}]

seen := [
	["M5HECTEST", fixtures.user("M5HECTEST"), "SWT", tulsa],
	["DATAMGR001", fixtures.user("DATAMGR001"), "SWT", tulsa],
	["DAMOP001", fixtures.user("DAMOP001"), "SPK", {"SPK 8 days"}],
	["dam operator of Tulsa", fixtures.flat(["dam_operator"], ["SWT"]), "SWT", {"SWT 4 days", "SWT 8 days", "SWT internal", "SWT public"}],
	["dam operator named as such", object.union(fixtures.flat(["dam_operator"], ["SWT"]), {"persona": "dam_operator"}), "SWT", {"SWT now", "SWT forecast"}],
	["viewer by groups", object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"ts_privileges": [{"ts_group_id": "raw_7d", "embargo_hours": 0}]}), "SWT", {"SWT 8 days", "SWT internal", "SWT public"}],
	["viewer without embargo", object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"ts_privileges": no_embargo}), "SWT", tulsa - {"SWT sensitive"}],
	["MIXED01", fixtures.user("MIXED01"), "SWT", tulsa],
	["APIPROCESSOR", fixtures.user("APIPROCESSOR"), "SPK", {"SPK 8 days"}],
	["HECADMIN", fixtures.user("HECADMIN"), "SWT", tulsa],
]

test_consumer[label] if {
	some [label, who, office, expected] in seen
	decision := fixtures.decide(fixtures.ask(who, "read", "timeseries", fixtures.naming([office])))
	decision.allow
	{name | some name, row in rows; shows(decision.constraints, office, row); row.office == office} == expected
}

test_consumer_of_all_offices if {
	decision := fixtures.decide(fixtures.ask(fixtures.user("HECADMIN"), "read", "timeseries", fixtures.naming([])))
	{name | some name, row in rows; shows(decision.constraints, "all", row)} == object.keys(rows)
}

# Nobody who is denied sees anything, even if the answer were passed on.
test_consumer_of_a_denial if {
	decision := fixtures.decide(fixtures.ask(fixtures.user("L2HECTEST"), "read", "timeseries", fixtures.naming(["SWT"])))
	not decision.allow
	every asked in ["SWT", "all"] {
		every row in rows {
			not shows(decision.constraints, asked, row)
		}
	}
}
