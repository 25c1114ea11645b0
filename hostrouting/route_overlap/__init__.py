"""The overlap check: every expected address must leave by a device that may carry it.

A check goes through these modules in their order:

expectation   what is expected of a node, made of a config
snapshot      the routes and rules of a node, its answers, and the devices that may carry traffic
parts         the parts of a CIDR, which get one answer each
answers       the answers for all parts, at one moment
judgement     the wrong parts, with the route or rule that decides each
findings      the findings about them
suggest       the fewest routes that resolve the findings
proof         prove_egress and check, which are all of this; the silent routers
proven        OverlapReport: the result, as value, JSON and text

families      what is proven of each family, and the one report on all
policy        packets that rules select by more than addresses
fabric        the networks that the cloud's agent will connect, read from its files
announced     the routes of these networks, and the answers that they may change
lasting       IPv6: the routes that decide, and those that end with an advertisement
errors        those about a check, with its report
explain       the route and the device that decide each part of a range
waiting       one check of a node, the wait for what may resolve itself, and the marker
logged        what a run logs of a check, and of addresses that a config drops
script        the unit of the check at every boot, and its markers
"""
