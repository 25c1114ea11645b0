"""The boot script, which repeats the proof of the task with only bash and ip, and its unit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hostrouting.boot import RUNTIME_DIRECTORY, BootTemplate
from hostrouting.boot.layout import read_asset
from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.net.addresses import IPV4, IPV6, Prefix, address_bits
from hostrouting.route_overlap.parts import SPECIAL_EDGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.boot import BootUnit, Departure
    from hostrouting.config import HostRoutingConfig

_TEMPLATE: Final = BootTemplate("check-route-overlap", "check-route-overlap.sh", __file__)
DEPARTURE: Final = _TEMPLATE.departure
#: One finding a line. Exactly one of the two exists after a check.
MARKER_DETECTED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.detected"
MARKER_OK: Final = f"{RUNTIME_DIRECTORY}/route-overlap.ok"
MARKERS: Final = (MARKER_DETECTED, MARKER_OK)
#: The script's last message to journald.
TOLD: Final = f"{RUNTIME_DIRECTORY}/route-overlap.told"

#: For each root the script reads all tables, for IPv6 twice, and each row outside of the CIDRs costs it time.
_MOST_ROOTS: Final = {IPV4: 8, IPV6: 2}


def render_script(config: HostRoutingConfig) -> bytes:
    """Return the boot script; the same config gives the same bytes. Without expected CIDRs it does nothing."""
    overlap = config.route_overlap
    prefixes = [Prefix.parse(cidr) for cidr in overlap.cidrs]
    patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *overlap.allowed_devs))
    lists = {
        "CIDRS": overlap.cidrs,
        "FIRSTS": [_word(prefix.family, prefix.network) for prefix in prefixes],
        "NEXTS": [_word(prefix.family, prefix.last + 1) for prefix in prefixes],
        "EDGES": [f"[{edge}]=1" for edge in _edges(prefixes, IPV4)],
        "EDGES6": _edges(prefixes, IPV6),
        "ROOTS": _roots(overlap.cidrs, IPV4),
        "ROOTS6": _roots(overlap.cidrs, IPV6),
        # A pattern has no quotes: see hostrouting.config.rules.
        "ALLOWED": [f"'{pattern}'" for pattern in patterns],
        "EXPECTED": [f"'{dev}'" for dev in overlap.expected_devs],
        "NAMES": [f'[{cidr}]="{name}"' for cidr, name in overlap.cidrs.items() if name],
        "NETWORKS": () if isinstance(overlap.fabric, str) else overlap.fabric,
    }
    fabric = overlap.fabric if isinstance(overlap.fabric, str) else "list" if overlap.fabric else "off"
    # The fabric is of IPv4.
    template = _TEMPLATE.read_script(fabric if lists["ROOTS"] else "off", "ipv6" if lists["ROOTS6"] else "")
    # Also for CIDRs of IPv6 alone: the IPv4 default route tells by which device they should leave.
    template = template.replace("@FAMILIES@", "4 6" if lists["ROOTS6"] else "4")
    for name, words in lists.items():
        text = "".join(f"\n  {word}" for word in words)
        template = template.replace(f"(@{name}@)", f"({text}\n)" if words else "()")
    template = template.replace("# @AGENT@\n", read_asset(__file__, "fabric.sh").decode())
    return template.replace("@MODE@", overlap.mode).encode()


def boot_part(config: HostRoutingConfig) -> BootUnit | Departure:
    """Return the unit and the script to install for this config; their removal if it has no expected CIDRs."""
    return _TEMPLATE.fill(render_script(config)) if config.route_overlap.cidrs else DEPARTURE


def _word(family: int, address: int) -> str:
    """Return an address as the script has it: a number, or of IPv6 32 hexadecimal digits; `g` is after the last one."""
    if family == IPV4:
        return str(address)
    return f"{address:032x}" if address < 1 << 128 else "g"


def _edges(prefixes: Iterable[Prefix], family: int) -> list[str]:
    """Return the addresses of a family where answers can change, whichever routes there are."""
    bounds = (edge for one in prefixes if one.family == family for edge in (one.network, one.last + 1))
    return [_word(family, edge) for edge in sorted({*SPECIAL_EDGES[family], *bounds})]


def _merged(prefixes: Iterable[Prefix]) -> list[tuple[int, int]]:
    """Return the ranges of networks as (first, last), sorted; overlapping and adjacent ones are merged."""
    merged: list[tuple[int, int]] = []
    for prefix in sorted(prefixes):
        if merged and prefix.network <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(prefix.last, merged[-1][1])
        else:
            merged.append((prefix.network, prefix.last))
    return merged


def _roots(cidrs: Iterable[str], family: int) -> list[str]:
    """Return a few CIDRs that cover all of these of one family and little else.

    >>> _roots(["10.0.0.0/24", "10.0.1.0/24", "10.0.0.4/30", "172.16.0.0/12", "fd00::/8"], IPV4)
    ['10.0.0.0/23', '172.16.0.0/12']
    """
    prefixes = [prefix for prefix in map(Prefix.parse, cidrs) if prefix.family == family]
    roots = [_root(first, last) for first, last in _merged(prefixes)]
    while len(roots) > _MOST_ROOTS[family] or any(one[1] >= other[0] for one, other in pairwise(roots)):
        joined = [_root(one[0], max(one[1], other[1])) for one, other in pairwise(roots)]
        # Join adjacent ones first, else those that are the smallest together.
        best = min(range(len(joined)), key=lambda i: (roots[i][1] < roots[i + 1][0], joined[i][1] - joined[i][0]))
        roots[best : best + 2] = [joined[best]]
    bits = address_bits(family)
    return [str(Prefix(family, first, bits - (last - first).bit_length())) for first, last in roots]


def _root(first: int, last: int) -> tuple[int, int]:
    """Return the smallest network around a range."""
    free = (1 << (first ^ last).bit_length()) - 1
    return first & ~free, first | free
