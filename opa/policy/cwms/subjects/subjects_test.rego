package cwms.subjects_test

import data.cwms.fixtures
import data.cwms.subjects

by_user := {"DAMOP001": {
	"persona": "dam_operator",
	"region": "south_pacific",
	"shift_start": 5,
	"shift_end": 6,
	"timezone": "America/Los_Angeles",
	"allowed_parameters": ["Stage"],
	"partnership_expiry_ns": 5,
}}

by_office := {"SPK": {"shift_start": 1, "shift_end": 2, "allowed_parameters": ["Flow"]}}

# Each attribute: from the question, else by user, else by office.

attributes := {
	"persona": subjects.persona,
	"region": subjects.region,
	"shift_start": subjects.shift_start,
	"shift_end": subjects.shift_end,
	"timezone": subjects.timezone,
	"allowed_parameters": subjects.allowed_parameters,
	"partnership_expiry_ns": subjects.partnership_expiry_ns,
}

stated := {
	"persona": "data_manager",
	"region": "mississippi",
	"shift_start": 8,
	"shift_end": 9,
	"timezone": "UTC",
	"allowed_parameters": [],
	"partnership_expiry_ns": 7,
}

question(who) := fixtures.ask(who, "create", "timeseries", fixtures.naming(["SPK"]))

test_stated if {
	attributes == stated with input as question(object.union(fixtures.user("DAMOP001"), stated))
		with data.cwms.subjects.by_user as by_user
		with data.cwms.subjects.by_office as by_office
}

test_by_user if {
	attributes == by_user.DAMOP001 with input as question(object.union(fixtures.user("DAMOP001"), {"username": "damop001"}))
		with data.cwms.subjects.by_user as by_user
		with data.cwms.subjects.by_office as by_office
}

test_by_office if {
	[subjects.shift_start, subjects.shift_end, subjects.timezone, subjects.allowed_parameters] == [1, 2, "America/Los_Angeles", ["Flow"]] with input as question(fixtures.user("L2HECTEST"))
		with data.cwms.subjects.by_user as by_user
		with data.cwms.subjects.by_office as by_office
	not subjects.persona with input as question(fixtures.user("L2HECTEST"))
		with data.cwms.subjects.by_user as by_user
}

# A partnership in data may end at a date.
test_partnership_by_date if {
	recorded := {"EXTPARTNER": {"partnership_expiry": "1970-01-01T00:00:01Z"}}
	subjects.partnership_expiry_ns == 1000000000 with input as question(fixtures.user("EXTPARTNER"))
		with data.cwms.subjects.by_user as recorded
}

# A shift that data gives lets a dam operator write who signed in by token.
test_shift_by_data if {
	fixtures.code(fixtures.decide(question(fixtures.user("DAMOP001")))) == "shift_unknown"
	decision := fixtures.decide(question(fixtures.user("DAMOP001"))) with data.cwms.subjects.by_user as by_user
	decision.allow
}

test_authenticated[label] if {
	some [label, who, expected] in [
		["says so", {"authenticated": true, "roles": []}, true],
		["says not", {"authenticated": false, "roles": ["water_manager"]}, false],
		["by hand, with a role", {"roles": ["water_manager"]}, true],
		["by hand, without", {"roles": []}, false],
	]
	subjects.authenticated == expected with input as {"user": who}
}
