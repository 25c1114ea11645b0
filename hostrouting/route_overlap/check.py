"""Ask the kernel whether every address of a CIDR leaves through a device that may carry it.

A lookup returns the deciding route with all its next hops. A hash assigns each flow to one of them,
so all of them must be allowed. If a rule selects by source, the part is looked up again with the
source that the kernel chooses after the first answer. Both answers must be fine, because the second
one decides for a connected socket, and the first one for a datagram from an unconnected socket.

An address that an announced fabric may attract is also a finding: see `announced`. A note says
where packets that rules select by more than their addresses leave through a device that is not
allowed: see `policy.astray`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

import hostrouting.host
from hostrouting.base.commands import quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS
from hostrouting.host import Host
from hostrouting.net.addresses import (
    IPV4,
    Prefix,
)
from hostrouting.net.routes import (
    OUR_PROTOCOL,
    ObservedRoute,
    best_default_devs,
    default_routes,
)
from hostrouting.route_overlap.answers import LookedUp, looked_up, read
from hostrouting.route_overlap.by_family import FamilyReport, report_on
from hostrouting.route_overlap.expectation import Expectation, prefixes_of
from hostrouting.route_overlap.fabric import has_infiniband
from hostrouting.route_overlap.findings import findings_of
from hostrouting.route_overlap.ipv6_lifetimes import (
    deciding_and_warnings,
    learned_by_kernel,
    vanishing,
)
from hostrouting.route_overlap.judgement import DecidedPart, judged, merged
from hostrouting.route_overlap.report import OverlapReport, SuggestedRoute
from hostrouting.route_overlap.snapshot import (
    AllowedDevices,
    RoutingSnapshot,
    lost_rule_findings,
    require_node,
    watched,
)
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.route_overlap.fabric import Fabric
    from phases import Context


#: The number of findings that a note names.
_MOST_NAMED = 3


def prove_egress(
    node: Host | hostrouting.host.Routing,
    cidrs: Sequence[str | hostrouting.host.Network],
    *,
    allowed_devs: Sequence[str] = DEFAULT_ALLOWED_DEVS,
    expected_devs: Sequence[str] | None = None,
) -> OverlapReport:
    """Check that every address of `cidrs` leaves through an expected or allowed device.

    `node` is a host, or just a backend. A CIDR may be an `ip_network`.

    A network in `expected_devs` stands for the device of a default route with an address in it.
    `expected_devs=None` means the devices of the default route. If there is none, every address is
    a finding, because it is unknown where it should leave. IPv6 should leave through the same
    device as IPv4. This function changes nothing and needs no privileges. It raises `BackendError`
    if the kernel refuses to answer.

    >>> from hostrouting.testing import MemoryBackend
    >>> links = {"eth0": ["10.224.0.4/16"], "ib0": ["172.16.1.4/16"]}
    >>> node = MemoryBackend(links=links, routes=["default via 10.224.0.1 dev eth0"])
    >>> report = prove_egress(node, ["10.96.0.0/16", "172.16.8.0/22"])
    >>> [(cidr, finding.kind, finding.devs) for cidr, finding in report.findings]
    [('172.16.8.0/22', 'overlap', ('ib0',))]
    >>> [(route.destination, route.gateway, route.dev) for route in report.suggested_routes]
    [('172.16.8.0/22', '10.224.0.1', 'eth0')]
    """
    require_node(node)
    given = {"cidrs": cidrs, "allowed_devs": allowed_devs, "expected_devs": expected_devs}
    for name, texts in given.items():
        # Each letter of a text would be a CIDR, or a device.
        if isinstance(texts, str):
            raise wrong_argument(name, texts, "a list of texts", f"[{texts!r}]")
    expectation = Expectation(
        cidrs=prefixes_of(cidrs), allowed_devs=allowed_devs, expected_devs=expected_devs
    )
    return check_egress(node, expectation)


def check_egress(node: Host | hostrouting.host.Routing, expectation: Expectation) -> OverlapReport:
    """Return how the routing of a node differs from what is expected, at one moment.

    Suggested routes are added to the accepted section, which is read only if there are any. An
    address that will leave through the announced fabric is also a finding.
    """
    node = watched(node)
    prefixes = expectation.cidrs
    config = expectation.config
    families: list[FamilyReport] = []
    for family in sorted({prefix.family for prefix in prefixes} or {IPV4}):
        own = [prefix for prefix in prefixes if prefix.family == family]
        snapshot, looked = read(partial(RoutingSnapshot, node, family, expectation), own)
        notes = lost_rule_findings(snapshot)
        if family == IPV4 and prefixes:
            notes += _ambiguous_exits(snapshot)
        families.append(_check_family(snapshot, looked, own, notes))
    if expectation.accepted is not None and any(any(each.suggested) for each in families):
        config = attrs.evolve(config, static_routes=expectation.accepted())
    report = report_on(map(str, prefixes), families, config)
    notes = [*expectation.late, *_likely_mistakes(config), *report.notes]
    learned: Sequence[ObservedRoute] = ()
    if isinstance(node, Host):
        notes = [*_fabric_notes(expectation.fabric, node), *notes]
        if report.deciding:
            learned = learned_by_kernel(node.files, report.deciding)
            # Do not advise to keep a default route that must go.
            kept = [route for route in learned if route.dev not in report.wrong_devs]
            notes = [*vanishing(node.files, kept), *notes]
    return attrs.evolve(report, notes=tuple(notes), learned=tuple(learned))


def _likely_mistakes(config: HostRoutingConfig) -> Iterator[NodeFinding]:
    """Yield what is probably a mistake in the section of a config."""
    section = config.route_overlap
    for mistake in section.local.values():
        yield NodeFinding("local-network", mistake.path, mistake.message, "warning")
    for pattern in section.allowed_devs:
        if "*" in pattern and not pattern.strip("*?"):
            advice = "name the devices that you mean"
            reason = f"{pattern!r} allows every device, so nothing is an overlap; {advice}"
            yield NodeFinding("allows-all", "routeOverlap.allowedDevs", reason, "warning")


def _fabric_notes(fabric: Fabric, host: Host) -> Iterator[NodeFinding]:
    is_near = fabric.awaited and has_infiniband(host)
    for note in fabric.notes:
        yield NodeFinding("fabric", "routeOverlap", note, "warning" if is_near else "note")


def _ambiguous_exits(node: RoutingSnapshot) -> Iterator[NodeFinding]:
    """Yield a warning if several default routes have the same priority, or a note if one decides.

    If the config names the devices, there is only a note: if another device decides, and its owner
    can give it a higher metric.
    """
    is_named = bool(node.expected and not node.found)
    defaults = node.defaults
    best = best_default_devs(defaults)
    exits = dict.fromkeys(hop.dev for route in defaults for hop in route.hops if not hop.dead)
    beside = [dev for dev in exits if dev not in best]
    if is_named and not {*best}.isdisjoint(node.allowed.expected):
        return
    if len(best) > 1 and not is_named:
        reason = (
            "have the same priority, so packets may leave through any of them: "
            "name the right ones in expectedDevs"
        )
        subject = f"the IPv4 default routes through {' and '.join(best)}"
        wrong = [route for route in defaults if not {*best}.isdisjoint(route.devs)]
        commands = [quoted("ip", "route", "del", *str(route.to_route()).split()) for route in wrong]
        step = f"or run one of these: {'; '.join(commands)}" if commands[1:] else ""
        yield NodeFinding("several-exits", subject, reason, "warning", step)
    elif len(best) == 1 and beside:
        owner = node.owner_step(next(route for route in defaults if best[0] in route.devs))
        if is_named and not owner:
            return
        reason = f"has a lower metric than that through {' and '.join(beside)}"
        step = owner
        if not is_named:
            step = f'if that is right, add "expectedDevs": {json.dumps(best)} to routeOverlap'
            step += f"; if not, {owner}" if owner else ""
        subject = f"the IPv4 default route through {best[0]}"
        yield NodeFinding("chosen-exit", subject, reason, "note", step)


def _check_family(
    node: RoutingSnapshot, looked: LookedUp, cidrs: Sequence[Prefix], notes: Iterable[NodeFinding]
) -> FamilyReport:
    """Check the CIDRs of one family, and add further notes."""
    bad, devs = judged(node, looked)
    notes_on_views: list[NodeFinding] = []
    for view in node.views:
        there, devs_there = judged(view, looked_up(view, cidrs))
        bad, new = merged(bad, there)
        devs |= devs_there
        notes_on_views += _policy_notes(view, view.packets, [], new)
    suggested: Sequence[Sequence[SuggestedRoute]] = [()] * len(bad)
    if any(bad):
        # Imported here because a node without findings does not need it.
        from hostrouting.route_overlap.suggest import suggestions

        suggested = suggestions(node, bad)
    deciding, warnings = deciding_and_warnings(node, looked.parts)
    carriers = node.allowed.among(devs)
    return FamilyReport(
        node=node,
        cidrs=[*map(str, cidrs)],
        findings=[findings_of(parts, node) for parts in bad],
        suggested=suggested,
        carriers=carriers,
        deciding=deciding,
        notes=[
            *notes,
            *notes_on_views,
            *_notes_on_packets(node, cidrs, bad),
            *warnings,
            *_undecided_networks(node.allowed),
            *_idle_devices(node, carriers),
        ],
    )


def _notes_on_packets(
    node: RoutingSnapshot, cidrs: Sequence[Prefix], bad: Iterable[Sequence[DecidedPart]]
) -> Iterator[NodeFinding]:
    """Yield the notes on packets that rules select by more than addresses and protocol.

    Parts that are `bad` for every packet need no note.
    """
    if not node.allowed.expected or not any(rule.packets for rule in node.rules):
        return
    # Imported here because few nodes have rules by marks.
    from hostrouting.route_overlap.policy import astray

    starts = {decided.part.first for parts in bad for decided in parts}
    for packets, unknown, wrong in astray(node, cidrs, starts):
        yield from _policy_notes(node, packets, unknown, wrong)


def _undecided_networks(allowed: AllowedDevices) -> Iterator[NodeFinding]:
    """Yield a warning for each network in `expectedDevs` that matches several devices."""
    for network, devs in allowed.undecided:
        subject = f"{network} in expectedDevs"
        reason = f"matches several devices ({', '.join(devs)}), so none of them is expected"
        step = "name one of them, or a narrower network"
        yield NodeFinding("several-exits", subject, reason, "warning", step)


def _idle_devices(node: RoutingSnapshot, carriers: Collection[str]) -> Iterator[NodeFinding]:
    """Yield a note on each allowed device that carries expected addresses but looks unused."""
    masters = {link.master for link in node.links}
    for link in node.links:
        trouble = "" if link.carrier else "has no carrier"
        if link.kind == "bridge" and link.name not in masters:
            trouble = "is a bridge without ports, perhaps left behind by a CNI that was removed"
        if trouble and link.name in carriers and link.name not in node.allowed.expected:
            reason = f"carries expected addresses and is allowed to, but {trouble}"
            yield NodeFinding("idle-device", link.name, reason, "note")


def _policy_notes(
    node: RoutingSnapshot, packets: str, unknown: Iterable[str], wrong: Sequence[DecidedPart]
) -> list[NodeFinding]:
    """Return a note on packets that are misrouted, and on those whose route is unknown.

    A note names only the first findings, because the table of a rule may have thousands of routes.
    """
    reasons = [*unknown]
    if findings := findings_of(wrong, node):
        sentences = [finding.sentence() for finding in findings[:_MOST_NAMED]]
        more = len(findings) - len(sentences)
        sentences += [f"and {more} more ranges"] if more else []
        reasons.append("; ".join(sentences))
    subject = packets or "packets that no rule selects by more than addresses"
    return [NodeFinding("policy-rule", subject, reason, "note") for reason in reasons]


def silent_routers(ctx: Context, host: Host, devs: Sequence[str]) -> Iterable[NodeFinding]:
    """Return a warning for each router that does not answer a request for its hardware address.

    The routers are the gateways of the default routes and of hostrouting's routes by these devices.
    """
    routes = host.routes.routes()
    installed = (route for route in routes if route.protocol == OUR_PROTOCOL)
    hops = (hop for route in (*default_routes(routes), *installed) for hop in route.hops)
    routers = dict.fromkeys(
        (hop.dev, hop.gateway)
        for hop in hops
        if hop.dev in devs and not hop.dead and hop.gateway and hop.gateway.family == IPV4
    )
    resolved = {(link.name, number) for link in host.routes.links() for number in link.neighbours}
    unknown = [
        (dev, str(gateway)) for dev, gateway in routers if (dev, gateway.number) not in resolved
    ]
    # Mostly empty: then the link layer need not be loaded.
    silent = host.link_layer.silent(ctx, unknown) if unknown else ()
    reason = (
        "does not answer, although the kernel has just asked again: "
        "check the router and the link to it"
    )
    return [
        NodeFinding("silent-gateway", f"{address} dev {dev}", reason, "warning")
        for dev, address in unknown
        if (dev, address) in silent
    ]
