"""The boot files of the probes: the nft script, its unit, and a drop-in that makes AgentBaker's unit load it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot import SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootTemplate
from hostrouting.probe_snat.ruleset import ProbeRules, render

if TYPE_CHECKING:
    from hostrouting.boot import BootUnit
    from hostrouting.host import FileStore

__all__ = ["AGAIN_PATH", "DEPARTURE", "NFT_PATHS", "RULESET_PATH", "boot_unit", "is_installed"]

RULESET_PATH: Final = f"{SCRIPT_DIRECTORY}/probe-snat.nft"
#: A drop-in for AgentBaker's unit, which fills the same table. It is no gate's, so it has another name than theirs.
AGAIN_PATH: Final = f"{UNIT_DIRECTORY}/ipv6_nftables.service.d/10-probe-snat.conf"
#: The paths at which systemd looks for nft, in its order.
NFT_PATHS: Final = tuple(
    f"{folder}/nft" for folder in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
)

_REQUIRED: Final = ("Before=hostrouting-ready.service\n", "RequiredBy=hostrouting-ready.service\n")
_OPTIONAL: Final = (
    "# No Before= and no RequiredBy=: probes are not worth a node that does not start.\n",
    "WantedBy=hostrouting-ready.service\n",
)
_TEMPLATE: Final = BootTemplate("probe-snat", "probe-snat.nft", __file__, {AGAIN_PATH: "ipv6_nftables.conf"})
DEPARTURE: Final = _TEMPLATE.departure


def is_installed(files: FileStore) -> bool:
    """Return True if any of the files exists."""
    return any(files.exists(path) for path in DEPARTURE.paths)


def boot_unit(rules: ProbeRules, *, required: bool = False) -> BootUnit:
    """Return the unit and its files for these rules; gates wait for the unit only if it is `required`."""
    order, install = _REQUIRED if required else _OPTIONAL
    return _TEMPLATE.fill(render(rules).encode(), ORDER=order, INSTALL=install)
