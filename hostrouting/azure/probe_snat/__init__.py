"""IPv6 load-balancer probes reach pods: nftables rewrites their link-local source, now and at boot.

capability the probes in the list of a node
task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     a reading -> a decision if a node needs the rules, and for which device, without waiting;
           the table of a live node, and its repair in `Watch`
ruleset    ProbeRules -> the nft script, and the unit (assets/) that loads it at boot; script or
           nft's listing -> ProbeRules
"""
