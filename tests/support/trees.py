"""Trees of other releases of Debian and Ubuntu, and the packages of this product."""

import os
import subprocess
import sys
from pathlib import Path

from hostrouting import __version__

_ROOT = Path(__file__).parents[2]
#: The package for Debian and Ubuntu, and that for distributions with rpm.
DEB = f"hostrouting_{__version__}-1_all.deb"
RPM = f"hostrouting-{__version__}-1.noarch.rpm"
_PYTHON = ("{}.{}".format(*sys.version_info), sys.executable)


def make_tree(suite: str, folder: Path, *packages: str) -> Path:
    """Make a minimal tree of a release with these packages."""
    _run(_ROOT / ".ci/tree", suite, folder, ",".join(packages))
    return folder


def build_packages(folder: Path, *, source: Path = _ROOT, umask: int = -1) -> Path:
    """Build both packages from the sources below a folder."""
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    builder = source / "release/packages.py"
    settings = {**os.environ, "PYTHONPATH": path, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(
        [sys.executable, builder, folder, *_PYTHON], check=True, env=settings, umask=umask
    )
    return folder


def install_package(tree: Path, packages: Path) -> None:
    """Install the package for Debian and Ubuntu in a tree."""
    (tree / DEB).write_bytes((packages / DEB).read_bytes())
    _run("chroot", tree, "dpkg", "--install", f"/{DEB}")


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
