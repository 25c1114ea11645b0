"""A first config for this node: what the node itself shows, each value with where it came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hostrouting.base.errors import HostFileError, UnitError
from hostrouting.boot.gates import AGENTS, agents
from hostrouting.config.rules import destination, expected_cidr, refuse_local
from hostrouting.config.sections import DEFAULT_GATES, HostRoutingConfig
from hostrouting.net.addresses import (
    FAMILY_NAMES,
    IPV4,
    Address,
    Prefix,
    address_bits,
    is_device_name,
)
from hostrouting.net.routes import default_routes
from hostrouting.node.capabilities import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.host import Host
    from hostrouting.net.links import Device
    from phases import Context

_SERVER = re.compile(r"^ *server: *(?i:https?)://\[?([^\s/]+?)\]?(?::\d+)?(?:/.*)?$", re.MULTILINE)
#: What a joined node names in its files: no YAML is parsed, only lines of this form are read.
_NAMED = (
    (re.compile(r"^clusterDNS:((?:\n *- +\S+)+)", re.MULTILINE), "/var/lib/kubelet/config.yaml"),
    (_SERVER, "/var/lib/kubelet/kubeconfig"),
    (_SERVER, "/etc/kubernetes/kubelet.conf"),
)
#: Quotes, comments and blanks, which change no value. A long run of blanks is read once.
_DECORATION = re.compile(r"[\"']|(?<!\s)\s+(?:#.*)?$", re.MULTILINE)
_LARGEST = 1 << 20


def first_config(
    ctx: Context, host: Host, cidrs: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return a WARN config for this node, and a line on each value, found or missing."""
    expected = list(map(_new_cidr, cidrs))
    lines = [f"{cidr}: given" for cidr in expected]
    expected += _named_addresses(host, lines)
    overlap: dict[str, Any] = {"mode": "WARN", "expectedCidrs": [*dict.fromkeys(expected)]}
    if devs := _devices(host, lines):
        overlap["expectedDevs"] = devs
    more: dict[str, Any] = {}
    for capability in CAPABILITIES:
        if capability.first is not None:
            more[capability.section], line = capability.first(host)
            lines.append(line)
    more["gates"], line = _gates(ctx, host)
    lines.append(line)
    known = {name: value for name, value in more.items() if value is not None}
    lines.append("missing: CIDRs of services, pods and API server not listed; give them by --cidr")
    rest = HostRoutingConfig(**known).to_mapping()
    return {"hostRouting": {"routeOverlap": overlap, **rest}}, lines


def _named_addresses(host: Host, lines: list[str]) -> Iterator[str]:
    """Yield the addresses that files of this node name, with a line on each."""
    own = _own_addresses(host)
    for pattern, path in _NAMED:
        try:
            content = host.files.read(path, limit=_LARGEST) or b""
        except HostFileError as error:
            lines.append(f"missing: {error}")
            continue
        text = _DECORATION.sub("", content.decode(errors="replace"))
        # The last line of a part of a file may be half an address.
        blocks = pattern.findall(text) if len(content) < _LARGEST else ()
        if content and not blocks:
            lines.append(f"missing: the addresses in {path}, too large or in another form")
        for name in " ".join(blocks).replace("- ", "").split():
            try:
                # It refuses names, and addresses that no other host has.
                cidr = destination(f"{name}/{128 if ':' in name else 32}")
            except ValueError:
                lines.append(f"missing: the addresses behind {name:.99}, which {path} names")
                continue
            if cidr in own:
                lines.append(f"left out: {cidr}, the node's own address, which {path} names")
                continue
            lines.append(f"{cidr}: {path}")
            yield cidr


def _new_cidr(given: str) -> str:
    cidr = expected_cidr(given)
    refuse_local(cidr)
    return cidr


def _own_addresses(host: Host) -> set[str]:
    """Return the node's own addresses as networks: no packet for them leaves.

    Those without a network are excluded: one of kube-vip moves to another node, and one of
    kube-proxy, on kube-ipvs0, is a service.
    """
    return {
        str(Prefix(own.family, own.local, address_bits(own.family)))
        for link in host.routes.links()
        for own in link.addresses
        if own.prefix_length < address_bits(own.family)
    }


def _devices(host: Host, lines: list[str]) -> list[str]:
    """Return the device of the default route, with lines on each; of several none.

    Without an IPv4 default route it is that of the IPv6 ones.
    """
    family, names = _exits(host)
    links = host.routes.links()
    devs = []
    for link in links:
        if link.name not in names or link.infiniband:
            continue
        # A network in expectedDevs is found by an IPv4 default route.
        network = _network_of(link, links) if family == IPV4 else None
        dev = network or link.name
        if not network and not is_device_name(dev):
            lines.append(f"missing: expectedDevs: no config may have the name {dev!r}; rename it")
            return []
        devs.append(dev)
        lines.append(f"{dev}: {link.name}, the device of a default route")
    if len(devs) == 1:
        return devs
    lines.append(
        f"missing: expectedDevs: {len(devs)} devices have an {FAMILY_NAMES[family]} default route, "
        "InfiniBand apart; name the node's own device"
    )
    return []


def _exits(host: Host) -> tuple[int, set[str | None]]:
    """Return the family of the default routes that decide, and their devices."""
    for family in host.routes.families:
        routes = default_routes(host.routes.routes(family))
        if routes:
            return family, {hop.dev for route in routes for hop in route.hops}
    return IPV4, set()


def _gates(ctx: Context, host: Host) -> tuple[tuple[str, ...] | None, str]:
    """Return the agents that this node starts; None for the default gates."""
    try:
        found = tuple(state.name for state in agents(host.services.states(ctx, *AGENTS)))
    except UnitError as error:
        reason = str(error).partition("\n")[0]
        return None, f"missing: gates: {reason}"
    if found:
        return found, f"{', '.join(found)}: a gate, since this node starts it"
    return None, f"gates: the default ({', '.join(DEFAULT_GATES)}), since no agent is enabled"


def _network_of(link: Device, links: Sequence[Device]) -> str | None:
    """Return the network of a fleet that stands for a device; None without one.

    The device is hardware, and no other one has an address in the network.
    """
    # A bond and a VLAN have one name in a fleet.
    if not link.may_stand_for_network or link.kind:
        return None
    others = [own for each in links if each is not link for own in each.addresses]
    for own in link.addresses:
        # A single address, or one without a lease (169.254.0.0/16), is in no network of a fleet.
        is_leased = own.family == IPV4 and own.local >> 16 != 0xA9FE
        if is_leased and 0 < own.prefix_length < 32:
            network = Prefix(IPV4, own.local, own.prefix_length).masked
            if not any(network.covers(Address(each.family, each.local)) for each in others):
                return str(network)
    return None
