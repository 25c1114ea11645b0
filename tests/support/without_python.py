"""A boot script on a node that has no Python."""

import subprocess
from pathlib import Path

from support.command_line import enter

from hostrouting.testing import KernelNode

NO_PYTHON = "there is no Python 3.10 or newer; install it as /usr/bin/python3"
#: No second passes while the script sleeps.
_PREPARE = """
mount -t sysfs none /sys
mkdir -p /run/hostrouting /run/programs /etc/aks-flex-node
[ ! -e /usr/bin/python3 ] || mount --bind /dev/null /usr/bin/python3
printf '#!/bin/sh\\n:\\n' > /run/programs/sleep
chmod 755 /run/programs/sleep
export PATH=/run/programs:$PATH
script=$1
run() { status=0; bash -p $script || status=$?; echo $status; }
"""


def run(node: KernelNode, script: bytes, folder: Path, commands: str = "run") -> list[str]:
    """Run commands on a node, of which `run` runs the script and prints its status; return the
    lines of the output.
    """
    file = folder / "script.sh"
    file.write_bytes(script)
    argv = [*enter(node), "bash", "-euc", _PREPARE + commands, "bash", str(file)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def run_program(node: KernelNode, script: bytes, folder: Path, program: str) -> list[str]:
    """Do the same where these commands are run in the place of the program."""
    commands = f"""
        printf '%s\\n' '#!/bin/sh' {program!r} > /run/programs/python
        chmod 755 /run/programs/python
        printf '#!/run/programs/python -IS\\n' > /etc/aks-flex-node/hostrouting.zip
        run
    """
    return run(node, script, folder, commands)
