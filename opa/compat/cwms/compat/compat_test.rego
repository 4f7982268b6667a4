package cwms.compat_test

import data.cwms.compat

# The earlier policy is not here: what it says is given.

user := {"username": "X", "authenticated": true, "roles": ["dam_operator"], "offices": ["SPK", "swt"]}

groups := [{"ts_group_id": "raw_72h", "embargo_hours": 0}, {"ts_group_id": "ok", "embargo_hours": 24}, {"ts_group_id": "open", "embargo_hours": 0}]

question(changes) := object.union(
	{"user": user, "resource": "timeseries", "action": "read", "context": {"office_id": "SPK", "offices": ["SPK"]}},
	changes,
)

decide(allow, changes) := decision if {
	decision := compat.decision with data.cwms.authz.allow as allow with input as question(changes)
}

test_allowed if {
	decide(true, {}) == {
		"allow": true,
		"reason": "allowed: a rule of the earlier policy allows it",
		"constraints": {
			"allowed_offices": ["SPK", "SWT"],
			"embargo_rules": {},
			"embargo_exempt": false,
			"ts_group_embargo": null,
			"time_window": null,
			"data_classification": ["public", "internal"],
		},
	}
}

test_denied if {
	decision := decide(false, {})
	decision.allow == false
	decision.reason == "denied: no rule of the earlier policy allows it"
	decision.constraints.allowed_offices == []
}

test_undefined_is_denied if {
	decision := compat.decision with input as question({})
	decision.allow == false
}

test_offices[label] if {
	some [label, changes, offices] in [
		["reference data", {"resource": "offices"}, ["*"]],
		["administrator", {"user": {"roles": ["system_admin"]}}, ["*"]],
		["HEC", {"user": {"roles": ["hec_employee"]}}, ["*"]],
		["processor", {"user": {"persona": "automated_processor"}}, ["*"]],
		["guest, an office", {"user": {"offices": []}, "context": {"offices": ["SPN"]}}, ["SPN"]],
		["guest, no office", {"user": {"offices": []}, "context": {"offices": []}}, ["*"]],
	]
	decide(true, changes).constraints.allowed_offices == offices
}

test_offices_by_hand if {
	by_hand := {"user": {"offices": []}, "resource": "timeseries", "action": "read", "context": {"office_id": "spn"}}
	decision := compat.decision with data.cwms.authz.allow as true with input as by_hand
	decision.constraints.allowed_offices == ["SPN"]
	nowhere := compat.decision with data.cwms.authz.allow as true with input as object.remove(by_hand, ["context"])
	nowhere.constraints.allowed_offices == ["*"]
}

test_embargo[label] if {
	some [label, changes, rules, by_group, window, exempt] in [
		["by groups", {}, {"default": 72}, {"raw_72h": 72, "ok": 24}, null, false],
		["a window", {"persona": "dam_operator"}, {}, null, {"restrict_hours": 8}, false],
		["exempt by role", {"roles": ["water_manager"]}, {}, null, null, true],
		["exempt by persona", {"persona": "data_manager"}, {}, null, null, true],
	]
	constraints := decide(true, {"user": object.union({"ts_privileges": groups}, changes)}).constraints
	[constraints.embargo_rules, constraints.ts_group_embargo, constraints.time_window, constraints.embargo_exempt] == [rules, by_group, window, exempt]
}

test_classes[label] if {
	some [label, changes, classes] in [
		["guest", {"authenticated": false}, ["public"]],
		["signed in", {}, ["public", "internal"]],
		["by role", {"roles": ["data_manager"]}, ["public", "internal", "restricted", "sensitive"]],
		["by persona", {"persona": "water_manager"}, ["public", "internal", "restricted", "sensitive"]],
	]
	decide(true, {"user": changes}).constraints.data_classification == classes
}

test_clock[label] if {
	some label, changes in {
		"time of a value": {"context": {"timestamp_ns": 1}},
		"time of creation": {"context": {"created_ns": 1}},
		"shift": {"user": {"shift_start": 0}},
		"partnership": {"user": {"partnership_expiry_ns": 1}},
	}
	decide(true, changes).cache == {"ttl_ms": 0}
	decide(false, changes).cache == {"ttl_ms": 0}
}
