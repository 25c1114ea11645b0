"""A snapshot -> the objects that azure-vnet may have left behind, each with the pod's address that it is for; pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import IPV6, Address, address_bits
from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute, place
from hostrouting.stale_cni.forms import POD_DEVICE, TUNNEL_MAC, is_of_node, read_pod_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.host.packets.ebtables_rules import EbtablesRule
    from hostrouting.net.addresses import Networks
    from hostrouting.net.links import Neighbour
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
    routes = (*snapshot.ipv4_routes, *snapshot.ipv6_routes)
    found = list(_to_pods(routes, pods, bridge))
    networks = {route.network for route in found}
    # Of hundreds of thousands hardly any go on.
    beside = Counter(_place(route) for route in routes if route.network in networks)
    for route in found:
        oddity = _oddity_of_route(route) or (_NOT_ALONE if beside[_place(route)] > 1 else "")
        yield Candidate(route, _host(route), oddity=oddity)


def _to_pods(routes: Iterable[ObservedRoute], pods: Networks, bridge: str) -> Iterator[ObservedRoute]:
    """The routes on pods' devices, and those on the bridge that lead straight to one address there.

    A route that nobody makes for a pod counts only where it lies among the pods' addresses.
    """
    for route in routes:
        if route.dev == bridge:
            # What DHCP and routing daemons put there is the node's.
            if route.protocol in _BY_HAND and not _oddity_of_route(route):
                yield route
        elif (
            any(dev.startswith(POD_DEVICE) for dev in route.devs)
            and route.protocol not in _NEVER
            and (pods.covers(route.destination) or not _oddity_of_route(route))
        ):
            yield route


def _oddity_of_route(route: ObservedRoute) -> str:
    """Why nobody makes such a route for a pod; empty if it leads straight to one address."""
    if route.kind != "unicast":
        return f"it is a route of the kind {route.kind}"
    if route.dev is None:
        return "it has several next hops"
    if route.gateway is not None:
        return "it has a gateway"
    if route.table != MAIN_TABLE:
        return f"it is in table {route.table}"
    if route.from_prefix is not None:
        return f"it is for packets from {route.from_prefix} only"
    if route.expires:
        return "it ends by itself"
    return "" if _host(route) else "it is to a network, not to one address"


def _host(route: ObservedRoute) -> str | None:
    """The address that the route leads to; None if it leads to a network."""
    is_host = route.prefix_length == address_bits(route.family)
    return str(Address(route.family, route.network)) if is_host else None


def _place(route: ObservedRoute) -> tuple[object, ...]:
    """What the kernel tells routes apart by: whoever adds one where another stands cannot put both back as they were.

    The new CNI's route to the same address, of another metric, stands somewhere else: it is what the leftover robs.
    """
    return *place(route), route.dev if route.family == IPV6 else None
