"""IPv6 load-balancer probes reach pods: nftables rewrites their link-local source, now and at boot.

capability the feature as an entry in the list of capabilities
task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     decide if a node needs the rules and for which device; compare and repair its table
ruleset    ProbeRules -> nft script and boot unit (assets/); script or nft's listing -> ProbeRules
reconciler keeps the rules loaded, for the watch
"""
