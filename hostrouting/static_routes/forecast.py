"""Make sure that an apply never makes routing worse: check before, with and after its changes.

Addresses that the new config expects are checked by its own section; addresses that it drops are
checked by the section that was installed before the run. Each section has its own CIDRs, devices,
fabric and mode. An address is worse off if it had no finding and gets one, if it had one about an
announced fabric and gets a real one, or if it loses a gateway that answers for one that does not.
Without a default route and `expectedDevs`, it is worse off as soon as its next hop changes.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import attrs

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.base.findings import first_of
from hostrouting.boot.installed_config import with_found_devs
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.host.cached_routing import with_cached_routing
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.routes import NextHop, ObservedRoute, RouteKey, route_key
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.errors import WorseRoutingError
from hostrouting.route_overlap.expectation import Expectation
from hostrouting.route_overlap.fabric import Fabric, announced_fabric
from hostrouting.route_overlap.logs import left_unproven
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.route_overlap.waiting import Checked, check_once, unready_units
from hostrouting.static_routes.entries import stuck
from hostrouting.static_routes.lost_hops import LostHop, lost_hops
from hostrouting.static_routes.undo import changes_between, changes_to_undo

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from hostrouting.fib import Fib
    from hostrouting.host import Host, Route, RouteChange
    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.expectation import Accepted
    from hostrouting.route_overlap.report import Finding, OverlapReport
    from hostrouting.static_routes.plan import RoutePlan
    from phases import Change, Context


#: Maps an address and its family to its next hops.
_Hops: TypeAlias = "Callable[[int, int], list[tuple[object, str]]]"
_WORSE = "refused, because this config would misroute addresses that are routed correctly now"
_WITHOUT = "routed correctly without this config: %s"
_CORRECT = "correct the config"
_FIRST = "first apply a config that only stops expecting them and keeps their routes"


class CountedSection(NamedTuple):
    """A section of expected addresses: that of the new config, or what it drops."""

    #: Of the new config, or of the addresses that it drops.
    expectation: Expectation
    is_dropped: bool = False

    @property
    def config(self) -> HostRoutingConfig:
        """The new config, or one that expects the dropped addresses."""
        return self.expectation.config

    def check(self, routing: Routing) -> OverlapReport:
        """Return the result of the check on a machine or a model."""
        return check_egress(routing, self.expectation)

    def under(self, fabric: Fabric) -> CountedSection:
        """Return the section with another announced fabric."""
        return self._replace(expectation=attrs.evolve(self.expectation, fabric=fabric))


class WorseRange(NamedTuple):
    """Addresses that are routed correctly now and would be misrouted by the changes."""

    #: The expected CIDR, with its description if it has one.
    cidr: str
    #: How these addresses would be routed, with their range and devices.
    finding: Finding


class Worse(NamedTuple):
    """Something that changes would make worse."""

    fact: WorseRange | LostHop
    #: The result of the check with the changes.
    report: OverlapReport
    #: The section that expects the addresses.
    section: CountedSection
    #: The most specific change that contains the range; None if another program is the cause.
    cause: RouteChange | None = None

    @property
    def is_refused(self) -> bool:
        """True in STRICT mode, unless addresses with a finding only lose their gateway."""
        if isinstance(self.fact, LostHop) and not self.fact.is_right:
            return False
        return self.section.config.route_overlap.mode is OverlapMode.STRICT

    def __str__(self) -> str:
        fact = self.fact
        if isinstance(fact, LostHop):
            return str(fact)
        by = f", by the change '{self.cause}'" if self.cause else ""
        dropped = ", expected by the installed config" if self.section.is_dropped else ""
        return f"{fact.finding.line(fact.cidr)}{by}{dropped}"


class Forecast(NamedTuple):
    """The result of a check, compared with that before the run."""

    #: The result for the config; None if there is nothing to check or the model cannot decide.
    report: OverlapReport | None = None
    #: For the sections of the new and of the installed config.
    worse: tuple[Worse, ...] = ()
    #: Why there is no result.
    undecided: str = ""
    #: The addresses that would lose their device or a gateway that answers, which may be intended.
    lost: tuple[Worse, ...] = ()

    @property
    def found_devs(self) -> tuple[str, ...] | None:
        """The outbound device, if everything is routed correctly and there is only one."""
        report = self.report
        if report is None or not (report.cidrs and report.is_correct):
            return None
        exits = dict(report.outbound_devs)
        # IPv6 follows IPv4, not the other way round.
        routes = report.config.static_routes.routes
        if IPV4 not in exits and any(route.family == IPV4 for route in routes):
            return None
        devs = {*exits.values()}
        return (*devs,) if len(devs) == 1 else None

    @property
    def is_refused(self) -> bool:
        """True if an apply is refused unless it is forced."""
        return any(each.is_refused for each in self.worse)


class Forecaster:
    """Checks a node before, during and after one run."""

    def __init__(
        self,
        ctx: Context,
        config: HostRoutingConfig,
        host: Host,
        *,
        earlier: HostRoutingConfig | None = None,
        fabric: Fabric | None = None,
        now: OverlapReport | None = None,
    ) -> None:
        """Prepare to check a config that replaces an `earlier` one.

        `fabric` is used for sections with `fabric: auto`; None reads it from the node. `now` is a
        recent result for the same section of the config, if there is one.
        """
        self._ctx = ctx
        #: A context in which nothing waits.
        self._at_once: Context = ctx.child(timeout=0)
        self._config = config
        self._host = host
        self._fabric = fabric
        self._now = now
        #: A snapshot of the node, shared by the plan and by both checks before the run.
        self.node: Host = with_cached_routing(host)
        late = unready_units(ctx, config, host)
        expectation = Expectation.of(with_found_devs(config, host.files))
        own = attrs.evolve(expectation, fabric=self._fabric_of(config), late=late)
        self._sections = [CountedSection(own)]
        if dropped := left_unproven(earlier, config):
            others = CountedSection(Expectation.of(dropped), is_dropped=True)
            self._sections.append(others.under(self._fabric_of(dropped)))
        self._before: list[OverlapReport] = []
        self._model: Fib | None = None
        self._families: Sequence[int] = ()

    def _fabric_of(self, config: HostRoutingConfig) -> Fabric:
        setting = config.route_overlap.fabric
        if not config.route_overlap.cidrs:
            return Fabric()
        if self._fabric is not None and setting == "auto":
            return self._fabric
        return announced_fabric(self._at_once, setting, self._host)

    def _model_of(self, node: Host) -> Fib:
        """Return the model of the node, with IPv6 only if it is checked or changed."""
        # Imported here because it is only needed if routes change.
        from hostrouting.fib import Fib

        # A recorded node is a model already.
        if isinstance(self._host.routes, Fib):
            return self._host.routes
        routes = chain.from_iterable(map(node.routes.routes, self._families))
        rules = chain.from_iterable(map(node.routes.rules, self._families))
        return Fib.of(node.routes.links(), routes, rules)

    @property
    def expects(self) -> bool:
        """True if any addresses are expected."""
        return any(section.config.route_overlap.cidrs for section in self._sections)

    def look(self) -> OverlapReport:
        """Check the node as it is, by asking the kernel, for a later comparison."""
        self._before = self._prove(self.node.routes)
        return self._before[0]

    def _prove(self, routing: Routing) -> list[OverlapReport]:
        """Return the result for each section."""
        return [section.check(routing) for section in self._sections]

    def of(self, plan: RoutePlan | None) -> Forecast:
        """Check the node with the changes of a plan, unless some cannot be made."""
        return self.changed() if plan is None else self.changed(plan.changes, stuck(plan))

    def changed(
        self, changes: Sequence[RouteChange] = (), stuck: Mapping[RouteKey, Change] = {}
    ) -> Forecast:
        """Check the node with these changes, unless some are `stuck`.

        A finding counts only if the model without the changes does not have it. If there are no
        changes, the kernel is asked instead of the model.
        """
        if not changes and not stuck:
            report = self._before[0] if self._before else self._now
            report = self.look() if report is None else report
            return Forecast(report)
        self._families = self._families_with(changes)
        self._model = was = self._model_of(self.node)
        model = was.changed(changes)
        if refused := [*stuck.values(), *_not_taken(model, changes, stuck)]:
            lines = "; ".join(map(str, refused))
            return Forecast(undecided=f"routes of the config cannot be added now: {lines}")
        try:
            reports = self._prove(model)
            worse: list[Worse] = []
            if not all(report.ok for report in reports):
                worse += self._worse(self._prove(was), reports, was, model, changes)
            lost = tuple(self._lost(reports, was, model))
            worse += filter(_loses_gateway, lost)
            return Forecast(reports[0], tuple(worse), lost=lost)
        except UnknownDecisionError as error:
            return Forecast(undecided=str(error))

    def _lost(self, after: Sequence[OverlapReport], was: Fib, model: Fib) -> Iterator[Worse]:
        """Yield the devices and gateways that addresses of each section would lose."""
        for section, report in zip(self._sections, after, strict=True):
            overlap = section.config.route_overlap
            prefixes = [Prefix.parse(cidr) for cidr in overlap.cidrs]
            for family in sorted({prefix.family for prefix in prefixes}):
                facts = lost_hops(
                    self._ctx,
                    self._host,
                    (was, model),
                    [prefix for prefix in prefixes if prefix.family == family],
                    partial(section.check, was),
                )
                yield from (Worse(fact, report, section) for fact in facts)

    def _families_with(self, changes: Sequence[RouteChange]) -> list[int]:
        """Return the families that are checked or changed."""
        expected = [family for section in self._sections for family in section.config.families]
        changed = [change.route.family for change in changes]
        # Whether an IPv4 route with an IPv6 gateway is accepted depends on the IPv6 routes.
        added = [change.after for change in changes if change.after]
        gateways = [route.gateway.family for route in added if route.gateway]
        return sorted({*expected, *changed, *gateways})

    def now(self, node: Host, accepted: Accepted | None = None) -> tuple[Forecast, Checked]:
        """Check the snapshot `node` after the run; return the comparison and the result as such.

        Findings that the changes of the run caused count as worse. Nothing waits. For `accepted`,
        see `check_once`.
        """
        checked = check_once(
            self._ctx, self._config, node, waiting=self._at_once, accepted=accepted
        )
        own, *others = self._sections
        dropped = [section.under(self._fabric_of(section.config)) for section in others]
        # A fabric may be announced at any time, so compare as if it had been announced before.
        self._sections = [own.under(checked.fabric), *dropped]
        reports = [checked.report, *(section.check(node.routes) for section in dropped)]
        return self._compared(node, reports), checked

    def _compared(self, node: Host, reports: Sequence[OverlapReport]) -> Forecast:
        """Compare the present results with those of the node without the run's changes."""
        report = reports[0]
        if self._model is None or not self._before or all(each.ok for each in reports):
            return Forecast(report)
        was = self._model
        routing = node.routes
        # The kernel may have used routes that were added after the snapshot was taken.
        now = self._model_of(with_cached_routing(self._host))
        made = changes_between(_routes(was), _routes(now))
        try:
            if not any(self._worse(self._before, reports, was, routing)):
                return Forecast(report)
            back, _ = changes_to_undo(made, _routes(now))
            # Another program may be the cause: the cloud's agent may connect a fabric at any time.
            without = now.changed(back)
            worse = self._worse(self._prove(without), reports, without, routing, made.changes)
            return Forecast(report, tuple(worse))
        except UnknownDecisionError as error:
            # Compare with the result before the run, and count only addresses for which the run
            # changed a route.
            worse = self._worse(self._before, reports, routing, routing, made.changes)
            caused = tuple(each for each in worse if each.cause)
            return Forecast(report, caused, undecided=str(error))

    def _worse(
        self,
        before: Sequence[OverlapReport],
        after: Sequence[OverlapReport],
        was: Routing,
        now: Routing,
        changes: Sequence[RouteChange] = (),
    ) -> Iterator[Worse]:
        """Yield each range of addresses that is worse off according to its section."""
        for section, old, new in zip(self._sections, before, after, strict=True):
            for cidr, finding in _worse(old, new, was, now):
                cause = _cause(Address.parse(finding.first), changes)
                yield Worse(WorseRange(cidr, finding), new, section, cause)


def _loses_gateway(worse: Worse) -> bool:
    return isinstance(worse.fact, LostHop) and worse.fact.is_silent


def _not_taken(
    model: Fib, changes: Sequence[RouteChange], known: Container[RouteKey]
) -> Iterator[RouteChange]:
    """Yield the changes that the kernel would refuse, except those with `known` keys."""
    # Thousands of routes share a few next hops.
    accepts = cache(model.accepts)
    for change in changes:
        route = change.after
        if route is None:
            continue
        hop = NextHop(route.gateway, route.dev or "", onlink=route.onlink)
        if not accepts(hop) and route_key(route) not in known:
            yield change


def judge(
    ctx: Context,
    forecast: Forecast,
    state: str,
    logger: logging.Logger,
    *,
    logged: Forecast,
    force: bool,
) -> None:
    """Refuse changes that make routing worse; `state` says what a refusal leaves behind.

    In STRICT mode, raises `WorseRoutingError` unless `force` is set; in WARN mode, logs the
    findings and degrades the step. The mode is that of the section that expects the address. What
    an earlier plan of the run has `logged` is not logged again.
    """
    worse = forecast.worse
    if forecast.is_refused and not force:
        dropped = any(each.is_refused and each.section.is_dropped for each in worse)
        step = f"{_FIRST}, or {_CORRECT}" if dropped else _CORRECT
        report = next(each.report for each in worse if each.is_refused)
        raise WorseRoutingError(report, _WORSE, f"{state}; {step}", worse)
    if worse:
        ctx.degrade(f"worse than before: {first_of([str(each) for each in worse])}")
    facts = [each.fact for each in logged.worse]
    for each in worse:
        if each.fact not in facts:
            logger.warning(_WITHOUT, each)


def _worse(
    before: OverlapReport, after: OverlapReport, was: Routing, now: Routing
) -> Iterator[tuple[str, Finding]]:
    """Yield the CIDR and the finding of each range of addresses that is worse off."""
    hops = _hops_of(was), _hops_of(now)
    for old, new in zip(before.cidrs, after.cidrs, strict=True):
        for finding in new.findings:
            for first, last in _uncovered(finding, old.findings, *hops):
                begin, end = Address(new.family, first), Address(new.family, last)
                cut = attrs.evolve(finding, first=str(begin), last=str(end))
                yield new.title, cut


def _cause(address: Address, changes: Sequence[RouteChange]) -> RouteChange | None:
    """Return the last of the most specific changes that contain an address, or None."""
    around = [change for change in changes if _prefix_of(change.route).covers(address)]
    return max(reversed(around), key=lambda change: change.route.prefix_length, default=None)


def _prefix_of(route: Route | ObservedRoute) -> Prefix:
    return Prefix(route.family, route.network, route.prefix_length)


def _uncovered(
    new: Finding, old: Sequence[Finding], was: _Hops, now: _Hops
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a finding that no earlier finding covers."""
    start, end = new.bounds
    for earlier in old:
        first, last = max(start, earlier.bounds[0]), min(end, earlier.bounds[1])
        is_excused = earlier.kind != "announced" or new.kind == "announced"
        if first <= last and earlier.kind == "unknown-exit":
            family = Address.parse(new.first).family
            is_excused = was(first, family) == now(first, family)
        if first <= last and is_excused:
            if start < first:
                yield start, first - 1
            start = last + 1
    if start <= end:
        yield start, end


def _hops_of(routing: Routing) -> _Hops:
    """Return a function that returns the next hops of an address."""
    snapshot = cache(partial(RoutingSnapshot, routing))

    def hops(address: int, family: int) -> list[tuple[object, str]]:
        route = snapshot(family).lookup([address])[0].route
        return [] if route is None else [(hop.gateway, hop.dev) for hop in route.hops]

    return hops


def _routes(model: Fib) -> list[ObservedRoute]:
    return [*model.routes(IPV4), *model.routes(IPV6)]
