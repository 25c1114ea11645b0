"""Networking values for both address families, pure and independent.

addresses.py      Address, Prefix; readers and writers of addresses, CIDRs and device names
routes.py         Route (wanted), ObservedRoute (read from the kernel), NextHop, Lookup; place;
                  the default routes of a node; RouteChange: one step of a batch
rules.py          Rule: a policy rule with all its selectors
links.py          Device with its addresses, Neighbour, Station
rejected.py       the errors of a batch that the kernel refused
events.py         the kernel's announcements of all these
mappings.py       the JSON form of all of them
"""
