"""Displaced routes in the journal: foreign routes whose places ours have taken, recorded before we take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot import RUNTIME_DIRECTORY
from hostrouting.journal import Record, read_record, set_aside, to_json
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.host import FileStore

__all__ = ["RECORDS_PATH", "Displaced", "read_records", "set_damaged_aside", "write_records"]

RECORDS_PATH: Final = f"{RUNTIME_DIRECTORY}/displaced-routes.json"
_MODE: Final = 0o644


class Displaced(NamedTuple):
    """The routes to be restored, those of one place in their order; `damage` says which entries are unusable."""

    routes: list[ObservedRoute]
    damage: str = ""


def read_records(files: FileStore) -> Displaced:
    """Return the displaced routes; of a damaged record the good entries, of one that is not root's none."""
    record = read_record(files, RECORDS_PATH)
    if record is None:
        return Displaced([])
    return Displaced([each for each in record.objects if isinstance(each, ObservedRoute)], record.damage)


def set_damaged_aside(files: FileStore, displaced: Displaced) -> str:
    """Rename the damaged record, and write its good entries to a new one; return a sentence that says so."""
    told = f"{displaced.damage}; {set_aside(files, RECORDS_PATH)}"
    write_records(files, displaced.routes)
    return told


def write_records(files: FileStore, routes: Iterable[ObservedRoute]) -> None:
    """Record exactly these routes; without any, remove the record."""
    record = Record(objects=tuple(routes))
    if record.objects:
        files.write(RECORDS_PATH, to_json(record), mode=_MODE)
    elif files.remove(RECORDS_PATH):
        files.remove_directory_if_empty(RUNTIME_DIRECTORY)
