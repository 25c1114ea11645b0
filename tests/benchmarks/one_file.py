"""The command as one file against the installed one: a start alone, and a whole check."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from benchmarks import world
from benchmarks.cases import Result, Setting
from benchmarks.measure import contest, program

START, CHECK = NAMES = "command, start", "command, check"
FILE, INSTALLED = "file", "installed"

LEGEND = """\
The command as one file: milliseconds of a whole process.
  file      hostrouting.pyz, with compiled modules for this Python
  installed the program of the installed package, whose modules Python has compiled before"""

_BUILD = Path(__file__).parents[2] / "release/pyz.py"
_CIDRS = ("10.244.0.0/16", "10.96.0.0/12")


def one_file(setting: Setting) -> list[Result]:
    """Build the file, and let both forms of the command do the same."""
    file = setting.folder / "hostrouting.pyz"
    version = "{}.{}".format(*sys.version_info)
    subprocess.run([sys.executable, str(_BUILD), str(file), version, sys.executable], check=True)
    forms = {FILE: str(file), INSTALLED: str(Path(sysconfig.get_path("scripts"), "hostrouting"))}
    config = setting.folder / "config.json"
    config.write_text(json.dumps({"routeOverlap": {"expectedCidrs": _CIDRS}, "gates": []}))
    world.ip_batch([f"route add default via {world.GATEWAY} dev {world.DEVICE}"])
    try:
        return [
            _contest(START, forms, ["--version"], setting),
            _contest(CHECK, forms, ["check", str(config)], setting),
        ]
    finally:
        world.ip_batch(["route delete default"])


def _contest(name: str, forms: dict[str, str], words: Sequence[str], setting: Setting) -> Result:
    contenders = [program(form, file, *words) for form, file in forms.items()]
    return Result(
        name, [contest(contenders, 1, rounds=setting.rounds(1))], [(FILE, INSTALLED)], whole=True
    )
