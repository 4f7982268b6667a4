package cwms.request_test

import data.cwms.fixtures
import data.cwms.request

# What a request reaches: what it says, the offices, and whether that is all.
reaches := [
	["one", fixtures.naming(["SWT"]), {"SWT"}, true],
	["many", fixtures.naming(["SPK", "SWT"]), {"SPK", "SWT"}, true],
	["none", fixtures.naming([]), set(), false],
	["unknown", {"offices": ["SWT"], "office_scope": "unknown", "office_mask": null}, {"SWT"}, false],
	["none, though one is named", {"offices": ["SWT"], "office_scope": "none", "office_mask": null}, {"SWT"}, false],
	["one, though none is named", {"offices": [], "office_scope": "one", "office_mask": null}, set(), false],
	["a word", fixtures.masked("SWT"), {"SWT"}, true],
	["a word in lower case", fixtures.masked("swt"), {"SWT"}, true],
	["a part of several", fixtures.masked("NWD"), {"NWD", "NWDM", "NWDP"}, true],
	["a word and an office", {"offices": ["SPK"], "office_scope": "mask", "office_mask": "SWT"}, {"SPK", "SWT"}, true],
	["a word that no office has", fixtures.masked("XYZ"), set(), false],
	["all", fixtures.masked("*"), set(), false],
	["a pattern", fixtures.masked("SW."), set(), false],
	["a pattern and an office", {"offices": ["SPK"], "office_scope": "mask", "office_mask": "SW*"}, {"SPK"}, false],
	["by hand", {"office_id": "swt"}, {"SWT"}, true],
	["by hand, nothing", {}, set(), false],
]

test_reached[label] if {
	some [label, context, offices, bounded] in reaches
	question := {"context": context}
	request.reached == offices with input as question
	request.bounded == bounded with input as question
}

test_sole_office if {
	request.office == "SWT" with input as {"context": fixtures.naming(["SWT"])}
	not request.office with input as {"context": fixtures.naming(["SPK", "SWT"])}
	not request.office with input as {"context": {"offices": ["SWT"], "office_scope": "unknown", "office_mask": null}}
}

# A mask is allowed to those who are allowed at every office it can match.
test_mask[label] if {
	some [label, offices, mask, allowed] in [
		["own", ["SWT"], "SWT", true],
		["a part of own and others", ["SWT"], "SW", false],
		["all that it matches", ["NWD", "NWDM", "NWDP"], "NWD", true],
		["one is missing", ["NWD", "NWDM"], "NWD", false],
		["a pattern for own", ["SWT"], "SWT.*", false],
		["unknown", ["XYZ"], "XYZ", false],
	]
	question := fixtures.ask(fixtures.flat(["data_manager"], offices), "read", "measurements", fixtures.masked(mask))
	fixtures.decide(question).allow == allowed
}

test_those_allowed_everywhere_may_use_any_mask if {
	every mask in ["*", "SW", "XYZ"] {
		fixtures.decide(fixtures.ask(fixtures.user("HECADMIN"), "read", "measurements", fixtures.masked(mask))).allow
	}
}
