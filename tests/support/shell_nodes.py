"""Nodes with installed boot files and without systemd, on which a real shell runs the scripts."""

import subprocess
from pathlib import Path

from support.boot_units import NSPAWN
from support.command_line import enter

from hostrouting import Host
from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Part
from hostrouting.testing import KernelNode
from phases import Context

GATE_SCRIPT = "/etc/aks-flex-node/hostrouting-ask.sh"
ANSWER = "/run/aks-flex-node/hostrouting.answer"
#: The capabilities with which a gate runs its script, which then obeys the modes of files.
AS_A_GATE = "setpriv --bounding-set=-all,+net_admin"


def installed(folder: Path, *parts: Part) -> Path:
    """Install these parts and a gate in an image in a folder, and return it."""
    image = folder / "image"
    unit = image / "lib/systemd/system" / NSPAWN
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/sleep infinity\n")
    Boot(Host.offline(image), gates=[NSPAWN]).install(Context(timeout=60), *parts)
    return image


def run_on(node: KernelNode, image: Path, program: str) -> list[str]:
    """Run a program of bash on a node with the files of the image; return the lines it prints."""
    begin = 'cp -a "$1/etc/." /etc; mkdir -p /run/aks-flex-node; '
    command = [*enter(node), "bash", "-euc", begin + program, "bash", str(image)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
