"""Build dist/hostrouting.pyz: the command as one file for any supported Python.

    python release/pyz.py OUTPUT [VERSION PYTHON]...

It has the sources of hostrouting (without its `testing`), phases and attrs, with their metadata,
and compiled modules for each VERSION in a folder of this name: Python stores none for a zip file,
and compiling at each start takes three times as long as the start. A Python without a folder reads
the sources. Each entry has the same time, so two builds of the same sources with the same Pythons
are the same bytes.
"""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
#: The files of hostrouting and phases: modules and assets, without an editor's copies and the like.
_SUFFIXES = {".py", ".typed", ".sh", ".service", ".timer", ".conf", ".nft"}
#: The first time that a zip file can express.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Runs on any Python before hostrouting can be imported, so it has the syntax of old ones.
_MAIN = b"""\
import sys

if sys.version_info < (3, 10):
    version = "%d.%d" % sys.version_info[:2]
    sys.stderr.write("hostrouting needs Python 3.10 or newer, and this is %s\\n" % version)
    # The run could not be done; 1 would be a bad verdict on the node.
    sys.exit(3)
# The compiled modules for this Python come before the sources, which serve every other one.
sys.path.insert(0, "%s/%d.%d" % ((sys.path[0],) + sys.version_info[:2]))
from hostrouting.__main__ import main

main()
"""
#: Compiles a tree for the Python that runs it. The code names no file of the machine that built it,
#: and is never compared with a source: the zip file holds both, and changes as a whole. It has the
#: docstrings of the config alone, which are the text of the manual and of the schema.
_COMPILE = """\
import pathlib, py_compile, sys
options = {"doraise": True, "invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH}
for line in sys.stdin.read().splitlines():
    target = pathlib.Path(sys.argv[2], line + "c")
    target.parent.mkdir(parents=True, exist_ok=True)
    level = 0 if line.startswith("hostrouting/config/") else 2
    source = pathlib.Path(sys.argv[1], line)
    py_compile.compile(source, target, dfile=line, optimize=level, **options)
"""


def build(
    output: Path, pythons: dict[str, str], *, interpreter: str = "/usr/bin/env python3"
) -> None:
    """Write the file, to be run by `interpreter`; `pythons` maps versions ("3.11") to paths."""
    files = dict(sources())
    entries = {"__main__.py": _MAIN, **files}
    for version, python in pythons.items():
        compiled = _compiled(files, python)
        assets = {
            name: text
            for name, text in files.items()
            if not name.endswith(".py") and ".dist-info/" not in name
        }
        entries |= {f"{version}/{name}": content for name, content in (compiled | assets).items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    # A build that fails, for example on a full disk, leaves nothing that looks like the file.
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        part = Path(folder, output.name)
        with part.open("wb") as file:
            file.write(f"#!{interpreter}\n".encode())
            with zipfile.ZipFile(file, "w") as archive:
                for name in sorted(entries):
                    entry = zipfile.ZipInfo(name, _TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = (stat.S_IFREG | 0o644) << 16
                    archive.writestr(entry, entries[name])
        part.chmod(0o755)
        part.replace(output)


def sources() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages that the command needs, by their names in the archive."""
    for package in ("hostrouting", "phases"):
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT)
            hidden = any(part.startswith(".") for part in name.parts)
            if (
                path.suffix in _SUFFIXES
                and not hidden
                and name.parts[1] != "testing"
                and path.is_file()
            ):
                yield str(name), path.read_bytes()
    attrs = distribution("attrs")
    for file in attrs.files or ():
        # METADATA is for `importlib.metadata`; RECORD and the like describe the build's machine.
        if file.suffix in {".py", ".typed"} or file.name in {"LICENSE", "METADATA"}:
            yield str(file), Path(str(attrs.locate_file(file))).read_bytes()
    version = re.findall(
        '^__version__ = "(.+)"$', (ROOT / "hostrouting/__init__.py").read_text(), re.MULTILINE
    )[0]
    metadata = f"Metadata-Version: 2.1\nName: hostrouting\nVersion: {version}\n"
    yield f"hostrouting-{version}.dist-info/METADATA", metadata.encode()


def _compiled(files: dict[str, bytes], python: str) -> dict[str, bytes]:
    names = [name for name in files if name.endswith(".py")]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        for name in names:
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        # Without the columns of each instruction, which only carets in a traceback show.
        words = [python, "-sB", "-X", "no_debug_ranges", "-c", _COMPILE, str(source), str(target)]
        # The hashes order a set of words in compiled code, and -I would ignore their seed.
        subprocess.run(
            words, input="\n".join(names), text=True, check=True, env={"PYTHONHASHSEED": "0"}
        )
        return {f"{name}c": (target / f"{name}c").read_bytes() for name in names}


if __name__ == "__main__":
    output, *words = sys.argv[1:]
    build(Path(output), dict(zip(words[::2], words[1::2], strict=True)))
