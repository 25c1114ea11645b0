"""The product in a machine of real systemd: as a copy of the tested code, or as the package that
its tree has.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from support.hurried import SCRIPT
from support.systemd_box import BOX_ROOT

_IS_THIS_SYSTEM = Path("/") == BOX_ROOT
#: The folder of the copy.
PROGRAM = "/opt/program"
#: Not that of a virtual environment, which a machine may not see. A tree of another distribution
#: has its own.
PYTHON = Path(sys.executable).resolve() if _IS_THIS_SYSTEM else Path("/usr/bin/python3")
#: Folders of which a machine has its own, and from which a service of watch does not start the
#: command.
_PASSING = ("/dev/shm", "/run", "/tmp", "/var/tmp")  # noqa: S108 - no file is made there
_BESIDE = Path(sysconfig.get_path("scripts"), "hostrouting")


def _is_passing(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _PASSING)


#: The command, where the tested code looks for it first, unless this checkout is in such a folder;
#: it runs the copy.
_COMMAND = Path("/usr/local/bin/hostrouting") if _is_passing(_BESIDE) else _BESIDE
_COMMAND_TEXT = f"""\
#!@PYTHON@ -B
import sys
sys.path.insert(0, "{PROGRAM}")
from hostrouting.__main__ import main
main()
"""


def require_program() -> None:
    """Skip the test where no machine can run the product."""
    # A tree was made for the purpose, and is complete.
    if _IS_THIS_SYSTEM and _is_passing(PYTHON):
        pytest.skip(f"needs a Python that is not below {', '.join(_PASSING)}")


def copy_program(image: Path) -> None:
    """Lay the product over an image: the machine gets its own /tmp, and this checkout may lie below
    /tmp.
    """
    target = image / PROGRAM.lstrip("/")
    # coverage is loaded in `nox -s coverage` only.
    for name in filter(
        sys.modules.__contains__, ("attr", "attrs", "coverage", "hostrouting", "phases")
    ):
        shutil.copytree(Path(str(sys.modules[name].__file__)).parent, target / name)
    shutil.copy2(SCRIPT, target)


def install_command(image: Path, *, python: Path = PYTHON) -> Path:
    """Give an image the command: the copy of the tested code, or the program of the package that
    its tree has.

    Return where it is in the machine.
    """
    path, text = _COMMAND, _COMMAND_TEXT.replace("@PYTHON@", str(python)).encode()
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
    return path
