"""The command as a separate process, and configs for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.testing import KernelNode

__all__ = ["CHECKED", "COMMAND", "MENDED", "OTHER_COMMAND", "run"]


#: As its words are given in the environment, for another form of the package; by default that of the tests' own Python.
OTHER_COMMAND = shlex.split(os.environ.get("HOSTROUTING_COMMAND", ""))
COMMAND = OTHER_COMMAND or [sys.executable, str(Path(sysconfig.get_path("scripts"), "hostrouting"))]
CHECKED = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
MENDED = {**CHECKED, "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}


def run(
    *words: str | Path, inside: KernelNode | None = None, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    entering = [] if inside is None else ["nsenter", f"--net=/run/netns/{inside.name}"]
    return subprocess.run(
        [*entering, *prefix, *COMMAND, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
