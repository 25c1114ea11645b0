"""What runs at boot: the nft script, loaded by nft itself, and its unit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hostrouting.boot import SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootFile, BootUnit
from hostrouting.probe_snat.ruleset import ProbeRules, render

__all__ = ["NFT_PATH", "PATHS", "RULESET_PATH", "UNIT_NAME", "UNIT_PATH", "boot_unit", "render_unit"]

UNIT_NAME: Final = "probe-snat.service"
RULESET_PATH: Final = f"{SCRIPT_DIRECTORY}/probe-snat.nft"
UNIT_PATH: Final = f"{UNIT_DIRECTORY}/{UNIT_NAME}"
#: What the unit runs.
NFT_PATH: Final = "/usr/sbin/nft"
#: All that is installed, in the order in which it is written.
PATHS: Final = (RULESET_PATH, UNIT_PATH)

_ASSETS: Final = Path(__file__).parent / "assets"


def render_unit() -> bytes:
    """The oneshot that loads it, the same on every node."""
    return (_ASSETS / UNIT_NAME).read_bytes()


def boot_unit(rules: ProbeRules) -> BootUnit:
    """What is to be installed for these rules."""
    script = BootFile(path=RULESET_PATH, content=render(rules).encode(), mode=0o644)
    return BootUnit(name=UNIT_NAME, files=(script, BootFile(path=UNIT_PATH, content=render_unit(), mode=0o644)))
