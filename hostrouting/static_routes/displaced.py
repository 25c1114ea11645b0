"""Routes of others whose place we took: written down before we do, so that even a run that is killed can be undone.

The file lies under /run, since it describes this boot: at the next one whoever made those routes makes them anew.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot import RUNTIME_DIRECTORY
from hostrouting.exceptions import HostFileError
from hostrouting.journal import read_record, set_aside
from hostrouting.net.mappings import route_from_mapping, route_to_mapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import FileStore
    from hostrouting.net.routes import ObservedRoute

__all__ = [
    "RECORDS_PATH",
    "Records",
    "read_records",
    "routes_from_json",
    "routes_to_json",
    "set_damaged_aside",
    "write_records",
]

RECORDS_PATH: Final = f"{RUNTIME_DIRECTORY}/displaced-routes.json"
_MODE: Final = 0o644


class Records(NamedTuple):
    """The routes that have yet to come back, those of one place in their order; `damage` says what is of no use."""

    routes: list[ObservedRoute]
    damage: str | None = None


def read_records(files: FileStore) -> Records:
    """What is on record: of a file that is damaged the good entries, of one that is not root's nothing."""
    try:
        return read_record(files, RECORDS_PATH, routes_from_json) or Records([])
    except HostFileError as error:
        return Records([], str(error))


def set_damaged_aside(files: FileStore, records: Records) -> str:
    """Keep the damaged file under another name, and of its entries the good ones; return the sentence that says so."""
    told = f"{records.damage}; {set_aside(files, RECORDS_PATH)}"
    write_records(files, records.routes)
    return told


def write_records(files: FileStore, routes: Sequence[ObservedRoute]) -> None:
    """Keep exactly these; without any, no file."""
    if routes:
        files.write(RECORDS_PATH, routes_to_json(routes), mode=_MODE)
    elif files.remove(RECORDS_PATH):
        files.remove_directory_if_empty(RUNTIME_DIRECTORY)


def routes_to_json(routes: Sequence[ObservedRoute]) -> bytes:
    """Everything that it takes to bring the routes back, and for people each as `ip route` shows it."""
    return (json.dumps({"routes": list(map(route_to_mapping, routes))}, indent=1) + "\n").encode()


def routes_from_json(content: bytes) -> Records:
    """Read what `routes_to_json` wrote; a damaged entry does not keep the others from coming back."""
    records = Records([])
    wrong = []
    for number, entry in enumerate(json.loads(content)["routes"]):
        try:
            records.routes.append(route_from_mapping(entry))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            wrong.append(f"its entry {number} cannot be put back: {error!r}")
    return records._replace(damage=f"{RECORDS_PATH} is damaged: {', '.join(wrong)}") if wrong else records
