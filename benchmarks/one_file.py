"""The command as one file against the installed one."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks import world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import contest, program

CHECK = "command, check"
FILE, INSTALLED = "file", "installed"

LEGEND = """\
The command as one file: milliseconds of a whole check.
  file      hostrouting.pyz, with compiled modules for this Python
  installed the program of the installed package, whose modules Python has compiled before"""

_BUILD = Path(__file__).parents[1] / "release/pyz.py"
_CIDRS = ("10.244.0.0/16", "10.96.0.0/12")


def one_file(setting: Setting) -> list[Result]:
    """Build the file, and let both forms of the command check a node."""
    file = setting.folder / "hostrouting.pyz"
    version = "{}.{}".format(*sys.version_info)
    subprocess.run([sys.executable, str(_BUILD), str(file), version, sys.executable], check=True)
    forms = {FILE: str(file), INSTALLED: str(Path(sysconfig.get_path("scripts"), "hostrouting"))}
    config = setting.folder / "config.json"
    config.write_text(json.dumps({"routeOverlap": {"expectedCidrs": _CIDRS}, "gates": []}))
    with world.default_route():
        contenders = [program(form, file, "check", str(config)) for form, file in forms.items()]
        measured = contest(contenders, 1, rounds=setting.rounds(1))
    return [Result(CHECK, [measured], [(FILE, INSTALLED)], whole=True)]


GROUP = Group((CHECK,), one_file, LEGEND)
