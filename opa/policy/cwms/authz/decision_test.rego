package cwms.authz_test

import data.cwms.authz
import data.cwms.fixtures

# A question that nobody asks is still answered, and the answer is no.

closed := {
	"allowed_offices": [],
	"embargo_rules": {},
	"embargo_exempt": false,
	"ts_group_embargo": null,
	"time_window": null,
	"data_classification": [],
}

test_total if {
	every question in [null, {}, [], {"user": {}}, {"user": null, "resource": 1, "action": [], "context": "x"}] {
		authz.decision == {
			"allow": false,
			"reason": "malformed: the question names no action or no resource",
			"constraints": closed,
		} with input as question
		not authz.allow with input as question
	}
}

test_without_input if authz.decision.allow == false

# Why: one line a reason code.

reasons := [
	# anybody may read reference data
	["public", fixtures.anonymous, "read", "offices", fixtures.naming([])],
	["public", fixtures.user("HECADMIN"), "read", "units", fixtures.naming([])],
	# roles
	["role_everywhere", fixtures.user("HECADMIN"), "delete", "blobs", fixtures.unclear],
	["role_at_office", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SWT"])],
	["no_role", fixtures.user("L2HECTEST"), "read", "timeseries", fixtures.naming(["SPK"])],
	["no_role", fixtures.user("M5HECTEST"), "delete", "timeseries", fixtures.naming(["SWT"])],
	["no_rule", fixtures.user("M5HECTEST"), "read", "basins", fixtures.naming(["SWT"])],
	["no_rule", fixtures.user("M5HECTEST"), "read", "nothing-like-it", fixtures.unclear],
	# offices
	["office_refused", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SPK"])],
	["office_refused", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SPK", "SWT"])],
	["office_required", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming([])],
	["office_required", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.unclear],
	["office_required", fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.masked("*")],
	# identity
	["authentication_required", fixtures.anonymous, "read", "timeseries", fixtures.naming(["SWT"])],
	["authentication_required", fixtures.anonymous, "update", "timeseries", fixtures.unclear],
	["own_account", fixtures.user("L1HECTEST"), "read", "user/profile", fixtures.naming([])],
	["own_account", fixtures.user("L1HECTEST"), "delete", "auth/keys", fixtures.naming([])],
	["authentication_required", fixtures.anonymous, "read", "user/profile", fixtures.naming([])],
	["authentication_required", fixtures.anonymous, "create", "auth/keys", fixtures.naming([])],
	["no_role", fixtures.user("L1HECTEST"), "update", "user/profile", fixtures.naming([])],
	# labels
	["public_label", fixtures.anonymous, "read", "timeseries", object.union(fixtures.naming(["SPK"]), {"classification": "public"})],
	["public_label", fixtures.anonymous, "read", "locations", {"classification": "public"}],
	["authentication_required", fixtures.anonymous, "read", "levels", {"classification": "public"}],
	["authentication_required", fixtures.anonymous, "update", "locations", {"classification": "public"}],
	# the service itself, as another service asks
	["service", fixtures.anonymous, "read", "health", {}],
	["service", fixtures.anonymous, "create", "metrics", {}],
	["authentication_required", fixtures.anonymous, "read", "health", {"method": "GET", "office_scope": "none"}],
]

test_reasons[label] if {
	some [code, who, action, resource, context] in reasons
	label := sprintf("%s: %s may %s %s at %v", [code, who.username, action, resource, context])
	code == fixtures.code(fixtures.decide(fixtures.ask(who, action, resource, context)))
}

# The bare answer says the same as the decision.
test_allow_agrees if {
	every row in reasons {
		question := fixtures.ask(row[1], row[2], row[3], row[4])
		decision := fixtures.decide(question)
		decision.allow == authz.allow with input as question
	}
}

# Every reason is a code and a text for people.
test_reasons_have_a_form if {
	every row in reasons {
		regex.match(`^[a-z_]+: [^:]+$`, fixtures.decide(fixtures.ask(row[1], row[2], row[3], row[4])).reason)
	}
}

# A denied question comes with constraints under which nothing is shown.
test_denied_is_closed if {
	fixtures.decide(fixtures.ask(fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SPK"]))).constraints == closed
}

# Only reads of what no rule knows are let through, only for those who signed in,
# and only when the switch says so.

test_ungoverned_read if {
	question := fixtures.ask(fixtures.user("L2HECTEST"), "read", "basins", fixtures.naming(["SWT"]))
	decision := fixtures.decide(question) with data.cwms.public.ungoverned as "read"
	fixtures.code(decision) == "ungoverned"
	decision.constraints.allowed_offices == ["*"]
}

test_ungoverned_is_off if {
	not fixtures.decide(fixtures.ask(fixtures.user("L2HECTEST"), "read", "basins", {})).allow
}

test_ungoverned_never[label] if {
	some [who, action, resource] in [
		[fixtures.user("L2HECTEST"), "create", "basins"],
		[fixtures.user("L2HECTEST"), "update", "basins"],
		[fixtures.user("L2HECTEST"), "delete", "basins"],
		[fixtures.anonymous, "read", "basins"],
		[fixtures.user("L2HECTEST"), "read", "timeseries"],
		[fixtures.user("L2HECTEST"), "read", "health"],
	]
	label := sprintf("%s %s by %s", [action, resource, who.username])
	question := fixtures.ask(who, action, resource, object.union(fixtures.naming(["SPK"]), {"method": "GET"}))
	decision := fixtures.decide(question) with data.cwms.public.ungoverned as "read"
	not decision.allow
}

# The table of guests is not in the bundle unless it is asked for.

guests := {"timeseries": [], "projects": ["water-user"]}

test_guest if {
	question := fixtures.ask(fixtures.anonymous, "read", "timeseries", fixtures.unclear)
	fixtures.code(fixtures.decide(question)) == "authentication_required"
	decision := fixtures.decide(question) with data.cwms.public.guest_read as guests
	fixtures.code(decision) == "guest"
	decision.constraints.allowed_offices == ["*"]
	decision.constraints.data_classification == ["public"]
}

test_guest_never[label] if {
	some [action, resource, subresource] in [
		["create", "timeseries", ""],
		["read", "properties", ""],
		["read", "projects", "{office}/{project-id}/water-user/{water-user}"],
	]
	label := sprintf("%s %s/%s", [action, resource, subresource])
	question := fixtures.ask(fixtures.anonymous, action, resource, object.union(fixtures.unclear, {"subresource": subresource}))
	decision := fixtures.decide(question) with data.cwms.public.guest_read as guests
	not decision.allow
}

test_guest_reads_other_parts_of_a_resource if {
	question := fixtures.ask(fixtures.anonymous, "read", "projects", object.union(fixtures.unclear, {"subresource": "locations"}))
	decision := fixtures.decide(question) with data.cwms.public.guest_read as guests
	decision.allow
}

# A grant by role comes before what is open to guests: it gives more.
test_role_before_guest if {
	question := fixtures.ask(fixtures.user("M5HECTEST"), "read", "timeseries", fixtures.naming(["SWT"]))
	decision := fixtures.decide(question) with data.cwms.public.guest_read as guests
	fixtures.code(decision) == "role_at_office"
}
