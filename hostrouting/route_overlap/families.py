"""The report on the CIDRs of one family, with the ways out of the node, and that on all CIDRs."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.net.addresses import (
    FAMILY_NAMES,
    GIVERS,
    LOGS,
    Address,
    Prefix,
    is_device_name,
    is_network,
)
from hostrouting.net.exits import candidates, fabric_exits, named_devices, set_down, unnamed
from hostrouting.net.links import Device, address_families
from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute
from hostrouting.route_overlap.proven import CidrReport, Finding, OverlapReport, SuggestedRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.route_overlap.snapshot import RoutingSnapshot

_T = TypeVar("_T")


class FamilyProof(NamedTuple):
    """What is proven of the CIDRs of one family."""

    node: RoutingSnapshot
    cidrs: Sequence[str]
    #: The findings of each CIDR.
    findings: Sequence[tuple[Finding, ...]]
    suggested: Sequence[Sequence[SuggestedRoute]]
    #: The devices by which the CIDRs leave, and may.
    carriers: tuple[str, ...]
    #: The IPv6 routes that decide.
    deciding: tuple[ObservedRoute, ...] = ()
    notes: Sequence[NodeFinding] = ()

    def report(self, config: HostRoutingConfig) -> OverlapReport:
        """Return the report for a config, which names the CIDRs, and which suggestions complete."""
        node = self.node
        expected = node.allowed.expected
        family = (node.family,)
        # Without an expected device, those that may be it.
        defaults = node.defaults if expected else unnamed(node.defaults, node.links)
        devs = {hop.dev for route in defaults for hop in route.hops if not hop.dead}
        lacks_default = devs.isdisjoint(expected or devs)
        dead_ends = node.allowed.dead_ends
        if any(map(node.allowed.leads_out, devs)):
            dead_ends = frozenset()
        absent = self._absent()
        if lacks_default and (not expected or any(map(is_network, absent))):
            # One of these would be the exit; or another one, which is up, may be.
            set_down_devs, is_one_the_exit = set_down(self._may_be_exit, node.links)
            down = set_down_devs if is_one_the_exit else ()
            maybe_down = () if is_one_the_exit else set_down_devs
        else:
            idle = {link.name for link in node.links if not link.up} & dead_ends
            down = tuple(filter(idle.__contains__, expected))
            maybe_down = ()
        exits = [dev for dev in expected if dev in self.carriers and is_device_name(dev)]
        turns = (joint.devs for joint in node.turns if joint.table == MAIN_TABLE)
        return OverlapReport(
            config=config,
            cidrs=tuple(self._reports(config)),
            expected_devs=expected,
            exits=tuple((node.family, dev) for dev in exits if len(expected) == 1),
            carriers=self.carriers,
            without_exit=() if expected else family,
            exits_in_turns=() if expected else next(turns, ()),
            lacks_default=family if lacks_default else (),
            dead_ends=tuple(filter(dead_ends.__contains__, expected)),
            down_devs=down,
            maybe_down_devs=maybe_down,
            absent_devs=absent,
            fabric_exits=() if expected else fabric_exits(node.defaults, node.links),
            deciding=self.deciding,
            notes=tuple(self._notes(config, down, lacks_default=lacks_default)),
        )

    def _absent(self) -> tuple[str, ...]:
        """Return the expected devices, and networks, that no device of the node is, or holds."""
        known = {link.name for link in self.node.links}
        known.update(network for network, _ in self.node.allowed.undecided)
        return tuple(dev for dev in self.node.allowed.expected if dev not in known)

    def _notes(
        self, config: HostRoutingConfig, down: Sequence[str], *, lacks_default: bool
    ) -> Iterator[NodeFinding]:
        """Yield the notes; where an address has a finding, the causes of a lost way out first."""
        if any(self.findings):
            yield from _set_down_notes(down)
            # Without its rule, the table of the default route is not searched.
            if lacks_default and all(note.kind != "lost-rule" for note in self.notes):
                yield from self._lost_default(config)
        yield from self.notes

    @property
    def _may_be_exit(self) -> Sequence[str]:
        """The devices, or networks, that the config names, that were found, or that decide."""
        return self.node.expected or self.node.found or self.node.allowed.expected

    def _lost_default(self, config: HostRoutingConfig) -> Iterator[NodeFinding]:
        """Yield a warning about the device that lacks its default route, or those that may.

        These are the ones that a program configures, or else that the config names.
        """
        # Imported late: most nodes have their default route.
        from hostrouting.route_overlap.owners import keeper_of

        node = self.node
        names = self._may_be_exit
        found = candidates(names, node.links)
        is_meant = any(map(is_network, names)) or named_devices(names, node.links)
        have_one = {dev for route in node.defaults for dev in route.devs}
        able = [link for link in found if link.up and link.carrier and link.name not in have_one]
        kept = {link: keeper_of(link, node.files, node.family) for link in able}
        links = [link for link, (keeper, _) in kept.items() if keeper]
        if is_meant or len(found) == 1:
            links = links or able
        if links:
            keepers = dict.fromkeys(kept[link][0] for link in links)
            commands = dict.fromkeys(kept[link][1] for link in links)
            command = "".join(commands) if len(commands) == 1 else ""
            yield self._lack_of(links, " or ".join(keepers), command, config)

    def _lack_of(
        self, links: Sequence[Device], keeper: str, command: str, config: HostRoutingConfig
    ) -> NodeFinding:
        """Return the warning, with the command of the program that keeps the devices."""
        family = self.node.family
        has_address = any(family in address_families(link) for link in links)
        what = f"{FAMILY_NAMES[family]} {'default route' if has_address else 'address'}"
        names = " or ".join(link.name for link in links)
        reason = f"has no {what}, which {keeper} gives it"
        step = f"see {LOGS[family]}"
        if not keeper:
            reason = f"has no {what}, which {GIVERS[family]} or you must give it"
            form = "route add default via GATEWAY" if has_address else "address add ADDRESS/LENGTH"
            step = f"use ip {form} dev {names}, or {step}"
        gateways = self._gateways(links[0], config)
        if has_address and not keeper and len(links) == len(gateways) == 1:
            command = quoted("ip", "route", "add", "default", "via", *gateways, "dev", names)
        return NodeFinding("lost-default", names, reason, "warning", step, command=command)

    def _gateways(self, link: Device, config: HostRoutingConfig) -> set[str]:
        """Return the gateways on a device that routes in force, or of the config, have."""
        networks = [
            Prefix(own.family, own.peer, own.prefix_length)
            for own in link.addresses
            if own.family == self.node.family
        ]
        wanted = (route.gateway for route in config.static_routes.routes if route.gateway)
        in_force = {
            str(route.gateway)
            for route in self.node.routes
            if route.protocol == OUR_PROTOCOL and route.dev == link.name and route.gateway
        }
        return in_force | {
            gateway
            for gateway in wanted
            if any(network.masked.covers(Address.parse(gateway)) for network in networks)
        }

    def _reports(self, config: HostRoutingConfig) -> Iterator[CidrReport]:
        """Yield the report on each CIDR: suggested are the routes that help and the config lacks.

        None is suggested against a route that the config itself chooses.
        """
        names = config.route_overlap.cidrs
        routes = _by_prefix(config.static_routes.routes) if any(self.suggested) else {}
        for cidr, findings, suggested in zip(
            self.cidrs, self.findings, self.suggested, strict=True
        ):
            if not suggested:
                yield CidrReport(cidr=cidr, name=names.get(cidr), findings=findings)
                continue
            covers = {
                route: [*route.needless_with(routes)] if routes else [] for route in suggested
            }
            lacking = tuple(route for route, covering in covers.items() if not covering)
            chosen = self._chosen(lacking, config) if lacking else ()
            yield CidrReport(
                cidr=cidr,
                name=names.get(cidr),
                findings=findings,
                # The other suggestions would leave the CIDR wrong.
                suggested_routes=() if chosen else lacking,
                configured_routes=_each_once(chain.from_iterable(covers.values())),
                chosen_routes=chosen,
            )

    def _chosen(
        self, lacking: Iterable[SuggestedRoute], config: HostRoutingConfig
    ) -> tuple[StaticRoute, ...]:
        """Return the config's own routes that suggestions are against, if they are whole.

        Such a route names its device or gateway, and its device is up and its gateway on the link.
        Whoever wrote it may know better than the default route of the moment.
        """
        # Imported late: a node without findings does not need it.
        from hostrouting.route_overlap.suggest import is_whole

        named = [route for route in config.static_routes.routes if route.dev or route.gateway]
        return _each_once(
            route
            for suggested in lacking
            for route in named
            if route.is_met_by(suggested.offender)
            and is_whole(self.node.backend, suggested.offender)
        )


def report_on(
    cidrs: Iterable[str], proofs: Iterable[FamilyProof], config: HostRoutingConfig
) -> OverlapReport:
    """Return the one report on CIDRs, in their order, for a config; see `FamilyProof.report`."""
    reports = [proof.report(config) for proof in proofs]
    by_cidr = {part.cidr: part for report in reports for part in report.cidrs}
    values: dict[str, Any] = {"config": config, "cidrs": tuple(by_cidr[cidr] for cidr in cidrs)}
    for field in attrs.fields(OverlapReport):
        if field.name not in values:
            of_each = (getattr(report, field.name) for report in reports)
            values[field.name] = _each_once(chain.from_iterable(of_each))
    return OverlapReport(**values)


def _set_down_notes(devs: Sequence[str]) -> Iterator[NodeFinding]:
    """Yield a warning for each device that is set down."""
    reason = "is set down, and no packet leaves by it"
    step = ""
    if len(devs) > 1:
        step = "set up the one that leads to the cluster: ip link set DEVICE up"
    for dev in devs:
        command = "" if step else quoted("ip", "link", "set", dev, "up")
        yield NodeFinding("device-down", dev, reason, "warning", step, command=command)


def _by_prefix(routes: Iterable[StaticRoute]) -> Mapping[Prefix, Sequence[StaticRoute]]:
    by_prefix: defaultdict[Prefix, list[StaticRoute]] = defaultdict(list)
    for route in routes:
        by_prefix[route.prefix].append(route)
    return by_prefix


def _each_once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
