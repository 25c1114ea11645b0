"""Stand-ins for ip; one runs it, and counts the lines that a script sends to it and reads from it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Counts(NamedTuple):
    """The processes, the lines of their batches, and those of their answers."""

    processes: int
    commands: int
    lines: int


IP = shutil.which("ip")


def another_ip(folder: Path, program: str) -> dict[str, str]:
    """Put a program of bash in the place of ip; return the environment in which a script finds it."""
    folder.mkdir(exist_ok=True)
    (folder / "ip").write_text(f"#!/bin/bash\n{program}\n", encoding="utf-8")
    (folder / "ip").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def counted_ip(folder: Path) -> dict[str, str]:
    """Put the stand-in that counts into a folder; return the environment in which a script finds
    it.
    """
    return another_ip(folder, f'tee "{folder}/in.$$" | {IP} "$@" 2>&1 | tee "{folder}/out.$$"')


def take_counts(folder: Path) -> Counts:
    """Return the counts since the last call."""
    sizes: dict[str, list[int]] = {"in": [], "out": []}
    for path in [*folder.glob("in.*"), *folder.glob("out.*")]:
        sizes[path.stem].append(path.read_text(encoding="utf-8").count("\n"))
        path.unlink()
    return Counts(len(sizes["in"]), sum(sizes["in"]), sum(sizes["out"]))
