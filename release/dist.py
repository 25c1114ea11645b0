"""Build all files of a release from the last commit: `make dist`.

    python release/dist.py FOLDER [VERSION PYTHON]...

They are the wheel, the sources, the single file, both packages, the bill of materials and
SHA256SUMS. Changes that are not committed are not in them. Each file is built twice, in two copies
of the commit, and FOLDER is replaced only if both builds are the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BILL = "hostrouting.cdx.json"


def main() -> None:
    """Build twice, compare, and replace the folder."""
    output, pythons = Path(sys.argv[1]), sys.argv[2:]
    epoch = _git("log", "-1", "--format=%ct").decode().strip()
    commit = _git("archive", "HEAD")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        builds = []
        # What may differ between two machines: the folder, the umask and the time zone.
        for name, umask, zone in ("one", 0o022, "UTC"), ("far/away/another", 0o077, "JST-9"):
            (source := Path(scratch, name)).mkdir(parents=True)
            subprocess.run(["tar", "-x", "-C", source], input=commit, check=True, umask=umask)
            settings = {"PYTHONPATH": str(source), "SOURCE_DATE_EPOCH": epoch, "TZ": zone}
            builds.append(_build(source, pythons, umask=umask, settings=settings))
        first, second = (set(files.items()) for files in builds)
        if differing := sorted({name for name, _ in first ^ second}):
            sys.exit(f"two builds of one commit differ: {', '.join(differing)}")
        shutil.rmtree(output, ignore_errors=True)
        Path(scratch, "one/dist").rename(output)


def _git(*words: str) -> bytes:
    # Root may build in the clone of a user.
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words]
    return subprocess.run(git, check=True, stdout=subprocess.PIPE).stdout


def _build(
    source: Path, pythons: list[str], *, umask: int, settings: dict[str, str]
) -> dict[str, bytes]:
    """Build all files into the folder dist/ of a source; return their contents by name."""
    (folder := source / "dist").mkdir()
    hatchling = str(Path(sys.executable).with_name("hatchling"))
    for words in (
        [hatchling, "build", "-d", "dist"],
        [sys.executable, "release/pyz.py", "dist/hostrouting.pyz", *pythons],
        [sys.executable, "release/packages.py", "dist", *pythons],
    ):
        environment = {**os.environ, **settings}
        subprocess.run(
            words, check=True, cwd=source, env=environment, umask=umask, stdout=subprocess.DEVNULL
        )
    shutil.copyfile(source / "release" / BILL, folder / BILL)
    built = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in built.items()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return built


if __name__ == "__main__":
    main()
