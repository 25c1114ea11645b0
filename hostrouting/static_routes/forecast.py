"""An apply never makes a node worse: the proofs before, of and after a run, compared.

The addresses that the new config proves count under its own section; those that it drops count
under the section that was installed before the run. Each section has its CIDRs, devices, fabric and
mode. An address is worse off if it has a finding and had none, or a real one where a fabric was
only announced; or if it would lose a gateway that answers for one that does not. Without a default
route and `expectedDevs`, only the next hop that an address has already is right.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import attrs

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.base.findings import first_of
from hostrouting.boot.intent import with_found_devs
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.host.reading import at_one_moment
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.routes import NextHop, ObservedRoute, RouteKey, route_key
from hostrouting.route_overlap.errors import WorseRoutingError
from hostrouting.route_overlap.expectation import Expectation
from hostrouting.route_overlap.fabric import Fabric, announced_fabric
from hostrouting.route_overlap.logged import left_unproven
from hostrouting.route_overlap.proof import check
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.route_overlap.waiting import Checked, check_once, unready_units
from hostrouting.static_routes.account import between, way_back
from hostrouting.static_routes.entries import stuck
from hostrouting.static_routes.lost_hops import LostHop, lost_hops

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from hostrouting.fib import Fib
    from hostrouting.host import Host, Route, RouteChange
    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.expectation import Accepted
    from hostrouting.route_overlap.proven import Finding, OverlapReport
    from hostrouting.static_routes.plan import RoutePlan
    from phases import Change, Context


#: From an address and its family to its next hops.
_Hops: TypeAlias = "Callable[[int, int], list[tuple[object, str]]]"
_WORSE = "refused, since these addresses leave right without this config, and would not with it"
_WITHOUT = "this leaves right without this config: %s"
_FORCE = "correct the config, or use --force if this is meant"
_FIRST = "keep their routes in a first apply that drops only their proof"


class CountedSection(NamedTuple):
    """A section by which addresses count."""

    #: That of the new config, or of the addresses that it drops.
    expectation: Expectation
    is_dropped: bool = False

    @property
    def config(self) -> HostRoutingConfig:
        """The new config, or that with the section of which these addresses are left."""
        return self.expectation.config

    def prove(self, routing: Routing) -> OverlapReport:
        """Return the proof on a machine or a model."""
        return check(routing, self.expectation)

    def under(self, fabric: Fabric) -> CountedSection:
        """Return the section under another announced fabric."""
        return self._replace(expectation=attrs.evolve(self.expectation, fabric=fabric))


class WorseRange(NamedTuple):
    """Addresses that leave right without the changes, and would not with them."""

    #: The expected CIDR, with its name if it has one.
    cidr: str
    #: How these addresses would leave: it has their range and devices.
    finding: Finding


class Worse(NamedTuple):
    """What is worse off by changes."""

    fact: WorseRange | LostHop
    #: The proof of the section, after the changes.
    report: OverlapReport
    #: The section by which it counts.
    section: CountedSection
    #: The most specific change around a range; None if another program has changed its way.
    cause: RouteChange | None = None

    @property
    def is_refused(self) -> bool:
        """True under STRICT, but for addresses that have a finding now, too."""
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
    """A proof that is compared with the one before the run."""

    #: The proof of the config; None if nothing is to be proven, or the model cannot decide.
    report: OverlapReport | None = None
    #: Of the config's section, and of the installed one.
    worse: tuple[Worse, ...] = ()
    #: Why the proof is missing.
    undecided: str = ""
    #: The addresses that would lose a gateway that answers, or their device, as an operator may
    #: mean.
    lost: tuple[Worse, ...] = ()

    @property
    def found_devs(self) -> tuple[str, ...] | None:
        """The device by which the node leaves, if all leaves right, and by one device."""
        report = self.report
        if report is None or not (report.cidrs and report.is_proven):
            return None
        exits = dict(report.exits)
        # IPv6 follows IPv4, and not the other way round.
        routes = report.config.static_routes.routes
        if IPV4 not in exits and any(route.family == IPV4 for route in routes):
            return None
        devs = {*exits.values()}
        return (*devs,) if len(devs) == 1 else None

    @property
    def is_refused(self) -> bool:
        """True if an apply is refused, unless it is forced."""
        return any(each.is_refused for each in self.worse)


class Forecaster:
    """Proves a node before, in and after one run."""

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
        """Prepare the proofs of a config over an `earlier` one.

        `fabric` is that of sections that have `auto`; None reads it. `now` is the proof of the node
        if that was made a moment ago, by the same section of the config.
        """
        self._ctx = ctx
        #: Nothing waits in it.
        self._at_once: Context = ctx.child(timeout=0)
        self._config = config
        self._host = host
        self._fabric = fabric
        self._now = now
        #: The node as it is, by the reading of the plan and of both proofs before a run.
        self.node: Host = at_one_moment(host)
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
        """Return the model of the node, with IPv6 if it is proven or changed."""
        # Imported late: only changes need the model.
        from hostrouting.fib import Fib

        # A recorded node is a model already.
        if isinstance(self._host.routes, Fib):
            return self._host.routes
        routes = chain.from_iterable(map(node.routes.routes, self._families))
        rules = chain.from_iterable(map(node.routes.rules, self._families))
        return Fib.of(node.routes.links(), routes, rules)

    @property
    def expects(self) -> bool:
        """True if any address counts."""
        return any(section.config.route_overlap.cidrs for section in self._sections)

    def look(self) -> OverlapReport:
        """Return the kernel's proof of the node as it is, for the comparison with `now`."""
        self._before = self._prove(self.node.routes)
        return self._before[0]

    def _prove(self, routing: Routing) -> list[OverlapReport]:
        """Return the proof of each section."""
        return [section.prove(routing) for section in self._sections]

    def of(self, plan: RoutePlan | None) -> Forecast:
        """Return the proof of the node with the changes of a plan, unless some are stuck."""
        return self.changed() if plan is None else self.changed(plan.changes, stuck(plan))

    def changed(
        self, changes: Sequence[RouteChange] = (), stuck: Mapping[RouteKey, Change] = {}
    ) -> Forecast:
        """Return the proof of the node with these changes, unless some are `stuck`.

        A finding counts only where the model without the changes has none. Without changes only the
        kernel is queried.
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
        """Yield what addresses of each section would lose in the model."""
        for section, report in zip(self._sections, after, strict=True):
            overlap = section.config.route_overlap
            prefixes = [Prefix.parse(cidr) for cidr in overlap.cidrs]
            for family in sorted({prefix.family for prefix in prefixes}):
                facts = lost_hops(
                    self._ctx,
                    self._host,
                    (was, model),
                    [prefix for prefix in prefixes if prefix.family == family],
                    partial(section.prove, was),
                )
                yield from (Worse(fact, report, section) for fact in facts)

    def _families_with(self, changes: Sequence[RouteChange]) -> list[int]:
        """Return the families that are proven or changed."""
        expected = [family for section in self._sections for family in section.config.families]
        changed = [change.route.family for change in changes]
        # A route of IPv4 by an IPv6 gateway is taken or refused by the routes of IPv6.
        added = [change.after for change in changes if change.after]
        gateways = [route.gateway.family for route in added if route.gateway]
        return sorted({*expected, *changed, *gateways})

    def now(self, node: Host, accepted: Accepted | None = None) -> tuple[Forecast, Checked]:
        """Return the proof of now, compared, and that of the config, as a check of the node has it.

        `node` is a reading of it. Worse are the findings that the changes of the run cause. Nothing
        waits. `accepted` is that of `check_once`.
        """
        checked = check_once(
            self._ctx, self._config, node, waiting=self._at_once, accepted=accepted
        )
        own, *others = self._sections
        dropped = [section.under(self._fabric_of(section.config)) for section in others]
        # A fabric may be announced at any time. Then the node without the changes has it, too.
        self._sections = [own.under(checked.fabric), *dropped]
        reports = [checked.report, *(section.prove(node.routes) for section in dropped)]
        return self._compared(node, reports), checked

    def _compared(self, node: Host, reports: Sequence[OverlapReport]) -> Forecast:
        """Return the proof of now, compared with that of the node without the run's changes."""
        report = reports[0]
        if self._model is None or not self._before or all(each.ok for each in reports):
            return Forecast(report)
        was = self._model
        routing = node.routes
        # The kernel has decided by routes that may have come after the reading of the proof.
        now = self._model_of(at_one_moment(self._host))
        made = between(_routes(was), _routes(now))
        try:
            if not any(self._worse(self._before, reports, was, routing)):
                return Forecast(report)
            back, _ = way_back(made, _routes(now))
            # Another program may have changed it meanwhile: the cloud's agent connects a fabric at
            # any time.
            without = now.changed(back)
            worse = self._worse(self._prove(without), reports, without, routing, made.changes)
            return Forecast(report, tuple(worse))
        except UnknownDecisionError as error:
            # Then the kernel's proof before the run counts, if the run has changed a route around
            # the address.
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
        """Yield each range of addresses that is worse off in the proof of its section."""
        for section, old, new in zip(self._sections, before, after, strict=True):
            for cidr, finding in _worse(old, new, was, now):
                cause = _cause(Address.parse(finding.first), changes)
                yield Worse(WorseRange(cidr, finding), new, section, cause)


def _loses_gateway(worse: Worse) -> bool:
    return isinstance(worse.fact, LostHop) and worse.fact.is_silent


def _not_taken(
    model: Fib, changes: Sequence[RouteChange], known: Container[RouteKey]
) -> Iterator[RouteChange]:
    """Yield the changes that the model refuses, without those in the `known` places."""
    # Thousands of routes name the same few next hops.
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
    """Refuse what makes the node worse; `state` is that of the node after the refusal.

    Under STRICT that raises `WorseRoutingError` unless `force` is set; under WARN the findings are
    logged, and the step is degraded. The mode is that of the section that counts an address. What
    an earlier plan of the run has `logged` is not logged again.
    """
    worse = forecast.worse
    if forecast.is_refused and not force:
        dropped = any(each.is_refused and each.section.is_dropped for each in worse)
        step = f"{_FIRST}, or {_FORCE}" if dropped else _FORCE
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
    """Yield the CIDR and the finding of each range of addresses that are worse off."""
    hops = _hops_of(was), _hops_of(now)
    for old, new in zip(before.cidrs, after.cidrs, strict=True):
        for finding in new.findings:
            for first, last in _uncovered(finding, old.findings, *hops):
                begin, end = Address(new.family, first), Address(new.family, last)
                cut = attrs.evolve(finding, first=str(begin), last=str(end))
                yield new.title, cut


def _cause(address: Address, changes: Sequence[RouteChange]) -> RouteChange | None:
    """Return the most specific change around an address, of several the last; None without one."""
    around = [change for change in changes if _prefix_of(change.route).covers(address)]
    return max(reversed(around), key=lambda change: change.route.prefix_length, default=None)


def _prefix_of(route: Route | ObservedRoute) -> Prefix:
    return Prefix(route.family, route.network, route.prefix_length)


def _uncovered(
    new: Finding, old: Sequence[Finding], was: _Hops, now: _Hops
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a finding in which no earlier one excuses it."""
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
    """Return the function for the next hops of an address, and of all addresses of a finding."""
    snapshot = cache(partial(RoutingSnapshot, routing))

    def hops(address: int, family: int) -> list[tuple[object, str]]:
        route = snapshot(family).lookup([address])[0].route
        return [] if route is None else [(hop.gateway, hop.dev) for hop in route.hops]

    return hops


def _routes(model: Fib) -> list[ObservedRoute]:
    return [*model.routes(IPV4), *model.routes(IPV6)]
