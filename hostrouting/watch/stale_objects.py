"""The keeper that looks for stale objects of azure-vnet when pods or the CNI change, and reports or removes them.

A pod's going is an event of its device; the CNI's configuration and state are files, whose dates are looked at every
few seconds. Each look runs programs, so there is at most one a second.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.boot import INTENT_PATH
from hostrouting.commands import command_line
from hostrouting.host import DeviceEvent, NeighbourEvent
from hostrouting.stale_cni import POD_DEVICE, CleanStaleCNI, last_changes
from hostrouting.watch.trouble import TASK, Account

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaleCNIConfig
    from hostrouting.host import Host, NetworkEvent
    from hostrouting.stale_cni.verdicts import Verdict
    from hostrouting.watch.installed import InstalledConfig
    from phases import Context

#: Between two looks, also those that agree on an object before it is reported: a pod that goes leaves its objects to
#: azure-vnet for a moment. A sweep holds the run lock for seconds, and another run, which tries it every tenth of a
#: second, gets it in between.
_SECONDS_BETWEEN_LOOKS: Final = 1.0
#: Between two looks at the dates of files, each of which takes about 0.15 ms.
_SECONDS_BETWEEN_SIGNS: Final = 5.0
#: An object is left after so many sweeps within the time: another program adds it again and again.
_MOST_SWEEPS: Final = 3
_SECONDS_OF_A_CONTEST: Final = 3600.0
#: Each object has a separate line, if one look finds no more than these.
_MOST_LINES: Final = 100


@attrs.define(eq=False)
class StaleObjectKeeper:
    """The stale objects of azure-vnet."""

    failure: ClassVar[str] = "stale objects of azure-vnet cannot be looked for now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: The sweep of a config. One for all looks, since it logs each thing once.
    _sweep: tuple[HostRoutingConfig, CleanStaleCNI] | None = None
    #: When to look, and when the last look began or ended, on the monotonic clock.
    _due: float = -inf
    _looked: float = -inf
    #: An event may have made an object stale.
    _is_called: bool = False
    _dates: Mapping[str, float | None] = attrs.field(factory=dict)
    #: The stale objects of the last look, and those that the log has named.
    _seen: frozenset[str] = frozenset()
    _told: frozenset[str] = frozenset()
    #: Objects that look stale, until their pods are asked.
    _alive: frozenset[str] = frozenset()
    #: When objects were swept.
    _sweeps: defaultdict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    #: The objects that are left to the program that adds them.
    _contested: frozenset[str] = frozenset()

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        section = self._installed.config.stale_cni
        if self._is_called or not section.enabled or not any(_concerns(event, section.bridge) for event in events):
            return inf
        self._is_called = True
        return 0

    def lose(self) -> None:
        """See `Keeper`."""
        self._is_called = True

    def act(self, ctx: Context) -> float:
        """Look if it is time, or if something changed that can make an object stale."""
        config, now = self._installed.config, ctx.clock.monotonic
        if not config.stale_cni.enabled:
            return config.watch.interval
        self._notice_changes()
        if now() >= self._due:
            self._looked = now()
            # Before the look: one that fails is not repeated at once.
            self._due = self._looked + config.watch.interval
            try:
                self._look(ctx, config)
            finally:
                self._looked = now()
                self._due = max(self._due, self._looked + _SECONDS_BETWEEN_LOOKS)
        return max(0.0, min(_SECONDS_BETWEEN_SIGNS, self._due - now()))

    def _notice_changes(self) -> None:
        dates = last_changes(self._host.files)
        if self._is_called or dates != self._dates:
            self._look_soon()
        self._dates, self._is_called = dates, False

    def _look_soon(self) -> None:
        self._due = min(self._due, self._looked + _SECONDS_BETWEEN_LOOKS)

    def _look(self, ctx: Context, config: HostRoutingConfig) -> None:
        task = self._task_for(config)
        if config.stale_cni.sweep == "report":
            self._tell(_by_name(task.foresee(ctx).stale), task)
            return
        # This asks no pod, and holds no lock: on most nodes, and most of the time, there is nothing to sweep.
        stale = _by_name(task.suspects(ctx))
        may_clean = not stale or (not task.obstacle() and not self._is_contested(stale, now=self._looked))
        if stale and (not may_clean or stale.keys() <= self._alive):
            # Asking takes a second, which a sweep takes anyway, under the lock.
            stale = _by_name(task.foresee(ctx).stale)
        if stale and may_clean:
            self._clean(ctx, task, config.stale_cni, suspects=stale)
        else:
            self._tell(stale, task)

    def _task_for(self, config: HostRoutingConfig) -> CleanStaleCNI:
        if self._sweep is None or self._sweep[0] != config:
            self._sweep = config, CleanStaleCNI(config, host=self._host, logger=self._logger)
        return self._sweep[1]

    # --- sweep: report

    def _tell(self, stale: Mapping[str, str], task: CleanStaleCNI) -> None:
        """Log each object that two looks agree on, and each that was named and is stale no more; once."""
        now = frozenset(stale)
        new = [name for name in stale if name in self._seen and name not in self._told]
        gone = sorted(self._told - now)
        if now - self._seen:
            self._look_soon()
        self._seen, self._told = now, (self._told & now) | frozenset(new)
        obstacle = task.obstacle() if new else ""
        step = f"cannot be removed now: {obstacle}" if obstacle else f"run: {command_line('sweep', INTENT_PATH)}"
        self._log(WARNING, {name: f"stale: {name}: {stale[name]}; {step}" for name in new}, event="stale")
        self._log(INFO, {name: f"stale no more: {name}" for name in gone}, event="over")

    def _log(self, level: int, lines: Mapping[str, str], *, event: str) -> None:
        fields = {"task": TASK, "event": event}
        for name in islice(lines, _MOST_LINES):
            self._logger.log(level, "%s", lines[name], extra={**fields, "subject": name})
        if len(lines) > _MOST_LINES:
            self._logger.log(level, "and %d more", len(lines) - _MOST_LINES, extra=fields)

    # --- sweep: clean

    def _clean(self, ctx: Context, task: CleanStaleCNI, section: StaleCNIConfig, *, suspects: Iterable[str]) -> None:
        """Sweep as an apply does: with the readings that must agree, the record, and the look afterwards."""
        account = Account()
        with self._host.lock.hold(ctx) as held:
            if self._installed.read().stale_cni != section or self._installed.is_reset:
                self._look_soon()
                return
            try:
                task.do(held.within(account))
            finally:
                for change in account.changes:
                    self._sweeps[change.subject].append(self._looked)
                told = {change.subject: f"removed: {change.subject}: {change.detail}" for change in account.changes}
                self._log(WARNING, told, event="repair")
        self._alive = frozenset(suspects) - {change.subject for change in account.changes}
        self._tell({}, task)

    def _is_contested(self, suspects: Iterable[str], *, now: float) -> bool:
        """Return True if any was swept too often; say so once."""
        recent = {
            name: [time for time in times if now - time < _SECONDS_OF_A_CONTEST] for name, times in self._sweeps.items()
        }
        self._sweeps = defaultdict(list, {name: times for name, times in recent.items() if times})
        contested = frozenset(name for name in suspects if len(self._sweeps.get(name, ())) >= _MOST_SWEEPS)
        for name in sorted(contested - self._contested)[:1]:
            message = (
                "nothing stale is removed for now: '%s' came back after %d sweeps within an hour; find the program "
                "that adds it (azure-vnet, its monitor, a script?), and stop it"
            )
            self._logger.log(ERROR, message, name, _MOST_SWEEPS, extra={"task": TASK, "object": name})
        self._contested = contested
        return bool(contested)


def _by_name(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the reasons of verdicts by the names of their objects."""
    return {str(each.object): each.reason for each in verdicts}


def _concerns(event: NetworkEvent, bridge: str) -> bool:
    """Return True if the event may have made an object stale: a pod's device changed, or a neighbour was added."""
    if isinstance(event, DeviceEvent):
        device = event.device
        return device.name.startswith(POD_DEVICE) or bridge in (device.name, device.master)
    return (
        isinstance(event, NeighbourEvent)
        # The kernel learns and forgets others all the time.
        and event.neighbour.permanent
        and (event.neighbour.dev == bridge or event.neighbour.dev.startswith(POD_DEVICE))
    )
