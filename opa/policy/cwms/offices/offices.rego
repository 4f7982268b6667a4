# METADATA
# title: Offices
# description: |
#   The table of offices, the districts of a region, and the offices that a mask
#   can stand for. A new office is a line in data.json.
package cwms.offices

# The districts of a region, and the river regions below a division, which hold
# data of their own. A division itself is not one of its districts.
districts(region) := {office |
	some office, entry in data.cwms.offices.table
	entry.region == region
	entry.kind in {"district", "region"}
}

# The API takes a mask as a pattern. A plain word can only match offices that
# contain it; anything else can match all, and so gives none here.
matching(mask) := {office |
	regex.match(`^[A-Za-z0-9]+$`, mask)
	some office, _ in data.cwms.offices.table
	contains(office, upper(mask))
}
