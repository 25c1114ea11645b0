"""A snapshot -> the objects that azure-vnet may have left behind, each with the pod's address that it is for; pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import format_ipv4
from hostrouting.net.links import IPv6Route
from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute
from hostrouting.stale_cni.forms import POD_DEVICE, TUNNEL_MAC, is_of_node, read_pod_rule
from hostrouting.stale_cni.gateways import gateways_of, next_hop_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host.packets.ebtables_rules import EbtablesRule
    from hostrouting.net.links import Neighbour
    from hostrouting.stale_cni.networks import Networks
    from hostrouting.stale_cni.sweep import Leftover, Snapshot

__all__ = ["OF_NODE", "OF_OTHER_NODE", "Candidate", "candidates"]

OF_NODE: Final = "it stands for the node itself, and every pod on the bridge needs it"
OF_OTHER_NODE: Final = f"ip-masq-agent puts neighbours with {TUNNEL_MAC} there, for other nodes"
_FOREIGN: Final = "it is none of the rules that azure-vnet makes for a pod"
_NOT_ALONE: Final = "another route stands in its place"

_KERNEL, _RA = 2, 9
#: Routes of these are never a leftover, whatever they look like.
_NEVER: Final = frozenset({_KERNEL, _RA, OUR_PROTOCOL})
#: What azure-vnet's own routes are made by: `boot`, or `static`.
_BY_HAND: Final = frozenset({3, 4})


class Candidate(NamedTuple):
    """An object that may be left behind."""

    object: Leftover
    #: The pod's; None where it is not made for one address.
    address: str | None
    mac: str | None = None
    #: Why it is not understood; empty where it is.
    oddity: str = ""


def candidates(snapshot: Snapshot, pods: Networks, bridge: str) -> Iterator[Candidate]:
    """What is in the nat table, and on the bridge and pods' devices for an address or network of pods."""
    yield from map(_of_rule, snapshot.rules)
    for neighbour in snapshot.neighbours:
        if neighbour.permanent and (neighbour.dev == bridge or neighbour.dev.startswith(POD_DEVICE)):
            yield Candidate(neighbour, neighbour.address, neighbour.mac, _oddity_of_neighbour(neighbour))
    yield from _of_routes(snapshot, pods, bridge)


def _of_rule(rule: EbtablesRule) -> Candidate:
    pod = read_pod_rule(rule)
    if pod is not None:
        return Candidate(rule, pod.address, pod.mac)
    return Candidate(rule, None, oddity=OF_NODE if is_of_node(rule) else _FOREIGN)


def _oddity_of_neighbour(neighbour: Neighbour) -> str:
    if neighbour.mac == TUNNEL_MAC:
        return OF_OTHER_NODE
    # azure-vnet says neither who put it there, nor anything else.
    if neighbour.protocol:
        return f"a program that calls itself protocol {neighbour.protocol} put it there, which azure-vnet is not"
    return f"it has the flags {neighbour.flags:#x}, and azure-vnet gives none" if neighbour.flags else ""


# --- routes


def _of_routes(snapshot: Snapshot, pods: Networks, bridge: str) -> Iterator[Candidate]:
    found = list(_to_pods(snapshot, pods, bridge))
    places = {_place(route) for route in found}
    networks = {place[1] for place in places}
    # Of hundreds of thousands hardly any go on.
    beside: Counter[tuple[object, ...]] = Counter(_place(r) for r in snapshot.ipv4_routes if r.network in networks)
    beside.update(_place(r) for r in snapshot.ipv6_routes if r.destination in networks)
    for route in found:
        oddity = _oddity_of_route(route) or (_NOT_ALONE if beside[_place(route)] > 1 else "")
        yield Candidate(route, _host(route), oddity=oddity)


def _to_pods(snapshot: Snapshot, pods: Networks, bridge: str) -> Iterator[ObservedRoute | IPv6Route]:
    """The routes on pods' devices, and those on the bridge that lead straight to one address there.

    A route that nobody makes for a pod counts only where it lies among the pods' addresses.
    """
    names = {device.ifindex: device.name for device in snapshot.devices}
    routes: tuple[ObservedRoute | IPv6Route, ...] = (*snapshot.ipv4_routes, *snapshot.ipv6_routes)
    for route in routes:
        if route.dev == bridge:
            # What DHCP and routing daemons put there is the node's.
            if route.protocol in _BY_HAND and not _oddity_of_route(route):
                yield route
        elif (
            _is_on_pod_device(route, names)
            and route.protocol not in _NEVER
            and (pods.covers(route.destination) or not _oddity_of_route(route))
        ):
            yield route


def _is_on_pod_device(route: ObservedRoute | IPv6Route, names: dict[int, str]) -> bool:
    if route.dev is not None:
        return route.dev.startswith(POD_DEVICE)
    if isinstance(route, ObservedRoute) and route.nexthops:
        return any(hop.dev.startswith(POD_DEVICE) for hop in route.nexthops)
    return any(names.get(index, "").startswith(POD_DEVICE) for index in next_hop_indexes(route.extra))


def _oddity_of_route(route: ObservedRoute | IPv6Route) -> str:
    """Why nobody makes such a route for a pod; empty if it leads straight to one address."""
    if route.kind != "unicast":
        return f"it is a route of the kind {route.kind}"
    if route.dev is None:
        return "it has several next hops"
    if any(gateways_of(route)):
        return "it has a gateway"
    if route.table != MAIN_TABLE:
        return f"it is in table {route.table}"
    if isinstance(route, IPv6Route) and route.from_prefix is not None:
        return f"it is for packets from {route.from_prefix} only"
    if isinstance(route, IPv6Route) and route.expires:
        return "it ends by itself"
    return "" if _host(route) else "it is to a network, not to one address"


def _host(route: ObservedRoute | IPv6Route) -> str | None:
    """The address that the route leads to; None if it leads to a network."""
    if isinstance(route, ObservedRoute):
        return format_ipv4(route.network) if route.prefix_length == 32 else None
    address, _, length = route.destination.partition("/")
    return address if length == "128" else None


def _place(route: ObservedRoute | IPv6Route) -> tuple[object, ...]:
    """What the kernel tells routes apart by: whoever adds one where another stands cannot put both back as they were.

    The new CNI's route to the same address, of another metric, stands somewhere else: it is what the leftover robs.
    """
    if isinstance(route, ObservedRoute):
        return route.table, route.network, route.prefix_length, route.tos, route.metric
    return route.table, route.destination, route.from_prefix, route.metric, route.dev
