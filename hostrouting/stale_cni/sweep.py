"""What was seen -> a verdict on each object that azure-vnet may have left behind, with its reason; pure.

The cautious answer is the right one: what may be alive is kept, and what is not understood is not touched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import attrs

from hostrouting.addresses import format_ipv4
from hostrouting.host.ebtables_rules import EbtablesRule
from hostrouting.host.links import IPv6Route, Neighbour
from hostrouting.host.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute
from hostrouting.stale_cni.forms import is_of_node, read_pod_rule
from hostrouting.stale_cni.networks import Networks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.host import Device, Station
    from hostrouting.stale_cni.azure_vnet import Endpoint

__all__ = ["Agreement", "Kind", "Leftover", "Snapshot", "Verdict", "agree", "identity", "judge", "questions", "subject"]

#: In tunnel mode azure-vnet gives it to every pod, and the fabric's router has it, too.
TUNNEL_MAC: Final = "12:34:56:78:9a:bc"
#: How azure-vnet names the host's end of a pod's veth pair.
_POD_DEVICE: Final = "azv"
_KERNEL: Final = 2
#: What azure-vnet's own routes are made by: `boot`, or `static`.
_BY_HAND: Final = frozenset({3, 4})

Kind = Literal["stale", "live", "node", "unknown"]
#: What may be left behind.
Leftover = EbtablesRule | Neighbour | ObservedRoute | IPv6Route


@attrs.frozen(kw_only=True)
class Snapshot:
    """What was seen of a node at one time."""

    #: The ebtables table `nat`, of all backends.
    rules: tuple[EbtablesRule, ...] = ()
    #: Of all devices and both families, the learned ones included.
    neighbours: tuple[Neighbour, ...] = ()
    ipv4_routes: tuple[ObservedRoute, ...] = ()
    ipv6_routes: tuple[IPv6Route, ...] = ()
    devices: tuple[Device, ...] = ()
    #: What the bridge has learned.
    stations: tuple[Station, ...] = ()
    #: What azure-vnet's own state says.
    endpoints: tuple[Endpoint, ...] = ()
    #: Who answered when asked on the link: (device, address); see `questions`.
    answered: frozenset[tuple[str, str]] = frozenset()


class Verdict(NamedTuple):
    """What an object is, and why we say so; `address` is that of the pod it was made for, if it is for one."""

    object: Leftover
    kind: Kind
    address: str | None
    reason: str


class Agreement(NamedTuple):
    """What several readings say together."""

    #: In all readings; the objects are those of the last one.
    stale: list[Verdict]
    #: In some of them, but not in all: somebody is at work on these.
    changed: list[Verdict]


def judge(snapshot: Snapshot, *, pod_cidrs: Sequence[str], bridge: str) -> tuple[Verdict, ...]:
    """Say of each object in the nat table, on the bridge and on pods' devices what it is.

    >>> neighbour = Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True)
    >>> verdict, = judge(Snapshot(neighbours=(neighbour,)), pod_cidrs=["10.240.0.0/16"], bridge="azure0")
    >>> verdict.kind, verdict.reason
    ('stale', 'no live endpoint of azure-vnet has 10.240.0.9')

    Routes and neighbours of other devices are not looked at. Whatever is not certain to be made for one pod is
    `unknown`.
    """
    candidates = list(_candidates(snapshot, bridge))
    pods = Networks(pod_cidrs)
    node = _node_addresses(snapshot)
    evidence = _Evidence(snapshot, candidates, bridge)

    def verdict(candidate: _Candidate) -> Verdict:
        found, address, _, reason = candidate
        if address is None:
            return Verdict(found, "node" if reason == _OF_NODE else "unknown", None, reason)
        if address in node:
            return Verdict(found, "node", address, node[address])
        if address not in pods:
            return Verdict(found, "unknown", address, f"{address} is outside podCidrs")
        alive = evidence.of_life(address)
        if alive is not None:
            return Verdict(found, "live", address, alive)
        return Verdict(found, "stale", address, evidence.of_death(address))

    return tuple(map(verdict, candidates))


def questions(snapshot: Snapshot, verdicts: Sequence[Verdict], *, bridge: str) -> list[tuple[str, str]]:
    """Who is to be asked, before anything is taken for stale: (device, address), each once.

    Only on pods' devices: on the bridge Azure's fabric would answer for everybody. And on as few as can be: what has an
    endpoint, or has been heard, is no other pod's.
    """
    quiet = _quiet_ports(snapshot, bridge)
    asked: dict[tuple[str, str], None] = {}
    for found, kind, address, _ in verdicts:
        if kind != "stale" or address is None:
            continue
        dev = None if isinstance(found, EbtablesRule) else found.dev
        devices = [dev] if dev is not None and dev != bridge else quiet
        asked.update(dict.fromkeys((device, address) for device in devices))
    return list(asked)


def agree(readings: Sequence[Sequence[Verdict]]) -> Agreement:
    """What is stale in every one of the readings, as often as in the last; and what is so only in some."""
    counts = [Counter(identity(v.object) for v in reading if v.kind == "stale") for reading in readings]
    steady = {key for key, count in counts[-1].items() if all(other[key] == count for other in counts)}
    changed: dict[Leftover, Verdict] = {}
    for reading in readings:
        for v in reading:
            if v.kind == "stale" and identity(v.object) not in steady:
                changed.setdefault(identity(v.object), v)
    stale = [v for v in readings[-1] if v.kind == "stale" and identity(v.object) in steady]
    return Agreement(stale, list(changed.values()))


def identity(leftover: Leftover) -> Leftover:
    """What the object is told apart by: a rule is the same wherever it stands in its chain."""
    return leftover._replace(position=0) if isinstance(leftover, EbtablesRule) else leftover


def subject(leftover: Leftover) -> str:
    """How reports name the object: as its own tool shows it."""
    if isinstance(leftover, EbtablesRule):
        return f"ebtables {leftover.backend} nat: {leftover.line}"
    return str(leftover)


# --- what may be left behind

_OF_NODE: Final = "it stands for the node itself, and every pod on the bridge needs it"
_FOREIGN: Final = "it is none of the rules that azure-vnet makes for a pod"


class _Candidate(NamedTuple):
    object: Leftover
    #: None where the object is not made for one pod; `reason` says why.
    address: str | None
    mac: str | None = None
    reason: str = ""


def _candidates(snapshot: Snapshot, bridge: str) -> Iterator[_Candidate]:
    for rule in snapshot.rules:
        pod = read_pod_rule(rule)
        if pod is not None:
            yield _Candidate(rule, pod.address, pod.mac)
        else:
            yield _Candidate(rule, None, reason=_OF_NODE if is_of_node(rule) else _FOREIGN)
    for neighbour in snapshot.neighbours:
        if neighbour.permanent and (neighbour.dev == bridge or neighbour.dev.startswith(_POD_DEVICE)):
            yield _Candidate(neighbour, neighbour.address, neighbour.mac)
    for route in snapshot.ipv4_routes:
        # The length first: of hundreds of thousands hardly any go on.
        if route.prefix_length == 32 and _is_to_one_pod(route, bridge):
            yield _Candidate(route, format_ipv4(route.network))
    for ipv6_route in snapshot.ipv6_routes:
        address, _, length = ipv6_route.destination.partition("/")
        # Nobody's pod has a route that ends by itself, or that is for some senders only.
        usual = not ipv6_route.expires and ipv6_route.from_prefix is None
        if length == "128" and usual and _is_to_one_pod(ipv6_route, bridge):
            yield _Candidate(ipv6_route, address)


def _is_to_one_pod(route: ObservedRoute | IPv6Route, bridge: str) -> bool:
    """Whether it leads straight to whoever is behind a pod's device, or behind the bridge."""
    if route.kind != "unicast" or route.table != MAIN_TABLE or route.gateway is not None or route.dev is None:
        return False
    if route.dev == bridge:
        # What DHCP and routing daemons put there is the node's.
        return isinstance(route, ObservedRoute) and route.protocol in _BY_HAND
    return route.dev.startswith(_POD_DEVICE) and route.protocol not in (_KERNEL, OUR_PROTOCOL)


def _node_addresses(snapshot: Snapshot) -> dict[str, str]:
    """Addresses without which the node itself is cut off, each with the reason."""
    # In bridge mode the gateway lies inside podCidrs: pods and node share a subnet.
    hops = {route.gateway for route in snapshot.ipv4_routes}
    hops |= {hop.gateway for route in snapshot.ipv4_routes for hop in route.nexthops}
    gateways = {format_ipv4(hop) for hop in hops if hop is not None}
    gateways |= {route.gateway for route in snapshot.ipv6_routes if route.gateway is not None}
    addresses = {gateway: f"{gateway} is a gateway of the node" for gateway in gateways}
    for device in snapshot.devices:
        for text in device.addresses:
            address = text.partition("/")[0]
            addresses[address] = f"{address} is an address of the node itself, on {device.name}"
    return addresses


# --- who is alive


def _quiet_ports(snapshot: Snapshot, bridge: str) -> list[str]:
    """The ports of the bridge behind which some pod may be that nothing else tells of."""
    recorded = {endpoint.host_device for endpoint in snapshot.endpoints}
    pods = [device for device in snapshot.devices if device.master == bridge and device.name.startswith(_POD_DEVICE)]
    ports = [device.name for device in pods if device.up and device.name not in recorded]
    if not ports:
        return []
    telling = _holders(list(_candidates(snapshot, bridge)))
    heard = {station.dev for station in snapshot.stations if not station.permanent and station.mac in telling}
    return [port for port in ports if port not in heard]


class _Evidence:
    """What speaks for an address to be in use by a pod of azure-vnet."""

    def __init__(self, snapshot: Snapshot, candidates: Sequence[_Candidate], bridge: str) -> None:
        devices = {device.name for device in snapshot.devices}
        self._alive: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        for neighbour in snapshot.neighbours:
            if not neighbour.permanent and neighbour.dev in devices and neighbour.dev.startswith(_POD_DEVICE):
                self._alive[neighbour.address] = f"{neighbour.address} answers on {neighbour.dev}"
        for device, address in snapshot.answered:
            self._alive[address] = f"{address} answers on {device}"
        ports = {s.mac: s.dev for s in snapshot.stations if s.dev != bridge and not s.permanent}
        for mac, addresses in _holders(candidates).items():
            if mac in ports:
                for address in addresses:
                    self._alive[address] = f"{mac}, its hardware address, is learned on {ports[mac]}"
        for endpoint in snapshot.endpoints:
            # A record of a device that is gone was left behind, too.
            is_gone = bool(endpoint.host_device) and endpoint.host_device not in devices
            where = f"has an endpoint with it{f', on {endpoint.host_device}' if endpoint.host_device else ''}"
            for address in endpoint.addresses:
                (self._gone if is_gone else self._alive)[address] = f"azure-vnet's state {where}"

    def of_life(self, address: str) -> str | None:
        """Why the address must be taken to be in use; None if nothing says so."""
        return self._alive.get(address)

    def of_death(self, address: str) -> str:
        """Why nobody has it."""
        record = self._gone.get(address)
        return f"{record}, which is gone" if record else f"no live endpoint of azure-vnet has {address}"


def _holders(candidates: Sequence[_Candidate]) -> dict[str, list[str]]:
    """The addresses of each hardware address that tells pods apart: one address in each family at most."""
    addresses: defaultdict[str, set[str]] = defaultdict(set)
    for candidate in candidates:
        if candidate.mac is not None and candidate.address is not None and candidate.mac != TUNNEL_MAC:
            addresses[candidate.mac].add(candidate.address)
    return {
        mac: sorted(held)
        for mac, held in addresses.items()
        if sum(":" in address for address in held) <= 1 and sum(":" not in address for address in held) <= 1
    }
