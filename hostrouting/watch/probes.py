"""The keeper of the rules for IPv6 probes: the table that an apply installed is loaded again if it changed or is gone.

Nothing tells of a change: kube-proxy and CNIs change other tables all the time, and each change of nftables is an event
without the name of the table. So the table is compared every interval.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.probe_snat import NotWanted, repair, to_repair
from hostrouting.watch.trouble import TASK

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from hostrouting.host import Host, NetworkEvent
    from hostrouting.watch.installed import InstalledConfig
    from phases import Change, Context

__all__ = ["ProbeKeeper"]


@attrs.define(eq=False)
class ProbeKeeper:
    """The rules for IPv6 probes."""

    failure: ClassVar[str] = "the rules for IPv6 probes cannot be kept now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: Why the table was left as it is, as the log has it.
    _left: str = ""

    def hear(self, _events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`; no event tells of nftables."""
        return inf

    def lose(self) -> None:
        """See `Keeper`."""

    def act(self, ctx: Context) -> float:
        """Compare the table with the installed rules, and load these again if they differ."""
        config = self._installed.config
        if not config.probe_snat.enabled:
            return config.watch.interval
        # Without the lock: nft may hang, and an apply beside it would wait.
        change = to_repair(ctx, config.probe_snat, self._host)
        if change is not None and not isinstance(change, NotWanted):
            change = self._repair(ctx)
        if change is not None and not isinstance(change, NotWanted):
            self._logger.warning("repaired: %s", change, extra={"task": TASK, "change": str(change)})
        self._tell_left(change)
        return config.watch.interval

    def _repair(self, ctx: Context) -> Change | NotWanted | None:
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset or not config.probe_snat.enabled:
                return None
            # It looks once more: an apply or reset may have come between.
            return repair(held, config.probe_snat, self._host)

    def _tell_left(self, outcome: Change | NotWanted | None) -> None:
        reason = outcome.reason if isinstance(outcome, NotWanted) else ""
        if reason and reason != self._left:
            message = "the rules for IPv6 probes are not loaded again: %s"
            self._logger.warning(message, reason, extra={"task": TASK})
        self._left = reason
