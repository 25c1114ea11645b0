"""The unit that checks routing at every boot, its script, and the markers of the last check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import (
    RUNTIME_DIRECTORY,
    STATE_DIRECTORY,
    BootTemplate,
    BootUnit,
    UnitRemoval,
)

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig

_TEMPLATE = BootTemplate("check-route-overlap", "check-route-overlap.sh", __file__)
REMOVAL: Final = _TEMPLATE.removal
#: One finding per line. After a check, exactly one of the two markers exists.
MARKER_DETECTED: Final = f"{STATE_DIRECTORY}/route-overlap.detected"
#: The verdict, and on the next line the time of the check: `proven 2026-08-01T00:00:00Z`.
MARKER_OK: Final = f"{STATE_DIRECTORY}/route-overlap.ok"
MARKERS: Final = (MARKER_DETECTED, MARKER_OK)
#: Where upstream puts its markers. Hostrouting never reads these.
COPIES: Final = {marker: f"{RUNTIME_DIRECTORY}/{marker.rpartition('/')[2]}" for marker in MARKERS}
#: The last message about the check in the journal.
LOGGED: Final = f"{STATE_DIRECTORY}/check-route-overlap.message"


def boot_part(config: HostRoutingConfig) -> BootUnit | UnitRemoval:
    """Return the unit and script to install for this config; without CIDRs, their removal."""
    if not config.route_overlap.cidrs:
        return REMOVAL
    return _TEMPLATE.fill(_TEMPLATE.read_script())
