package cwms.groups_test

import data.cwms.groups

# Hours by the name of a group.
test_named_hours[name] if {
	some name, hours in {
		"dam_operator-raw-r-72h": 72,
		"dam_operator_raw_r_72h": 72,
		"raw-7d": 168,
		"raw_14d": 336,
		"raw-0h": 0,
		"raw72h": 0,
		"raw-72h-old": 0,
		"raw-72m": 0,
		"raw": 0,
		"": 0,
	}
	groups.named_hours(name) == hours
}

privileges := [
	{"ts_group_code": 1, "ts_group_id": "a", "privilege": "read", "embargo_hours": 24},
	{"ts_group_code": 2, "ts_group_id": "b_72h", "privilege": "read", "embargo_hours": 0},
	{"ts_group_code": 3, "ts_group_id": "c", "privilege": "read", "embargo_hours": 0},
	{"ts_group_code": 4, "ts_group_id": "d-1d", "privilege": "read"},
	{"ts_group_code": 5, "ts_group_id": "a", "privilege": "write", "embargo_hours": 48},
]

# The name counts where the API gives 0; the longer of two embargoes counts.
test_group_hours if {
	groups.hours == {"a": 48, "b_72h": 72, "c": 0, "d-1d": 24} with input as {"user": {"ts_privileges": privileges}}
}

test_strange_privileges if {
	strange := [{"ts_group_id": null}, {}, 5, {"ts_group_id": "x", "embargo_hours": "9"}]
	groups.hours == {"x": 0} with input as {"user": {"ts_privileges": strange}}
}
