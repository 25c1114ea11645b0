"""The check of the expected CIDRs after events: alarms that last, their ends, and the markers."""

from __future__ import annotations

import time
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.base.facts import Facts
from hostrouting.base.pace import Pace
from hostrouting.boot.reconciler import WATCH_TASK, Reconciler, Trouble
from hostrouting.config.sections import HostRoutingConfig, OverlapMode, RouteOverlapConfig
from hostrouting.net.addresses import Prefix, address_bits
from hostrouting.net.events import NetworkEvent, RouteEvent
from hostrouting.net.routes import LOCAL_TABLE
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import expectation_on
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, Fabric, announced_fabric
from hostrouting.route_overlap.logs import log_findings, log_notes
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.route_overlap.waiting import leave_marker, unready_units
from phases.hosting import interruptible, unrecorded

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hostrouting.route_overlap.report import Finding, OverlapReport
    from phases import Context

#: The findings by expected CIDR; the key of refusals, and of what the boot logged, is empty.
Findings: TypeAlias = "Facts[str, tuple[Finding | str, ...]]"

#: Events within this time share one check: a daemon that starts changes many routes.
_SECONDS_TOGETHER = 0.05
#: The time between two checks that count: a shorter change raises no alarm.
_WINDOW = 1.0
#: The time before writing the marker is tried again.
_SECONDS_AFTER_A_FAILURE = 5.0
#: After an alarm, further findings wait one second for each finding that was logged, because the
#: routes of a daemon may change all the time. The end of an alarm does not wait, and neither does
#: an alarm for another CIDR.
_LINES: Final = Pace(savings=0.0, share=1.0, longest=600.0)
#: The share of a core for checks without an event: with 500,000 routes, one takes half a second.
_SHARE = 0.005
#: The number of CIDRs that the state names.
_MOST_NAMED = 3


@attrs.define(eq=False)
class RoutingCheck(Reconciler):
    """The expected CIDRs of the config in force, checked after events and at intervals.

    The check holds the run lock, so it logs nothing about an apply in progress. The last state is
    always checked, because events during a check lead to another check.
    """

    failure: ClassVar[str] = "the expected CIDRs cannot be checked now"
    is_optional: ClassVar[bool] = False
    seconds: ClassVar[float | None] = None
    #: The section that is checked; the family, first and last address of each of its CIDRs.
    _section: RouteOverlapConfig = attrs.field(factory=RouteOverlapConfig)
    _ranges: Sequence[tuple[int, int, int]] = ()
    _fabric: Fabric = attrs.field(factory=Fabric)
    #: When the files stopped announcing a fabric; None if they announce one, or never did.
    _gone_since: float | None = None
    #: When the files of the fabric last changed.
    _stamps: tuple[float | None, ...] = ()
    #: True if an event since the last check may have changed the findings.
    _is_stale: bool = True
    #: When the first learned route that decided at the last good check ends; the devices of all
    #: such routes.
    _end: float = inf
    _led: Collection[str] = ()
    #: When to check again without an event.
    _next_check: float = -inf
    #: The findings that the log has; None before the first check.
    _logged: Findings | None = None
    #: How many checks in a row showed other findings, and when the next one may count.
    _bad_readings: int = 0
    _next_count: float = -inf
    #: The pace of lines about other findings of the CIDRs that have an alarm.
    _lines: Pace = _LINES
    #: The marker cannot be written.
    _marker: Trouble = attrs.field(init=False)

    @_marker.default
    def _is_right(self) -> Trouble:
        return Trouble(self._logger, "the marker of the expected CIDRs is not right now")

    @property
    def state(self) -> str:
        """The alarm and the trouble with its marker, in a few words; empty if there is none."""
        logged = self._logged or Facts()
        bad = [cidr for cidr in self._section.cidrs if cidr in logged.known]
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        alarm = f"alarm: {', '.join(bad[:_MOST_NAMED])}{more}" if bad else ""
        return "; ".join(filter(None, [alarm, str(self._marker)]))

    def receive(self, events: Sequence[NetworkEvent]) -> float:
        """Return the seconds until the events require a check, or `inf` for never."""
        # A check is due already.
        if self._is_stale or not any(map(self._concerns, events)):
            return inf
        self._is_stale = True
        return _SECONDS_TOGETHER

    def _concerns(self, event: NetworkEvent) -> bool:
        """Return True if an event may change the findings."""
        if not isinstance(event, RouteEvent):
            return True
        route = event.route
        if not route.prefix_length:
            # A default route of IPv4 decides through which device IPv6 should leave, too.
            return True
        # Without a `Prefix`, which takes four times as long: a storm has ten thousand a second.
        last = route.network | (1 << address_bits(route.family) - route.prefix_length) - 1
        for family, low, high in self._ranges:
            if route.network <= high and low <= last and route.family == family:
                return True
        # The node may send from other addresses now.
        return route.table == LOCAL_TABLE

    def lose(self) -> None:
        """Check again, because events were lost."""
        self._is_stale = True

    def act(self, ctx: Context) -> float:
        """Check if it is time, and judge the findings."""
        config = self._installed.config
        if config.route_overlap != self._section:
            self._section = config.route_overlap
            prefixes = map(Prefix.parse, self._section.cidrs)
            self._ranges = [(prefix.family, prefix.network, prefix.last) for prefix in prefixes]
            self._fabric = Fabric()
            self._gone_since = None
            self._is_stale = True
            self._logged = None
            self._bad_readings = 0
            self._next_count = -inf
            self._lines = _LINES
        if not self._section.cidrs:
            return config.watch.interval
        now = ctx.clock.monotonic()
        if self._is_stale or now >= self._next_check or self._stamps != self._stamps_now():
            with self._host.lock.hold(ctx) as held:
                config = self._installed.read()
                if self._installed.is_reset:
                    return inf
                if config.route_overlap != self._section:
                    return 0
                report, pause = self._check(held, config)
                self._next_check = now + min(pause, self._judge(held, report, now))
            # Only now, because after a failure it is due again.
            self._is_stale = False
        # The files are checked for changes every interval, even if checks are rarer.
        return max(0, min(self._next_check - now, config.watch.interval))

    def _check(self, ctx: Context, config: HostRoutingConfig) -> tuple[OverlapReport, float]:
        """Check everything; return the report, and the pause before the next check at rest."""
        started = time.thread_time()
        self._stamps = self._stamps_now()
        # With many routes, this takes seconds.
        with interruptible(ctx):
            self._fabric = self._announced_fabric(ctx)
            late = unready_units(ctx, config, self._host)
            expectation = expectation_on(self._host, config, self._fabric, late=late)
            report = check_egress(self._host, expectation)
        pause = max(config.watch.interval, (time.thread_time() - started) / _SHARE)
        if self._gone_since is not None:
            pause = _WINDOW
        # The kernel sends no event when an advertisement renews a route, or when a route ends.
        ending = [route for route in report.deciding if route.expires > 0]
        soonest = min((route.expires for route in ending), default=inf)
        if report.ok:
            self._end = ctx.clock.monotonic() + soonest
            self._led = {dev for route in ending for dev in route.devs}
        return report, min(pause, soonest)

    def _announced_fabric(self, ctx: Context) -> Fabric:
        """Return the announced fabric, or the last one while its pool may be being rewritten."""
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
        stamps = []
        for path in (CONFIGURATION, POOL) if self._section.fabric == "auto" else ():
            try:
                stamps.append(self._host.files.modified(path))
            except HostFileError:
                # The check reports a file that cannot be read.
                stamps.append(None)
        return tuple(stamps)

    # --- the alarm

    def _judge(self, ctx: Context, report: OverlapReport, now: float) -> float:
        """Count checks with new findings, and log these if it is time; return the next pause."""
        logged = self._logged or self._logged_at_boot()
        findings = logged.after(_findings_of(report))
        if not findings.has_changed:
            self._bad_readings = 0
            if self._has_marker(ok=report.ok):
                self._logged = logged
                # The marker of a healthy node contains the time of the last check.
                return self._leave_marker(ctx, report) if report.ok else inf
        elif not report.ok:
            spreads = bool(findings.known.keys() - logged.known.keys())
            until = self._next_count if spreads else max(self._next_count, self._lines.free)
            if self._may_return(report):
                self._end = min(self._end, now + self._installed.config.watch.interval)
                until = max(until, self._end)
            if now < until:
                silence = until - now
                # The marker of the logged alarm may be missing: the disk was full.
                is_marked = not logged.known or self._has_marker(ok=False)
                return silence if is_marked else min(silence, self._leave_marker(ctx, report))
            self._bad_readings += 1
            self._next_count = now + _WINDOW
            if self._bad_readings < self._installed.config.watch.readings:
                return _WINDOW
        # An alarm is logged even if its marker cannot be written.
        self._log(report, findings, now)
        return self._leave_marker(ctx, report)

    def _logged_at_boot(self) -> Findings:
        """Return what was logged before this watch: the boot has written its marker."""
        return Facts({"": ()} if self._host.files.exists(MARKER_DETECTED) else {})

    def _may_return(self, report: OverlapReport) -> bool:
        """Return True if IPv6 routes were lost that the next router advertisement may restore."""
        if any(lack.kind != "no-route" or ":" not in lack.first for _, lack in report.findings):
            return False
        return any(link.carrier and link.name in self._led for link in self._host.routes.links())

    def _has_marker(self, *, ok: bool) -> bool:
        exists = self._host.files.exists
        return exists(MARKER_OK) == ok and exists(MARKER_DETECTED) != ok

    def _leave_marker(self, ctx: Context, report: OverlapReport) -> float:
        """Write the marker; return the pause before the next check."""
        try:
            leave_marker(unrecorded(ctx), self._host, report)
        except HostFileError as error:
            # The checks go on and count meanwhile.
            self._marker.log(str(error))
            return _SECONDS_AFTER_A_FAILURE
        self._marker.end()
        return inf

    def _log(self, report: OverlapReport, findings: Findings, now: float) -> None:
        """Log the findings if they have changed."""
        self._bad_readings = 0
        self._logged = findings
        if not findings.has_changed:
            return
        self._lines = self._lines.after(sum(map(len, findings.known.values())), now=now)
        if not report.ok:
            log_notes(report, self._logger, task=WATCH_TASK)
            level = ERROR if self._section.mode is OverlapMode.STRICT else WARNING
            log_findings(report, self._logger, task=WATCH_TASK, level=level)
        elif findings.over:
            message = "the expected addresses are routed correctly again: %s"
            self.log(INFO, message, report.verdict, event="over")


def _findings_of(report: OverlapReport) -> dict[str, tuple[Finding | str, ...]]:
    """Return the facts of a report: the findings of each CIDR that has any, and the refusals."""
    facts: dict[str, tuple[Finding | str, ...]] = {
        each.cidr: tuple(each.findings) for each in report.cidrs if each.findings
    }
    if report.refusals:
        facts[""] = tuple(report.refusals)
    return facts
