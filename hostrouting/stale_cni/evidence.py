"""What speaks for an address or a hardware address: the node has it, a pod lives with it, nobody could be asked; pure.

That a pod lives is said by, the strongest first: azure-vnet's record of a pod whose device exists; an answer when
asked; a hardware address that such a record has, or that a bridge has learned on a port. A neighbour that the kernel
learned is no proof: it may have gone out of date long ago, and stays until its place is needed.

An address outlives its pod: the node, or another pod, may have it now. What leads to a hardware address that nobody
has is dead all the same. In tunnel mode all pods have one hardware address; there the address alone decides.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.stale_cni.forms import POD_DEVICE, TUNNEL_MAC
from hostrouting.stale_cni.state import apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.stale_cni.leftovers import Candidate
    from hostrouting.stale_cni.state import Endpoint
    from hostrouting.stale_cni.sweep import Snapshot

__all__ = ["Life", "NodeItself", "Obstacles"]


class NodeItself:
    """Addresses and hardware addresses without which the node itself is cut off."""

    def __init__(self, snapshot: Snapshot, bridge: str) -> None:
        # In bridge mode the gateway lies inside podCidrs: pods and node share a subnet.
        routes = (*snapshot.ipv4_routes, *snapshot.ipv6_routes)
        gateways = {gateway for route in routes for gateway in map(str, route.gateways)}
        self._gateways = {gateway: f"{gateway} is a gateway of the node" for gateway in gateways}
        self._addresses: dict[str, str] = {}
        self._macs: dict[str, str] = {}
        uplinks = {bridge, *(route.dev for route in routes if route.prefix_length == 0)}
        #: Addresses that the bridge stands for: azure-vnet makes rules for them that are no pod's.
        self._of_uplinks: set[str] = set()
        for device in snapshot.devices:
            for own in device.addresses:
                address = str(own.address)
                self._addresses[address] = f"{address} is an address of the node itself, on {device.name}"
                if device.name in uplinks or device.master == bridge:
                    self._of_uplinks.add(address)
            # An address may be away for a moment (DHCP renews it); what stands for it has the node's hardware address.
            if device.mac:
                self._macs[device.mac] = f"{device.mac} is a hardware address of the node itself, that of {device.name}"

    def needs(self, candidate: Candidate) -> str | None:
        """Why the node needs the object; None if it does not, which says nothing about pods."""
        address, mac = candidate.address or "", candidate.mac
        own = self._addresses.get(address)
        if address in self._gateways:
            return self._gateways[address]
        if mac in self._macs:
            return own or self._macs[mac]
        # Without a hardware address that tells pods apart, the address decides.
        return own if mac is None or (mac == TUNNEL_MAC and address in self._of_uplinks) else None

    def has(self, address: str) -> str | None:
        """Which device has the address; None if none has."""
        return self._addresses.get(address)


class Life:
    """What speaks for addresses and hardware addresses to be in use by pods of azure-vnet."""

    def __init__(self, snapshot: Snapshot, candidates: Sequence[Candidate], bridge: str) -> None:
        bridges = {bridge, *(device.name for device in snapshot.devices if device.kind == "bridge")}
        stations = [s for s in sorted(snapshot.stations) if s.dev not in bridges and not s.permanent]
        self._learned: defaultdict[str, set[str]] = defaultdict(set)
        for station in stations:
            self._learned[station.dev].add(station.mac)
        self._alive: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        #: Hardware addresses of the pod that has an address; none where they are not known.
        self._macs: defaultdict[str, set[str]] = defaultdict(set)
        #: The addresses that objects give to a hardware address which tells pods apart.
        self._addresses = _holders(candidates)
        #: The records of pods whose devices exist, and are no other pod's now.
        self.endpoints = self._living(snapshot)
        # The strongest last: it is the one that is told.
        self._heard({station.mac: station.dev for station in stations})
        self._recorded_macs()
        for device, address in sorted(snapshot.answered):
            self._alive[address] = f"{address} answers on {device}"
            self._macs[address] |= self._learned[device]
        for endpoint in self.endpoints:
            for address in endpoint.addresses:
                self._alive[address] = _recorded(endpoint)
                self._macs[address] |= self._macs_of(endpoint)
        self._held = {station.mac for station in stations}.union(*map(self._macs_of, self.endpoints))

    def sign_of(self, address: str) -> str | None:
        """Why the address must be taken to be in use by a pod; None if nothing says so."""
        return self._alive.get(address)

    def leads_nowhere(self, candidate: Candidate) -> bool:
        """Whether the object leads to a hardware address that no pod has, whichever pod has its address."""
        mac = candidate.mac
        if mac is None or mac == TUNNEL_MAC or mac in self._held:
            return False
        # A pod of which only the address is known may have it.
        holders = {candidate.address or "", *self._addresses.get(mac, ())}
        return all(self._macs[address] for address in holders if address in self._alive)

    def why_gone(self, address: str) -> str:
        """Why no pod has the address."""
        return self._gone.get(address) or f"no live endpoint of azure-vnet has {address}"

    def _living(self, snapshot: Snapshot) -> list[Endpoint]:
        """The records that protect; `_gone` gets the others, which were left behind, too."""
        devices = {device.name for device in snapshot.devices}
        living: list[Endpoint] = []
        for device, pods in apart(snapshot.endpoints).items():
            if device and device not in devices:
                superseded, reason = pods, "which is gone"
            else:
                # A device leads to one pod. If it is known which one, the records of others are dead.
                known = [pod for pod in pods if device and self._is_heard(device, pod)]
                known = known or [pod for pod in pods if device and _answers(snapshot, device, pod)]
                living += [endpoint for pod in known or pods for endpoint in pod]
                superseded = [pod for pod in pods if known and pod not in known]
                reason = "which is another pod's now"
            for pod in superseded:
                for endpoint in pod:
                    self._gone |= {address: f"{_recorded(endpoint)}, {reason}" for address in endpoint.addresses}
        return living

    def _is_heard(self, device: str, pod: Sequence[Endpoint]) -> bool:
        learned = self._learned[device] - {TUNNEL_MAC}
        return any(endpoint.mac in learned for endpoint in pod)

    def _heard(self, ports: dict[str, str]) -> None:
        for mac, held in self._addresses.items():
            if mac in ports and _is_of_one_pod(held):
                for address in held:
                    self._alive[address] = f"{mac}, its hardware address, is learned on {ports[mac]}"
                    self._macs[address].add(mac)

    def _recorded_macs(self) -> None:
        for endpoint in self.endpoints:
            for address in self._addresses.get(endpoint.mac, ()):
                self._alive[address] = (
                    f"azure-vnet's state has an endpoint with {endpoint.mac}, its hardware address{_on(endpoint)}"
                )
                self._macs[address].add(endpoint.mac)

    def _macs_of(self, endpoint: Endpoint) -> set[str]:
        """The hardware addresses of the pod, as far as they are known."""
        recorded = {endpoint.mac} - {"", TUNNEL_MAC}
        return recorded | self._learned[endpoint.host_device] if endpoint.host_device else recorded


class Obstacles:
    """Devices behind which a pod may be that nobody could ask."""

    def __init__(self, snapshot: Snapshot, endpoints: Iterable[Endpoint]) -> None:
        self._devices = {device.name for device in snapshot.devices}
        # A device whose pod's address is known is no other pod's; a record may leave out one of two families.
        known = {(endpoint.host_device, ":" in address) for endpoint in endpoints for address in endpoint.addresses}
        pods = sorted(device for device in snapshot.unasked if device.startswith(POD_DEVICE))
        self._of_family = {ipv6: [device for device in pods if (device, ipv6) not in known] for ipv6 in (False, True)}

    def to(self, candidate: Candidate) -> str | None:
        """Why nobody can tell whether a pod has the candidate's address; None if all were asked that matter."""
        address = candidate.address or ""
        devices = self._of_family[":" in address]
        device = None if isinstance(candidate.object, EbtablesRule) else candidate.object.dev
        if device is not None and device.startswith(POD_DEVICE):
            if device not in self._devices:
                return f"{device} went away, or got another name, while all this was read"
            devices = [device] if device in devices else []
        if not devices:
            return None
        first, *others = devices
        more = f", nor can {len(others)} more" if others else ""
        return f"whether a pod behind {first} has {address} cannot be asked without CAP_NET_RAW{more}"


def _answers(snapshot: Snapshot, device: str, pod: Sequence[Endpoint]) -> bool:
    return any((device, address) in snapshot.answered for endpoint in pod for address in endpoint.addresses)


def _holders(candidates: Iterable[Candidate]) -> dict[str, set[str]]:
    """The addresses of each hardware address that tells pods apart."""
    addresses: defaultdict[str, set[str]] = defaultdict(set)
    for candidate in candidates:
        if candidate.mac and candidate.address is not None and candidate.mac != TUNNEL_MAC:
            addresses[candidate.mac].add(candidate.address)
    return dict(addresses)


def _is_of_one_pod(addresses: Iterable[str]) -> bool:
    """Whether there is one address in each family at most."""
    families = [":" in address for address in addresses]
    return families.count(True) <= 1 and families.count(False) <= 1


def _recorded(endpoint: Endpoint) -> str:
    return f"azure-vnet's state has an endpoint with it{_on(endpoint)}"


def _on(endpoint: Endpoint) -> str:
    return f", on {endpoint.host_device}" if endpoint.host_device else ""
