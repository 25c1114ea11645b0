"""What a removed CNI (azure-vnet) left behind, taken away: ebtables rules, neighbours and routes of pods that are gone.

task.py         CleanStaleCNI: read, confirm, write down, take away, look again; and put back
check.py        what `check` says about leftovers
report.py       the sweep by itself, and its report: `hostrouting sweep`
observe.py      the machine -> a reading, judged; what could not be seen is said
leftovers.py    a snapshot -> the objects that may have been left behind; pure
evidence.py     what speaks for an address or a hardware address: the node, a live pod, who could not be asked; pure
gateways.py     the gateways of a route, also those in attributes carried as they are; pure
sweep.py        a snapshot -> a verdict on each object, with its reason; what several readings agree on; pure
forms.py        azure-vnet's ebtables rules, form by form; pure
state.py        the pods that azure-vnet has on record, and CNS for it; only read
azure_vnet.py   azure-vnet's locks, and the CNI configuration that names it; only read
backup.py       the record of a sweep on the disk; records.py: each object in it
restore.py      taking away and putting back, in place and order
networks.py     addresses of both families, and networks; pure
"""

from __future__ import annotations

from hostrouting.stale_cni.check import check_stale_cni
from hostrouting.stale_cni.observe import fields_of
from hostrouting.stale_cni.report import SweepReport, sweep_node
from hostrouting.stale_cni.sweep import Snapshot, Verdict, judge
from hostrouting.stale_cni.task import CleanStaleCNI

__all__ = [
    "CleanStaleCNI",
    "Snapshot",
    "SweepReport",
    "Verdict",
    "check_stale_cni",
    "fields_of",
    "judge",
    "sweep_node",
]
