"""What speaks for an address: that it is the node's, that a pod lives with it, or that nobody could be asked; pure.

That a pod lives is said by, the strongest first: azure-vnet's record of a pod whose device exists; who answered when
asked; a hardware address that such a record has, or that a bridge has learned on a port. A neighbour that the kernel
learned is no proof: it may have gone out of date long ago, and stands there until somebody needs the place.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hostrouting.host.ebtables_rules import EbtablesRule
from hostrouting.stale_cni.forms import POD_DEVICE
from hostrouting.stale_cni.gateways import gateways_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host import IPv6Route, ObservedRoute
    from hostrouting.stale_cni.azure_vnet import Endpoint
    from hostrouting.stale_cni.leftovers import Candidate
    from hostrouting.stale_cni.sweep import Snapshot

__all__ = ["Life", "NodeItself", "Obstacles"]

#: In tunnel mode azure-vnet gives it to every pod, and the fabric's router has it, too.
_TUNNEL_MAC: Final = "12:34:56:78:9a:bc"


class NodeItself:
    """Addresses and hardware addresses without which the node itself is cut off."""

    def __init__(self, snapshot: Snapshot) -> None:
        # In bridge mode the gateway lies inside podCidrs: pods and node share a subnet.
        routes: tuple[ObservedRoute | IPv6Route, ...] = (*snapshot.ipv4_routes, *snapshot.ipv6_routes)
        gateways = {gateway for route in routes for gateway in gateways_of(route)}
        self._addresses = {gateway: f"{gateway} is a gateway of the node" for gateway in gateways}
        self._macs: dict[str, str] = {}
        for device in snapshot.devices:
            for text in device.addresses:
                address = text.partition("/")[0]
                self._addresses[address] = f"{address} is an address of the node itself, on {device.name}"
            # An address may be away for a moment (DHCP renews it); what stands for it has the node's hardware address.
            if device.mac:
                self._macs[device.mac] = f"{device.mac} is a hardware address of the node itself, that of {device.name}"

    def has(self, candidate: Candidate) -> str | None:
        """Why the object is the node's; None if it is not."""
        return self._addresses.get(candidate.address or "") or self._macs.get(candidate.mac or "")


class Life:
    """What speaks for an address to be in use by a pod of azure-vnet."""

    def __init__(self, snapshot: Snapshot, candidates: Sequence[Candidate], bridge: str) -> None:
        self._devices = {device.name for device in snapshot.devices}
        self._alive: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        # The strongest last: it is the one that is told.
        addresses = _holders(candidates)
        self._heard(snapshot, addresses, bridge)
        self._recorded_macs(snapshot.endpoints, addresses)
        for device, address in sorted(snapshot.answered):
            self._alive[address] = f"{address} answers on {device}"
        for endpoint in snapshot.endpoints:
            # A record of a device that is gone was left behind, too.
            told = self._alive if self._exists(endpoint) else self._gone
            for address in endpoint.addresses:
                told[address] = f"azure-vnet's state has an endpoint with it{_on(endpoint)}"

    def sign_of(self, address: str) -> str | None:
        """Why the address must be taken to be in use; None if nothing says so."""
        return self._alive.get(address)

    def why_gone(self, address: str) -> str:
        """Why nobody has it."""
        record = self._gone.get(address)
        return f"{record}, which is gone" if record else f"no live endpoint of azure-vnet has {address}"

    def _heard(self, snapshot: Snapshot, addresses: dict[str, set[str]], bridge: str) -> None:
        bridges = {bridge, *(device.name for device in snapshot.devices if device.kind == "bridge")}
        ports = {s.mac: s.dev for s in sorted(snapshot.stations) if s.dev not in bridges and not s.permanent}
        for mac, held in addresses.items():
            if mac in ports and _is_of_one_pod(held):
                for address in held:
                    self._alive[address] = f"{mac}, its hardware address, is learned on {ports[mac]}"

    def _recorded_macs(self, endpoints: Iterable[Endpoint], addresses: dict[str, set[str]]) -> None:
        for endpoint in endpoints:
            if self._exists(endpoint):
                for address in addresses.get(endpoint.mac, ()):
                    self._alive[address] = (
                        f"azure-vnet's state has an endpoint with {endpoint.mac}, its hardware address{_on(endpoint)}"
                    )

    def _exists(self, endpoint: Endpoint) -> bool:
        return not endpoint.host_device or endpoint.host_device in self._devices


class Obstacles:
    """Devices behind which a pod may be that nobody could ask."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._devices = {device.name for device in snapshot.devices}
        # A device whose pod's address is known is no other pod's; a record may leave out one of two families.
        known = {
            (endpoint.host_device, ":" in address) for endpoint in snapshot.endpoints for address in endpoint.addresses
        }
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


def _holders(candidates: Iterable[Candidate]) -> dict[str, set[str]]:
    """The addresses of each hardware address that tells pods apart."""
    addresses: defaultdict[str, set[str]] = defaultdict(set)
    for candidate in candidates:
        if candidate.mac and candidate.address is not None and candidate.mac != _TUNNEL_MAC:
            addresses[candidate.mac].add(candidate.address)
    return dict(addresses)


def _is_of_one_pod(addresses: Iterable[str]) -> bool:
    """Whether there is one address in each family at most."""
    families = [":" in address for address in addresses]
    return families.count(True) <= 1 and families.count(False) <= 1


def _on(endpoint: Endpoint) -> str:
    return f", on {endpoint.host_device}" if endpoint.host_device else ""
