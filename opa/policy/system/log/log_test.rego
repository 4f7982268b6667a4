package system.log_test

import data.system.log

test_poll_is_dropped if log.drop with input as {"path": "system/bundles"}

test_decision_is_kept if not log.drop with input as {"path": "cwms/authz/decision"}

test_person_is_masked if {
	log.mask == {"/input/user/email", "/input/user/claims", "/input/user/attributes"} with input as {"path": "cwms/authz/decision"}
}
