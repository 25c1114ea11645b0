"""The keeper that loads the rules for IPv6 probes again."""

from __future__ import annotations

from typing import ClassVar

import attrs

from hostrouting.azure.probe_snat.detect import NotWanted, repair
from hostrouting.azure.probe_snat.ruleset import template
from hostrouting.boot import WATCH_TASK, Keeper
from phases import Change, Context


@attrs.define(eq=False)
class ProbeKeeper(Keeper):
    """The rules for IPv6 probes."""

    failure: ClassVar[str] = "the rules for IPv6 probes cannot be kept now"
    #: Why the table was left as it is, as the log has it.
    _left: str = ""

    def act(self, ctx: Context) -> float:
        """Compare the table with the installed rules, and load these again if they differ."""
        config = self._installed.config
        if not config.probe_snat.enabled:
            return config.watch.interval
        # Without the lock: nft may hang, and an apply beside it would wait.
        change = repair(ctx, config.probe_snat, self._host, is_dry=True)
        if isinstance(change, Change):
            change = self._repair(ctx)
        if isinstance(change, Change):
            fields = {
                "task": WATCH_TASK,
                "event": "repair",
                "subject": change.subject,
                "change": str(change),
            }
            self._logger.warning("repaired: %s", change, extra=fields)
        reason = change.reason if isinstance(change, NotWanted) else ""
        if reason and reason != self._left:
            message = "the rules for IPv6 probes are not loaded again: %s"
            self._logger.warning(message, reason, extra={"task": WATCH_TASK})
        self._left = reason
        return config.watch.interval

    def _repair(self, ctx: Context) -> Change | NotWanted | None:
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset or not config.probe_snat.enabled:
                return None
            # It looks once more: an apply or reset may have come between.
            return repair(held, config.probe_snat, self._host)


def lasting_keeper() -> type[ProbeKeeper]:
    """Return the keeper of a process that may outlive the file of the rules."""
    template()
    return ProbeKeeper
