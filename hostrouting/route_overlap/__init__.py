"""The overlap check: every expected address must leave through a device that may carry it.

A check uses these modules in this order:

expectation       what a config expects of a node
snapshot          the routes and rules of a node, its lookups, and the devices that may carry data
cidr_parts        the parts of a CIDR that get one answer each
answers           the answers for all parts at one moment
judgement         the parts that are wrong, each with the route or rule that decides it
findings          the findings about these parts
suggest           the fewest routes that fix the findings
check             prove_egress and check_egress, which do all of the above; silent routers
report            OverlapReport: the result as a value, as JSON and as text

by_family         the result for each address family, and one report for all of them
outbound_faults   why the device that should carry the traffic does not
policy            packets that rules select by more than their addresses
fabric            the networks that the cloud's agent is going to connect, read from its files
announced         the routes of these networks, and the answers that they may change
ipv6_lifetimes    IPv6: routes that end with a router's advertisement
errors            the errors of a check, which contain its report
explain           the route and the device that decide each part of a range
waiting           one check, waiting for what may resolve itself, and the marker of the result
logs              what a run logs about a check, and about addresses that a config drops
script            the unit that checks at every boot, and its markers
"""
