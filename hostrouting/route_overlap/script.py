"""The boot script, which repeats the proof of the task with only bash and ip, and its unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot import RUNTIME_DIRECTORY, BootTemplate, BootUnit, Departure
from hostrouting.boot.layout import read_asset
from hostrouting.config import DEFAULT_ALLOWED_DEVS, HostRoutingConfig
from hostrouting.net.addresses import IPV4, IPV6, Prefix, is_network, roots_of
from hostrouting.route_overlap.parts import SPECIAL_EDGES

if TYPE_CHECKING:
    from collections.abc import Iterable


_TEMPLATE = BootTemplate("check-route-overlap", "check-route-overlap.sh", __file__)
DEPARTURE: Final = _TEMPLATE.departure
#: One finding a line. Exactly one of the two exists after a check.
MARKER_DETECTED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.detected"
MARKER_OK: Final = f"{RUNTIME_DIRECTORY}/route-overlap.ok"
MARKERS: Final = (MARKER_DETECTED, MARKER_OK)
#: The script's last message to journald.
LOGGED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.told"


def render_script(config: HostRoutingConfig) -> bytes:
    """Return the boot script; the same config gives the same bytes. It may do nothing."""
    overlap = config.route_overlap
    prefixes = [Prefix.parse(cidr) for cidr in overlap.cidrs]
    patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *overlap.allowed_devs))
    lists = {
        "CIDRS": overlap.cidrs,
        "FIRSTS": [_word(prefix.family, prefix.network) for prefix in prefixes],
        "NEXTS": [_word(prefix.family, prefix.last + 1) for prefix in prefixes],
        "EDGES": [f"[{edge}]=1" for edge in _edges(prefixes, IPV4)],
        "EDGES6": _edges(prefixes, IPV6),
        "ROOTS": roots_of(prefixes, IPV4),
        "ROOTS6": roots_of(prefixes, IPV6),
        # A pattern is free of quotes: see hostrouting.config.rules.
        "ALLOWED": [f"'{pattern}'" for pattern in patterns],
        "EXPECTED": [f"'{dev}'" for dev in overlap.expected_devs],
        "NAMES": [f'[{cidr}]="{name}"' for cidr, name in overlap.cidrs.items() if name],
        "AFTER": [f"'{unit}'" for unit in config.after],
        "NETWORKS": () if isinstance(overlap.fabric, str) else overlap.fabric,
    }
    fabric = (
        overlap.fabric if isinstance(overlap.fabric, str) else "list" if overlap.fabric else "off"
    )
    # The fabric is of IPv4.
    template = _TEMPLATE.read_script(
        fabric if lists["ROOTS"] else "off",
        "ipv6" if lists["ROOTS6"] else "",
        "after" if config.after else "",
        "networks" if any(map(is_network, overlap.expected_devs)) else "",
    )
    # Also for CIDRs of IPv6 alone: they should leave by the device of the IPv4 default route.
    template = template.replace("@FAMILIES@", "4 6" if lists["ROOTS6"] else "4")
    for name, words in lists.items():
        text = "".join(f"\n  {word}" for word in words)
        template = template.replace(f"(@{name}@)", f"({text}\n)" if words else "()")
    template = template.replace("# @AGENT@\n", read_asset(__file__, "fabric.sh").decode())
    return template.replace("@MODE@", overlap.mode).encode()


def boot_part(config: HostRoutingConfig) -> BootUnit | Departure:
    """Return the unit and script to install for this config; without CIDRs, their removal."""
    return _TEMPLATE.fill(render_script(config)) if config.route_overlap.cidrs else DEPARTURE


def _word(family: int, address: int) -> str:
    """Return an address as the script has it: a number, or 32 hex digits (`g` after the last)."""
    if family == IPV4:
        return str(address)
    return f"{address:032x}" if address < 1 << 128 else "g"


def _edges(prefixes: Iterable[Prefix], family: int) -> list[str]:
    """Return the addresses of a family where answers can change, whichever routes there are."""
    edges = {
        edge
        for prefix in prefixes
        if prefix.family == family
        for edge in (prefix.network, *SPECIAL_EDGES[family], prefix.last + 1)
        if prefix.network <= edge <= prefix.last + 1
    }
    return [_word(family, edge) for edge in sorted(edges)]
