"""The capabilities of a node, in the order in which an apply attends to them.

Configure, Reset, `check`, `render`, the watch and the documents iterate over this list; a new
capability is one more entry. The optional ones are in azure/ and watch/, which this file and
`node/watch.py` alone import: their entries load the code when it is needed.
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

#: A node can do without them.
OPTIONAL_SECTIONS: Final[tuple[Capability, ...]] = (STALE_CNI, PROBE_SNAT, WATCH)
CAPABILITIES: Final = (*PAIR, *OPTIONAL_SECTIONS)


def sibling_units(config: HostRoutingConfig, host: Host) -> list[BootUnit]:
    """Return the units of the siblings that do not depend on the state of the node."""
    fixed = (each for each in OPTIONAL_SECTIONS if not each.in_config(config).reads_node)
    return units_in(part for each in fixed for part in each.parts(config, host))


def warnings_of(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return what a plan and an apply of a config warn of."""
    inquiry = Inquiry(config, host)
    looks = chain.from_iterable(each.warnings.values() for each in CAPABILITIES)
    return [finding for look in looks for finding in look(ctx, inquiry)]
