"""What was seen -> a verdict on each object that azure-vnet may have left behind, with its reason; pure.

The cautious answer is the right one: what may be alive is kept, and what is not understood is not touched. Which
objects there are is `leftovers`' business, and who is alive that of `evidence`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import Networks
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute
from hostrouting.stale_cni.evidence import Life, NodeItself, Obstacles
from hostrouting.stale_cni.forms import POD_DEVICE, TUNNEL_MAC
from hostrouting.stale_cni.leftovers import OF_NODE, OF_OTHER_NODE, Candidate, candidates
from hostrouting.stale_cni.state import apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Device, Station
    from hostrouting.stale_cni.state import Endpoint

__all__ = [
    "Agreement",
    "Kind",
    "Leftover",
    "Snapshot",
    "Verdict",
    "agree",
    "identity",
    "judge",
    "pod_devices",
    "questions",
    "subject",
]

Kind = Literal["stale", "live", "node", "unknown"]
#: What may be left behind.
Leftover = EbtablesRule | Neighbour | ObservedRoute


@attrs.frozen(kw_only=True)
class Snapshot:
    """What was seen of a node at one time."""

    #: The ebtables table `nat`, of all backends.
    rules: tuple[EbtablesRule, ...] = ()
    #: Of all devices and both families, the learned ones included.
    neighbours: tuple[Neighbour, ...] = ()
    ipv4_routes: tuple[ObservedRoute, ...] = ()
    ipv6_routes: tuple[ObservedRoute, ...] = ()
    devices: tuple[Device, ...] = ()
    #: What every bridge has learned.
    stations: tuple[Station, ...] = ()
    #: What azure-vnet's own state says.
    endpoints: tuple[Endpoint, ...] = ()
    #: Who answered when asked on the link: (device, address); see `questions`.
    answered: frozenset[tuple[str, str]] = frozenset()
    #: The pods' devices on which nobody could be asked, for lack of privilege.
    unasked: frozenset[str] = frozenset()


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
    `unknown`, and so is what a pod may have that could not be asked.
    """
    pods = Networks(pod_cidrs)
    found = list(candidates(snapshot, pods, bridge))
    node = NodeItself(snapshot, bridge)
    life = Life(snapshot, found, bridge)
    obstacles = Obstacles(snapshot, life.endpoints)

    def verdict(candidate: Candidate) -> Verdict:
        leftover, address, _, oddity = candidate
        if address is None or oddity == OF_OTHER_NODE:
            return Verdict(leftover, "node" if oddity in (OF_NODE, OF_OTHER_NODE) else "unknown", address, oddity)
        if of_node := node.needs(candidate):
            return Verdict(leftover, "node", address, of_node)
        if address not in pods:
            return Verdict(leftover, "unknown", address, f"{address} is outside podCidrs")
        kind, reason = _owned(candidate, address, node, life)
        unclear = (oddity or obstacles.to(candidate)) if kind == "stale" else None
        return Verdict(leftover, "unknown" if unclear else kind, address, unclear or reason)

    return tuple(map(verdict, found))


def _owned(candidate: Candidate, address: str, node: NodeItself, life: Life) -> tuple[Kind, str]:
    """Whose the object is, and why; `stale` if it leads to nobody."""
    nobodys = f"no device and no pod has {candidate.mac}, to which it leads"
    if sign := life.sign_of(address):
        return ("stale", f"{nobodys}; {sign}") if life.leads_nowhere(candidate) else ("live", sign)
    own = node.has(address)
    if own is None:
        return "stale", life.why_gone(address)
    if candidate.mac == TUNNEL_MAC:
        return "stale", f"it was made for a pod, and {own}"
    return ("stale", f"{nobodys}; {own}") if life.leads_nowhere(candidate) else ("node", own)


def questions(snapshot: Snapshot, verdicts: Sequence[Verdict], *, bridge: str) -> list[tuple[str, str]]:
    """Who is to be asked, before anything is taken for stale: (device, address), each once.

    Only on pods' devices that are up, and can be asked: on the bridge Azure's fabric would answer for everybody. On all
    of them, for a rule or for what is on the bridge: which pod is behind which is not to be guessed. Also asked is the
    pod of a record whose hardware address is not known, and which pod a device leads to that has records of several.
    """
    up = [device.name for device in pod_devices(snapshot) if device.up and device.carrier]
    asked: dict[tuple[str, str], None] = {}
    for found, kind, address, _ in verdicts:
        if kind != "stale" or address is None:
            continue
        dev = None if isinstance(found, EbtablesRule) else found.dev
        devices = up if dev in (None, bridge) else [name for name in up if name == dev]
        asked.update(dict.fromkeys((device, address) for device in devices))
    named = {verdict.address for verdict in verdicts if verdict.kind == "live"}
    heard = {station.dev for station in snapshot.stations if not station.permanent}
    for device, pods in apart(snapshot.endpoints).items():
        addresses = [address for pod in pods for endpoint in pod for address in endpoint.addresses]
        is_known = any(endpoint.mac not in ("", TUNNEL_MAC) for pod in pods for endpoint in pod) or device in heard
        if device in up and not named.isdisjoint(addresses) and (len(pods) > 1 or not is_known):
            asked.update(dict.fromkeys((device, address) for address in addresses))
    return list(asked)


def pod_devices(snapshot: Snapshot) -> list[Device]:
    """The hosts' ends of pods' veth pairs, be they up or down, and ports of a bridge or not."""
    return [device for device in snapshot.devices if device.name.startswith(POD_DEVICE)]


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
