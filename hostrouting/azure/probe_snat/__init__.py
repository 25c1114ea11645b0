"""IPv6 load-balancer probes reach pods, although their source is link-local: nftables rewrites it, now and at boot.

task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     decides if a node wants the rules, and for which device, from a reading; waits for nothing; the table of a
           live node, and its repair in `Watch`
ruleset    ProbeRules -> the nft script, and the unit (assets/) that loads it at boot; both script and nft's
           listing -> ProbeRules
"""

from __future__ import annotations

from hostrouting.azure.probe_snat.detect import NotWanted, repair, rules_to_install, to_repair
from hostrouting.azure.probe_snat.ruleset import boot_unit
from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT

__all__ = [
    "ConfigureProbeSNAT",
    "NotWanted",
    "boot_unit",
    "repair",
    "rules_to_install",
    "to_repair",
]
