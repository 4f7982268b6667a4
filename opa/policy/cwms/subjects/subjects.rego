# METADATA
# title: What is known of the user
# description: |
#   Attributes that the profile of the API does not carry. The question may state
#   them (a trusted caller of /authorize does); otherwise data.json gives them by
#   user name, upper case, or for all users of an office. The question comes first.
package cwms.subjects

import data.cwms.request

offices := [upper(office) | some office in input.user.offices]

recorded := object.get(data.cwms.subjects.by_user, upper(input.user.username), {})

at_office := object.get(data.cwms.subjects.by_office, request.office, {})

persona := value if value := input.user.persona

else := recorded.persona

region := value if value := input.user.region

else := recorded.region

shift_start := value if value := input.user.shift_start

else := value if value := recorded.shift_start

else := at_office.shift_start

shift_end := value if value := input.user.shift_end

else := value if value := recorded.shift_end

else := at_office.shift_end

timezone := value if value := input.user.timezone

else := value if value := recorded.timezone

else := data.cwms.offices.table[request.office].timezone

allowed_parameters := value if value := input.user.allowed_parameters

else := value if value := recorded.allowed_parameters

else := at_office.allowed_parameters

# Nanoseconds since 1970. Data may give a date instead of the number.
partnership_expiry_ns := value if value := input.user.partnership_expiry_ns

else := value if value := recorded.partnership_expiry_ns

else := time.parse_rfc3339_ns(recorded.partnership_expiry)

default authenticated := false

authenticated if input.user.authenticated == true

# A question put by hand need not say it: whoever has a role was authenticated.
authenticated if {
	not has_authenticated
	count(input.user.roles) > 0
}

has_authenticated if is_boolean(input.user.authenticated)
