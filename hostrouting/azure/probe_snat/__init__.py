"""IPv6 load-balancer probes reach pods: nftables rewrites their link-local source, now and at boot.

task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     a reading -> a decision if a node needs the rules, and for which device, without waiting;
           the table of a live node, and its repair in `Watch`
ruleset    ProbeRules -> the nft script, and the unit (assets/) that loads it at boot; script or
           nft's listing -> ProbeRules
"""

from hostrouting.azure.probe_snat.detect import rules_to_install
from hostrouting.azure.probe_snat.ruleset import boot_unit
from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT

__all__ = ["ConfigureProbeSNAT", "boot_unit", "rules_to_install"]
