"""A first config for this node: what the node itself shows, each value with where it came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hostrouting.config.rules import destination, expected_cidr
from hostrouting.exceptions import HostFileError
from hostrouting.net.addresses import IPV4, Prefix
from hostrouting.net.routes import default_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Host
    from hostrouting.net.links import Device

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


def first_config(host: Host, cidrs: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a WARN config for this node, and a line on each value, found or missing."""
    expected = list(map(expected_cidr, cidrs))
    lines = [f"{cidr}: given" for cidr in expected]
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
                expected.append(destination(f"{name}/{128 if ':' in name else 32}"))
            except ValueError:
                lines.append(f"missing: the addresses behind {name:.99}, which {path} names")
            else:
                lines.append(f"{expected[-1]}: {path}")
    overlap: dict[str, Any] = {"mode": "WARN", "expectedCidrs": [*dict.fromkeys(expected)]}
    names = {hop.dev for route in default_routes(host.routes.routes()) for hop in route.hops}
    devs = []
    for link in host.routes.links():
        if link.name not in names or link.is_infiniband:
            continue
        dev = _network_of(link) or link.name
        devs.append(dev)
        lines.append(f"{dev}: {link.name}, the device of a default route")
    if len(devs) == 1:
        overlap["expectedDevs"] = devs
    else:
        lines.append(
            f"missing: expectedDevs: {len(devs)} devices have an IPv4 default route, InfiniBand "
            "apart; name the node's own device"
        )
    lines.append("missing: CIDRs of services, pods and API server not listed; give them by --cidr")
    return {"hostRouting": {"routeOverlap": overlap}}, lines


def _network_of(link: Device) -> str | None:
    """Return the network of a fleet that stands for a device; None without one."""
    if not link.may_stand_for_network:
        return None
    for own in link.addresses:
        # A single address, or one without a lease (169.254.0.0/16), is in no network of a fleet.
        is_leased = own.family == IPV4 and own.local >> 16 != 0xA9FE
        if is_leased and 0 < own.prefix_length < 32:
            return str(Prefix(IPV4, own.local, own.prefix_length).masked)
    return None
