"""Build dist/hostrouting.pyz: the command as one file for any supported Python.

    python release/pyz.py OUTPUT [VERSION PYTHON]...

It has the sources of hostrouting (without its `testing`), phases and attrs, with their metadata,
and for each VERSION one entry of this name with all modules compiled: Python stores none for a zip
file, and compiling at each start takes three times as long as the start. A Python without an entry
reads the sources. Each entry has the same time, so two builds of the same sources with the same
Pythons are the same bytes.
"""

from __future__ import annotations

import json
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

import marshal, zipimport
from importlib.util import MAGIC_NUMBER

archive = sys.path[0]
modules = {}
try:
    entry = __loader__.get_data("%s/%d.%d" % ((archive,) + sys.version_info[:2]))
except OSError:
    pass
else:
    if entry.startswith(MAGIC_NUMBER):
        modules = marshal.loads(entry[len(MAGIC_NUMBER):])

class Importer(zipimport.zipimporter):
    def get_code(self, name):
        return marshal.loads(modules[name][1]) if name in modules else super().get_code(name)

    # The inherited one compiles the source.
    def get_filename(self, name):
        return archive + "/" + modules[name][0] if name in modules else super().get_filename(name)

sys.path_hooks.insert(0, Importer)
sys.path_importer_cache.pop(archive, None)
from hostrouting.__main__ import main

main()
"""
#: Compiles modules for the Python that runs it. The code names no file of the build's machine, and
#: has the docstrings of the config alone, which are sentences of its sections.
_COMPILE = """\
import importlib.util, json, marshal, sys
modules = {}
for file, text in json.load(sys.stdin).items():
    level = 0 if file.startswith("hostrouting/config/") else 2
    code = compile(text, file, "exec", dont_inherit=True, optimize=level)
    name = file[:-len(".py")].replace("/", ".")
    if name.endswith(".__init__"):
        name = name[:-len(".__init__")]
    modules[name] = file, marshal.dumps(code)
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + marshal.dumps(modules))
"""


def build(
    output: Path, pythons: dict[str, str], *, interpreter: str = "/usr/bin/env python3"
) -> None:
    """Write the file, to be run by `interpreter`; `pythons` maps versions ("3.11") to paths."""
    files = dict(sources())
    entries = {"__main__.py": _MAIN, **files}
    for version, python in pythons.items():
        entries[version] = _compiled(files, python)
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


def _compiled(files: dict[str, bytes], python: str) -> bytes:
    modules = {name: text.decode() for name, text in files.items() if name.endswith(".py")}
    # Without the columns of each instruction, which only carets in a traceback show.
    words = [python, "-sB", "-X", "no_debug_ranges", "-c", _COMPILE]
    # The hashes order a set of words in compiled code, and -I would ignore their seed.
    environment = {"PYTHONHASHSEED": "0"}
    content = json.dumps(modules).encode()
    ran = subprocess.run(words, input=content, stdout=subprocess.PIPE, check=True, env=environment)
    return ran.stdout


if __name__ == "__main__":
    output, *words = sys.argv[1:]
    build(Path(output), dict(zip(words[::2], words[1::2], strict=True)))
