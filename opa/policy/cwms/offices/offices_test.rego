package cwms.offices_test

import data.cwms.offices

# Every office of the table has what rules read of it.
test_table[office] if {
	some office, entry in data.cwms.offices.table
	regex.match(`^[A-Z0-9]{1,16}$`, office)
	entry.name != ""
	time.clock([0, entry.timezone])
	entry.kind in {"headquarters", "division", "region", "district", "other"}
	has_home(entry)
}

# A district belongs to a division of its own region.
has_home(entry) if {
	entry.kind in {"district", "region"}
	data.cwms.offices.table[entry.division].kind == "division"
	data.cwms.offices.table[entry.division].region == entry.region
}

has_home(entry) if {
	not entry.kind in {"district", "region"}
	entry.division == null
}

test_districts if {
	offices.districts("south_pacific") == {"SPA", "SPK", "SPL", "SPN"}
	offices.districts("northwestern") == {"NWDM", "NWDP", "NWK", "NWO", "NWP", "NWS", "NWW"}
	offices.districts("nowhere") == set()
}
