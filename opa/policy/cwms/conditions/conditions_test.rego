package cwms.conditions_test

import data.cwms.conditions
import data.cwms.fixtures

# Where data comes from when a write does not say: how the user signed in, action,
# what the question states, what it counts as.
sources := [
	["jwt", "create", {}, "MANUAL"],
	["jwt", "update", {}, "MANUAL"],
	["session", "create", {}, "MANUAL"],
	["test", "create", {}, "MANUAL"],
	["api_key", "create", {}, "AUTOMATED"],
	["jwt", "create", {"data_source": "AUTOMATED"}, "AUTOMATED"],
	["api_key", "create", {"data_source": "MANUAL"}, "MANUAL"],
	["asserted", "create", {}, "none"],
	["none", "create", {}, "none"],
	["jwt", "read", {}, "none"],
	["jwt", "delete", {}, "none"],
]

test_source[label] if {
	some [method, action, context, expected] in sources
	label := sprintf("%s %s %v", [method, action, context])
	question := {"user": {"auth_method": method}, "action": action, "context": context}
	source(question) == expected
}

source(question) := value if value := conditions.data_source with input as question

else := "none"

test_source_is_not_assumed_when_switched_off if {
	not conditions.data_source with input as {"user": {"auth_method": "jwt"}, "action": "create", "context": {}}
		with data.cwms.conditions.assume_data_source as false
}

# Only what is said to be calculated is refused to the processor.
test_raw[label] if {
	some [label, context, raw] in [
		["absent", {}, true],
		["manual", {"data_source": "MANUAL"}, true],
		["calculated", {"data_source": "CALCULATED"}, false],
		["calculated, in lower case", {"data_source": "calculated"}, false],
		["no text", {"data_source": 1}, false],
	]
	question := fixtures.ask(fixtures.user("APIPROCESSOR"), "read", "timeseries", context)
	fixtures.decide(question).allow == raw
}

# Each condition that does not hold has its own reason.
missing := [
	["data_source_refused", ["dam_operator"], "create", {}, {"data_source": "CALCULATED"}],
	["shift_unknown", ["dam_operator"], "create", {}, {}],
	["outside_shift", ["dam_operator"], "create", {"shift_start": 8, "shift_end": 9, "timezone": "UTC"}, {}],
	["modification_window_closed", ["dam_operator"], "update", {"shift_start": 0, "shift_end": 23, "timezone": "UTC"}, {}],
	["embargoed", ["dam_operator"], "read", {}, {"ts_group_id": "x", "timestamp_ns": fixtures.now}],
	["not_approved", ["data_manager"], "delete", {}, {"approver_id": "OTHER"}],
	["approved_by_self", ["data_manager"], "delete", {}, {"approval_status": "approved", "approver_id": "flat01"}],
	["approved_by_self", ["data_manager"], "delete", {"username": "Somebody"}, {"approval_status": "approved", "approver_id": "SOMEBODY"}],
	["approved_by_self", ["data_manager"], "delete", {"id": null}, {"approval_status": "approved", "approver_id": "OTHER"}],
	["approved_by_self", ["data_manager"], "delete", {}, {"approval_status": "approved", "approver_id": null}],
	["api_key_required", ["automated_collector"], "create", {}, {"data_source": "AUTOMATED"}],
	["data_source_refused", ["automated_collector"], "create", {"auth_method": "api_key"}, {"data_source": "MANUAL"}],
	["data_source_refused", ["automated_processor"], "create", {}, {"calculation_metadata": {}}],
	["calculation_metadata_missing", ["automated_processor"], "create", {}, {"data_source": "CALCULATED"}],
	["calculation_metadata_missing", ["automated_processor"], "create", {}, {"data_source": "CALCULATED", "calculation_metadata": null}],
	["data_source_refused", ["automated_processor"], "read", {}, {"data_source": "CALCULATED"}],
	["partnership_inactive", ["external_cooperator"], "create", {"allowed_parameters": ["Stage"]}, {"parameter": "Stage"}],
	["partnership_inactive", ["external_cooperator"], "create", {"allowed_parameters": ["Stage"], "partnership_expiry_ns": "later"}, {"parameter": "Stage"}],
	["parameter_refused", ["external_cooperator"], "create", {"allowed_parameters": ["Flow"], "partnership_expiry_ns": fixtures.now + 1}, {"parameter": "Stage"}],
	["parameter_refused", ["external_cooperator"], "create", {"allowed_parameters": ["Flow"], "partnership_expiry_ns": fixtures.now + 1}, {}],
	["classification_refused", ["external_cooperator"], "read", {"allowed_parameters": ["Stage"], "partnership_expiry_ns": fixtures.now + 1}, {"parameter": "Stage"}],
	["classification_refused", ["external_cooperator"], "read", {"allowed_parameters": ["Stage"], "partnership_expiry_ns": fixtures.now + 1}, {"parameter": "Stage", "classification": "secret"}],
]

test_reason[label] if {
	some [code, roles, action, person, context] in missing
	label := sprintf("%s %s %v %v", [roles[0], action, person, context])
	question := fixtures.ask(
		object.union_n([fixtures.flat(roles, ["SWT"]), {"auth_method": "jwt"}, person]), action, "timeseries",
		object.union(fixtures.naming(["SWT"]), context),
	)
	fixtures.code(fixtures.decide(question)) == code
}

# An operator may say what data without a label counts as.
test_unlabelled if {
	cooperator := object.union(fixtures.flat(["external_cooperator"], ["SWT"]), {
		"allowed_parameters": ["Stage"],
		"partnership_expiry_ns": fixtures.now + 1,
	})
	question := fixtures.ask(cooperator, "read", "timeseries", object.union(fixtures.naming(["SWT"]), {"parameter": "Stage"}))
	decision := fixtures.decide(question) with data.cwms.conditions.unlabelled as "internal"
	decision.allow
}

# Every condition of the table is one that can hold, and has a reason.
test_conditions_are_known[condition] if {
	some actions in data.cwms.personas.grants
	some by_role in actions
	some required in by_role
	some condition in required
	regex.match(`^[a-z_]+: .+$`, data.cwms.conditions.reasons[condition])
}
