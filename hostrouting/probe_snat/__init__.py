"""IPv6 load-balancer probes reach pods, although their source is link-local: nftables rewrites it, now and at boot.

task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     decides if a node wants the rules, and for which device, from a reading; waits for nothing
ruleset    ProbeRules -> the nft script, and the unit (assets/) that loads it at boot; nft's listing -> ProbeRules
"""

from __future__ import annotations

from hostrouting.probe_snat.detect import rules_to_install
from hostrouting.probe_snat.ruleset import boot_unit
from hostrouting.probe_snat.task import ConfigureProbeSNAT

__all__ = ["ConfigureProbeSNAT", "boot_unit", "rules_to_install"]
