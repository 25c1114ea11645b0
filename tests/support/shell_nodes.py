"""Nodes with installed boot files and without systemd, on which a real shell runs the scripts."""

import subprocess
from pathlib import Path

from support.boot_units import NSPAWN, stand_in_program
from support.command_line import enter
from support.images import make_image

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import BootPart
from hostrouting.host.files.store import RootedFiles
from hostrouting.testing import KernelNode
from phases import Context

GATE_SCRIPT = "/etc/aks-flex-node/hostrouting-ask.sh"
ANSWER = "/run/hostrouting/answer"
#: The capabilities with which a gate runs its script, which then obeys the modes of files.
AS_A_GATE = "setpriv --bounding-set=-all,+net_admin"


def installed(folder: Path, *parts: BootPart) -> Path:
    """Install these parts and a gate in an image in a folder, and return it."""
    image = folder / "image"
    unit = image / "lib/systemd/system" / NSPAWN
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/sleep infinity\n")
    stand_in_program(RootedFiles(str(image)))
    Boot(Host.offline(image), gates=[NSPAWN]).install(Context(timeout=60), *parts)
    return image


def configured(folder: Path, **sections: object) -> Path:
    """Apply a config to an image in a folder, and return the image."""
    image = make_image(folder / "image")
    config = HostRoutingConfig.from_mapping({"gates": [NSPAWN], **sections})
    Configure(config, host=Host.offline(image)).do(Context(timeout=60))
    return image


def run_on(node: KernelNode, image: Path, program: str) -> list[str]:
    """Run a program of bash on a node with the files of the image; return the lines it prints."""
    begin = 'cp -a "$1/etc/." /etc; mkdir -p /run/hostrouting; '
    command = [*enter(node), "bash", "-euc", begin + program, "bash", str(image)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
