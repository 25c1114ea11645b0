"""A generation: all scripts, their list, the program and the intent, exchanged by one rename.

    /etc/aks-flex-node/hostrouting.json        -> hostrouting/hostrouting.json
    /etc/aks-flex-node/static-routes.sh        -> hostrouting/static-routes.sh
    /etc/aks-flex-node/check-route-overlap.sh  -> hostrouting/check-route-overlap.sh
    /etc/aks-flex-node/hostrouting.units       -> hostrouting/hostrouting.units
    /etc/aks-flex-node/hostrouting.zip         -> hostrouting/hostrouting.zip
    /etc/aks-flex-node/hostrouting             -> hostrouting-1f2e3d4c     only this link changes
    /etc/aks-flex-node/hostrouting-1f2e3d4c/   both scripts, the list of units, the program that
                                               the scripts run, and the intent

Under STRICT the routes of one config beside the check of another would hold every gate, and so
would routes that are repaired from the intent of another. A generation has a script of each name,
even one that is not configured, so that units of the earlier config run harmlessly with the scripts
of the later one, and the other way round. Upstream's plain scripts become a generation first.
`Survey` reads all files of hostrouting on the disk, and `is_own` decides which ones these are.
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.boot.layout import (
    FURTHER_FOLDERS,
    GATING_PATH,
    INTENT_PATH,
    PROGRAM_PATH,
    READY_LINKS,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    drop_in_of,
    links_of,
    paths_of,
    unit_path,
)
from hostrouting.boot.program import wanted_program
from hostrouting.boot.recorded import state_of
from hostrouting.config import OWN_UNITS, SECTIONS
from hostrouting.host.units import MASK, UNIT_FOLDERS, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.host import FileStore, Host

#: The link that leads to the files in force.
GENERATION_LINK: Final = f"{SCRIPT_DIRECTORY}/hostrouting"
#: The scripts that are exchanged together, by the names in units and documents.
SCRIPT_PATHS: Final = tuple(
    path for section in SECTIONS for path in section.files if path.endswith(".sh")
)
_PREFIX = "hostrouting-"
#: All files that are exchanged together, by the same names.
LINKED_PATHS: Final = (*SCRIPT_PATHS, INTENT_PATH, GATING_PATH, PROGRAM_PATH)
#: Stands for a script that is not configured.
IDLE: Final = (
    b"#!/bin/bash\n# Installed by hostrouting: nothing is configured for this script.\nexit 10\n"
)
#: The paths of hostrouting whose names other programs may use, too.
SHARED_PATHS: Final = frozenset(
    path
    for section in SECTIONS
    for path in paths_of(section)
    if path not in SCRIPT_PATHS and "hostrouting" not in path.rpartition("/")[2]
)
#: The first comment of each file of hostrouting at a shared path; others may have put some before.
_MARK = b"# Installed by hostrouting"
_MARKED = re.compile(rb"(?:#.*\n)*" + _MARK)
_APPLY = f"hostrouting apply {INTENT_PATH}"
#: Replaces a configured script that was lost until its task installs it again: gates stay closed.
LOST: Final = f"""#!/bin/bash
# Installed by hostrouting in place of a script that was lost.
echo "<3>the script $0 was lost, so routing is not checked; run: {_APPLY}" >&2
exit 12
""".encode()


class Generation(NamedTuple):
    """The contents of files by path: each of `SCRIPT_PATHS`, and the other `LINKED_PATHS`.

    >>> Generation.of(dict.fromkeys(SCRIPT_PATHS, IDLE)).folder
    '/etc/aks-flex-node/hostrouting-44b81585'
    """

    contents: Mapping[str, bytes]
    #: Of the folder, derived from the content: the same files have the same folder.
    name: str

    @classmethod
    def of(cls, contents: Mapping[str, bytes]) -> Generation:
        """Return the generation of these contents, with its name."""
        checksum = 0
        for content in contents.values():
            checksum = zlib.crc32(content, zlib.crc32(b"%d\n" % len(content), checksum))
        return cls(contents, f"{_PREFIX}{checksum:08x}")

    @property
    def folder(self) -> str:
        """The path of the folder."""
        return f"{SCRIPT_DIRECTORY}/{self.name}"

    @property
    def files(self) -> list[BootFile]:
        """The files with their paths in the folder."""
        folder = self.folder
        return [
            BootFile(f"{folder}/{path.rpartition('/')[2]}", content)
            for path, content in self.contents.items()
        ]


def link_of(path: str) -> str:
    """Return the target of the link at the well-known path of a file.

    >>> link_of("/etc/aks-flex-node/static-routes.sh")
    'hostrouting/static-routes.sh'
    """
    return f"{GENERATION_LINK.rpartition('/')[2]}/{path.rpartition('/')[2]}"


def contents_in_force(files: FileStore) -> dict[str, bytes]:
    """Return the contents of the generation in force by path, {} without a generation."""
    linked = (path for path in LINKED_PATHS if files.read_link(path) == link_of(path))
    return {path: content for path in linked if (content := files.read(path)) is not None}


def program_file(
    host: Host, installed: bytes | None = None, *, is_planned: bool = False
) -> BootFile:
    """Return the program that the scripts run; see `wanted_program`."""
    if installed is None:
        # `render` needs no root.
        with suppress(HostFileError):
            # That of the scripts in force, even if its link was lost or replaced.
            installed = host.files.read(f"{SCRIPT_DIRECTORY}/{link_of(PROGRAM_PATH)}")
    return BootFile(PROGRAM_PATH, wanted_program(host, installed, is_planned=is_planned))


def generation_folders(files: FileStore) -> list[str]:
    """Return the folders of all generations, those of killed runs included."""
    is_generation = re.compile(rf"{_PREFIX}[0-9a-f]{{8}}").fullmatch
    names = filter(is_generation, files.names(SCRIPT_DIRECTORY))
    return [f"{SCRIPT_DIRECTORY}/{name}" for name in names]


def is_own(path: str, content: bytes, link: str | None = None) -> bool:
    r"""Return True if a file in the place of one of hostrouting is its own, or upstream's.

    Everything else belongs to an administrator or to another program. `link` is the text of a link.

    >>> unit = "/etc/systemd/system/static-routes.service"
    >>> is_own(unit, b"# Installed by hostrouting; `hostrouting reset` removes it.\n[Unit]")
    True
    >>> is_own(unit, b"[Service]\nExecStart=/etc/aks-flex-node/static-routes.sh")
    True
    >>> is_own(unit, b"[Service]\nExecStart=/opt/site/routes")
    False
    """
    if path not in SHARED_PATHS:
        return True
    if link is not None:
        return link.startswith(link_of(""))
    # A loss of power may cut a file.
    if _MARK.startswith(content) or _MARKED.match(content):
        return True
    started = settings([content.decode(errors="replace")], "ExecStart")["ExecStart"]
    return any(script in started for script in SCRIPT_PATHS)


@attrs.frozen(eq=False, repr=False)
class Survey:
    """Reads a `FileStore` and changes nothing; needs no root: all users can read the files."""

    _files: FileStore

    def has(self, path: str) -> bool:
        """Return True for an own path that exists; a mask belongs to an administrator."""
        return self.owns(path) and self._files.read_link(path) != MASK

    def owns(self, path: str) -> bool:
        """Return True for an own path that exists, or that an administrator has masked."""
        return self._files.exists(path) and not self.foreign([path])

    def foreign(self, paths: Iterable[str], *, severity: Severity = "error") -> list[NodeFinding]:
        """Return a finding for each file of another owner that an apply would write, or hide."""
        found = (self._foreign(path, severity) for path in paths if path in SHARED_PATHS)
        return [*filter(None, found)]

    def _foreign(self, path: str, severity: Severity) -> NodeFinding | None:
        folder, _, name = path.rpartition("/")
        folders = UNIT_FOLDERS if folder == UNIT_DIRECTORY else (folder,)
        places = (f"{folder}/{name}" for folder in folders)
        place = next(filter(self._files.exists, places), path)
        link = self._files.read_link(place)
        content = self._files.read(place) or b""
        if link == MASK or is_own(path, content, link):
            return None
        description = settings([content.decode(errors="replace")], "Description")["Description"]
        sort = f"the unit {description!r}" if description else "a file"
        sort = sort if link is None else f"a link to {link}"
        reason = f"is another owner's ({sort}), and stays"
        step = "an apply that needs its place is refused: move it away or rename it"
        return NodeFinding("foreign-file", place, reason, severity, step)

    def differs(self, file: BootFile) -> bool:
        """Return True if the content or mode of a file differs from those on the disk."""
        return state_of(self._files, file.path) != file.state

    def required_units(self) -> list[str]:
        """Return the units that hostrouting-ready.service requires by links."""
        return self._files.names(READY_LINKS)

    def links_to(self, name: str) -> list[str]:
        """Return every link that starts a unit with another one."""
        return [link for link in self._links() if link.endswith(f"/{name}")]

    def upstream_links(self, *units: BootUnit) -> list[str]:
        """Return upstream's links to `units`, and those that bind a machine to any other unit.

        If a machine *requires* a unit of hostrouting, a stop of that unit stops the machine, and so
        does a stop of any unit that it requires in turn. So these links are removed before any unit
        is stopped.
        """
        names = {unit.name for unit in units}
        wanted = {link for unit in units for link in links_of(unit)}
        upstream = []
        for link in self._links():
            folder, _, name = link.rpartition("/")
            binds = name in OWN_UNITS and folder.endswith(".requires") and folder != READY_LINKS
            if link not in wanted and (binds or name in names):
                upstream.append(link)
        return upstream

    def gates(self) -> list[str]:
        """Return the units that have a drop-in of hostrouting."""
        gates = [name[:-2] for name in self._files.names(UNIT_DIRECTORY) if name.endswith(".d")]
        return [gate for gate in gates if self.has(drop_in_of(gate))]

    def folders(self) -> list[str]:
        """Return every folder that a run may have written to."""
        beside_units = self._folders(".d", ".requires", ".wants")
        generations = generation_folders(self._files)
        return [UNIT_DIRECTORY, *FURTHER_FOLDERS, *beside_units, SCRIPT_DIRECTORY, *generations]

    def _links(self) -> list[str]:
        """Return all links but those by which another owner's unit is enabled."""
        folders = self._folders(".requires", ".wants")
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in self._files.names(folder)
            if folder.startswith(unit_path("hostrouting")) or not self.foreign([unit_path(name)])
        ]

    def _folders(self, *endings: str) -> list[str]:
        names = self._files.names(UNIT_DIRECTORY)
        return [f"{UNIT_DIRECTORY}/{name}" for name in names if name.endswith(endings)]
