"""The product in a machine of real systemd: as a copy of the tested code, or as the package that its tree has."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest
from support.hurried import SCRIPT
from support.systemd_box import BOX_ROOT

__all__ = ["PROGRAM", "PYTHON", "copy_program", "install_command", "require_program"]

_IS_THIS_SYSTEM: Final = Path("/") == BOX_ROOT
#: The folder of the copy.
PROGRAM: Final = "/opt/program"
#: Not that of a virtual environment, which a machine may not see. A tree of another distribution has its own.
PYTHON: Final = Path(sys.executable).resolve() if _IS_THIS_SYSTEM else Path("/usr/bin/python3")
#: The command, where the tested code looks for it first; in the machine it runs the copy.
_COMMAND: Final = Path(sysconfig.get_path("scripts"), "hostrouting")
_COMMAND_TEXT: Final = f"""\
#!{PYTHON} -B
import sys
sys.path.insert(0, "{PROGRAM}")
from hostrouting.__main__ import main
main()
"""


def require_program() -> None:
    """Skip the test where no machine can run the product."""
    # The machine is a copy of / with its own /tmp and /run. A tree was made for the purpose, and is complete.
    if _IS_THIS_SYSTEM and any(PYTHON.is_relative_to(folder) for folder in ("/run", "/tmp")):  # noqa: S108
        pytest.skip("needs a Python that is not below /tmp or /run")


def copy_program(image: Path) -> None:
    """Lay the product over an image: the machine gets its own /tmp, and this checkout may lie below /tmp."""
    target = image / PROGRAM.lstrip("/")
    # coverage is loaded in `make coverage` only.
    for name in filter(sys.modules.__contains__, ("attr", "attrs", "coverage", "hostrouting", "phases")):
        shutil.copytree(Path(str(sys.modules[name].__file__)).parent, target / name)
    shutil.copy2(SCRIPT, target)


def install_command(image: Path) -> None:
    """Give an image the command: the copy of the tested code, or the program of the package that its tree has."""
    path, text = _COMMAND, _COMMAND_TEXT.encode()
    if _IS_THIS_SYSTEM:
        copy_program(image)
    else:
        # It is in the tree, but the tested code looks for it in the image, which is laid over that.
        path = Path("/usr/bin/hostrouting")
        text = (BOX_ROOT / path.relative_to("/")).read_bytes()
    command = image / path.relative_to("/")
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_bytes(text)
    command.chmod(0o755)
