"""Keep routing right after the boot: the task that repairs and proves as events tell of changes.

signs          the manager of the process: its signs, reloads
unit           ConfigureWatch: the unit that runs a Watch, or the timer that runs the scripts of the boot again
task           Watch: the threads, their end, and one hold of the run lock for all of them
duty           one thread: its loop, its keepers, which act after events, after a time, after a failure, and their pace
installed      the config in force
trouble        what the log and the state have: failures that last, changes without end, the changes of one act
routes         the keeper of the static routes
known          the routes of their places, without a reading of all
proof          the keeper of the proof: alarms, their ends, markers
siblings       the thread of the siblings, with its events: the rules for IPv6 probes, stale_objects (of azure-vnet)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostrouting.watch.installed import wait_for_installed
    from hostrouting.watch.signs import LivingClock
    from hostrouting.watch.task import Watch
    from hostrouting.watch.unit import ConfigureWatch

__all__ = ["ConfigureWatch", "LivingClock", "Watch", "wait_for_installed"]

#: Imported late: most runs need one of them, or none.
_HOMES = {"ConfigureWatch": "unit", "LivingClock": "signs", "Watch": "task", "wait_for_installed": "installed"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
