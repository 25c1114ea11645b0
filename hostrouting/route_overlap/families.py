"""What is proven of the CIDRs of each family, and the one report on all of them."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hostrouting.base.commands import quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.net.addresses import FAMILY_NAMES, GIVERS, is_device_name, is_network
from hostrouting.net.exits import candidates, fabric_exits, set_down, unnamed
from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, SCOPE_LINK
from hostrouting.route_overlap.proven import CidrReport, OverlapReport, wrong_devs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaticRoute
    from hostrouting.net.addresses import Prefix
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.route_overlap.proven import Finding, SuggestedRoute
    from hostrouting.route_overlap.snapshot import RoutingSnapshot

_T = TypeVar("_T")


class FamilyProof(NamedTuple):
    """What is proven of the CIDRs of one family."""

    node: RoutingSnapshot
    cidrs: Sequence[str]
    #: Those of each CIDR.
    findings: Sequence[tuple[Finding, ...]]
    suggested: Sequence[Sequence[SuggestedRoute]]
    #: The devices by which the CIDRs leave, and may.
    carriers: tuple[str, ...]
    #: The IPv6 routes that decide.
    deciding: tuple[ObservedRoute, ...] = ()
    notes: Sequence[NodeFinding] = ()

    @property
    def expected_devs(self) -> tuple[str, ...]:
        """The devices by which the CIDRs should leave."""
        return self.node.allowed.expected

    @property
    def without_exit(self) -> bool:
        """True if it is unknown by which device they should leave."""
        return not self.expected_devs

    @property
    def exit(self) -> str | None:
        """The one expected device, if it carries CIDRs, and has a plain name."""
        if len(self.expected_devs) != 1:
            return None
        [dev] = self.expected_devs
        return dev if dev in self.carriers and is_device_name(dev) else None

    @property
    def default_devs(self) -> frozenset[str]:
        """The devices of the default routes, and without an expected one those that may be it."""
        defaults = self.node.defaults
        routes = unnamed(defaults, self.node.links) if self.without_exit else defaults
        return frozenset(hop.dev for route in routes for hop in route.hops if not hop.dead)

    @property
    def fabric_exits(self) -> tuple[tuple[int, str], ...]:
        """The InfiniBand devices of default routes, with the family, if no device is expected."""
        return fabric_exits(self.node.defaults, self.node.links) if self.without_exit else ()

    @property
    def lacks_default(self) -> bool:
        """True without a default route by an expected device, or one that may be it."""
        return not self.default_devs.intersection(self.expected_devs or self.default_devs)

    @property
    def exits_in_turns(self) -> tuple[str, ...]:
        """The devices of default routes of table main in turns, if no device is expected."""
        if self.expected_devs:
            return ()
        return next((joint.devs for joint in self.node.turns if joint.table == MAIN_TABLE), ())

    @property
    def dead_ends(self) -> tuple[str, ...]:
        """The expected devices without carrier, unless a default route leads out by another."""
        allowed = self.node.allowed
        if any(map(allowed.leads_out, self.default_devs)):
            return ()
        return tuple(dev for dev in self.expected_devs if dev in allowed.dead_ends)

    @property
    def down_devs(self) -> tuple[str, ...]:
        """The devices that are set down, and that are expected, or would be."""
        if self._awaits_exit:
            return self._set_down[0] if self._set_down[1] else ()
        down = {link.name for link in self.node.links if not link.up}
        return tuple(dev for dev in self.dead_ends if dev in down)

    @property
    def maybe_down_devs(self) -> tuple[str, ...]:
        """Those set down where another one, which is up, may get the default route instead."""
        return () if self.down_devs or not self._awaits_exit else self._set_down[0]

    @property
    def _set_down(self) -> tuple[tuple[str, ...], bool]:
        return set_down(self._named, self.node.links)

    @property
    def _named(self) -> tuple[str, ...]:
        """The devices, or networks, that the config names, or that is pinned."""
        pinned = self.node.pinned.get(self.node.family)
        return (pinned,) if pinned else self.expected_devs

    @property
    def _awaits_exit(self) -> bool:
        is_unknown = self.without_exit or any(map(is_network, self.absent_devs))
        return is_unknown and self.lacks_default

    @property
    def down(self) -> list[NodeFinding]:
        """A warning for each of them, if addresses are wrong."""
        devs = self.down_devs if any(self.findings) else ()
        reason = "is set down, and no packet leaves by it"
        if len(devs) > 1:
            step = "set up the one that leads to the cluster: ip link set DEVICE up"
            return [NodeFinding("device-down", dev, reason, "warning", step) for dev in devs]
        return [
            NodeFinding(
                "device-down",
                dev,
                reason,
                "warning",
                command=quoted("ip", "link", "set", dev, "up"),
            )
            for dev in devs
        ]

    @property
    def lost_default(self) -> list[NodeFinding]:
        """A warning about the device that lacks its default route, with the command of its keeper.

        It is the only one that may be the exit, or else the only one that a program configures.
        """
        if not (self.lacks_default and any(self.findings)):
            return []
        found = candidates(self._named, self.node.links)
        kept = {link: self.node.keeper_of(link) for link in found if link.up and link.carrier}
        if len(found) > 1:
            kept = {link: keeper for link, keeper in kept.items() if keeper[0]}
        if len(kept) != 1:
            return []
        [(link, (keeper, command))] = kept.items()
        return [self._lack_of(link, keeper, command)]

    def _lack_of(self, link: Device, keeper: str, command: str) -> NodeFinding:
        family = self.node.family
        has_address = any(own.family == family and own.scope < SCOPE_LINK for own in link.addresses)
        what = f"{FAMILY_NAMES[family]} {'default route' if has_address else 'address'}"
        reason = f"has no {what}, which {keeper} gives it"
        step = f"see {GIVERS[family]}"
        if not keeper:
            reason = f"has no {what}, and no program that is known here gives it one"
            step = f"give it one, or {step}"
        gateways = {
            str(route.gateway)
            for route in self.node.routes
            if route.protocol == OUR_PROTOCOL and route.dev == link.name and route.gateway
        }
        if has_address and not keeper and len(gateways) == 1:
            words = ("ip", "route", "add", "default", "via", *gateways, "dev", link.name)
            command = quoted(*words)
        return NodeFinding("lost-default", link.name, reason, "warning", step, command=command)

    @property
    def absent_devs(self) -> tuple[str, ...]:
        """The expected devices that the node does not have."""
        known = {link.name for link in self.node.links}
        known.update(network for network, _ in self.node.allowed.undecided)
        return tuple(dev for dev in self.expected_devs if dev not in known)

    @property
    def fabric_devs(self) -> tuple[str, ...]:
        """The InfiniBand devices, and those of an announced fabric."""
        devs = [link.name for link in self.node.links if link.infiniband]
        if self.node.announced:
            devs += sorted(self.node.announced.members)
        return tuple(devs)

    def reports(self, config: HostRoutingConfig) -> Iterator[CidrReport]:
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


class Proofs(NamedTuple):
    """The proofs of all families, of CIDRs in a given order."""

    cidrs: Sequence[str]
    families: Sequence[FamilyProof]

    @property
    def deciding(self) -> tuple[ObservedRoute, ...]:
        """The IPv6 routes that decide, each once."""
        return self._each(lambda proof: proof.deciding)

    @property
    def suggests(self) -> bool:
        """True if any route is suggested."""
        return any(any(proof.suggested) for proof in self.families)

    @property
    def wrong_devs(self) -> frozenset[str | None]:
        """The devices by which addresses leave, and should not."""
        of_cidrs = chain.from_iterable(proof.findings for proof in self.families)
        return wrong_devs(chain.from_iterable(of_cidrs))

    def report(
        self,
        config: HostRoutingConfig,
        *,
        notes: Iterable[NodeFinding] = (),
        learned: tuple[ObservedRoute, ...] = (),
    ) -> OverlapReport:
        """Return the report for a config, which names the CIDRs, and which suggestions complete.

        `notes` precede those of the proofs. The kernel has `learned` these of the deciding routes.
        """
        by_cidr = {
            report.cidr: report for proof in self.families for report in proof.reports(config)
        }
        exits = [
            (proof.node.family, proof.exit) for proof in self.families if proof.exit is not None
        ]
        return OverlapReport(
            config=config,
            cidrs=tuple(by_cidr[cidr] for cidr in self.cidrs),
            exits=tuple(exits),
            moved_exits=tuple(proof.node.moved for proof in self.families if proof.node.moved),
            expected_devs=self._each(lambda proof: proof.expected_devs),
            carriers=self._each(lambda proof: proof.carriers),
            exits_in_turns=self._each(lambda proof: proof.exits_in_turns),
            dead_ends=self._each(lambda proof: proof.dead_ends),
            down_devs=self._each(lambda proof: proof.down_devs),
            maybe_down_devs=self._each(lambda proof: proof.maybe_down_devs),
            absent_devs=self._each(lambda proof: proof.absent_devs),
            fabric_exits=self._each(lambda proof: proof.fabric_exits),
            fabric_devs=self._each(lambda proof: proof.fabric_devs),
            deciding=self.deciding,
            learned=learned,
            notes=(
                *notes,
                *self._each(lambda proof: proof.down),
                *self._each(lambda proof: proof.lost_default),
                *self._each(lambda proof: proof.notes),
            ),
            without_exit=self._families_with(lambda proof: proof.without_exit),
            lacks_default=self._families_with(lambda proof: proof.lacks_default),
        )

    def _each(self, of: Callable[[FamilyProof], Iterable[_T]]) -> tuple[_T, ...]:
        """Return the values of all families, each once."""
        return _each_once(chain.from_iterable(map(of, self.families)))

    def _families_with(self, applies: Callable[[FamilyProof], object]) -> tuple[int, ...]:
        return tuple(proof.node.family for proof in self.families if applies(proof))


def _by_prefix(routes: Iterable[StaticRoute]) -> Mapping[Prefix, Sequence[StaticRoute]]:
    by_prefix: defaultdict[Prefix, list[StaticRoute]] = defaultdict(list)
    for route in routes:
        by_prefix[route.prefix].append(route)
    return by_prefix


def _each_once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
