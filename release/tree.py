"""The files of a package: the command with its manual page, completions and documents."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import manual
import pyz
import reference

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The distribution's Python, without settings and packages of the calling user.
_INTERPRETER = "/usr/bin/python3 -I"
#: The documents in the folder of the project; all further ones are below docs/.
_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
#: What only the site needs, below docs/.
_OF_THE_SITE = ("api/", "changelog.md", "conf.py", "contributing.md", "index.md", "security.md")
#: The suffixes of files below docs/ and examples/; Dockerfile lacks one.
_SUFFIXES = {".json", ".md", ".py", ".sh", ".svg", ".yaml", ".yml"}


def build(folder: Path, pythons: dict[str, str], *, time: int) -> None:
    """Write all files below a folder; each gets this time, in seconds since 1970."""
    pyz.build(folder / "usr/bin/hostrouting", pythons, interpreter=_INTERPRETER)
    manuals(folder)
    documents = folder / "usr/share/doc/hostrouting"
    pages(documents)
    (documents / "changelog.gz").write_bytes(
        gzip.compress((pyz.ROOT / "CHANGELOG.md").read_bytes(), mtime=0)
    )
    (documents / "copyright").write_text(_copyright())
    shutil.copy(pyz.ROOT / "release/hostrouting.cdx.json", documents)
    normalise(folder.rglob("*"), time)


def manuals(folder: Path) -> None:
    """Write the manual pages and the completions."""
    for name, text in {
        "man1/hostrouting.1": manual.page(),
        "man5/hostrouting.json.5": reference.config_page(),
    }.items():
        path = folder / f"usr/share/man/{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a time: the same sources are the same bytes.
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    for name, text in manual.completions():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def pages(folder: Path) -> None:
    """Copy the documents and the examples; their relative links stay valid."""
    trees = (path for name in ("docs", "examples") for path in (pyz.ROOT / name).rglob("*"))
    for path in (*(pyz.ROOT / name for name in _PAGES), *trees):
        name = path.relative_to(pyz.ROOT)
        hidden = any(part.startswith(".") for part in name.parts)
        # An editor's copies and the like are not published.
        is_document = path.suffix in _SUFFIXES or path.name == "Dockerfile"
        is_of_the_site = name.as_posix().startswith(tuple(f"docs/{each}" for each in _OF_THE_SITE))
        if is_document and not is_of_the_site and not hidden and path.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)


def _copyright() -> str:
    attrs = distribution("attrs")
    [license_path] = [file for file in attrs.files or () if file.name == "LICENSE"]
    parts = {
        "hostrouting": pyz.ROOT / "LICENSE",
        "attrs, a part of /usr/bin/hostrouting": attrs.locate_file(license_path),
    }
    return "\n\n".join(f"{name}\n\n{Path(str(path)).read_text()}" for name, path in parts.items())


def normalise(paths: Iterable[Path], time: int) -> None:
    """Give files and folders modes and a time that do not depend on the build."""
    for path in sorted(paths, reverse=True):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        os.utime(path, (time, time))
