"""IPv6 load-balancer probes reach pods: nftables rewrites their link-local source, now and at boot.

capability the probes in the list of a node
task       ConfigureProbeSNAT: decide, load in one transaction, persist; the findings of `check`
detect     a reading -> a decision if a node needs the rules, and for which device, without waiting;
           the table of a live node, and its repair in `Watch`
ruleset    ProbeRules -> the nft script, and the unit (assets/) that loads it at boot; script or
           nft's listing -> ProbeRules
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.late import on_first_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT

__all__ = ["ConfigureProbeSNAT"]

# A node without probes loads none of this.
__getattr__: Callable[[str], object] = on_first_use(__name__, {"task": ("ConfigureProbeSNAT",)})
