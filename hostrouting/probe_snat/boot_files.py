"""What runs at boot: the nft script, loaded by nft itself, its unit, and who tells this to load it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hostrouting.boot import SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootFile, BootUnit
from hostrouting.probe_snat.ruleset import ProbeRules, render

if TYPE_CHECKING:
    from hostrouting.host import FileStore

__all__ = [
    "AGAIN_PATH",
    "NFT_PATHS",
    "PATHS",
    "RULESET_PATH",
    "UNIT_NAME",
    "UNIT_PATH",
    "boot_unit",
    "is_installed",
    "render_unit",
]

UNIT_NAME: Final = "probe-snat.service"
RULESET_PATH: Final = f"{SCRIPT_DIRECTORY}/probe-snat.nft"
UNIT_PATH: Final = f"{UNIT_DIRECTORY}/{UNIT_NAME}"
#: A drop-in for AgentBaker's unit, which fills the same table. Not called as those of gates are: it is none.
AGAIN_PATH: Final = f"{UNIT_DIRECTORY}/ipv6_nftables.service.d/10-probe-snat.conf"
#: Where systemd looks for what a unit runs without saying where it is, in this order.
NFT_PATHS: Final = tuple(
    f"{folder}/nft" for folder in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
)
#: All that is installed, in the order in which it is written.
PATHS: Final = (RULESET_PATH, UNIT_PATH, AGAIN_PATH)

_REQUIRED: Final = ("Before=hostrouting-ready.service\n", "RequiredBy=hostrouting-ready.service\n")
_OPTIONAL: Final = (
    "# No Before= and no RequiredBy=: probes are not worth a node that does not start.\n",
    "WantedBy=hostrouting-ready.service\n",
)
_ASSETS: Final = Path(__file__).parent / "assets"


def render_unit(*, required: bool = False) -> bytes:
    """The oneshot that loads it; gates wait for it only where it is `required`."""
    text = (_ASSETS / UNIT_NAME).read_text(encoding="utf-8")
    order, install = _REQUIRED if required else _OPTIONAL
    return text.replace("# @ORDER@\n", order).replace("# @INSTALL@\n", install).encode()


def is_installed(files: FileStore) -> bool:
    """Whether anything of it is there, be it what somebody's hands have left."""
    return any(files.exists(path) for path in PATHS)


def boot_unit(rules: ProbeRules, *, required: bool = False) -> BootUnit:
    """What is to be installed for these rules."""
    script = BootFile(path=RULESET_PATH, content=render(rules).encode(), mode=0o644)
    unit = BootFile(path=UNIT_PATH, content=render_unit(required=required), mode=0o644)
    again = BootFile(path=AGAIN_PATH, content=(_ASSETS / "ipv6_nftables.conf").read_bytes(), mode=0o644)
    return BootUnit(name=UNIT_NAME, files=(script, unit, again))
