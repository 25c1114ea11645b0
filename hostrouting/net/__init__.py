"""Networking values for both address families; pure, and independent of other packages.

addresses.py      Address, Prefix; parse and format addresses, CIDRs and device names
routes.py         Route (wanted), ObservedRoute (read from the kernel), NextHop, Lookup; route_key;
                  the default routes of a node; RouteChange: one step of a batch
rules.py          Rule: a policy rule with all its selectors
links.py          Device with its addresses, Neighbour, Station
outbound.py       the outbound device of each address family
rejected.py       the error of a batch that the kernel refused
events.py         the changes that the kernel announces
mappings.py       the JSON form of these values
"""
