"""What a sweep took away: written down, whole and on the disk, before it goes.

It lies under /var/lib and not under /run, so that people find it after a reboot, too; but objects are put back only in
the boot that they were taken from, for a later one has never had them.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.exceptions import HostFileError
from hostrouting.journal import read_record, refuse_unsafe_folder
from hostrouting.stale_cni.records import from_mapping, to_mapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import FileStore
    from hostrouting.stale_cni.sweep import Leftover

__all__ = [
    "Backup",
    "Backups",
    "Damaged",
    "boot_id",
    "clean_up",
    "from_json",
    "read_backups",
    "remove_backup",
    "to_json",
    "write_backup",
]

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
#: Whose parent is ours, too.
_OWN_FOLDER: Final = "/var/lib/hostrouting"
_PREFIX: Final = "sweep-"
_SUFFIX: Final = ".json"
_MODE: Final = 0o600


@attrs.frozen(kw_only=True)
class Backup:
    """The record of one sweep."""

    boot_id: str
    #: In UTC, for people: `2025-11-03T17:04:05Z`.
    time: str
    objects: tuple[Leftover, ...]
    #: What ebtables-save printed before, of each backend: (backend, text).
    texts: tuple[tuple[str, str], ...] = ()
    #: Where it lies; empty for one that was never written.
    path: str = attrs.field(default="", eq=False)


class Damaged(NamedTuple):
    """A record that is of no use: where it lies, and in full what is wrong with it and what to do."""

    path: str
    reason: str


class Backups(NamedTuple):
    """What lies in the folder of records."""

    #: Of this boot, the newest first: positions in a chain are those after all earlier sweeps.
    current: list[Backup]
    #: Of other boots, which ended what they list.
    outlived: list[Backup]
    #: Those that are of no use; see `set_aside`.
    bad: list[Damaged]


def boot_id(files: FileStore) -> str:
    """What the kernel calls this boot."""
    return (files.read(_BOOT_ID) or b"").decode(errors="replace").strip()


def write_backup(
    files: FileStore, folder: str, objects: Sequence[Leftover], *, texts: Sequence[tuple[str, str]], now: float
) -> Backup:
    """Write a new record; it is on the disk when this returns. Where that fails, no empty folder of ours is left.

    HostFileError for a folder in which others than root could exchange it.
    """
    refuse_unsafe_folder(files, folder)
    moment = time.gmtime(now)
    backup = Backup(
        boot_id=boot_id(files),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
        objects=tuple(objects),
        texts=tuple(texts),
    )
    # Numbered on, for two sweeps in one second, or on a machine whose clock was set back.
    number = 1 + max((_place(name)[1] for name in _names(files, folder)), default=0)
    path = f"{folder.rstrip('/')}/{_PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', moment)}-{number}{_SUFFIX}"
    was_there = files.exists(folder)
    try:
        files.write(path, to_json(backup), mode=_MODE)
    except HostFileError:
        if not was_there:
            with suppress(HostFileError):
                _remove_folder(files, folder)
        raise
    return attrs.evolve(backup, path=path)


def read_backups(files: FileStore, folder: str) -> Backups:
    """Every record; one that is of no use does not hide the others.

    HostFileError where others than root could have put them there: then none of them is believed.
    """
    paths = [f"{folder.rstrip('/')}/{name}" for name in sorted(_names(files, folder), key=_place, reverse=True)]
    backups = Backups([], [], [])
    if not paths:
        return backups
    refuse_unsafe_folder(files, folder)
    this_boot = boot_id(files)
    for path in paths:
        try:
            backup = read_record(files, path, partial(from_json, path=path))
        except HostFileError as error:
            backups.bad.append(Damaged(path, str(error)))
            continue
        if backup is not None:
            (backups.current if backup.boot_id == this_boot else backups.outlived).append(backup)
    return backups


def remove_backup(files: FileStore, folder: str, backup: Backup) -> None:
    """There is nothing left in it to be put back; the last record takes the folder with it."""
    files.remove(backup.path)
    _remove_folder(files, folder)


def clean_up(files: FileStore, folder: str) -> None:
    """Take away what a killed run has left: a file under way, and a folder with nothing in it."""
    files.sweep(folder)
    _remove_folder(files, folder)


def _remove_folder(files: FileStore, folder: str) -> None:
    files.remove_directory_if_empty(folder)
    if folder.startswith(f"{_OWN_FOLDER}/"):
        files.remove_directory_if_empty(_OWN_FOLDER)


def to_json(backup: Backup) -> bytes:
    """Everything that it takes to bring the objects back, and for people each as its own tool shows it."""
    mapping = {
        "boot_id": backup.boot_id,
        "time": backup.time,
        "objects": list(map(to_mapping, backup.objects)),
        "ebtables-save": dict(backup.texts),
    }
    return (json.dumps(mapping, indent=1) + "\n").encode()


def from_json(content: bytes, *, path: str = "") -> Backup:
    """Read what `to_json` wrote."""
    mapping = json.loads(content)
    return Backup(
        boot_id=str(mapping["boot_id"]),
        time=str(mapping["time"]),
        objects=tuple(map(from_mapping, mapping["objects"])),
        texts=tuple((backend, str(text)) for backend, text in mapping["ebtables-save"].items()),
        path=path,
    )


def _names(files: FileStore, folder: str) -> list[str]:
    names = files.names(folder)
    return [name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX) and _place(name)[1]]


def _place(name: str) -> tuple[str, int]:
    """Time and number of a record, by which records are in order; the number is 0 where there is none."""
    moment, _, number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX).rpartition("-")
    return moment, int(number) if number.isdecimal() and number.isascii() else 0
