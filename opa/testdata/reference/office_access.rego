package cwms.helpers.office_access

own(user, office) if office in user.offices
