"""An apply never makes a node worse: the proofs before, of and after a run, compared.

All proofs of a run have the CIDRs, devices and fabric of the new config. An address is worse off if
it has a finding and had none, or a real one where a fabric was only announced. Without a default
route and `expectedDevs`, only the next hop that an address has already is right.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from hostrouting.config import HostRoutingConfig, OverlapMode
from hostrouting.exceptions import UnknownDecisionError, WorseRoutingError
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.routes import NextHop, ObservedRoute
from hostrouting.route_overlap.task import announced_fabric, prove_config, unready_units
from hostrouting.static_routes.account import RouteAccount

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.fib import Fib
    from hostrouting.host import Host, RouteChange
    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap import OverlapReport
    from hostrouting.route_overlap.fabric import Fabric
    from hostrouting.route_overlap.report import Finding
    from phases import Change, Context


#: Before the change that makes an address worse.
_BY = ", by the change '"
_WORSE = "refused, since these addresses leave right without this config, and would not with it:"
_FORCE = "correct the config, or use --force if this is meant"


class Forecast(NamedTuple):
    """A proof that is compared with the one before the run."""

    #: None if nothing is to be proven, or the model cannot decide.
    report: OverlapReport | None = None
    #: The findings at addresses that are worse off, as lines, each with the change that causes it.
    worse: tuple[str, ...] = ()
    #: Why the proof is missing.
    undecided: str = ""

    def is_refused(self, config: HostRoutingConfig) -> bool:
        """Return True if an apply is refused, unless it is forced."""
        return bool(self.worse) and self.fails(config)

    def fails(self, config: HostRoutingConfig) -> bool:
        """Return True if an apply is refused, or if STRICT holds the gates after it."""
        is_bad = bool(self.worse) or (self.report is not None and not self.report.ok)
        return is_bad and config.route_overlap.mode is OverlapMode.STRICT

    def to_mapping(self, config: HostRoutingConfig, broken: str | None) -> dict[str, Any]:
        """Return the forecast for `plan --json`: `proof`, `worse`, `holds`, `late` and `undecided`.

        Empty values are left out. `broken` is the reason why every gate is open.
        """
        report, mode = self.report, config.route_overlap.mode
        proof = report.to_mapping(mode=mode) if report is not None and report.cidrs else None
        holds = list(config.gates) if self.fails(config) and not (self.worse or broken) else []
        values = {
            "proof": proof,
            "worse": [*self.worse],
            "holds": holds,
            "late": report.refusals if report is not None else [],
            "undecided": self.undecided,
        }
        return {name: value for name, value in values.items() if value}

    def lines(self, config: HostRoutingConfig, broken: str | None) -> Iterator[str]:
        """Yield the forecast as text lines."""
        if self.undecided:
            yield f"after apply: unknown, since {self.undecided}"
        if self.report is not None and self.report.verdict:
            yield f"after apply: {self.report.verdict}"
            yield from self.report.refusals
            yield from (note.text for note in self.report.lost_rules)
        for line in self.worse:
            yield f"worse than now: {line}"
        if self.is_refused(config):
            yield "apply would refuse this"
        elif self.fails(config):
            held = ", ".join(config.gates) or "none, since no unit has a gate"
            held = f"none, break-glass keeps them open: {broken}" if broken else held
            yield f"gates that STRICT holds then: {held}"


class Forecaster:
    """Proves a node before, in and after one run."""

    def __init__(
        self, ctx: Context, config: HostRoutingConfig, host: Host, *, fabric: Fabric | None = None
    ) -> None:
        self._config, self._host = config, host
        fabric = fabric or announced_fabric(ctx.child(timeout=0), config.route_overlap.fabric, host)
        late = unready_units(ctx, config, host)
        self._prove = partial(prove_config, config, fabric, late=late)
        self._before: OverlapReport | None = None
        self._model: Fib | None = None
        self._families: Sequence[int] = ()

    def _read(self) -> Fib:
        """Return the model of the node, with IPv6 if it is proven or changed."""
        from hostrouting.fib import Fib  # needed for changes alone

        routing, families = self._host.routes, self._families
        if isinstance(routing, Fib):
            return routing
        routes = chain.from_iterable(map(routing.routes, families))
        return Fib.of(routing.links(), routes, chain.from_iterable(map(routing.rules, families)))

    def look(self) -> OverlapReport:
        """Return the kernel's proof of the node as it is, for the comparison with `now`."""
        self._before = self._prove(self._host.routes)
        return self._before

    def planned(self, changes: Sequence[RouteChange], stuck: Sequence[Change]) -> Forecast:
        """Return the proof of the node with these changes, unless some are `stuck`.

        It is compared with that of the model without them. Without changes only the kernel is
        queried.
        """
        if not changes and not stuck:
            if self._before is None:
                self.look()
            return Forecast(self._before)
        # A route of IPv4 by an IPv6 gateway is taken or refused by the routes of IPv6.
        added = {change: change.after for change in changes if change.after}
        gateways = [route.gateway.family for route in added.values() if route.gateway]
        self._families = sorted(
            {*self._config.families, *(change.route.family for change in changes), *gateways}
        )
        self._model = was = self._read()
        model = was.changed(changes)
        known = {change.subject for change in stuck}
        # Thousands of routes name the same few next hops.
        is_taken = cache(model.takes)
        refused = [
            *stuck,
            *(
                change
                for change, route in added.items()
                if not is_taken(NextHop(route.gateway, route.dev or "", onlink=route.onlink))
                and str(route) not in known
            ),
        ]
        if refused:
            lines = "; ".join(map(str, refused))
            return Forecast(undecided=f"routes of the config cannot be added now: {lines}")
        try:
            report = self._prove(model)
            return Forecast(report, tuple(_worse(self._prove(was), report, was, model, changes)))
        except UnknownDecisionError as error:
            return Forecast(undecided=str(error))

    def now(self) -> Forecast:
        """Return the proof of now; worse are the findings that the changes of the run cause."""
        if self._model is None or self._before is None:
            return Forecast()
        routing = self._host.routes
        report, was = self._prove(routing), self._model
        if report.ok:
            return Forecast(report)
        node = self._read()
        account = RouteAccount.between(_routes(was), now := _routes(node))
        try:
            if not any(_worse(self._before, report, was, routing)):
                return Forecast(report)
            back, _ = account.inverse(now)
            # Another program may have changed it meanwhile: the cloud's agent connects a fabric at
            # any time.
            without = node.changed(back)
            worse = _worse(self._prove(without), report, without, routing, account.made)
            return Forecast(report, tuple(worse))
        except UnknownDecisionError as error:
            # Then the kernel's proof before the run counts, if the run has changed a route around
            # the address.
            worse = _worse(self._before, report, routing, routing, account.made)
            caused = tuple(line for line in worse if _BY in line)
            return Forecast(report, caused, undecided=str(error))


def prove_before(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    planned: Callable[[], tuple[Sequence[RouteChange], Sequence[Change]]],
    *,
    force: bool,
    logger: logging.Logger,
) -> Callable[[str], None] | None:
    """Refuse planned changes that make the node worse; return the proof for after them.

    Under STRICT either raises `WorseRoutingError` unless `force` is set; under WARN the findings
    are logged, and the step is degraded. None for an image, and where nothing is expected.
    """
    # Without expected CIDRs a dump of all routes is a waste.
    if not (host.is_live and config.route_overlap.cidrs):
        return None

    def refuse_worse(forecast: Forecast, state: str) -> None:
        if forecast.is_refused(config) and not force:
            lines = [_WORSE, *forecast.worse, f"{state}; {_FORCE}"]
            raise WorseRoutingError(forecast.report, "\n".join(lines))

    def prove(state: str) -> None:
        with ctx.interruptible():
            now = forecaster.now()
        refuse_worse(now, f"undone: {state}")

    with ctx.interruptible():
        forecaster = Forecaster(ctx, config, host)
        forecaster.look()
        forecast = forecaster.planned(*planned())
    refuse_worse(forecast, "nothing was changed")
    if forecast.worse:
        ctx.result(forecast.report, degraded=True)
    for line in forecast.worse:
        logger.warning("this leaves right without this config: %s", line)
    return prove


def _worse(
    before: OverlapReport,
    after: OverlapReport,
    was: Routing,
    now: Routing,
    changes: Sequence[RouteChange] = (),
) -> Iterator[str]:
    """Yield a line for each range of addresses that are worse off."""
    for old, new in zip(before.cidrs, after.cidrs, strict=True):
        for finding in new.findings:
            for first, last in _uncovered(finding, old.findings, was, now):
                begin, end = Address(new.family, first), Address(new.family, last)
                cut = attrs.evolve(finding, first=str(begin), last=str(end))
                yield f"{cut.line(new.title)}{_cause(begin, changes)}"


def _cause(address: Address, changes: Sequence[RouteChange]) -> str:
    """Return the most specific change around an address."""
    around = [
        (route.prefix_length, str(change))
        for change in changes
        for route in [change.route]
        if Prefix(route.family, route.network, route.prefix_length).covers(address)
    ]
    return f"{_BY}{max(around)[1]}'" if around else ""


def _uncovered(
    new: Finding, old: Sequence[Finding], was: Routing, now: Routing
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a finding in which no earlier one excuses it."""
    start, end = new.bounds
    for earlier in old:
        first, last = max(start, earlier.bounds[0]), min(end, earlier.bounds[1])
        is_excused = earlier.kind != "announced" or new.kind == "announced"
        if first <= last and earlier.kind == "unknown-exit":
            family = Address.parse(new.first).family
            is_excused = _hops(was, first, family) == _hops(now, first, family)
        if first <= last and is_excused:
            if start < first:
                yield start, first - 1
            start = last + 1
    if start <= end:
        yield start, end


def _hops(routing: Routing, address: int, family: int) -> list[tuple[object, str]]:
    """Return the next hops of an address, the same for all addresses of a finding."""
    route = routing.lookup([address], family=family)[0].route
    return [] if route is None else [(hop.gateway, hop.dev) for hop in route.hops]


def _routes(model: Fib) -> list[ObservedRoute]:
    return [*model.routes(IPV4), *model.routes(IPV6)]
