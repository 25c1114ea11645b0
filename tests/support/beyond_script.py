"""The states that the proof refuses and the boot script does not know yet.

The script is written anew; until then the tests that compare the two leave exactly these out.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from support.announced_worlds import Announced

from hostrouting.testing import KernelNode


def is_beyond_script(node: KernelNode, announced: Announced | None = None) -> bool:
    """Return True for a node in one of these states."""
    return (
        _has_turns(node)
        or _selects_by_protocol(node)
        or (announced is not None and _is_half_there(node, announced))
    )


def _has_turns(node: KernelNode) -> bool:
    """Default routes in turns: by IPv4 gateways, of one table, metric and scope."""
    rows = json.loads(node.ip("-4 -j route show table all default"))
    places = Counter(
        (row.get("table"), row.get("metric"), row.get("scope"))
        for row in rows
        if row.get("type", "unicast") == "unicast"
        and row.get("tos") is None
        and "gateway" in {**row, **(row.get("nexthops") or [{}])[0]}
    )
    return any(count > 1 for count in places.values())


def _selects_by_protocol(node: KernelNode) -> bool:
    """A rule by `ipproto`, of either family."""
    return any("ipproto" in node.ip(f"{family} rule show") for family in ("-4", "-6"))


def _is_half_there(node: KernelNode, announced: Announced) -> bool:
    """A fabric without carrier, down, or with its address elsewhere or with a peer."""
    links = [link for link in json.loads(node.ip("-4 -j addr show")) if link]
    listed = [ipaddress.IPv4Network(network) for network in announced.networks]
    idle = [link for link in links if "UP" not in link["flags"] and link["addr_info"]]
    return (
        # Its connected route is passed over, and comes back with the carrier.
        "dead" in node.ip("-4 route show table all proto kernel")
        # A device of a listed network brings its other networks when it is set up.
        or any(_has_one_of(link, listed) for link in idle)
        # A device beside those of the pool that is down.
        or any(link["ifname"] not in dict(announced.addresses) for link in idle)
        or any(_has_it_elsewhere(links, *pair) for pair in announced.addresses)
    )


def _has_one_of(link: dict[str, Any], networks: Collection[ipaddress.IPv4Network]) -> bool:
    addresses = [ipaddress.ip_address(own["local"]) for own in link["addr_info"]]
    return any(address in network for address in addresses for network in networks)


def _has_it_elsewhere(links: Collection[dict[str, Any]], dev: str, address: str) -> bool:
    """The address of the pool is on another device, or has a peer."""
    return any(
        (link["ifname"] != dev or "address" in own)
        and (own["local"], own["prefixlen"]) == (address, 16)
        for link in links
        for own in link["addr_info"]
    )
