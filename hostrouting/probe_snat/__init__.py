"""IPv6 load-balancer probes reach pods, although their source is link-local: nftables rewrites it, now and at boot.

task          ConfigureProbeSNAT: decide, load in one transaction, persist
detect        decides if a node wants the rules, and for which device, from a reading; waits for nothing
ruleset       ProbeRules -> the nft script and nft's listing of it, and back; pure
check         finds rules that are missing or have drifted
boot_files    the script and its unit (assets/), which do the same at boot with nft alone
"""

from __future__ import annotations

from hostrouting.probe_snat.boot_files import boot_unit
from hostrouting.probe_snat.check import check_probe_snat, wants_rules
from hostrouting.probe_snat.detect import rules_to_install
from hostrouting.probe_snat.ruleset import ProbeRules, expected_listing, render, rules_in
from hostrouting.probe_snat.task import ConfigureProbeSNAT

__all__ = [
    "ConfigureProbeSNAT",
    "ProbeRules",
    "boot_unit",
    "check_probe_snat",
    "expected_listing",
    "render",
    "rules_in",
    "rules_to_install",
    "wants_rules",
]
