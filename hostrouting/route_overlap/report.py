"""The result of a check, as a value, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.findings import UNDECIDED_WORDS, NodeFinding, first_of
from hostrouting.base.values import RARE, LightValue, fields_of
from hostrouting.config.sections import PRESETS, HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.net.addresses import (
    FAMILY_NAMES,
    IPV4,
    IPV6,
    LOGS,
    Address,
    Prefix,
    is_device_name,
    is_network,
    mask_of,
)
from hostrouting.net.outbound import no_default_route
from hostrouting.net.routes import RA_PROTOCOL, ObservedRoute, RouteKey
from hostrouting.route_overlap.ipv6_lifetimes import endings
from hostrouting.route_overlap.judgement import Kind
from phases.mistakes import NoTruth

#: The kinds of notes on what is wrong with the node itself, the lowest layer first: a device that
#: is down or has no carrier explains everything else.
CAUSES: Final = (
    "no-device",
    "device-down",
    "enslaved",
    "no-carrier",
    "unmanaged",
    "lost-default",
    "lost-rule",
)
#: The kinds of notes that explain why addresses are wrong.
_EXPLANATIONS: Final = frozenset({*CAUSES, "several-exits"})
#: What is wrong with addresses, as the end of a sentence about them.
CLAUSES: Final[dict[str, str]] = {
    "overlap": "leaves through {dev}",
    "no-route": "has no route",
    "blocked": "is blocked",
    "local": "is the node itself, on {dev}",
    "dead-end": "leaves through {dev}, which carries no packets",
    "unknown-exit": "leaves through {dev}",
    "undecided": "is undecided",
    "announced": "will leave through the fabric",
}


@attrs.frozen(kw_only=True)
class Finding(LightValue):
    """Addresses from `first` to `last` that one route decides although it must not.

    `kind` is one of these:

    `overlap`: they leave through another device;
    `no-route`: there is no route to them;
    `blocked`: a route or rule (blackhole, unreachable, prohibit) refuses them;
    `local`: the node itself has the address, on another device;
    `dead-end`: the expected device carries no packets: it has no carrier, or is a port of a bridge;
    `unknown-exit`: they leave through `devs`, but neither a default route nor the config names the
    right device;
    `undecided`: it is unknown where they leave, because a tunnel, segment or label adds a header;
    `announced`: they will leave through the fabric once its `network`, which `source` announces, is
    connected; no route can take the addresses `own` from it.

    `dev` is the first of `devs` that is not allowed. `route` is the deciding route or rule as `ip`
    prints it, or None. `rule` is the rule that decides or that selects the table of the route,
    unless every node has this rule; `program` probably added the rule, or the blackhole in `route`.
    `own` also lists addresses of hardware devices, which no route should take. `command` deletes
    the rule, or removes a `local` address from a virtual device. `cause` is `changing` if routing
    changed during each lookup, and `by-flow` if a rule suppresses the device of some flows.
    """

    kind: Kind
    first: str
    last: str
    devs: tuple[str, ...] = ()
    dev: str | None = None
    route: str | None = None
    network: str | None = attrs.field(default=None, metadata=RARE)
    source: str | None = attrs.field(default=None, metadata=RARE)
    own: tuple[str, ...] = attrs.field(default=(), metadata=RARE)
    rule: str | None = attrs.field(default=None, metadata=RARE)
    program: str | None = attrs.field(default=None, metadata=RARE)
    command: str | None = attrs.field(default=None, metadata=RARE)
    cause: str | None = attrs.field(default=None, metadata=RARE)

    @property
    def is_own(self) -> bool:
        """True if no route can take any of its addresses."""
        # Most findings have none, and parsing 10,000 bounds takes a while.
        return bool(self.own) and len(self.own) == self.bounds[1] - self.bounds[0] + 1

    @property
    def stays(self) -> bool:
        """True if no route should take its addresses: the node's own, and those of a blackhole."""
        return self.is_own or (self.kind == "blocked" and bool(self.program and not self.rule))

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last address, as numbers."""
        return Address.parse(self.first).number, Address.parse(self.last).number

    def to_mapping(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return fields_of(self)

    def line(self, cidr: str) -> str:
        """Return the finding as one line, like in the marker."""
        through = f" through {','.join(self.devs)}" if self.devs else ""
        return f"{cidr}: {self.kind} {self.first}-{self.last}{through}{self._route()}"

    def sentence(self) -> str:
        """Return a sentence about these addresses."""
        addresses = self.first if self.first == self.last else f"{self.first} to {self.last}"
        clause = CLAUSES[self.kind].format(dev=self.dev)
        if self.network:
            return f"{addresses}: {clause} once {self.network} is connected ({self.source})"
        if words := UNDECIDED_WORDS.get(self.cause or ""):
            return f"{addresses}: {clause}, {words}"
        among = f", one of {', '.join(self.devs)}" if len(self.devs) > 1 else ""
        if self.kind == "undecided":
            among = f", because its header, not {self.dev}, decides where it leaves{among}"
        return f"{addresses}: {clause}{among}{self._route()}"

    def _route(self) -> str:
        decider = f"{self.network}, announced by {self.source}" if self.network else self.route
        decider = UNDECIDED_WORDS.get(self.cause or "", decider)
        if self.rule and self.rule != self.route:
            decider = f"{decider}, by the rule {self.rule}"
        if self.program:
            decider = f"{decider}, probably added by {self.program}"
        return f" ({decider})" if decider else ""


@attrs.frozen(kw_only=True)
class SuggestedRoute(LightValue):
    """A route for the config that fixes findings about the devices `takes_from`."""

    destination: str
    gateway: str
    dev: str
    takes_from: tuple[str, ...] = ()
    #: The connections that the route would break.
    warning: str | None = attrs.field(default=None, metadata=RARE)
    #: The route that decides its addresses now.
    offender: ObservedRoute = attrs.field(eq=False, repr=False)
    _for_config: StaticRoute = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        dev = self.dev if is_device_name(self.dev) else None
        route = StaticRoute(destination=self.destination, gateway=self.gateway, dev=dev)
        object.__setattr__(self, "_for_config", route)

    def to_config(self) -> StaticRoute:
        """Return the route for a config; without `dev` if a config refuses the device's name."""
        return self._for_config

    def needless_with(self, routes: Mapping[Prefix, Sequence[StaticRoute]]) -> Iterator[str]:
        """Yield the destinations of the configured routes that would decide its addresses."""
        family, network, length = self._for_config.prefix
        own = self.offender
        for wide in range(own.prefix_length, length + 1):
            for route in routes.get(Prefix(family, network & mask_of(family, wide), wide), ()):
                is_longer = wide > own.prefix_length
                if (is_longer or _precedes(route, own)) and not route.is_met_by(own):
                    yield route.destination


def _precedes(route: StaticRoute, offender: ObservedRoute) -> bool:
    """Return True if a route of the config decides instead of one to the same network."""
    if route.family == IPV4:
        # With the same route key, the kernel uses the config's route, which is added first.
        return route.metric <= offender.metric
    # Only one IPv6 route of a program can have a route key.
    return route.metric < offender.metric


@attrs.frozen(kw_only=True)
class CidrReport(LightValue):
    """The findings in one expected CIDR, by address, and the routes that would fix them."""

    cidr: str
    findings: tuple[Finding, ...] = ()
    suggested_routes: tuple[SuggestedRoute, ...] = ()
    #: The name of an address that a preset expects.
    name: str | None = attrs.field(default=None, metadata=RARE)
    #: Destinations of the config's routes that would fix the findings, once they are in force.
    configured_routes: tuple[str, ...] = attrs.field(default=(), metadata=RARE)
    #: The config's own routes that lead there by a device or gateway that it names.
    chosen_routes: tuple[StaticRoute, ...] = attrs.field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def family(self) -> int:
        """The address family."""
        return IPV6 if ":" in self.cidr else IPV4

    @property
    def title(self) -> str:
        """The CIDR, and its name if it has one."""
        return f"{self.cidr} ({self.name})" if self.name else self.cidr

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"cidr": self.cidr, "ok": self.ok, **fields_of(self)}

    @property
    def all_but(self) -> str:
        """The node's own addresses, in words, if nothing else is wrong; otherwise empty."""
        if not all(finding.is_own and not finding.network for finding in self.findings):
            return ""
        return " and ".join(
            f"{', '.join(finding.own)}, the node's own address on {finding.dev}"
            for finding in self.findings
        )

    @property
    def needs_another_route(self) -> bool:
        """True if a route could fix some findings, but no route in the main table does."""
        if self.suggested_routes or self.configured_routes or self.chosen_routes:
            return False
        # The command that removes an address or a rule is itself the step.
        if any(finding.cause or finding.command for finding in self.findings):
            return False
        return any(
            finding.kind not in {"local", "dead-end"} and not finding.stays
            for finding in self.findings
        )


@attrs.frozen(kw_only=True)
class OverlapReport(LightValue, NoTruth):
    """Whether every address of the expected CIDRs leaves through a device that may carry it.

    >>> print(OverlapReport(expected_devs=("eth0",), cidrs=(CidrReport(cidr="172.16.8.0/22"),)))
    172.16.8.0/22 leaves through eth0
    """

    #: The devices through which they should leave: those of the default route, unless the config
    #: names others.
    expected_devs: tuple[str, ...] = ()
    cidrs: tuple[CidrReport, ...] = ()
    #: The expected device through which all addresses of a family leave, if it is a single one.
    outbound_devs: tuple[tuple[int, str], ...] = ()
    #: The expected and allowed devices that carry them.
    carriers: tuple[str, ...] = ()
    #: The families for which it is unknown through which device they should leave.
    without_outbound_dev: tuple[int, ...] = ()
    #: The devices of IPv4 default routes that the kernel uses in turn, if none is expected.
    devs_in_turn: tuple[str, ...] = ()
    #: The families without a default route through an expected device: suggested routes need its
    #: gateway.
    lacks_default: tuple[int, ...] = ()
    #: Expected devices that carry no packets, unless a default route leads through another expected
    #: device: they also hide the gateway.
    dead_ends: tuple[str, ...] = ()
    #: Expected devices that are down, or devices of which one would be the outbound device.
    down_devs: tuple[str, ...] = ()
    #: Devices that are down, if it is unknown whether one of them would be the outbound device.
    maybe_down_devs: tuple[str, ...] = ()
    #: Expected devices that the node does not have.
    absent_devs: tuple[str, ...] = ()
    #: The InfiniBand devices of default routes, with the family, if none is expected there.
    fabric_devs: tuple[tuple[int, str], ...] = ()
    #: The config that has these CIDRs; suggested routes are added to it.
    config: HostRoutingConfig = attrs.field(factory=HostRoutingConfig)
    #: The deciding IPv6 routes, and those that the kernel learned from advertisements.
    deciding: tuple[ObservedRoute, ...] = ()
    learned: tuple[ObservedRoute, ...] = ()
    #: Facts about the fabric and about devices that change no answer; `check` prints them after its
    #: other findings.
    notes: Sequence[NodeFinding] = ()

    @property
    def ok(self) -> bool:
        """True if there are no findings and, in STRICT mode, no late units."""
        return self.is_correct and not self.refusals

    @property
    def is_correct(self) -> bool:
        """True if all addresses are routed correctly now."""
        return all(report.ok for report in self.cidrs)

    @property
    def refusals(self) -> list[str]:
        """The notes that hold the gates in STRICT mode: those on late units of `after`."""
        return [note.text for note in self.notes if note.severity == "error"]

    @property
    def causes(self) -> list[NodeFinding]:
        """The notes on faulty devices and lost built-in rules, if addresses are misrouted."""
        found = [note for note in self.explanations if note.kind in CAUSES]
        return sorted(found, key=lambda note: CAUSES.index(note.kind))

    @property
    def explanations(self) -> list[NodeFinding]:
        """The causes, and the notes on ambiguous outbound devices, if addresses are misrouted."""
        wrong = [] if self.is_correct else self.notes
        return [note for note in wrong if note.kind in _EXPLANATIONS]

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Every finding with the title of its CIDR."""
        return tuple(
            (report.title, finding) for report in self.cidrs for finding in report.findings
        )

    @property
    def wrong_devs(self) -> frozenset[str | None]:
        """The devices through which expected addresses leave although they should not."""
        return frozenset(each.dev for _, each in self.findings if each.kind == "overlap")

    @property
    def suggested_routes(self) -> tuple[SuggestedRoute, ...]:
        """Every suggested route, each once."""
        return tuple(
            dict.fromkeys(route for report in self.cidrs for route in report.suggested_routes)
        )

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that fix findings, each once."""
        return tuple(_commands(finding for _, finding in self.findings))

    @property
    def chosen_routes(self) -> tuple[StaticRoute, ...]:
        """The config's own routes that decide findings, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(part.chosen_routes for part in self.cidrs)))

    @property
    def merged_routes(self) -> StaticRoutesConfig:
        """The config's section after adding every suggested route."""
        present = {route.route_key: route for route in self.config.static_routes.routes}
        new: dict[RouteKey, StaticRoute] = {}
        for suggested in self.suggested_routes:
            route = suggested.to_config()
            if earlier := present.get(route.route_key):
                # Only its gateway and device change.
                route = attrs.evolve(earlier, gateway=route.gateway, dev=route.dev)
            new[route.route_key] = route
        kept = [route for route in self.config.static_routes.routes if route.route_key not in new]
        return StaticRoutesConfig(enabled=True, routes=(*kept, *new.values()))

    def to_mapping(self, *, mode: str | None = None) -> dict[str, Any]:
        """Return the output of `check --json`."""
        mapping: dict[str, Any] = {"ok": self.ok}
        if mode is not None:
            mapping["mode"] = str(mode)
        mapping["expected_devs"] = list(self.expected_devs)
        mapping["cidrs"] = [report.to_mapping() for report in self.cidrs]
        return mapping

    def lines(self) -> list[str]:
        """Return a line for each finding, like in the marker."""
        return [finding.line(cidr) for cidr, finding in self.findings]

    @property
    def verdict(self) -> str:
        """The answer: one line, or a line for each finding; empty without expected CIDRs."""
        lines: list[str] = []
        for heading, reports in self._verdict():
            lines += [f"{heading}:", *_lines(reports)] if reports else [heading]
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """The first heading of the verdict, as a part of a sentence."""
        return next(self._verdict(), ("", ()))[0]

    @property
    def first_wrong(self) -> str:
        """The first finding or refusal, and the number of the rest; empty if it is `ok`."""
        reasons = [*self.lines(), *self.refusals]
        return first_of(reasons) if reasons else ""

    @property
    def advice(self) -> str:
        """The explanations, and the steps that fix the findings; may be empty."""
        texts = [note.text for note in self.explanations]
        return "\n".join(filter(None, [*texts, self.steps]))

    @property
    def steps(self) -> str:
        """The steps that fix the findings; may be empty."""
        return "\n".join(self._steps(_outbound_devices, _configured, _suggested, *_OTHER_STEPS))

    @property
    def manual_steps(self) -> list[str]:
        """What somebody has to do if no route in the config helps."""
        return [*self._steps(_outbound_devices, *_OTHER_STEPS)]

    def _steps(self, *kinds: Callable[[OverlapReport], Iterator[str]]) -> Iterator[str]:
        for steps in () if self.is_correct else kinds:
            # Without an expected device, only its absence is known.
            if self.expected_devs or steps is _outbound_devices:
                yield from steps(self)

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.verdict, *self.refusals, self.advice)))

    def _verdict(self) -> Iterator[tuple[str, Sequence[CidrReport]]]:
        """Yield each heading with the CIDRs that are listed below it."""
        cidrs = [report.cidr for report in self.cidrs]
        if not cidrs:
            return
        if self.is_correct:
            by = ", ".join(self.carriers or self.expected_devs)
            yield f"{departure_of(cidrs)} {by}", ()
            return
        aimed = [report for report in self.cidrs if report.family not in self.without_outbound_dev]
        bad = [report for report in aimed if not report.ok]
        by = ", ".join(self.expected_devs)
        if bad and all(report.all_but for report in bad):
            own = " and ".join(report.all_but for report in bad)
            yield f"{departure_of([report.cidr for report in aimed])} {by}, all but {own}", bad
        elif bad:
            kinds = {finding.kind for report in bad for finding in report.findings}
            # The fabric will attract them once it is connected.
            verb = "would not" if kinds == {"announced"} else "do not"
            count = f"{len(bad)} of {len(aimed)} expected CIDRs"
            yield f"{count} {verb} leave entirely through {by}", bad
        for family in self.without_outbound_dev:
            aimless = [report for report in self.cidrs if report.family == family]
            listed = ", ".join(report.cidr for report in aimless)
            defaults = defaults_of(self, family)
            if all(finding.kind == "no-route" for report in aimless for finding in report.findings):
                yield f"{defaults}, so there is no route to {listed}", ()
                continue
            unknown = f"it is unknown where {listed} should leave"
            yield f"{defaults} and the config names no expectedDevs, so {unknown}", aimless


def defaults_of(report: OverlapReport, family: int) -> str:
    """Return why the default routes of a family do not determine the outbound device."""
    name = FAMILY_NAMES[family]
    if family == IPV4 and report.devs_in_turn:
        devs = " and ".join(report.devs_in_turn)
        return f"the IPv4 default routes through {devs} are used in turn"
    if family in report.lacks_default:
        return f"the node has {no_default_route(family, report.fabric_devs)}"
    return f"neither the IPv4 default route nor those of {name} name one device"


def departure_of(cidrs: Collection[str]) -> str:
    """Return the beginning of the verdict that CIDRs are routed correctly; devices follow.

    >>> departure_of(["10.0.0.0/8"]), departure_of(["10.0.0.0/8", "fd00::/8"])
    ('10.0.0.0/8 leaves through', '10.0.0.0/8, fd00::/8 leave through')
    """
    return f"{', '.join(cidrs)} {'leaves' if len(cidrs) == 1 else 'leave'} through"


def described(dev: str) -> str:
    """Return the name of an absent device, or describe the device of a network."""
    if not is_network(dev):
        return dev
    others = "a bridge or another virtual device must be given by its name"
    return f"with a default route and an address in {dev} ({others})"


def _lines(reports: Iterable[CidrReport]) -> Iterator[str]:
    for report in reports:
        yield f"  {report.title}"
        for finding in report.findings:
            yield f"    {finding.sentence()}"


def _outbound_devices(report: OverlapReport) -> Iterator[str]:
    present = [
        dev for dev in report.expected_devs if not is_network(dev) and dev not in report.absent_devs
    ]
    # The note on a device says what is missing.
    is_named = any(note.kind != "lost-rule" for note in report.causes)
    lacks_default = () if is_named else report.lacks_default
    if lacks_default and report.absent_devs:
        step = "see its addresses and routes (ip address; ip route), or correct expectedDevs."
        absent = " and no device ".join(map(described, report.absent_devs))
        yield f"The node has no device {absent}: {step}"
    through = f" through {' or '.join(present)}" if present else ""
    named = "the devices through which IPv6 leaves in expectedDevs of routeOverlap."
    for family in lacks_default if present or not report.expected_devs else ():
        kind = "a" if family == IPV4 else "an IPv6"
        end = (
            f"; or name {named}"
            if family == IPV6 and not report.config.route_overlap.expected_devs
            else "."
        )
        sources = f"{LOGS[family]}, or its network configuration"
        yield f"Give the node {kind} default route{through}: see {sources}{end}"
    for dev in report.maybe_down_devs if lacks_default else ():
        command = quoted("ip", "link", "set", dev, "up")
        yield f"{dev} is administratively down: if it leads to the cluster, run: {command}"
    if IPV6 in report.without_outbound_dev and IPV6 not in report.lacks_default:
        yield f"Name {named}"


def _configured(report: OverlapReport) -> Iterator[str]:
    names = dict.fromkeys(name for each in report.cidrs for name in each.configured_routes)
    if names:
        yield (
            f"The config has routes for it that are not in force ({', '.join(names)}); "
            "an apply adds them, or says why they are refused"
        )


def _suggested(report: OverlapReport) -> Iterator[str]:
    suggested = report.suggested_routes
    if suggested:
        where = "in hostRouting in the agent's config, then apply that config again"
        yield f"To fix this, set the following {where}:"
        yield f'  "staticRoutes": {json.dumps(report.merged_routes.to_mapping())}'
    for route in suggested:
        if route.takes_from:
            yield f"  {route.destination} takes addresses from {', '.join(route.takes_from)}"
        if route.warning:
            yield f"  WARNING, {route.destination}: {route.warning}"


def _chosen(report: OverlapReport) -> Iterator[str]:
    for chosen in report.chosen_routes:
        yield (
            f"'{chosen}' is a route from the config and stays: if it is right, name its device "
            "in expectedDevs of routeOverlap; if not, correct it in staticRoutes."
        )


def _routers(report: OverlapReport) -> Iterator[str]:
    defaults = [
        route
        for route in report.deciding
        if (route.prefix_length, route.protocol) == (0, RA_PROTOCOL)
    ]
    if defaults:
        yield from endings(defaults, report.learned, report.wrong_devs)


def _unresolved(report: OverlapReport) -> Iterator[str]:
    unknown = {*report.lacks_default, *report.without_outbound_dev}
    unresolved = [
        cidr.cidr
        for cidr in report.cidrs
        if cidr.needs_another_route and cidr.family not in unknown
    ]
    if not unresolved or report.dead_ends:
        return
    remedy = "routes or rules named above"
    if any(finding.kind == "announced" for _, finding in report.findings):
        remedy = "rules (ip rule), or narrow expectedCidrs"
    yield f"No route in the main table would fix {', '.join(unresolved)}: change the {remedy}."


def _presets(report: OverlapReport) -> Iterator[str]:
    overlap = report.config.route_overlap
    aimless = {
        part.cidr
        for part in report.cidrs
        if any(finding.kind == "no-route" for finding in part.findings)
    }
    for cloud in overlap.expected:
        lost = aimless.intersection(PRESETS[cloud]).difference(overlap.expected_cidrs)
        if lost:
            yield (
                f"The preset {cloud} expects {', '.join(sorted(lost))}: on a node that does not "
                f"need this, remove {cloud} from expected of routeOverlap."
            )


def _own_addresses(report: OverlapReport) -> Iterator[str]:
    announced = [finding.own for _, finding in report.findings if finding.network]
    own = dict.fromkeys(chain.from_iterable(announced))
    if own:
        yield (
            f"No route can take {', '.join(own)} from the fabric, whose own addresses these are: "
            "narrow expectedCidrs."
        )


def _rules(report: OverlapReport) -> Iterator[str]:
    """Yield the step for each rule that decides before the main table."""
    by_command = {finding.command: finding for _, finding in report.findings if finding.rule}
    for command, finding in by_command.items():
        program = finding.program or "the program that added it"
        yield (
            f"The rule {finding.rule} decides before the main table: stop {program}, or its routes "
            f"to these addresses; or run: {command}"
        )


def _blackholes(report: OverlapReport) -> Iterator[str]:
    for _, finding in report.findings:
        if finding.kind == "blocked" and finding.stays:
            yield (
                f"The {finding.route} stays, because a route over it could send packets in a loop. "
                f"It was probably added by {finding.program}: remove it there, or narrow "
                "expectedCidrs."
            )


def _local_addresses(report: OverlapReport) -> Iterator[str]:
    local = [finding for _, finding in report.findings if finding.kind == "local"]
    if not local:
        return
    remedy = "remove it from its device, or narrow expectedCidrs."
    if all(finding.dev == "lo" for finding in local):
        # The node needs its loopback.
        remedy = "take it out of expectedCidrs."
    elif commands := _commands(local):
        remedy = f"narrow expectedCidrs, or run: {'; '.join(commands)}"
    yield f"The node's own addresses take precedence over routes: {remedy}"


#: The steps for findings that no route in the config fixes.
_OTHER_STEPS: Final = (
    _chosen,
    _routers,
    _unresolved,
    _presets,
    _own_addresses,
    _rules,
    _blackholes,
    _local_addresses,
)


def _commands(findings: Iterable[Finding]) -> list[str]:
    """Return the commands that fix findings, each once."""
    return list(dict.fromkeys(finding.command for finding in findings if finding.command))
