"""The boot script, which recognises routing that is plainly right, and its unit."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hostrouting.base.errors import HostFileError
from hostrouting.boot.layout import RUNTIME_DIRECTORY, BootTemplate, BootUnit, Departure
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS, HostRoutingConfig
from hostrouting.net.addresses import IPV4, IPV6, Prefix, format_address, roots_of
from hostrouting.route_overlap.parts import SPECIAL_EDGES
from hostrouting.route_overlap.proven import departure_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.host import FileStore


_TEMPLATE = BootTemplate("check-route-overlap", "check-route-overlap.sh", __file__)
DEPARTURE: Final = _TEMPLATE.departure
#: One finding a line. Exactly one of the two exists after a check.
MARKER_DETECTED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.detected"
#: The verdict, and below it the time of the proof: `proven 2026-08-01T00:00:00Z`.
MARKER_OK: Final = f"{RUNTIME_DIRECTORY}/route-overlap.ok"
MARKERS: Final = (MARKER_DETECTED, MARKER_OK)
#: The script's last message to journald.
LOGGED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.told"


def render_script(config: HostRoutingConfig) -> bytes:
    """Return the boot script; the same config gives the same bytes. It may do nothing."""
    overlap = config.route_overlap
    prefixes = [Prefix.parse(cidr) for cidr in overlap.cidrs]
    patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *overlap.allowed_devs))
    ipv4 = _points(prefixes, IPV4)
    ranges = [Prefix.parse(point).masked for point in ipv4]
    # The fabric is of IPv4.
    has_fabric = overlap.fabric == "auto" and bool(ipv4)
    words: dict[str, Iterable[str]] = {
        "ROOTS4": roots_of(prefixes, IPV4),
        "ROOTS6": roots_of(prefixes, IPV6),
        "POINTS4": ipv4,
        "POINTS6": _points(prefixes, IPV6),
        "FIRSTS": [str(prefix.network) for prefix in ranges],
        "LASTS": [str(prefix.last) for prefix in ranges],
        # Patterns and devices are free of quotes and bars: see hostrouting.config.rules.
        "ALLOWED": ["|".join(patterns)],
        "DEVICES": [f"'{dev}'" for dev in overlap.expected_devs],
        "MODE": [overlap.mode],
        "FABRIC": ["auto" if has_fabric else "off"],
        "BEYOND": [_beyond(config)],
        "VERDICT": [departure_of(overlap.cidrs)],
    }
    text = _TEMPLATE.read_script()
    for name, values in words.items():
        text = text.replace(f"@{name}@", " ".join(values))
    return text.encode()


def config_in(script: bytes) -> HostRoutingConfig | None:
    """Return a config with the section of which a script was rendered; None of another script.

    Presets are the addresses that they stand for, and a list of networks as `fabric` is off.
    """
    values: dict[str, str] = {}
    for line in script.decode(errors="replace").splitlines():
        name, _, value = line.partition("=")
        values.setdefault(name, value.strip("'()"))
    with suppress(KeyError, ValueError):
        patterns = values["allowed"].split("|")
        section = {
            "expectedCidrs": re.findall("[0-9a-f.:]+/[0-9]+", values["declare -A points"]),
            "mode": values["mode"],
            "allowedDevs": [each for each in patterns if each not in DEFAULT_ALLOWED_DEVS],
            "expectedDevs": values["given"].replace("'", "").split(),
            "fabric": values["fabric"],
        }
        return HostRoutingConfig.from_mapping({"routeOverlap": section})
    return None


def config_in_force(files: FileStore) -> HostRoutingConfig | None:
    """Return the same of the installed script, which an apply wrote; None without one."""
    with suppress(HostFileError):
        return config_in(files.read(DEPARTURE.paths[0]) or b"")
    return None


# An apply needs it three times.
@lru_cache(maxsize=2)
def boot_part(config: HostRoutingConfig) -> BootUnit | Departure:
    """Return the unit and script to install for this config; without CIDRs, their removal."""
    return _TEMPLATE.fill(render_script(config)) if config.route_overlap.cidrs else DEPARTURE


def _beyond(config: HostRoutingConfig) -> str:
    """Return what the config has that the script does not judge; an empty text for nothing."""
    if config.after:
        return "after"
    fabric = config.route_overlap.fabric
    return "fabric" if fabric and not isinstance(fabric, str) else ""


def _points(prefixes: Iterable[Prefix], family: int) -> list[str]:
    """Return addresses with the length of their CIDR: one of each, and special ones in it.

    Pods and services get the first addresses, and routes of their own.
    """
    points: list[str] = []
    for prefix in sorted(prefix for prefix in prefixes if prefix.family == family):
        inside = [edge for edge in SPECIAL_EDGES[family] if prefix.network < edge <= prefix.last]
        end = inside[0] if inside else prefix.last + 1
        high = max(prefix.network, end - 2)
        addresses = (format_address(family, point) for point in (high, *inside))
        points += [f"{address}/{prefix.length}" for address in addresses]
    return points
