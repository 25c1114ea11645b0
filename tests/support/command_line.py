"""The command as a separate process, and configs for it."""

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.answers import require_valid_output
from support.processes import ended

from hostrouting.testing import KernelNode

#: As its words are given in the environment, for another form of the package; by default that of
#: the tests' own Python.
OTHER_COMMAND = shlex.split(os.environ.get("HOSTROUTING_COMMAND", ""))
COMMAND = OTHER_COMMAND or [sys.executable, str(Path(sysconfig.get_path("scripts"), "hostrouting"))]
CHECKED = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
ROUTES: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}
}
MENDED = {**CHECKED, **ROUTES}


#: Hides the files that this machine may have of hostrouting, of the cloud's agent and of a CNI.
_BARE = """
for folder in /run /var/lib; do mount -t tmpfs -o mode=755 none $folder; done
mkdir /var/lib/changes /var/lib/work
mount -t overlay -o lowerdir=/etc,upperdir=/var/lib/changes,workdir=/var/lib/work none /etc
rm -rf /etc/aks-flex-node /etc/cni /etc/systemd/system /etc/waagent.conf
exec "$@"
"""


def alone() -> list[str]:
    """Return the prefix of a command in a network of its own, where nothing is installed; without
    root it is empty, since such a command changes nothing.
    """
    return [] if os.geteuid() else ["unshare", "--net", "--mount", "sh", "-ec", _BARE, "sh"]


def enter(node: KernelNode) -> list[str]:
    """Return the prefix of a command on a node where nothing is installed; its files are gone
    afterwards.
    """
    return [
        "nsenter",
        f"--net=/run/netns/{node.name}",
        "unshare",
        "--mount",
        "sh",
        "-ec",
        _BARE,
        "sh",
    ]


def installed(config: str | Path) -> list[str]:
    """Return the prefix of a command on an entered node where a config is in force."""
    folder = "/etc/aks-flex-node"
    install = f'mkdir -p {folder}; cp "$0" {folder}/hostrouting.json; exec "$@"'
    return ["sh", "-ec", install, str(config)]


def run(
    *words: str | Path,
    inside: KernelNode | None = None,
    prefix: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command; what it prints for programs is as docs/schemas has it."""
    place = [] if inside is None else enter(inside)
    done = ended(*place, *prefix, *COMMAND, *words, env={**os.environ, **environment})
    require_valid_output(words, done.stdout)
    return done
