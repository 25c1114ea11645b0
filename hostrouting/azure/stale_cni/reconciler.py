"""The reconciler that reports or removes stale objects of azure-vnet."""

from __future__ import annotations

from itertools import islice
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.azure.stale_cni.task import CleanStaleCNI
from hostrouting.base.commands import command_line
from hostrouting.base.facts import Facts
from hostrouting.base.pace import MOST_CHANGES, Contest
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.boot.reconciler import Reconciler
from phases import Context, Transaction
from phases.hosting import unrecorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.config.optional import StaleCNIConfig
    from hostrouting.config.sections import HostRoutingConfig


@attrs.define(eq=False)
class StaleObjectReconciler(Reconciler):
    """Reports or removes stale objects of azure-vnet."""

    failure: ClassVar[str] = "stale objects of azure-vnet cannot be searched for now"
    seconds: ClassVar[float] = 60.0
    #: The config and its task; kept between checks, because it logs each thing only once.
    _sweep: tuple[HostRoutingConfig, CleanStaleCNI] | None = None
    #: The stale objects of the last check, and those that two checks agreed on.
    _seen: frozenset[str] = frozenset()
    _stale: Facts[str, None] = attrs.field(factory=Facts)
    #: The objects that were removed within the last hour.
    _contests: dict[str, Contest] = attrs.field(factory=dict)
    #: The objects that are left alone because another program keeps adding them.
    _contested: Facts[str, None] = attrs.field(factory=Facts)

    def act(self, ctx: Context) -> float:
        """Report or remove what is stale."""
        config = self._installed.config
        if not config.stale_cni.enabled:
            return config.watch.interval
        before = self._seen
        self._check(ctx, config)
        # Two checks must agree on an object.
        return 0 if self._seen - before else config.watch.interval

    def _check(self, ctx: Context, config: HostRoutingConfig) -> None:
        if self._sweep is None or self._sweep[0] != config:
            self._sweep = config, CleanStaleCNI(config, host=self._host, logger=self._logger)
        task = self._sweep[1]
        # Without the lock, because most of the time there is nothing to remove.
        stale = {str(each.object): each.reason for each in task.foresee(ctx).stale}
        may_clean = config.stale_cni.sweep == "clean" and stale and not task.obstacle()
        if may_clean and not self._is_contested(stale, now=ctx.clock.monotonic()):
            self._clean(ctx, task, config.stale_cni)
        else:
            self._report(stale, task)

    # --- sweep: report

    def _report(self, stale: Mapping[str, str], task: CleanStaleCNI) -> None:
        """Log each object that two checks agree on, and when it is gone."""
        agreed = [name for name in stale if name in self._seen or name in self._stale.known]
        self._seen = frozenset(stale)
        self._stale = self._stale.after(dict.fromkeys(agreed))
        new = self._stale.new
        gone = sorted(self._stale.over)
        sweep = command_line("sweep", CONFIG_PATH)
        step = f"run: {sweep}"
        fields = {"event": "stale", "command": sweep}
        if new and (obstacle := task.obstacle()):
            step = f"cannot be removed now: {obstacle}"
            del fields["command"]
        lines = {name: f"stale: {name}: {stale[name]}; {step}" for name in new}
        self.log_each(WARNING, lines, **fields)
        self.log_each(INFO, {name: f"no longer stale: {name}" for name in gone}, event="over")

    # --- sweep: clean

    def _clean(self, ctx: Context, task: CleanStaleCNI, section: StaleCNIConfig) -> None:
        """Sweep as an apply does, with the same checks and the same backup."""
        with self._host.lock.hold(ctx) as held:
            run = Transaction(unrecorded(held))
            if self._installed.read().stale_cni != section or self._installed.is_reset:
                return
            try:
                task.do(run.ctx)
            finally:
                now = ctx.clock.monotonic()
                for change in run.changes:
                    contest = self._contests.get(change.subject, Contest())
                    self._contests[change.subject] = contest.after(now=now)
                lines = {
                    change.subject: f"removed: {change.subject}: {change.detail}"
                    for change in run.changes
                }
                self.log_each(WARNING, lines, event="repair")
        self._report({}, task)

    def _is_contested(self, suspects: Iterable[str], *, now: float) -> bool:
        """Return True if any of them was removed too often within an hour; log the first."""
        self._contests = {
            name: contest for name, contest in self._contests.items() if contest.count(now)
        }
        contested = [
            name
            for name in sorted(suspects)
            if name in self._contests and self._contests[name].count(now) >= MOST_CHANGES
        ]
        self._contested = self._contested.after(dict.fromkeys(contested))
        for name in islice(self._contested.new, 1):
            message = (
                "nothing stale is removed for now: '%s' came back after %d sweeps within an hour; "
                "find the program that adds it (azure-vnet, its monitor, a script?), and stop it"
            )
            self.log(ERROR, message, name, MOST_CHANGES, object=name)
        return bool(contested)
