"""Judge each rule and neighbour in a snapshot that azure-vnet may have left behind; pure.

azure-vnet's records and the devices of the node show which pods exist. A record counts if its
`azv*` device exists, or if it names none. An entry for a pod is

    node     if its address is a gateway or on an uplink, or a device of the node has its MAC
    live     if a bridge has learned its MAC on a port, or if a record has its MAC or its address
    unknown  if it may belong to a pod that is not fully recorded
    stale    otherwise

If a record has the address but its own, different MAC, and nothing has the entry's MAC, then the
entry is stale: it diverts packets from the pod that has the address now. In tunnel mode all pods
share one MAC, so only the address counts.

A rule is considered azure-vnet's only if it has exactly the options of one of its forms. A rule
with another option, or with a negated one, belongs to another program.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from hostrouting.azure.stale_cni.azure_vnet import POD_DEVICE, TUNNEL_MAC, Endpoint
from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, parse_address
from hostrouting.net.links import Device, Neighbour, Station
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Leftover: TypeAlias = EbtablesRule | Neighbour
Kind = Literal["stale", "live", "node", "unknown"]


class Verdict(NamedTuple):
    """The kind of an entry, and why; `address` is that of the pod, if it was made for one."""

    object: Leftover
    kind: Kind
    address: str | None
    reason: str

    @property
    def removal(self) -> Change:
        """The removal of a stale entry, for a report."""
        return Change("-", str(self.object), self.reason)

    def to_mapping(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {**self._asdict(), "object": str(self.object)}


@attrs.frozen(kw_only=True)
class Snapshot:
    """What the cleanup needs to know about a node, at one time."""

    #: The ebtables table `nat` of all backends.
    rules: tuple[EbtablesRule, ...] = ()
    #: The neighbours of all devices and both families, including learned ones.
    neighbours: tuple[Neighbour, ...] = ()
    devices: tuple[Device, ...] = ()
    #: The forwarding databases of all bridges.
    stations: tuple[Station, ...] = ()
    #: The gateways of all routes, as text.
    gateways: frozenset[str] = frozenset()
    #: The devices of default routes.
    uplinks: frozenset[str] = frozenset()
    #: The pods in the records of azure-vnet and of CNS.
    endpoints: tuple[Endpoint, ...] = ()


class Judgement(NamedTuple):
    """The verdicts on a snapshot."""

    verdicts: tuple[Verdict, ...]
    #: The `azv*` devices without a record, if entries that look stale may belong to their pods.
    unrecorded: tuple[str, ...] = ()


def judge(snapshot: Snapshot, *, pod_cidrs: Sequence[str], bridge: str) -> Judgement:
    """Judge each rule of the table `nat` and each neighbour that a program added.

    >>> neighbour = Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True)
    >>> snapshot = Snapshot(neighbours=(neighbour,))
    >>> (verdict,), _ = judge(snapshot, pod_cidrs=["10.240.0.0/16"], bridge="azure0")
    >>> verdict.kind, verdict.reason
    ('stale', 'no record of a live pod, bridge port or device has aa:bb:cc:00:00:09')
    """
    entries = [*_entries(snapshot, bridge)]
    owners = _Owners(snapshot, entries, bridge)
    pods = [Prefix.parse(cidr) for cidr in pod_cidrs]
    verdicts = tuple(_verdict(entry, owners, pods) for entry in entries)
    recorded = {endpoint.host_device for endpoint in snapshot.endpoints}
    unrecorded = tuple(
        device.name
        for device in snapshot.devices
        if device.name.startswith(POD_DEVICE) and device.name not in recorded
    )
    if not unrecorded or all(verdict.kind != "stale" for verdict in verdicts):
        return Judgement(verdicts)
    # Any of the entries may belong to the pod of such a device.
    reason = f"it may belong to the pod of {unrecorded[0]}, which no record names"
    doubted = (
        verdict._replace(kind="unknown", reason=reason) if verdict.kind == "stale" else verdict
        for verdict in verdicts
    )
    return Judgement(tuple(doubted), unrecorded)


# --- entries


class _Entry(NamedTuple):
    """A rule or a neighbour that azure-vnet may have added."""

    object: Leftover
    #: That of the pod; None if it was not made for a single address.
    address: str | None = None
    mac: str = ""
    #: Why it may not be an entry for a pod; empty if it certainly is.
    oddity: str = ""
    #: True if the node itself needs it.
    is_of_node: bool = False


def _entries(snapshot: Snapshot, bridge: str) -> Iterator[_Entry]:
    for rule in snapshot.rules:
        if pod := read_pod_rule(rule):
            yield _Entry(rule, *pod)
        elif is_of_node(rule):
            yield _Entry(rule, oddity=_OF_NODE, is_of_node=True)
        else:
            yield _Entry(rule, oddity="it is not one of the rules that azure-vnet adds for a pod")
    for neighbour in snapshot.neighbours:
        leads_to_pod = neighbour.dev == bridge or neighbour.dev.startswith(POD_DEVICE)
        if neighbour.permanent and leads_to_pod:
            yield _neighbour_entry(neighbour)


def _neighbour_entry(neighbour: Neighbour) -> _Entry:
    entry = _Entry(neighbour, neighbour.address, neighbour.mac)
    if neighbour.mac == TUNNEL_MAC:
        return entry._replace(oddity=_OF_OTHER_NODE, is_of_node=True)
    if neighbour.protocol or neighbour.flags:
        return entry._replace(oddity="it has a protocol or flags, but azure-vnet sets none")
    return entry


def _verdict(entry: _Entry, owners: _Owners, pods: Sequence[Prefix]) -> Verdict:
    address, mac = entry.address, entry.mac
    kind: Kind
    if entry.oddity or address is None:
        kind = "node" if entry.is_of_node else "unknown"
        reason = entry.oddity
    elif of_node := owners.of_node(address, mac):
        kind, reason = "node", of_node
    elif not any(pod.covers(Address.parse(address)) for pod in pods):
        kind, reason = "unknown", f"{address} is outside podCidrs"
    elif sign := owners.sign_of_life(address, mac):
        kind, reason = "live", sign
    elif doubt := owners.doubt(address, mac):
        kind, reason = "unknown", doubt
    else:
        kind, reason = "stale", owners.why_stale(address, mac)
    return Verdict(entry.object, kind, address, reason)


# --- owners


class _Owners:
    """Who owns addresses and hardware addresses: the node, or pods of azure-vnet."""

    def __init__(self, snapshot: Snapshot, entries: Iterable[_Entry], bridge: str) -> None:
        self._gateways = snapshot.gateways
        names = {device.name for device in snapshot.devices}
        #: The devices of the node by their hardware addresses, and by their addresses.
        self._by_mac = {device.mac: device.name for device in snapshot.devices if device.mac}
        self._by_address: dict[str, str] = {}
        self._on_uplinks: set[str] = set()
        for device in snapshot.devices:
            own = {str(address.address) for address in device.addresses}
            self._by_address |= dict.fromkeys(own, device.name)
            if device.name in snapshot.uplinks or bridge in (device.name, device.master):
                self._on_uplinks |= own
        #: The ports on which bridges have learned hardware addresses.
        bridges = {bridge, *(device.name for device in snapshot.devices if device.kind == "bridge")}
        self._learned = {
            station.mac: station.dev
            for station in snapshot.stations
            if not station.permanent and station.dev not in bridges
        }
        #: The records that count, by their hardware addresses, and by their addresses.
        self._of_mac: defaultdict[str, list[Endpoint]] = defaultdict(list)
        self._of_address: defaultdict[str, list[Endpoint]] = defaultdict(list)
        #: The records without an address, by family.
        self._without: dict[int, list[Endpoint]] = {IPV4: [], IPV6: []}
        for record in snapshot.endpoints:
            if record.host_device and record.host_device not in names:
                continue
            self._of_mac[record.mac].append(record)
            for address in record.addresses:
                self._of_address[address].append(record)
            for family in {IPV4, IPV6}.difference(map(_family_of, record.addresses)):
                self._without[family].append(record)
        #: Hardware addresses that do not belong to a single pod.
        self._shared = {"", TUNNEL_MAC}
        for mac, records in self._of_mac.items():
            if len({record.host_device for record in records}) > 1:
                self._shared.add(mac)
        # A pod has at most one address of each family.
        given = {(entry.mac, entry.address) for entry in entries if entry.address is not None}
        times = Counter((mac, _family_of(address)) for mac, address in given)
        #: Hardware addresses that entries assign to several pods, as in tunnel mode.
        self._given_often = {mac for (mac, _), count in times.items() if count > 1}

    def of_node(self, address: str, mac: str) -> str | None:
        """Return why the node itself needs an entry; None if it does not."""
        if address in self._gateways:
            return f"{address} is a gateway of the node"
        # An address may be missing while DHCP renews it, but the hardware address stays.
        if mac in self._by_mac:
            return f"{mac} is the hardware address of {self._by_mac[mac]}"
        if address in self._on_uplinks or not self._decides(mac):
            return self._own(address)
        return None

    def sign_of_life(self, address: str, mac: str) -> str | None:
        """Return why a pod of azure-vnet may need an entry; None if nothing suggests that."""
        if mac not in self._shared:
            if mac in self._learned:
                return f"{mac} is learned on {self._learned[mac]}"
            for record in self._of_mac.get(mac, ()):
                return f"{record} has {mac}"
        for record in self._of_address.get(address, ()):
            # If the record has its own hardware address, it is another pod.
            if record.mac in self._shared or not self._decides(mac):
                return f"{record} has {address}"
        return None

    def doubt(self, address: str, mac: str) -> str | None:
        """Return why the entry may belong to a pod with an incomplete record, or None."""
        for record in self._without[_family_of(address)]:
            if not self._decides(mac) or record.mac in self._shared:
                return f"{record} has no address of this family and may be for the same pod"
        return None

    def why_stale(self, address: str, mac: str) -> str:
        """Return the reason for the verdict, if the other methods returned None."""
        if mac in self._shared:
            return f"no record of a live pod has {address}"
        own = self._own(address)
        reason = f"no record of a live pod, bridge port or device has {mac}"
        return f"{reason}; {own}" if own else reason

    def _own(self, address: str) -> str | None:
        device = self._by_address.get(address)
        return f"{address} is an address of {device}" if device else None

    def _decides(self, mac: str) -> bool:
        """Return True if the hardware address of an entry identifies its pod."""
        return mac not in self._shared and mac not in self._given_often


def _family_of(address: str) -> int:
    return IPV6 if ":" in address else IPV4


# --- ebtables rules

_OF_NODE: Final = "the node itself and every pod on the bridge need it"
_OF_OTHER_NODE: Final = f"ip-masq-agent adds neighbours with {TUNNEL_MAC} for other nodes"


def _forms(*lines: str) -> tuple[tuple[str, dict[str, str]], ...]:
    rules = (EbtablesRule.parse(line, backend="") for line in lines)
    return tuple((rule.chain, rule.options) for rule in rules)


#: The placeholders for any value in the forms below.
_FREE = frozenset({"address", "mac", "uplink"})
_FOR_POD = _forms(
    "-A PREROUTING -p ARP --arp-op Request --arp-ip-dst address -j arpreply --arpreply-mac mac",
    "-A PREROUTING -p IPv4 -i uplink --ip-dst address -j dnat --to-dst mac",
    "-A PREROUTING -p IPv6 -i uplink --ip6-dst address -j dnat --to-dst mac",
)
_FOR_NODE = _forms(
    "-A POSTROUTING -s unicast -o uplink -j snat --to-src mac --snat-arp",
    "-A PREROUTING -p ARP -i uplink --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff",
    # In tunnel mode, all traffic of pods and bridge goes to the fabric.
    f"-A PREROUTING -i uplink -j dnat --to-dst {TUNNEL_MAC}",
)


def read_pod_rule(rule: EbtablesRule) -> tuple[str, str] | None:
    """Return the address and hardware address of the pod that a rule was made for, or None.

    >>> from hostrouting.host import EbtablesRule
    >>> target = "dnat --to-dst aa:bb:cc:0:0:9 --dnat-target ACCEPT"
    >>> line = f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.9 -j {target}"
    >>> read_pod_rule(EbtablesRule.parse(line, backend="nft"))
    ('10.240.0.9', 'aa:bb:cc:00:00:09')
    """
    values = _free_values(rule, _FOR_POD)
    if values is None:
        return None
    # Not every form has an uplink. A pattern (`eth+`), a pod's device, and a name that
    # ebtables-restore may misread are not uplinks.
    uplink = values.get("uplink", "any")
    if not re.fullmatch(r"[\w.:-]+", uplink, re.ASCII) or uplink.startswith(POD_DEVICE):
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
    """Return the values of the placeholders if a rule has exactly the options of a form."""
    options = rule.options
    for chain, form in forms:
        free = {word: options.get(name, "") for name, word in form.items() if word in _FREE}
        expected = {name: free.get(word, word) for name, word in form.items()}
        if rule.chain == chain and options == expected:
            return free
    return None
