"""A snapshot of a node -> a verdict on each object that azure-vnet may have left; pure.

An object is stale only if nothing suggests that its pod lives, and only if it is understood. These
prove that a pod lives, the strongest first: azure-vnet's record of a pod whose device exists; an
answer to a probe; a hardware address that such a record has, or that a bridge has learned on a
port. A learned neighbour proves nothing: the kernel keeps it until its place is needed, long after
it was true.

An address outlives its pod: the node or another pod may have it now. An object that leads to a
hardware address which no device has is stale all the same. In tunnel mode all pods share one
hardware address, so there the address decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hostrouting.azure.stale_cni.azure_vnet import POD_DEVICE, TUNNEL_MAC, Endpoint, pods_by_device
from hostrouting.azure.stale_cni.journal import Restorable, object_to_mapping
from hostrouting.azure.stale_cni.leftovers import (
    OF_NODE,
    OF_OTHER_NODE,
    Candidate,
    Snapshot,
    candidates,
    identity,
    pod_devices,
)
from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host.ports import LinkAddress

Kind = Literal["stale", "live", "node", "unknown"]


class Verdict(NamedTuple):
    """The kind of an object, and the reason; `address` is the pod's, if it was made for a pod."""

    object: Restorable
    kind: Kind
    address: str | None
    reason: str

    @property
    def removal(self) -> Change:
        """The removal of a stale object, for a report."""
        return Change("-", str(self.object), self.reason)

    def to_mapping(self) -> dict[str, Any]:
        """Return the verdict for JSON and for log records, with the `details` of the journal."""
        details = object_to_mapping(self.object)
        return {**self._asdict(), "object": str(self.object), "details": details}


def judge(snapshot: Snapshot, *, pod_cidrs: Sequence[str], bridge: str) -> tuple[Verdict, ...]:
    """Return a verdict on each object in the nat table, on the bridge and on pods' devices.

    >>> from hostrouting.host import Neighbour
    >>> from hostrouting.azure.stale_cni.leftovers import Snapshot
    >>> neighbour = Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True)
    >>> snapshot = Snapshot(neighbours=(neighbour,))
    >>> verdict, = judge(snapshot, pod_cidrs=["10.240.0.0/16"], bridge="azure0")
    >>> verdict.kind, verdict.reason
    ('stale', 'no live endpoint of azure-vnet has 10.240.0.9')

    An object that was not certainly made for one pod is `unknown`, and so is one whose pod could
    not be probed.
    """
    pods = [*map(Prefix.parse, pod_cidrs)]
    leftovers = list(candidates(snapshot, pods, bridge))
    node = _Node(snapshot, bridge)
    life = _Life(snapshot, leftovers, bridge)

    def verdict(candidate: Candidate) -> Verdict:
        leftover, address, mac, oddity = candidate
        if address is None or oddity == OF_OTHER_NODE:
            kind: Kind = "node" if oddity in (OF_NODE, OF_OTHER_NODE) else "unknown"
            return Verdict(leftover, kind, address, oddity)
        if of_node := node.needs(candidate):
            return Verdict(leftover, "node", address, of_node)
        if not any(pod.covers(Address.parse(address)) for pod in pods):
            return Verdict(leftover, "unknown", address, f"{address} is outside podCidrs")
        sign = life.signs.get(address)
        own = node.addresses.get(address)
        if not (sign or own):
            reason = life.dead.get(address) or f"no live endpoint of azure-vnet has {address}"
        elif life.leads_nowhere(candidate):
            reason = f"no device and no pod has {mac}, to which it leads; {sign or own}"
        elif sign:
            return Verdict(leftover, "live", address, sign)
        elif mac == TUNNEL_MAC:
            reason = f"it was made for a pod, and {own}"
        else:
            return Verdict(leftover, "node", address, str(own))
        unclear = oddity or life.doubt(candidate)
        return Verdict(leftover, "unknown" if unclear else "stale", address, unclear or reason)

    return tuple(map(verdict, leftovers))


def to_probe(snapshot: Snapshot, verdicts: Sequence[Verdict], *, bridge: str) -> list[LinkAddress]:
    """Return the (device, address) to probe before anything counts as stale, each once.

    Only pods' devices that are up with a carrier are probed; on the bridge, Azure's fabric would
    answer for every address. For a rule, and for an object on the bridge, all of them are, since
    any may lead to the pod. Also probed are recorded pods without a known hardware address, and all
    pods that are recorded for one device.
    """
    up = [device.name for device in pod_devices(snapshot.devices) if device.up and device.carrier]
    targets: list[LinkAddress] = []
    for leftover, kind, address, _ in verdicts:
        if kind == "stale" and address is not None:
            dev = None if isinstance(leftover, EbtablesRule) else leftover.dev
            targets += ((device, address) for device in up if dev in (None, bridge, device))
    live = {verdict.address for verdict in verdicts if verdict.kind == "live"}
    learned = {station.dev for station in snapshot.stations if not station.permanent}
    for device, pods in pods_by_device(snapshot.endpoints).items():
        endpoints = [endpoint for pod in pods for endpoint in pod]
        addresses = [address for endpoint in endpoints for address in endpoint.addresses]
        is_known = device in learned or any(endpoint.own_macs for endpoint in endpoints)
        if device in up and not live.isdisjoint(addresses) and (len(pods) > 1 or not is_known):
            targets += ((device, address) for address in addresses)
    return list(dict.fromkeys(targets))


def agree(readings: Sequence[Sequence[Verdict]]) -> tuple[list[Verdict], list[Verdict]]:
    """Return the stale objects that all readings have as often as the last one, and the rest.

    Another program is changing the rest.
    """
    every = {identity(verdict.object): verdict for reading in readings for verdict in reading}
    counts = [Counter(identity(verdict.object) for verdict in reading) for reading in readings]
    # The objects that each reading has equally often.
    steady = {key for key in every if len({count[key] for count in counts}) == 1}
    stale = [verdict for verdict in readings[-1] if identity(verdict.object) in steady]
    return stale, [verdict for key, verdict in every.items() if key not in steady]


# --- the evidence


class _Node:
    """The addresses and hardware addresses without which the node itself is cut off."""

    def __init__(self, snapshot: Snapshot, bridge: str) -> None:
        # In bridge mode pods and node share a subnet, so the gateway is inside podCidrs.
        gateways = {route.gateway for route in snapshot.routes}
        gateways |= {hop.gateway for route in snapshot.routes for hop in route.nexthops}
        self._gateways = {str(gateway) for gateway in gateways}
        uplinks = {bridge, *(route.dev for route in snapshot.routes if not route.prefix_length)}
        #: For each address of the node, a sentence with its device.
        self.addresses: dict[str, str] = {}
        self._macs: dict[str, str] = {}
        #: azure-vnet also makes rules for these, and no pod has them.
        self._of_uplinks: set[str] = set()
        for device in snapshot.devices:
            for own in device.addresses:
                address = str(own.address)
                self.addresses[address] = (
                    f"{address} is an address of the node itself, on {device.name}"
                )
                if device.name in uplinks or device.master == bridge:
                    self._of_uplinks.add(address)
            # DHCP may renew an address, which is absent meanwhile; the hardware address stays.
            if device.mac:
                self._macs[device.mac] = device.name

    def needs(self, candidate: Candidate) -> str | None:
        """Return why the node needs the object; None if it does not, even if a pod does."""
        address = candidate.address or ""
        mac = candidate.mac
        own = self.addresses.get(address)
        if address in self._gateways:
            return f"{address} is a gateway of the node"
        if mac in self._macs:
            return own or (
                f"{mac} is a hardware address of the node itself, that of {self._macs[mac]}"
            )
        # Without a hardware address that distinguishes pods, the address decides.
        return own if mac is None or (mac == TUNNEL_MAC and address in self._of_uplinks) else None


class _Life:
    """The signs that pods of azure-vnet use addresses and hardware addresses."""

    def __init__(self, snapshot: Snapshot, candidates: Sequence[Candidate], bridge: str) -> None:
        bridges = {bridge, *(device.name for device in snapshot.devices if device.kind == "bridge")}
        stations = [
            station
            for station in sorted(snapshot.stations)
            if not station.permanent and station.dev not in bridges
        ]
        self._learned: defaultdict[str, set[str]] = defaultdict(set)
        for station in stations:
            self._learned[station.dev].add(station.mac)
        #: For each address in use by a pod, the strongest sign of it.
        self.signs: dict[str, str] = {}
        #: For the addresses of dead records, why they are dead.
        self.dead: dict[str, str] = {}
        #: The known hardware addresses of the pod that has an address.
        self._macs: defaultdict[str, set[str]] = defaultdict(set)
        #: The addresses that objects give to a hardware address, if it distinguishes pods.
        self._addresses: defaultdict[str, set[str]] = defaultdict(set)
        for candidate in candidates:
            if candidate.mac and candidate.address is not None and candidate.mac != TUNNEL_MAC:
                self._addresses[candidate.mac].add(candidate.address)
        self._devices = {device.name for device in snapshot.devices}
        # The records of pods whose device exists and is not another pod's now.
        living = self._living(snapshot)
        # From the weakest sign to the strongest: the last one stays.
        for station in stations:
            addresses = self._addresses.get(station.mac, ())
            families = [_family_of(address) for address in addresses]
            # One pod has at most one address of each family.
            if len(families) == len(set(families)):
                sign = f"{station.mac}, its hardware address, is learned on {station.dev}"
                self._add_sign(addresses, sign, {station.mac})
        for record in living:
            sign = _recorded(record, f"{record.mac}, its hardware address")
            self._add_sign(self._addresses.get(record.mac, ()), sign, {record.mac})
        for device, address in sorted(snapshot.answered):
            self._add_sign([address], f"{address} answers on {device}", self._learned[device])
        for record in living:
            self._add_sign(record.addresses, _recorded(record), self._macs_of(record))
        macs = {station.mac for station in stations}
        self._in_use = macs.union(*map(self._macs_of, living))

    def leads_nowhere(self, candidate: Candidate) -> bool:
        """Return True if the object leads to a hardware address that no pod has."""
        mac = candidate.mac
        if mac is None or mac == TUNNEL_MAC or mac in self._in_use:
            return False
        # A pod of which only the address is known may have it.
        holders = {candidate.address or "", *self._addresses.get(mac, ())}
        return all(self._macs[address] for address in holders if address in self.signs)

    def doubt(self, candidate: Candidate) -> str | None:
        """Return why it is unknown if a pod has the candidate's address; None if it is known."""
        device = None if isinstance(candidate.object, EbtablesRule) else candidate.object.dev
        if device is None or not device.startswith(POD_DEVICE) or device in self._devices:
            return None
        return f"{device} was removed or renamed while all this was read"

    def _add_sign(self, addresses: Iterable[str], sign: str, macs: set[str]) -> None:
        for address in addresses:
            self.signs[address] = sign
            self._macs[address] |= macs

    def _living(self, snapshot: Snapshot) -> list[Endpoint]:
        """Return the records that protect; `dead` gets the addresses of the rest."""
        living = []
        for device, pods in pods_by_device(snapshot.endpoints).items():
            known: Sequence[Sequence[Endpoint]] = []
            reason = "which is gone"
            if not device or device in self._devices:
                answered = {address for dev, address in snapshot.answered if dev == device}
                known = _pods_behind(pods, self._learned[device], answered)
                reason = "which is another pod's now"
            for pod in pods:
                if pod in known:
                    living += pod
                    continue
                for record in pod:
                    self.dead |= dict.fromkeys(record.addresses, f"{_recorded(record)}, {reason}")
        return living

    def _macs_of(self, endpoint: Endpoint) -> set[str]:
        return endpoint.own_macs | self._learned[endpoint.host_device]


def _pods_behind(
    pods: Sequence[Sequence[Endpoint]], macs: set[str], answered: set[str]
) -> Sequence[Sequence[Endpoint]]:
    """Return the pods to which a device may lead.

    A device leads to one pod: to that which has a hardware address that is learned there, or else
    an address that answers there. Without such a sign it may lead to each.
    """
    by_mac = []
    by_answer = []
    for pod in pods:
        if not macs.isdisjoint(chain.from_iterable(record.own_macs for record in pod)):
            by_mac.append(pod)
        if not answered.isdisjoint(chain.from_iterable(record.addresses for record in pod)):
            by_answer.append(pod)
    return by_mac or by_answer or pods


def _family_of(address: str) -> int:
    return IPV6 if ":" in address else IPV4


def _recorded(endpoint: Endpoint, sign: str = "it") -> str:
    on = f", on {endpoint.host_device}" if endpoint.host_device else ""
    return f"azure-vnet's state has an endpoint with {sign}{on}"
