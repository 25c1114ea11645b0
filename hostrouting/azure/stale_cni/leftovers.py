"""A snapshot of a node -> the objects that azure-vnet may have left, with their pods; pure.

Recorded objects are compared with a snapshot here, too: they are present, missing or lost.

An ebtables rule counts as azure-vnet's only if it has exactly the options of one of its forms: a
rule with another option, or with a negated one, belongs to another program.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.azure.stale_cni.azure_vnet import POD_DEVICE, TUNNEL_MAC, Endpoint
from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV6, Address, Prefix, address_bits, parse_address
from hostrouting.net.links import Device, Neighbour, Station
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    MAIN_TABLE,
    OUR_PROTOCOL,
    RA_PROTOCOL,
    ObservedRoute,
    place,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.azure.stale_cni.journal import Restorable
    from hostrouting.host.ports import LinkAddress

OF_NODE: Final = "it serves the node itself, and every pod on the bridge needs it"
OF_OTHER_NODE: Final = f"ip-masq-agent adds neighbours with {TUNNEL_MAC} for other nodes"


def _forms(*lines: str) -> tuple[tuple[str, dict[str, str]], ...]:
    rules = (EbtablesRule.parse(line, backend="") for line in lines)
    return tuple((rule.chain, dict(rule.normal)) for rule in rules)


#: The words in the forms below that stand for any value.
_FREE = frozenset({"address", "mac", "uplink"})
_FOR_POD = _forms(
    "-A PREROUTING -p ARP --arp-op Request --arp-ip-dst address -j arpreply --arpreply-mac mac",
    "-A PREROUTING -p IPv4 -i uplink --ip-dst address -j dnat --to-dst mac",
    "-A PREROUTING -p IPv6 -i uplink --ip6-dst address -j dnat --to-dst mac",
)
_FOR_NODE = _forms(
    "-A POSTROUTING -s unicast -o uplink -j snat --to-src mac --snat-arp",
    "-A PREROUTING -p ARP -i uplink --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff",
    # Tunnel mode sends all traffic of pods and bridge to the fabric.
    f"-A PREROUTING -i uplink -j dnat --to-dst {TUNNEL_MAC}",
)


@attrs.frozen(kw_only=True)
class Snapshot:
    """The state of a node at one time, as far as the sweep needs it."""

    #: The ebtables table `nat` of all backends.
    rules: tuple[EbtablesRule, ...] = ()
    #: The neighbours of all devices and both families, learned ones included.
    neighbours: tuple[Neighbour, ...] = ()
    #: The routes of both families.
    routes: tuple[ObservedRoute, ...] = ()
    devices: tuple[Device, ...] = ()
    #: The forwarding databases of all bridges.
    stations: tuple[Station, ...] = ()
    #: The pods in azure-vnet's own state.
    endpoints: tuple[Endpoint, ...] = ()
    #: The (device, address) that answered a probe; see `to_probe`.
    answered: frozenset[LinkAddress] = frozenset()


def identity(leftover: Restorable) -> Restorable:
    """Return the object without its position: a rule is the same at any position of its chain."""
    return leftover._replace(position=0) if isinstance(leftover, EbtablesRule) else leftover


def place_of(leftover: Restorable) -> object:
    """Return the place of an object; two routes or neighbours cannot be added to one place.

    A route of the new CNI to the same address with another metric has another place: the leftover
    steals its packets.
    """
    if isinstance(leftover, ObservedRoute):
        # Every device may have its own IPv6 route.
        return *place(leftover), leftover.dev if leftover.family == IPV6 else None
    if isinstance(leftover, Neighbour):
        return leftover.address, leftover.dev
    return identity(leftover)


def pod_devices(devices: Iterable[Device]) -> list[Device]:
    """Return the host's ends of pods' veth pairs."""
    return [device for device in devices if device.name.startswith(POD_DEVICE)]


class Candidate(NamedTuple):
    """An object that azure-vnet may have left."""

    object: Restorable
    #: The pod's; None if it was not made for a single address.
    address: str | None
    mac: str | None = None
    #: Why the sweep does not understand it; empty if it does.
    oddity: str = ""


def candidates(snapshot: Snapshot, pods: Sequence[Prefix], bridge: str) -> Iterator[Candidate]:
    """Yield the rules of the nat table, and neighbours and routes for pods."""
    for rule in snapshot.rules:
        if pod := read_pod_rule(rule):
            yield Candidate(rule, *pod)
        else:
            foreign = "it is none of the rules that azure-vnet makes for a pod"
            yield Candidate(rule, None, oddity=OF_NODE if is_of_node(rule) else foreign)
    for neighbour in snapshot.neighbours:
        leads_to_pod = neighbour.dev == bridge or neighbour.dev.startswith(POD_DEVICE)
        if neighbour.permanent and leads_to_pod:
            oddity = ""
            if neighbour.mac == TUNNEL_MAC:
                oddity = OF_OTHER_NODE
            elif neighbour.protocol:
                oddity = f"it has the protocol {neighbour.protocol}, and azure-vnet sets none"
            elif neighbour.flags:
                oddity = f"it has the flags {neighbour.flags:#x}, and azure-vnet sets none"
            yield Candidate(neighbour, neighbour.address, neighbour.mac, oddity)
    routes = [route for route in snapshot.routes if _may_be_for_pod(route, pods, bridge)]
    networks = {route.network for route in routes}
    # Of hundreds of thousands of routes hardly any share a network with these.
    places = Counter(place_of(route) for route in snapshot.routes if route.network in networks)
    for route in routes:
        oddity = "another route has the same place" if places[place_of(route)] > 1 else ""
        yield Candidate(route, _pod_of(route), oddity=_oddity_of_route(route) or oddity)


# --- ebtables rules


def read_pod_rule(rule: EbtablesRule) -> tuple[str, str] | None:
    """Return address and hardware address of the pod that a rule was made for, or None.

    >>> from hostrouting.host import EbtablesRule
    >>> target = "dnat --to-dst aa:bb:cc:0:0:9 --dnat-target ACCEPT"
    >>> line = f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.9 -j {target}"
    >>> read_pod_rule(EbtablesRule.parse(line, backend="nft"))
    ('10.240.0.9', 'aa:bb:cc:00:00:09')
    """
    values = _free_values(rule, _FOR_POD)
    if values is None:
        return None
    # Not every form has an uplink. Neither a pattern nor a pod's device counts as one.
    uplink = values.get("uplink", "any")
    if not uplink or uplink.endswith("+") or uplink.startswith(POD_DEVICE):
        return None
    # The first byte of a unicast address is even; names (`Broadcast`) do not match.
    mac = values["mac"]
    is_unicast = re.fullmatch("(?!00(:00){5})[0-9a-f][02468ace](:[0-9a-f]{2}){5}", mac)
    # A masked address is a network.
    address = values["address"]
    return (address, mac) if is_unicast and parse_address(address) is not None else None


def is_of_node(rule: EbtablesRule) -> bool:
    """Return True for a rule that the bridge needs for the node itself and for all its pods."""
    return _free_values(rule, _FOR_NODE) is not None


def _free_values(
    rule: EbtablesRule, forms: Iterable[tuple[str, dict[str, str]]]
) -> dict[str, str] | None:
    """Return the values of the free options, if the rule has exactly the options of any form."""
    options = dict(rule.normal)
    # azure-vnet never repeats or negates an option.
    if len(options) != len(rule.normal) or any(value.startswith("!") for value in options.values()):
        return None
    for chain, form in forms:
        free = {word: options.get(name, "") for name, word in form.items() if word in _FREE}
        expected = {name: free.get(word, word) for name, word in form.items()}
        if rule.chain == chain and options == expected:
            return free
    return None


# --- routes


def _may_be_for_pod(route: ObservedRoute, pods: Sequence[Prefix], bridge: str) -> bool:
    if route.dev == bridge:
        # Of `boot` or `static`, as azure-vnet's are; those of DHCP clients and routing daemons are
        # the node's.
        return route.protocol in {3, 4} and not _oddity_of_route(route)
    devs = (route.dev,) if route.dev else route.devs
    is_on_pod = any(dev.startswith(POD_DEVICE) for dev in devs)
    if not is_on_pod or route.protocol in {KERNEL_PROTOCOL, RA_PROTOCOL, OUR_PROTOCOL}:
        return False
    network = Prefix(route.family, route.network, route.prefix_length)
    return any(pod.covers(network) for pod in pods) or not _oddity_of_route(route)


def _oddity_of_route(route: ObservedRoute) -> str:
    """Return why azure-vnet cannot have made the route for a pod; empty if it may have."""
    if route.kind != "unicast":
        return f"it is a route of the kind {route.kind}"
    if route.dev is None:
        return "it has several next hops"
    if route.gateway is not None:
        return "it has a gateway"
    if route.table != MAIN_TABLE:
        return f"it is in table {route.table}"
    if route.from_prefix is not None:
        return f"it is only for packets from {route.from_prefix}"
    if route.expires:
        return "it expires"
    return "" if _pod_of(route) else "it is to a network, not to one address"


def _pod_of(route: ObservedRoute) -> str | None:
    """Return the single address that the route leads to; None if it leads to a network."""
    is_host = route.prefix_length == address_bits(route.family)
    return str(Address(route.family, route.network)) if is_host else None


# --- recorded objects


class Comparison(NamedTuple):
    """Recorded objects and the state of the node."""

    present: list[Restorable]
    #: Absent objects that can be restored.
    missing: list[Restorable]
    #: Absent objects that cannot be restored, with the reason.
    lost: dict[Restorable, str]

    @property
    def absent(self) -> list[Restorable]:
        """All missing and lost objects."""
        return [*self.missing, *self.lost]


def compare(objects: Iterable[Restorable], snapshot: Snapshot) -> Comparison:
    """Compare recorded objects with the state of the node; each identical rule counts once."""
    places: defaultdict[object, list[Restorable]] = defaultdict(list)
    for observed in snapshot.rules, snapshot.neighbours, snapshot.routes:
        for present in observed:
            places[place_of(present)].append(present)
    devices = {device.name for device in snapshot.devices}
    result = Comparison([], [], {})
    for wanted in objects:
        in_place = places[place_of(wanted)]
        if any(_is_same(present, wanted) for present in in_place):
            result.present.append(wanted)
        elif not isinstance(wanted, EbtablesRule) and wanted.dev not in devices:
            result.lost[wanted] = f"the device {wanted.dev} is gone"
        elif in_place:
            result.lost[wanted] = f"its place was taken meanwhile by '{in_place[0]}'"
        else:
            result.missing.append(wanted)
            in_place.append(wanted)
        if isinstance(wanted, EbtablesRule):
            # One less for the next rule that is the same.
            in_place.pop()
    return result


def _is_same(present: Restorable, wanted: Restorable) -> bool:
    if isinstance(present, ObservedRoute) and isinstance(wanted, ObservedRoute):
        return present.fulfils(wanted)
    return identity(present) == identity(wanted)
