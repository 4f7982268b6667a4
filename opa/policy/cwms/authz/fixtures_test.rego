# METADATA
# title: What tests ask
# description: Questions as the proxy sends them, and the people who ask.
package cwms.fixtures

import data.cwms.authz

# 2026-06-15 12:30:00 UTC, a Monday; 07:30 in Tulsa, 05:30 in Sacramento.
now := 1781526600000000000

hour := 3600000000000

# The people of the shared cases, by what the API's profile says of them.
profiles := {
	"DAMOP001": {"SPK": ["All Users", "CWMS Users", "TS ID Creator"], "HQ": ["dam_operator"]},
	"M5HECTEST": {"SWT": ["All Users", "CWMS Users", "TS ID Creator"], "HQ": ["water_manager"]},
	"DATAMGR001": {"SWT": ["All Users", "CWMS Users", "TS ID Creator"], "HQ": ["data_manager"]},
	"L1HECTEST": {"SPL": ["All Users"], "HQ": ["public_user"]},
	"L2HECTEST": {"SPK": ["All Users", "CWMS Users", "TS ID Creator"]},
	"EXTPARTNER": {"SPK": ["All Users", "CWMS Users"], "HQ": ["external_cooperator"]},
	"APICOLLECTOR": {"SPK": ["CWMS Users", "automated_collector"]},
	"APIPROCESSOR": {"HQ": ["CWMS Users", "automated_processor"]},
	"MIXED01": {"SWT": ["water_manager"], "SPK": ["All Users"]},
	"HECADMIN": {"HQ": ["system_admin"]},
}

user(name) := held(name, profiles[name])

held(name, roles_by_office) := {
	"id": name,
	"username": name,
	"authenticated": true,
	"auth_method": "jwt",
	"roles": sort({role | some roles in roles_by_office; some role in roles}),
	"roles_by_office": roles_by_office,
	"offices": sort(object.keys(roles_by_office)),
}

# A user whose roles come without the offices where they are held.
flat(roles, offices) := {
	"id": "FLAT01",
	"username": "FLAT01",
	"authenticated": true,
	"auth_method": "asserted",
	"roles": roles,
	"offices": offices,
}

anonymous := {
	"id": "anonymous",
	"username": "anonymous",
	"authenticated": false,
	"auth_method": "none",
	"roles": [],
	"roles_by_office": {},
	"offices": [],
}

# What a request says that names these offices.
naming([]) := {"offices": [], "office_scope": "none", "office_mask": null}

naming([office]) := {"office_id": office, "offices": [office], "office_scope": "one", "office_mask": null}

naming(offices) := {"offices": offices, "office_scope": "many", "office_mask": null} if count(offices) > 1

masked(mask) := {"offices": [], "office_scope": "mask", "office_mask": mask}

unclear := {"offices": [], "office_scope": "unknown", "office_mask": null}

ask(who, action, resource, context) := {"user": who, "action": action, "resource": resource, "context": context}

# The decision at the time of the tests.
decide(question) := decision if {
	decision := authz.decision with input as question with data.cwms.clock.now as now
}

at(ns, question) := decision if {
	decision := authz.decision with input as question with data.cwms.clock.now as ns
}

code(decision) := split(decision.reason, ":")[0]
