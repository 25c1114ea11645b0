"""Keep routing right after the boot: repair routes and prove the expected CIDRs as events tell of changes.

task        Watch: the loop of duties
duty        what a keeper is, and when it acts
pace        how much of a core a keeper takes
installed   the config in force
routes      the keeper of the static routes
proof       the keeper of the proof: alarms, their ends, markers
view        a model of the node that follows events, and is compared with readings
account     the changes of one act
"""

from __future__ import annotations

from hostrouting.watch.task import Watch

__all__ = ["Watch"]
