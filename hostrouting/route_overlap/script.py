"""What runs at boot: the script that proves what the task proves, with nothing but bash and ip, and its unit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hostrouting.boot import RUNTIME_DIRECTORY, SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootFile, BootUnit
from hostrouting.config import DEFAULT_ALLOWED_DEVS

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig

__all__ = [
    "MARKERS",
    "MARKER_DETECTED",
    "MARKER_OK",
    "PATHS",
    "SCRIPT_PATH",
    "UNIT_NAME",
    "UNIT_PATH",
    "boot_unit",
    "render_script",
    "render_unit",
]

UNIT_NAME: Final = "check-route-overlap.service"
SCRIPT_PATH: Final = f"{SCRIPT_DIRECTORY}/check-route-overlap.sh"
UNIT_PATH: Final = f"{UNIT_DIRECTORY}/{UNIT_NAME}"
#: All that is installed, in the order in which it is written.
PATHS: Final = (SCRIPT_PATH, UNIT_PATH)
#: One finding a line. Exactly one of the two exists after a check.
MARKER_DETECTED: Final = f"{RUNTIME_DIRECTORY}/route-overlap.detected"
MARKER_OK: Final = f"{RUNTIME_DIRECTORY}/route-overlap.ok"
MARKERS: Final = (MARKER_DETECTED, MARKER_OK)

_ASSETS: Final = Path(__file__).parent / "assets"


def render_script(config: HostRoutingConfig) -> bytes:
    """The boot script; the same config gives the same bytes."""
    overlap = config.route_overlap
    template = (_ASSETS / "check-route-overlap.sh").read_text(encoding="utf-8")
    patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *overlap.allowed_devs))
    return (
        template.replace("@MODE@", overlap.mode)
        .replace("  # @CIDRS@\n", "".join(f"  {cidr}\n" for cidr in overlap.expected_cidrs))
        # A pattern has no quote in it: see hostrouting.rules.
        .replace("  # @ALLOWED@\n", "".join(f"  '{pattern}'\n" for pattern in patterns))
        .encode()
    )


def render_unit() -> bytes:
    """The oneshot that runs it, the same on every node."""
    return (_ASSETS / UNIT_NAME).read_bytes()


def boot_unit(config: HostRoutingConfig) -> BootUnit:
    """What is to be installed for this config."""
    script = BootFile(path=SCRIPT_PATH, content=render_script(config), mode=0o755)
    return BootUnit(name=UNIT_NAME, files=(script, BootFile(path=UNIT_PATH, content=render_unit(), mode=0o644)))
