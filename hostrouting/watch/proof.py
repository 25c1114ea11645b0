"""The keeper of the proof: the findings that follow events, an alarm when they last, its end, and the marker files."""

from __future__ import annotations

import time
from logging import ERROR, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.boot import RecordedFiles
from hostrouting.config import OverlapMode, RouteOverlapConfig
from hostrouting.exceptions import HostFileError
from hostrouting.fib import UnknownDecisionError
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, Fabric
from hostrouting.route_overlap.live import LiveProof
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.route_overlap.task import (
    announced_fabric,
    leave_marker,
    prove_now,
    tell_findings,
    tell_notes,
)
from hostrouting.watch.account import Account
from hostrouting.watch.trouble import TASK, Trouble
from hostrouting.watch.view import Reading, View

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host, NetworkEvent
    from hostrouting.route_overlap import OverlapReport
    from hostrouting.route_overlap.live import Found
    from hostrouting.watch.installed import InstalledConfig
    from phases import Context

__all__ = ["ProofKeeper"]

#: The time between two readings that count: a change that ends within it makes no alarm.
_WINDOW: Final = 1.0
#: Before a marker that cannot be written is tried again.
_SECONDS_AFTER_A_FAILURE: Final = 5.0
#: Other findings wait for a second for each of those that were told, at most for so long: the routes of a daemon may
#: change all the time. The end of an alarm does not wait, and
#: neither does an alarm for another CIDR.
_LONGEST_SILENCE: Final = 600.0
#: The share of a core that readings without an event may take: one of 500,000 routes takes seconds.
_SHARE: Final = 0.005
#: The state names so many CIDRs.
_MOST_NAMED: Final = 3


@attrs.define(eq=False)
class ProofKeeper:
    """The expected CIDRs of the config in force.

    The kernel proves them now and then, and its routing is then compared with a model. In between the model follows the
    events and answers for the addresses that they touch. All that is told or written was proven by the kernel, under
    the run lock.
    """

    failure: ClassVar[str] = "the expected CIDRs cannot be proven now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: The section that is proven.
    _section: RouteOverlapConfig = attrs.field(factory=RouteOverlapConfig)
    _proof: LiveProof = attrs.field(init=False)
    _view: View = attrs.field(init=False)
    _fabric: Fabric = attrs.field(factory=Fabric)
    #: Since when the files announce no fabric any more; None if they announce one, or never did.
    _gone_since: float | None = None
    #: When the files of the fabric changed last.
    _stamps: tuple[float | None, ...] = ()
    #: When the kernel is to prove everything again.
    _next_reading: float = -inf
    #: The findings of the kernel's last proof; they count where the model has no answer.
    _kernels: Found | None = None
    _is_model_trusted: bool = True
    #: True if events may have changed the findings since that.
    _is_stale: bool = False
    #: The findings that were told last; None before the first.
    _told: Found | None = None
    #: How many readings in a row showed other findings, and when the next one may.
    _bad_readings: int = 0
    _next_count: float = -inf
    #: Until then, other findings of the CIDRs that have an alarm are not told.
    _silent_until: float = -inf
    #: The marker cannot be written.
    _trouble: Trouble = attrs.field(init=False)

    @_trouble.default
    def _no_trouble(self) -> Trouble:
        return Trouble(self._logger, "the marker of the expected CIDRs is not right now")

    def __attrs_post_init__(self) -> None:
        self._begin(self._section)

    def _begin(self, section: RouteOverlapConfig) -> None:
        """Begin to prove a section about which nothing is known yet."""
        self._section = section
        self._proof = LiveProof(section)
        self._view = View(self._proof.concerns)
        self._fabric, self._gone_since = Fabric(), None
        self._told, self._bad_readings, self._next_count, self._silent_until = None, 0, -inf, -inf

    @property
    def state(self) -> str:
        """The alarm and the trouble with its marker, in a few words; empty if there is none."""
        return "; ".join(filter(None, [self._alarm(), str(self._trouble)]))

    def _alarm(self) -> str:
        bad = [cidr for cidr, findings in zip(self._section.cidrs, self._told or (), strict=False) if findings]
        if not bad:
            return ""
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        return f"alarm: {', '.join(bad[:_MOST_NAMED])}{more}"

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        if not self._section.cidrs:
            return inf
        effect = self._view.hear(events)
        if effect.unknown:
            return 0
        if self._view.fib is None:
            # It is read soon.
            return inf
        if self._proof.hear(self._view.fib, effect):
            self._is_stale = True
            return 0
        return 0 if effect.devices and self._section.fabric == "auto" else inf

    def lose(self) -> None:
        """See `Keeper`."""
        self._view.forget()

    def act(self, ctx: Context) -> float:
        """Read the node if it is time, and compare the model with it; then judge the findings."""
        config = self._installed.config
        if config.route_overlap != self._section:
            self._begin(config.route_overlap)
        if not self._section.cidrs:
            return config.watch.interval
        now = ctx.clock.monotonic()
        difference = ""
        # On a node with many routes each of these takes seconds.
        with ctx.interruptible():
            if self._view.is_read:
                difference = self._compare(now)
            elif self._must_read(now):
                self._read(ctx, config)
                # The events from before it are heard next.
                return 0
            found = self._findings()
        if difference:
            message = "the model of the routing differs from the kernel, which counts: %s"
            self._logger.error(message, difference, extra={"task": TASK})
        seconds = self._judge(ctx, config, found, now)
        # The dates of the files are looked at every interval, also where readings are rarer.
        return max(0, min(seconds, self._next_reading - now, config.watch.interval))

    # --- the findings, by the model and by the kernel

    def _must_read(self, now: float) -> bool:
        if self._view.fib is None or now >= self._next_reading or self._stamps != self._stamps_now():
            return True
        return self._is_stale and self._by_model() is None

    def _read(self, ctx: Context, config: HostRoutingConfig) -> None:
        """Let the kernel prove everything, on a reading with which the model will be compared."""
        started = time.thread_time()
        reading = Reading.of(self._host.routes)
        self._stamps = self._stamps_now()
        fabric = self._announced_fabric(ctx)
        if fabric != self._fabric:
            self._fabric = fabric
            self._proof.forget()
        self._kernels = _found(prove_now(reading, config, fabric, self._host))
        self._view.read(reading)
        self._is_stale = False
        is_doubtful = self._gone_since is not None
        pause = _WINDOW if is_doubtful else max(config.watch.interval, (time.thread_time() - started) / _SHARE)
        self._next_reading = ctx.clock.monotonic() + pause

    def _announced_fabric(self, ctx: Context) -> Fabric:
        """Return the announced fabric, also for a while after it has gone: its pool may be being written anew."""
        fabric = announced_fabric(ctx.child(timeout=0), self._section.fabric, self._host)
        if fabric.addresses or not self._fabric.addresses:
            self._gone_since = None
            return fabric
        now = ctx.clock.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        if now < self._gone_since + _WINDOW:
            return self._fabric
        self._gone_since = None
        return fabric

    def _stamps_now(self) -> tuple[float | None, ...]:
        return tuple(map(self._modified, (CONFIGURATION, POOL))) if self._section.fabric == "auto" else ()

    def _modified(self, path: str) -> float | None:
        try:
            return self._host.files.modified(path)
        except HostFileError:
            # The proof tells of a file that cannot be read.
            return None

    def _compare(self, now: float) -> str:
        """Hold the model to the kernel: first its routing, then its findings; return the difference, if any."""
        is_first = self._view.fib is None
        difference = self._view.compare()
        if difference is None:
            if is_first or self._view.is_early:
                self._next_reading = now + 2 * _WINDOW
            return ""
        if is_first or difference:
            self._proof.forget()
        self._is_model_trusted = True
        if not (difference or self._view.was_disturbed):
            found = self._by_model()
            if found not in {None, self._kernels}:
                self._is_model_trusted = False
                difference = f"it finds {_lines(found)}, and the kernel {_lines(self._kernels)}"
        return difference

    def _by_model(self) -> Found | None:
        """Return the findings of the model; None if it does not know them."""
        if self._view.fib is None or not self._is_model_trusted:
            return None
        try:
            return self._proof.findings(self._view.fib, self._fabric)
        except UnknownDecisionError:
            return None

    def _findings(self) -> Found:
        found = self._by_model()
        return self._kernels or () if found is None else found

    # --- the alarm

    def _judge(self, ctx: Context, config: HostRoutingConfig, found: Found, now: float) -> float:
        """Count readings that differ from the told one, and tell when there are enough; return when to judge again."""
        if found == self._told:
            self._bad_readings = 0
            if self._has_marker(ok=not any(found)):
                return inf
        elif any(found):
            until = self._next_count if self._is_spreading(found) else max(self._next_count, self._silent_until)
            if now < until:
                silence = until - now
                # The marker of the told alarm may be missing: the disk was full.
                return silence if self._is_marked() else min(silence, self._change(ctx, found, now, tells=False))
            self._bad_readings += 1
            self._next_count = now + _WINDOW
            if self._bad_readings < config.watch.readings:
                return _WINDOW
        return self._change(ctx, found, now)

    def _is_spreading(self, found: Found) -> bool:
        """Return True if a CIDR has findings that had none when the findings were told last."""
        return any(now and not before for now, before in zip(found, self._told or (), strict=False))

    def _has_marker(self, *, ok: bool) -> bool:
        exists = self._host.files.exists
        return exists(MARKER_OK) == ok and exists(MARKER_DETECTED) != ok

    def _is_marked(self) -> bool:
        """Return True unless the alarm that was told has no marker."""
        return not any(self._told or ()) or self._has_marker(ok=False)

    def _change(self, ctx: Context, expected: Found, now: float, *, tells: bool = True) -> float:
        """Let the kernel prove everything under the run lock; write its marker, and tell it.

        Without `tells`, only the end of an alarm is told.
        """
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset or config.route_overlap != self._section:
                return 0
            with held.interruptible():
                report = prove_now(self._host.routes, config, self._fabric, self._host)
            found = _found(report)
            if found != expected:
                # A change is under way, or the model is wrong.
                self._next_reading = now + _WINDOW
            if any(found) and not any(expected):
                return _WINDOW
            if tells or not any(found):
                self._tell(report, found, now)
            return self._leave_marker(held, report)

    def _leave_marker(self, ctx: Context, report: OverlapReport) -> float:
        """Write the marker; return when to judge again."""
        try:
            leave_marker(RecordedFiles(ctx.within(Account()), self._host), report)
        except HostFileError as error:
            # No failure of the proof: that goes on, and counts readings meanwhile.
            self._trouble.tell(str(error))
            return _SECONDS_AFTER_A_FAILURE
        self._trouble.end()
        return inf

    def _tell(self, report: OverlapReport, found: Found, now: float) -> None:
        """Log the findings, unless they are those that were told last."""
        self._bad_readings = 0
        if found == self._told:
            return
        was_bad = any(self._told or ()) or self._host.files.exists(MARKER_DETECTED)
        # An alarm is told even if its marker cannot be written.
        self._told = found
        self._silent_until = now + min(_LONGEST_SILENCE, sum(map(len, found)))
        if not report.ok:
            tell_notes(report, self._logger, task=TASK)
            level = ERROR if self._section.mode is OverlapMode.STRICT else WARNING
            tell_findings(report, self._logger, task=TASK, level=level)
        elif was_bad:
            message = "the expected addresses leave as they should again: %s"
            self._logger.info(message, report.verdict, extra={"task": TASK})


def _found(report: OverlapReport) -> Found:
    return tuple(one.findings for one in report.cidrs)


def _lines(found: Found | None) -> str:
    return "; ".join(finding.sentence() for findings in found or () for finding in findings) or "nothing"
