"""The reconciler that keeps the rules for IPv6 probes loaded."""

from __future__ import annotations

from logging import WARNING
from typing import ClassVar

import attrs

from hostrouting.azure.probe_snat.detect import NotWanted, repair
from hostrouting.base.facts import Facts
from hostrouting.boot.reconciler import Reconciler
from phases import Change, Context


@attrs.define(eq=False)
class ProbeReconciler(Reconciler):
    """Keeps the rules for IPv6 probes loaded."""

    failure: ClassVar[str] = "the rules for IPv6 probes cannot be checked now"
    #: Why the table is left as it is.
    _left: Facts[str, None] = attrs.field(factory=Facts)

    def act(self, ctx: Context) -> float:
        """Compare the table with the installed rules, and load them again if they differ."""
        config = self._installed.config
        if not config.probe_snat.enabled:
            return config.watch.interval
        # Without the lock, because nft may hang and an apply would have to wait.
        change = repair(ctx, config.probe_snat, self._host, is_dry=True)
        if isinstance(change, Change):
            change = self._repair(ctx)
        if isinstance(change, Change):
            fields = {"event": "repair", "subject": change.subject, "change": str(change)}
            self.log(WARNING, "repaired: %s", change, **fields)
        reasons = [change.reason] if isinstance(change, NotWanted) else []
        self._left = self._left.after(dict.fromkeys(reasons))
        for reason in self._left.new:
            self.log(WARNING, "the rules for IPv6 probes are not loaded again: %s", reason)
        return config.watch.interval

    def _repair(self, ctx: Context) -> Change | NotWanted | None:
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset or not config.probe_snat.enabled:
                return None
            # Check again, because an apply or reset may have come in between.
            return repair(held, config.probe_snat, self._host)
