"""The report on the CIDRs of one address family, and the report on all CIDRs."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs

from hostrouting.net.addresses import Prefix, is_device_name, is_network
from hostrouting.net.outbound import devices_down, fabric_default_devs, outside_fabric
from hostrouting.net.routes import MAIN_TABLE, ObservedRoute
from hostrouting.route_overlap import outbound_faults
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport, SuggestedRoute

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.base.findings import NodeFinding
    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.route_overlap.snapshot import RoutingSnapshot

_T = TypeVar("_T")


class FamilyReport(NamedTuple):
    """The result of a check for the CIDRs of one family."""

    node: RoutingSnapshot
    cidrs: Sequence[str]
    #: The findings of each CIDR.
    findings: Sequence[tuple[Finding, ...]]
    suggested: Sequence[Sequence[SuggestedRoute]]
    #: The allowed devices through which the CIDRs leave.
    carriers: tuple[str, ...]
    #: The IPv6 routes that decide.
    deciding: tuple[ObservedRoute, ...] = ()
    notes: Sequence[NodeFinding] = ()

    def report(self, config: HostRoutingConfig) -> OverlapReport:
        """Return the report; `config` names the CIDRs, and suggested routes are added to it."""
        node = self.node
        expected = node.allowed.expected
        family = (node.family,)
        # Without an expected device, those that may become it.
        defaults = node.defaults if expected else outside_fabric(node.defaults, node.links)
        devs = {hop.dev for route in defaults for hop in route.hops if not hop.dead}
        lacks_default = devs.isdisjoint(expected or devs)
        dead_ends = node.allowed.dead_ends
        if any(map(node.allowed.leads_out, devs)):
            dead_ends = frozenset()
        absent = self._absent()
        if lacks_default and (not expected or any(map(is_network, absent))):
            # One of these would be the outbound device, unless another device is, which is up.
            set_down_devs, is_one_the_exit = devices_down(self._may_be_exit, node.links)
            down = set_down_devs if is_one_the_exit else ()
            maybe_down = () if is_one_the_exit else set_down_devs
        else:
            idle = {link.name for link in node.links if not link.up} & dead_ends
            down = tuple(filter(idle.__contains__, expected))
            maybe_down = ()
        exits = [dev for dev in expected if dev in self.carriers and is_device_name(dev)]
        turns = (joint.devs for joint in node.turns if joint.table == MAIN_TABLE)
        causes: Iterable[NodeFinding] = ()
        if any(self.findings):
            causes = self._causes(config, down, dead_ends, lacks_default=lacks_default)
        return OverlapReport(
            config=config,
            cidrs=tuple(self._reports(config)),
            expected_devs=expected,
            outbound_devs=tuple((node.family, dev) for dev in exits if len(expected) == 1),
            carriers=self.carriers,
            without_outbound_dev=() if expected else family,
            devs_in_turn=() if expected else next(turns, ()),
            lacks_default=family if lacks_default else (),
            dead_ends=tuple(filter(dead_ends.__contains__, expected)),
            down_devs=down,
            maybe_down_devs=maybe_down,
            absent_devs=absent,
            fabric_devs=() if expected else fabric_default_devs(node.defaults, node.links),
            deciding=self.deciding,
            notes=(*causes, *self.notes),
        )

    def _absent(self) -> tuple[str, ...]:
        """Return the expected devices that do not exist, and the networks that no device is in."""
        known = {link.name for link in self.node.links}
        known.update(network for network, _ in self.node.allowed.undecided)
        return tuple(dev for dev in self.node.allowed.expected if dev not in known)

    def _causes(
        self,
        config: HostRoutingConfig,
        down: Sequence[str],
        dead_ends: Collection[str],
        *,
        lacks_default: bool,
    ) -> Iterator[NodeFinding]:
        """Yield why addresses are wrong: what is wrong with the expected devices."""
        node = self.node
        # If one expected device exists, the absence of another one explains nothing.
        are_absent = lacks_default and len(self._absent()) == len(node.allowed.expected)
        absent = [*outbound_faults.absent(self._absent(), node)] if are_absent else []
        yield from absent
        yield from outbound_faults.set_down(down)
        used = {each.dev for part in self.findings for each in part if each.kind == "dead-end"}
        unable = [dev for dev in node.allowed.expected if dev in used or dev in dead_ends]
        yield from outbound_faults.unable(unable, node.links)
        # Without its rule, the table of the default route is not searched.
        is_searched = all(note.kind != "lost-rule" for note in self.notes)
        if lacks_default and is_searched and not absent:
            yield from outbound_faults.lost_default(node, self._may_be_exit, config)

    @property
    def _may_be_exit(self) -> Sequence[str]:
        """The devices or networks that the config names, or else those found or deciding."""
        return self.node.expected or self.node.found or self.node.allowed.expected

    def _reports(self, config: HostRoutingConfig) -> Iterator[CidrReport]:
        """Yield the report on each CIDR, with the helpful routes that the config does not have yet.

        None is suggested against a route of the config itself.
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
        """Return the config's own routes that suggested routes would replace, if they work.

        Such a route names its device or gateway, its device is up, and its gateway is on the link.
        Its author may know better than the current default route.
        """
        # Imported here because a node without findings does not need it.
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
    cidrs: Iterable[str], families: Iterable[FamilyReport], config: HostRoutingConfig
) -> OverlapReport:
    """Return one report on all CIDRs, in their order; see `FamilyReport.report`."""
    reports = [family.report(config) for family in families]
    by_cidr = {part.cidr: part for report in reports for part in report.cidrs}
    values: dict[str, Any] = {"config": config, "cidrs": tuple(by_cidr[cidr] for cidr in cidrs)}
    for field in attrs.fields(OverlapReport):
        if field.name not in values:
            of_each = (getattr(report, field.name) for report in reports)
            values[field.name] = _each_once(chain.from_iterable(of_each))
    return OverlapReport(**values)


def _by_prefix(routes: Iterable[StaticRoute]) -> Mapping[Prefix, Sequence[StaticRoute]]:
    by_prefix: defaultdict[Prefix, list[StaticRoute]] = defaultdict(list)
    for route in routes:
        by_prefix[route.prefix].append(route)
    return by_prefix


def _each_once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
