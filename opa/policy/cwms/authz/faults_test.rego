# METADATA
# title: Faults of the reference policy
# description: |
#   Where the policy of the earlier proxy went wrong, one test each, so that none
#   of it comes back.
package cwms.faults_test

import data.cwms.fixtures

read(who, office) := fixtures.ask(who, "read", "timeseries", fixtures.naming([office]))

write(who, office) := fixtures.ask(who, "create", "timeseries", object.union(fixtures.naming([office]), {"method": "POST"}))

# P1: the embargo never took effect, for it needed a time and a group that the
# proxy does not send. It is in the constraints now, whatever is sent.
test_embargo_takes_effect if {
	fixtures.decide(read(fixtures.user("DAMOP001"), "SPK")).constraints.embargo_rules["default"] == 168
}

# P2: exemption went by persona in policy and by role in the proxy, with two
# lists. One list counts for both.
test_one_list_of_exemptions if {
	every role in data.cwms.embargo.exempt_roles {
		by_role := fixtures.decide(read(fixtures.flat([role], ["SWT"]), "SWT"))
		by_persona := fixtures.decide(read(object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"persona": role}), "SWT"))
		by_role.constraints.embargo_exempt
		by_persona.constraints.embargo_exempt
	}
}

# P3: hours by office were in policy and nobody read them.
test_hours_by_office_are_read if {
	decision := fixtures.decide(read(fixtures.user("DAMOP001"), "SPK")) with data.cwms.embargo.office_hours as {"SPK": 5}
	decision.constraints.embargo_rules == {"default": 168, "SPK": 5}
}

# P4: two privileges for one group with different hours were an error.
test_two_privileges_for_one_group if {
	who := object.union(fixtures.flat(["Viewer Users"], ["SWT"]), {"ts_privileges": [
		{"ts_group_id": "g", "embargo_hours": 24},
		{"ts_group_id": "g", "embargo_hours": 72},
	]})
	decision := fixtures.decide(read(who, "SWT"))
	decision.constraints.ts_group_embargo == {"g": 72}
}

# P5: a shift over midnight never matched, and the end hour was lost.
test_shift_over_midnight if {
	worker := object.union(fixtures.user("DAMOP001"), {"shift_start": 22, "shift_end": 5, "timezone": "America/Los_Angeles"})
	fixtures.decide(write(worker, "SPK")).allow # 05:30 there
}

# P6: allowed by role, constrained by persona, and no persona was ever set.
test_roles_alone_constrain if {
	fixtures.decide(read(fixtures.user("APIPROCESSOR"), "SPK")).constraints.allowed_offices == ["*"]
	fixtures.decide(read(fixtures.user("HECADMIN"), "SPK")).constraints.allowed_offices == ["*"]
}

# P7: a window of the last hours with an embargo of the last hours leaves nothing.
test_no_window_with_embargo if {
	constraints := fixtures.decide(read(object.union(fixtures.user("DAMOP001"), {"persona": "dam_operator"}), "SPK")).constraints
	constraints.time_window == {"restrict_hours": 8}
	constraints.embargo_rules == {}
	constraints.ts_group_embargo == null
}

# P8: the table of offices had thirteen entries, one of them in a wrong region.
test_offices if {
	count(data.cwms.offices.table) > 60
	data.cwms.offices.table.SPA.region == "south_pacific"
	every district in ["MVK", "NWK", "SAM", "LRN", "NAB", "POA"] {
		data.cwms.offices.table[district].kind == "district"
	}
}

# P9: the processor read at every office without anybody having said so. It is
# listed now, and what it reads is under embargo.
test_processor_is_listed if {
	data.cwms.roles.cross_office.read == ["automated_processor"]
	fixtures.decide(read(fixtures.user("APIPROCESSOR"), "SPK")).constraints.embargo_exempt == false
	fixtures.decide(read(fixtures.user("APIPROCESSOR"), "SPK")).constraints.data_classification == ["public", "internal"]
}

# P10: every unknown class passed for not sensitive.
test_unknown_class_is_refused if {
	cooperator := object.union(fixtures.user("EXTPARTNER"), {
		"allowed_parameters": ["Stage"],
		"partnership_expiry_ns": fixtures.now + 1,
	})
	question := fixtures.ask(cooperator, "read", "timeseries", object.union(
		fixtures.naming(["SPK"]),
		{"parameter": "Stage", "classification": "Sensitive"},
	))
	fixtures.code(fixtures.decide(question)) == "classification_refused"
}

# P11: an office in lower case was another office.
test_case_of_an_office if {
	question := {
		"user": {"username": "x", "roles": ["water_manager"], "offices": ["swt"]},
		"resource": "timeseries",
		"action": "read",
		"context": {"office_id": "Swt"},
	}
	fixtures.decide(question).allow
}

# P12: answers that depend on the clock were kept as long as all others.
test_clock_gives_a_lifetime if {
	worker := object.union(fixtures.user("DAMOP001"), {"shift_start": 5, "shift_end": 5, "timezone": "America/Los_Angeles"})
	fixtures.decide(write(worker, "SPK")).cache.ttl_ms == 30 * 60000
}

# P13: policy denied by default, the proxy let everything else pass, and guests
# lost what the API serves to them. Everything is asked; a file opens it again.
test_guests_by_data if {
	question := fixtures.ask(fixtures.anonymous, "read", "basins", fixtures.naming([]))
	not fixtures.decide(question).allow
	decision := fixtures.decide(question) with data.cwms.public.guest_read as {"basins": []}
	decision.allow
}
