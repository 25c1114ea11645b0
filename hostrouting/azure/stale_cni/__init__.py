"""The sweep: removes ebtables rules, neighbours and routes that a removed CNI (azure-vnet) left.

capability.py   the sweep in the list of a node
azure_vnet.py   azure-vnet's configuration, locks and state; only read
leftovers.py    a snapshot -> the objects that azure-vnet may have left; recorded objects compared
verdicts.py     a snapshot -> a verdict on each object; the agreement of several readings
node.py         the machine -> a snapshot, judged; objects removed and restored, sort by sort
task.py         CleanStaleCNI: read, confirm, record, remove and read again; restore
report.py       `hostrouting sweep`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.late import on_first_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.azure.stale_cni.report import sweep_node
    from hostrouting.azure.stale_cni.task import CleanStaleCNI

__all__ = ["CleanStaleCNI", "sweep_node"]

# A node without a sweep loads none of this.
__getattr__: Callable[[str], object] = on_first_use(
    __name__, {"report": ("sweep_node",), "task": ("CleanStaleCNI",)}
)
