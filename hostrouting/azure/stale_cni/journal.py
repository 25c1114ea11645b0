"""The journal: objects that a sweep removed, recorded before the change and read to restore them.

Each sweep has a file `/var/lib/hostrouting/stale-cni/sweep-*.json`, which outlives the boot for
people to read; but objects are restored only in the boot in which they were removed, since a later
one never had them. Each object is there in every detail that it takes to restore it, and as its own
tool prints it. Root restores the objects of a record, so only root may have written it. A damaged
record stays, each undo names it, and it does not keep other records from being restored.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.host.packets.ebtables_rules import BACKENDS, EbtablesRule
from hostrouting.net.links import Neighbour
from hostrouting.net.mappings import FORMS, Form, typed
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.host import FileStore

Restorable: TypeAlias = EbtablesRule | Neighbour | ObservedRoute

#: The errors of readers for JSON in another form than ours, such as brackets that are nested too
#: deeply.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

#: The parent of the usual folder of sweeps; no other program uses it.
_OWN_FOLDER = "/var/lib/hostrouting"
_NAME = re.compile(r"sweep-.*-([1-9][0-9]*)\.json", re.ASCII)


@attrs.frozen(kw_only=True)
class SweepRecord:
    """The content of the file of one sweep."""

    objects: tuple[Restorable, ...]
    #: The kernel's name of the boot.
    boot_id: str = ""
    #: In UTC: `2025-11-03T17:04:05Z`.
    time: str = ""
    #: The output of ebtables-save before the sweep for each backend, as (backend, text).
    texts: tuple[tuple[str, str], ...] = ()
    path: str = attrs.field(default="", eq=False)
    #: Why `objects` lacks objects of the file, and the next step for the user; empty if it has all.
    damage: str = ""


def to_json(record: SweepRecord) -> bytes:
    """Return the content of a record's file."""
    # With `indent`, json takes six times as long: an object is a line.
    objects = ",\n  ".join(json.dumps(object_to_mapping(each)) for each in record.objects)
    rest = {"boot_id": record.boot_id, "time": record.time, "ebtables-save": dict(record.texts)}
    others = "".join(
        f",\n {json.dumps(key)}: {json.dumps(value, indent=1)}" for key, value in rest.items()
    )
    return f'{{"objects": [\n  {objects}]{others}}}\n'.encode()


def from_json(content: bytes, *, path: str = "") -> SweepRecord:
    """Parse the content of a record's file; `damage` names the objects that cannot be parsed."""
    mapping = json.loads(content)
    objects: list[Restorable] = []
    wrong = []
    for number, entry in enumerate(mapping["objects"]):
        try:
            [(kind, name)] = ((kind, name) for kind, name in _NAMES.items() if name in entry)
            found = FORMS[kind].read({key: entry[key] for key in entry if key != name})
            if isinstance(found, ObservedRoute):
                # It checks the rest.
                found.to_route()
            objects.append(found)
        except _DAMAGE as error:
            wrong.append(f"its entry {number} cannot be restored: {error!r}")
    return SweepRecord(
        objects=tuple(objects),
        boot_id=typed(mapping["boot_id"], str),
        time=typed(mapping["time"], str),
        texts=tuple(
            (backend, typed(text, str)) for backend, text in mapping["ebtables-save"].items()
        ),
        path=path,
        damage=_damaged(path, "; ".join(wrong)) if wrong else "",
    )


def read_record(files: FileStore, path: str) -> SweepRecord | None:
    """Return the record at `path`; None if there is no file.

    Anything else than a record, or a record that another user may have written, has no objects and
    its `damage`. A file that cannot be read at this moment may be a good record, so that is a
    `HostFileError`.
    """
    if not files.exists(path):
        return None
    if files.read_link(path) is not None:
        reason = "it is a symbolic link, and records are plain files"
    elif files.mode(path) is None:
        reason = "it is not a file"
    elif exposure := files.exposed(path):
        # No remedy: nothing of another user is to become root's.
        reason = f"{exposure.reason}, and only root's records are trusted"
    else:
        try:
            return from_json(files.read(path) or b"", path=path)
        except _DAMAGE as error:
            reason = repr(error)
    return SweepRecord(objects=(), path=path, damage=_damaged(path, reason))


def _damaged(path: str, reason: str) -> str:
    return (
        f"{path} is damaged: {reason}; restore by hand the objects that are missing, then delete it"
    )


# --- sweeps


class Recorded(NamedTuple):
    """The records of all sweeps in a folder."""

    #: The records of this boot, the newest first: a position in a chain is that after all earlier
    #: sweeps.
    current: list[SweepRecord]
    #: The records of earlier boots, whose objects are gone for good.
    outlived: list[SweepRecord]
    damaged: list[SweepRecord]


@attrs.frozen
class Sweeps:
    """The records of sweeps, a file each, in one folder."""

    _files: FileStore
    _folder: str

    def add(
        self, objects: Iterable[Restorable], *, texts: Sequence[tuple[str, str]], now: float
    ) -> SweepRecord:
        """Write a new record; it is on the disk when this returns.

        Raise HostFileError if it cannot be written, or if users other than root could replace it.
        """
        self.refuse_unsafe_folder()
        moment = time.gmtime(now)
        # Its number is its place: there may be two sweeps in one second, and clocks are set back.
        number = 1 + max((number for number, _ in self._names()), default=0)
        name = f"sweep-{time.strftime('%Y%m%dT%H%M%SZ', moment)}-{number}.json"
        record = SweepRecord(
            objects=tuple(objects),
            boot_id=self._boot_id,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
            texts=tuple(texts),
            path=f"{self._folder.rstrip('/')}/{name}",
        )
        existed = self._files.exists(self._folder)
        try:
            # It contains the addresses of a cluster.
            self._files.write(record.path, to_json(record), mode=0o600)
        except HostFileError:
            if not existed:
                with suppress(HostFileError):
                    self._remove_folder()
            raise
        return record

    def read(self) -> Recorded:
        """Return every record; raise HostFileError if not only root could have added one."""
        recorded = Recorded([], [], [])
        if names := sorted(self._names(), reverse=True):
            self.refuse_unsafe_folder()
        for _, name in names:
            if record := read_record(self._files, f"{self._folder.rstrip('/')}/{name}"):
                of_boot = recorded.current if record.boot_id == self._boot_id else recorded.outlived
                (recorded.damaged if record.damage else of_boot).append(record)
        return recorded

    def refuse_unsafe_folder(self) -> None:
        """Raise HostFileError if users other than root can add records, or replace the folder."""
        if reason := self._files.exposed(self._folder):
            raise HostFileError(
                f"{self._folder} is not safe for records that root restores: {reason}; or use "
                "a folder that belongs to root, as all folders above it, and that only root can "
                "write to"
            )

    def remove(self, record: SweepRecord) -> None:
        """Remove a record that has nothing left to restore, and with the last one the folder."""
        self._files.remove(record.path)
        self._remove_folder()

    def clean_up(self) -> None:
        """Remove the unfinished file and the empty folder that a killed run has left."""
        self._files.sweep(self._folder)
        self._remove_folder()

    @property
    def _boot_id(self) -> str:
        return (
            (self._files.read("/proc/sys/kernel/random/boot_id") or b"")
            .decode(errors="replace")
            .strip()
        )

    def _names(self) -> Iterator[tuple[int, str]]:
        """Yield the names of files, each after its number, which is their order."""
        for match in filter(None, map(_NAME.fullmatch, self._files.names(self._folder))):
            yield int(match[1]), match[0]

    def _remove_folder(self) -> None:
        self._files.remove_directory_if_empty(self._folder)
        if self._folder.startswith(f"{_OWN_FOLDER}/"):
            self._files.remove_directory_if_empty(_OWN_FOLDER)


# --- objects


def object_to_mapping(each: Restorable) -> dict[str, Any]:
    """Return an object as JSON, after its text, for records and for the command's output."""
    return {_NAMES[type(each)]: str(each), **FORMS[type(each)].brief(each)}


def _check_rule(rule: EbtablesRule) -> None:
    if rule.backend not in BACKENDS:
        raise ValueError(f"{rule.backend!r} is not a backend of ebtables")
    for word in (rule.chain, *rule.spec):
        if not word.isprintable():
            raise ValueError(f"{word!r} is not a word of an ebtables rule")


Form(EbtablesRule, _check_rule)
_NAMES: Final[dict[type, str]] = {
    EbtablesRule: "ebtables rule",
    Neighbour: "neighbour",
    ObservedRoute: "route",
}
