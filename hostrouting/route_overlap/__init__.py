"""The overlap check: every expected address must leave by a device that may carry it.

proof      prove_egress: the parts of each CIDR, the kernel's answer for each, the findings; the
           silent routers
snapshot   the routes and rules of a node, its answers, and the devices that may carry expected
           traffic
parts      the parts of a CIDR, their answers, and the route or rule that decides each
families   what is proven of each family, and the one report on all
policy     packets that rules select by more than addresses
fabric     the networks that the cloud's agent will connect, read from its files
announced  the routes of these networks, and the answers that they may change
lasting    IPv6: the routes that decide, and those that end with an advertisement
suggest    the fewest routes that resolve the findings
proven     OverlapReport: the result of a proof, as value, JSON and text
errors     those about a proof, with its report
explain    the route and the device that decide each part of a range
look       one proof of a node with all that counts, the wait for what may heal, the marker
logged     what a run logs of a proof, and of addresses that a config drops
script     the unit of the check at every boot, and its markers
"""
