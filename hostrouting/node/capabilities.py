"""The capabilities of a node, in the order in which an apply handles them.

Configure, Reset, `check`, `render`, the watch and the documents iterate over this list, so a new
capability is one more entry. The optional ones are in azure/ and watch/, which only this file and
`node/watch.py` import: their entries load the code when it is needed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from hostrouting.apply.capability import PAIR
from hostrouting.azure.probe_snat.capability import PROBE_SNAT
from hostrouting.azure.stale_cni.capability import STALE_CNI
from hostrouting.boot.capability import Inquiry
from hostrouting.boot.layout import units_in
from hostrouting.watch.capability import WATCH

if TYPE_CHECKING:
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot.capability import Capability
    from hostrouting.boot.layout import BootUnit
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

#: The optional features: a node works without them.
OPTIONAL_SECTIONS: Final[tuple[Capability, ...]] = (STALE_CNI, PROBE_SNAT, WATCH)
CAPABILITIES: Final = (*PAIR, *OPTIONAL_SECTIONS)


def optional_units(config: HostRoutingConfig, host: Host) -> list[BootUnit]:
    """Return the units of optional features that do not depend on the state of the node."""
    fixed = (each for each in OPTIONAL_SECTIONS if not each.in_config(config).reads_node)
    return units_in(part for each in fixed for part in each.parts(config, host))


def warnings_of(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return the warnings that a plan and an apply of a config print."""
    inquiry = Inquiry(config, host)
    checks = chain.from_iterable(each.warnings.values() for each in CAPABILITIES)
    return [finding for check in checks for finding in check(ctx, inquiry)]
