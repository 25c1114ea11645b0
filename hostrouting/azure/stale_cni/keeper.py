"""The keeper that looks for stale objects of azure-vnet, and reports or removes them."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.azure.stale_cni.task import CleanStaleCNI
from hostrouting.base.commands import command_line
from hostrouting.boot import INTENT_PATH, WATCH_TASK, Keeper
from phases import Context, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.azure.stale_cni.verdicts import Verdict
    from hostrouting.config import HostRoutingConfig, StaleCNIConfig

#: An object is left after so many sweeps within the time: another program adds it again and again.
_MOST_SWEEPS = 3
_SECONDS_OF_A_CONTEST = 3600.0
#: Each object has a separate line, if one look finds no more than these.
_MOST_LINES = 100


@attrs.define(eq=False)
class StaleObjectKeeper(Keeper):
    """The stale objects of azure-vnet."""

    failure: ClassVar[str] = "stale objects of azure-vnet cannot be looked for now"
    #: The sweep of a config. One for all looks, since it logs each thing once.
    _sweep: tuple[HostRoutingConfig, CleanStaleCNI] | None = None
    #: The stale objects of the last look, and those that the log has named.
    _seen: frozenset[str] = frozenset()
    _told: frozenset[str] = frozenset()
    #: Objects that look stale, until their pods are asked.
    _alive: frozenset[str] = frozenset()
    #: The objects that were swept within the time, and when.
    _sweeps: list[tuple[str, float]] = attrs.field(factory=list)
    #: The objects that are left to the program that adds them.
    _contested: frozenset[str] = frozenset()

    def act(self, ctx: Context) -> float:
        """Report or remove what is stale."""
        config = self._installed.config
        if not config.stale_cni.enabled:
            return config.watch.interval
        before = self._seen
        self._look(ctx, config)
        # Two looks must agree on an object.
        return 0 if self._seen - before else config.watch.interval

    def _look(self, ctx: Context, config: HostRoutingConfig) -> None:
        if self._sweep is None or self._sweep[0] != config:
            self._sweep = config, CleanStaleCNI(config, host=self._host, logger=self._logger)
        task = self._sweep[1]
        if config.stale_cni.sweep == "report":
            self._tell(_by_name(task.foresee(ctx).stale), task)
            return
        # This asks no pod, and holds no lock: on most nodes, and most of the time, there is nothing
        # to sweep.
        stale = _by_name(task.suspects(ctx))
        now = ctx.clock.monotonic()
        may_clean = not stale or (not task.obstacle() and not self._is_contested(stale, now=now))
        if stale and (not may_clean or stale.keys() <= self._alive):
            # Asking takes a second, which a sweep takes anyway, under the lock.
            stale = _by_name(task.foresee(ctx).stale)
        if stale and may_clean:
            self._clean(ctx, task, config.stale_cni, suspects=stale)
        else:
            self._tell(stale, task)

    # --- sweep: report

    def _tell(self, stale: Mapping[str, str], task: CleanStaleCNI) -> None:
        """Log each object that two looks agree on, and the end of each that was logged; once."""
        now = frozenset(stale)
        new = [name for name in stale if name in self._seen and name not in self._told]
        gone = sorted(self._told - now)
        self._seen = now
        self._told = (self._told & now) | frozenset(new)
        step = f"run: {command_line('sweep', INTENT_PATH)}"
        if new and (obstacle := task.obstacle()):
            step = f"cannot be removed now: {obstacle}"
        self._log(
            WARNING, {name: f"stale: {name}: {stale[name]}; {step}" for name in new}, event="stale"
        )
        self._log(INFO, {name: f"stale no more: {name}" for name in gone}, event="over")

    def _log(self, level: int, lines: Mapping[str, str], *, event: str) -> None:
        fields = {"task": WATCH_TASK, "event": event}
        for name in islice(lines, _MOST_LINES):
            self._logger.log(level, "%s", lines[name], extra={**fields, "subject": name})
        if len(lines) > _MOST_LINES:
            self._logger.log(level, "and %d more", len(lines) - _MOST_LINES, extra=fields)

    # --- sweep: clean

    def _clean(
        self, ctx: Context, task: CleanStaleCNI, section: StaleCNIConfig, *, suspects: Iterable[str]
    ) -> None:
        """Sweep as an apply does, with the same readings and the same record."""
        with self._host.lock.hold(ctx) as held:
            run = Transaction(held.within(None))
            if self._installed.read().stale_cni != section or self._installed.is_reset:
                return
            try:
                task.do(run.ctx)
            finally:
                now = ctx.clock.monotonic()
                self._sweeps += ((change.subject, now) for change in run.changes)
                told = {
                    change.subject: f"removed: {change.subject}: {change.detail}"
                    for change in run.changes
                }
                self._log(WARNING, told, event="repair")
        self._alive = frozenset(suspects) - {change.subject for change in run.changes}
        self._tell({}, task)

    def _is_contested(self, suspects: Iterable[str], *, now: float) -> bool:
        """Return True if any was swept too often; say so once."""
        self._sweeps = [
            (name, time) for name, time in self._sweeps if now - time < _SECONDS_OF_A_CONTEST
        ]
        counts = Counter(name for name, _ in self._sweeps)
        contested = frozenset(name for name in suspects if counts[name] >= _MOST_SWEEPS)
        for name in sorted(contested - self._contested)[:1]:
            message = (
                "nothing stale is removed for now: '%s' came back after %d sweeps within an hour; "
                "find the program that adds it (azure-vnet, its monitor, a script?), and stop it"
            )
            self._logger.log(
                ERROR, message, name, _MOST_SWEEPS, extra={"task": WATCH_TASK, "object": name}
            )
        self._contested = contested
        return bool(contested)


def _by_name(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the reasons of verdicts by the names of their objects."""
    return {str(each.object): each.reason for each in verdicts}
