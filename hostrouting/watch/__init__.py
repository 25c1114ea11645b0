"""Keep routing right after the boot: the task that repairs and proves as events tell of changes.

signs          the manager of the process: its signs, reloads
unit           ConfigureWatch: the unit that runs a Watch, or the timer that runs the scripts of the boot again
task           Watch: the threads, and their end
loop, duty     one thread: its keepers act after events, after a time, after a failure; pace: how often
installed      the config in force
trouble        a failure that lasts, in the log and in the state
routes         the keeper of the static routes
proof          the keeper of the proof: alarms, their ends, markers; view: a model of the node, compared with readings
siblings       the thread of the siblings: probes (the rules for IPv6 probes), stale_objects (of azure-vnet)
relay          events for that thread
shared_lock    one hold of the run lock for all threads
account        the changes of one act
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.watch.unit import ConfigureWatch

if TYPE_CHECKING:
    from hostrouting.watch.installed import wait_for_installed
    from hostrouting.watch.signs import LivingClock
    from hostrouting.watch.task import Watch

__all__ = ["ConfigureWatch", "LivingClock", "Watch", "wait_for_installed"]

#: Imported late: an apply needs the unit alone, and the rest takes 7 ms.
_HOMES = {"LivingClock": "signs", "Watch": "task", "wait_for_installed": "installed"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
