"""The steps from the disk as it is to the disk as it should be, for plans and for runs.

All scripts, the program and the installed config are exchanged by renaming one link:

    /etc/aks-flex-node/hostrouting.json        -> hostrouting/hostrouting.json
    /etc/aks-flex-node/static-routes.sh        -> hostrouting/static-routes.sh
    /etc/aks-flex-node/check-route-overlap.sh  -> hostrouting/check-route-overlap.sh
    /etc/aks-flex-node/hostrouting.zip         -> hostrouting/hostrouting.zip
    /etc/aks-flex-node/hostrouting-ask.sh      -> hostrouting/hostrouting-ask.sh
    /etc/aks-flex-node/hostrouting-retry.sh    -> hostrouting/hostrouting-retry.sh
    /etc/aks-flex-node/hostrouting             -> hostrouting-1f2e3d4c     only this link changes
    /etc/aks-flex-node/hostrouting-1f2e3d4c/   both scripts, the program that they run, the
                                               installed config, its copy in force, and the
                                               scripts of the gates

In STRICT mode, the routes of one config with the check of another would hold every gate, and so
would routes that are repaired from the config of another. A generation contains every script, even
one that is not configured, so that units of the earlier config run harmlessly with the scripts of
the later one, and vice versa. Upstream's plain scripts are turned into a generation first. The
earlier generation stays until the next exchange, so that gates that are running it can finish and
an undo needs no disk space.

`Survey` reads all files of hostrouting on the disk, and `is_own` decides which files these are.
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding, Severity, hindered
from hostrouting.boot.installed_config import UNCHANGED, BootPart, Merged, NewConfig, mode_of
from hostrouting.boot.layout import (
    APPLIED_PATH,
    ASK_PATH,
    CONFIG_PATH,
    FURTHER_FOLDERS,
    GENERATION_LINK,
    PART_NAMES,
    PROGRAM_PATH,
    READY_LINKS,
    READY_UNIT,
    RETRY_PATH,
    SCRIPT_DIRECTORY,
    SCRIPT_PATHS,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    UnitRemoval,
    drop_in_of,
    gate_drop_in,
    is_strict,
    links_of,
    part_path,
    paths_of,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.program import wanted_program
from hostrouting.boot.recorded import DiskStep, change_of, state_of
from hostrouting.config.sections import OWN_UNITS, SECTIONS, OverlapMode
from hostrouting.host.units import MASK, UNIT_FOLDERS, settings
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.host import FileStore, Host

_PREFIX = "hostrouting-"
#: All files that are exchanged together; their links have the same names.
LINKED_PATHS: Final = (*SCRIPT_PATHS, CONFIG_PATH, PROGRAM_PATH, ASK_PATH, RETRY_PATH)
#: Stands in for a script that is not configured.
IDLE: Final = (
    b"#!/bin/bash\n# Installed by hostrouting: nothing is configured for this script.\nexit 10\n"
)
#: The paths of hostrouting that other programs may use as well.
SHARED_PATHS: Final = frozenset(
    path
    for section in SECTIONS
    for path in paths_of(section)
    if path not in SCRIPT_PATHS and "hostrouting" not in path.rpartition("/")[2]
)
#: The first comment of each of our files at a shared path; others may have added some before it.
_MARK = b"# Installed by hostrouting"
_MARKED = re.compile(rb"(?:#.*\n)*" + _MARK)
_APPLY = f"hostrouting apply {CONFIG_PATH}"
#: Stands in for a lost script until its task installs it again, and keeps gates closed.
LOST: Final = f"""#!/bin/bash
# Installed by hostrouting in place of a script that was lost.
echo "<3>the script $0 was lost, so routing is not checked; run: {_APPLY}" >&2
exit 12
""".encode()
_IDLE: Final = dict.fromkeys(SCRIPT_PATHS, IDLE)
#: Why a file is not installed, and the next step. A mask is a decision of the administrator, which
#: must not be undone silently.
MASKED: Final = (
    "an administrator has masked it with a link to /dev/null; to install it, remove the link "
    "(systemctl unmask), otherwise remove the part of hostRouting that needs it"
)
#: The permission bits that let the owner list and enter a directory.
_ENTER: Final = 0o500


@attrs.frozen(slots=False)
class Generation:
    """The contents of files by path: `SCRIPT_PATHS`, the other `LINKED_PATHS`, `APPLIED_PATH`.

    >>> Generation(dict.fromkeys(SCRIPT_PATHS, IDLE)).folder
    '/etc/aks-flex-node/hostrouting-44b81585'
    """

    contents: Mapping[str, bytes]

    # The checksum of the program takes a millisecond.
    @cached_property
    def name(self) -> str:
        """The name of the directory, which contains a checksum of the files.

        The program verifies it. The installed config is not included, because people may edit it.
        """
        checksum = 0
        for path in sorted(self.contents, key=_base_name):
            if path != CONFIG_PATH:
                content = self.contents[path]
                checksum = zlib.crc32(content, zlib.crc32(b"%d\n" % len(content), checksum))
        return f"{_PREFIX}{checksum:08x}"

    @property
    def folder(self) -> str:
        """The path of the directory."""
        return f"{SCRIPT_DIRECTORY}/{self.name}"

    @property
    def files(self) -> list[BootFile]:
        """The files with their paths in the directory."""
        folder = self.folder
        return [
            BootFile(f"{folder}/{_base_name(path)}", content)
            for path, content in self.contents.items()
        ]


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def link_of(path: str) -> str:
    """Return the target of the link at the fixed path of a file.

    >>> link_of("/etc/aks-flex-node/static-routes.sh")
    'hostrouting/static-routes.sh'
    """
    return f"{_base_name(GENERATION_LINK)}/{_base_name(path)}"


def contents_in_force(files: FileStore) -> dict[str, bytes]:
    """Return the contents of the generation in force by path; {} if there is none."""
    paths = filter(partial(_is_exchanged, files), (*LINKED_PATHS, APPLIED_PATH))
    return {path: content for path in paths if (content := files.read(path)) is not None}


def _is_exchanged(files: FileStore, path: str) -> bool:
    """Return True if a path leads to a file of the generation in force."""
    if path == APPLIED_PATH:
        return files.read_link(GENERATION_LINK) is not None
    return files.read_link(path) == link_of(path)


def program_file(
    host: Host, installed: bytes | None = None, *, is_planned: bool = False
) -> BootFile:
    """Return the program that the scripts run; see `wanted_program`."""
    if installed is None:
        # `render` does not need root.
        with suppress(HostFileError):
            # Not through the link of the program, which may have been lost or replaced.
            installed = host.files.read(f"{SCRIPT_DIRECTORY}/{link_of(PROGRAM_PATH)}")
    return BootFile(PROGRAM_PATH, wanted_program(host, installed, is_planned=is_planned))


def generation_folders(files: FileStore) -> list[str]:
    """Return the directories of all generations, including those of killed runs."""
    is_generation = re.compile(rf"{_PREFIX}[0-9a-f]{{8}}").fullmatch
    names = filter(is_generation, files.names(SCRIPT_DIRECTORY))
    return [f"{SCRIPT_DIRECTORY}/{name}" for name in names]


def is_own(path: str, content: bytes, link: str | None = None) -> bool:
    r"""Return True if a file at a path of hostrouting is ours or upstream's.

    Any other file belongs to an administrator or another program. `link` is the target if it is a
    link.

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
    # A file may be truncated after a loss of power.
    if _MARK.startswith(content) or _MARKED.match(content):
        return True
    started = settings([content.decode(errors="replace")], "ExecStart")["ExecStart"]
    return any(script in started for script in SCRIPT_PATHS)


@attrs.frozen(eq=False, repr=False)
class Survey:
    """Reads a `FileStore` and changes nothing; does not need root."""

    files: FileStore

    def has(self, path: str) -> bool:
        """Return True if a path exists and is ours; a mask is the administrator's."""
        return self.owns(path) and self.files.read_link(path) != MASK

    def owns(self, path: str) -> bool:
        """Return True if a path exists and is ours, or an administrator has masked it."""
        return self.files.exists(path) and not self.foreign([path])

    def foreign(self, paths: Iterable[str], *, severity: Severity = "error") -> list[NodeFinding]:
        """Return a finding for each file of another owner that an apply would overwrite or hide."""
        found = (self._foreign(path, severity) for path in paths if path in SHARED_PATHS)
        return [*filter(None, found)]

    def _foreign(self, path: str, severity: Severity) -> NodeFinding | None:
        folder, _, name = path.rpartition("/")
        folders = UNIT_FOLDERS if folder == UNIT_DIRECTORY else (folder,)
        candidates = (f"{folder}/{name}" for folder in folders)
        found = next(filter(self.files.exists, candidates), path)
        link = self.files.read_link(found)
        content = self.files.read(found) or b""
        if link == MASK or is_own(path, content, link):
            return None
        description = settings([content.decode(errors="replace")], "Description")["Description"]
        sort = f"the unit {description!r}" if description else "a file"
        sort = sort if link is None else f"a link to {link}"
        reason = f"belongs to another owner ({sort}) and is left alone"
        step = "an apply that needs this path is refused; move the file away or rename it"
        return NodeFinding("foreign-file", found, reason, severity, step)

    def required_units(self) -> list[str]:
        """Return the units that hostrouting-ready.service requires by links."""
        return self.files.names(READY_LINKS)

    def links_to(self, name: str) -> list[str]:
        """Return every link that makes another unit start a unit."""
        return [link for link in self._links() if link.endswith(f"/{name}")]

    def upstream_links(self, *units: BootUnit) -> list[str]:
        """Return upstream's links to `units`, and those that make a machine require any other unit.

        If a machine *requires* a unit of hostrouting, stopping that unit, or any unit that it
        requires in turn, stops the machine. So these links are removed before any unit is stopped.
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
        gates = [name[:-2] for name in self.files.names(UNIT_DIRECTORY) if name.endswith(".d")]
        return [gate for gate in gates if self.has(drop_in_of(gate))]

    def folders(self) -> list[str]:
        """Return every directory that a run may have written to."""
        next_to_units = self._folders(".d", ".requires", ".wants")
        generations = generation_folders(self.files)
        return [UNIT_DIRECTORY, *FURTHER_FOLDERS, *next_to_units, SCRIPT_DIRECTORY, *generations]

    def _links(self) -> list[str]:
        """Return all links except those that enable another owner's unit."""
        folders = self._folders(".requires", ".wants")
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in self.files.names(folder)
            if folder.startswith(unit_path("hostrouting")) or not self.foreign([unit_path(name)])
        ]

    def _folders(self, *endings: str) -> list[str]:
        names = self.files.names(UNIT_DIRECTORY)
        return [f"{UNIT_DIRECTORY}/{name}" for name in names if name.endswith(endings)]


@attrs.frozen(eq=False, repr=False)
class Steps:
    """Compares the files of a host with the wanted ones; changes nothing itself.

    A machine may lose power between any two steps and must still boot. `_changes` and
    `_paths_of_all` list the steps in order, each with its reason.
    """

    _host: Host
    _disk: Survey
    _gates: Sequence[str]
    #: True if the steps will not be carried out.
    _are_planned: bool = False

    @property
    def _files(self) -> FileStore:
        return self._host.files

    def between(self, parts: Sequence[BootPart]) -> list[DiskStep]:
        """Return the steps that install the units and the config, and remove other units."""
        units = units_in(parts)
        # The check first, because it would fail without the routes.
        removals = [part for part in reversed(parts) if isinstance(part, UnitRemoval)]
        leaving = {removal.name for removal in removals}
        remaining = self._remaining(units)
        if remaining <= leaving:
            removed = self._remove(self._paths_of_all(removals))
            return [*removed, *_discard_folders(self._files)]
        present = remaining - leaving
        merged = self._merged_config(parts, present)
        exchange = self._exchanged(units, present, merged)
        return [*self._changes(units, removals, merged, exchange)]

    def _remaining(self, units: Sequence[BootUnit]) -> set[str]:
        """Return the names of the units that are wanted or on the disk.

        A unit that was disabled by hand counts as installed: its task enables or removes it.
        """
        remaining = {name for name in PART_NAMES if self._disk.has(part_path(name))}
        return remaining | {*self._disk.required_units(), *(unit.name for unit in units)}

    def _exchanged(self, units: Sequence[BootUnit], present: set[str], merged: Merged) -> _Exchange:
        """Return the steps that exchange all scripts, the installed config and the program at once.

        The scripts of other units stay if these are `present`.
        """
        files = self._files
        in_force = contents_in_force(files)
        wanted = self._wanted(units, merged, in_force.get(PROGRAM_PATH))
        # Plain files, as upstream installs them.
        found = (path for path in SCRIPT_PATHS if files.read_link(path) is None)
        upstream = {path: text for path in found if (text := files.read(path)) is not None}
        # The installed scripts of other units on the disk stay.
        installed = {path: in_force.get(path, LOST) for path in _IDLE} | upstream
        kept = {path: text for path, text in installed.items() if _unit_of(path) in present}
        linked = {*filter(partial(_is_exchanged, files), _IDLE | wanted)}
        generation = Generation(_IDLE | kept | wanted)
        # A new link is a change by itself.
        changes = _changes_to(generation, filter(linked.__contains__, wanted), files, in_force)
        now = files.read_link(GENERATION_LINK)
        if now == generation.name:
            # Files that were read through their links need no second comparison: the program is
            # large. A change of the copy in force may be reported as one of the installed config.
            unchanged = (linked - {APPLIED_PATH}) & wanted.keys() - changes.keys()
            return _Exchange(_written(self._disk, generation, changes, unchanged), [])
        is_same = generation.contents.items() >= in_force.items() >= wanted.items()
        if now and not changes and is_same:
            # The same files in a copied directory: only the link differs.
            changes = {GENERATION_LINK: Change("~", GENERATION_LINK)}
        # Files that are not in force yet are reported together with the link that activates them.
        switch = DiskStep(tuple(changes.values()), {GENERATION_LINK: generation.name})
        # The links to wanted scripts are installed with their units.
        links = [path for path in upstream if path not in wanted]
        plain = Generation(_IDLE | upstream) if upstream else None
        exchange = _switched(self._disk, generation, switch, plain, links)
        if self._host.is_live:
            return exchange
        # In an image, nothing is running the earlier files.
        discarded = _discard_folders(files, {generation.name})
        return exchange._replace(switched=[*exchange.switched, *discarded])

    def _wanted(
        self, units: Sequence[BootUnit], merged: Merged, program: bytes | None
    ) -> dict[str, bytes]:
        """Return the contents of all exchanged files; a plan does not build a program."""
        files = (file for unit in (*units, ready_unit()) for file in unit.files)
        wanted = {file.path: file.content for file in files if file.path in LINKED_PATHS}
        if merged.content is not None:
            wanted |= dict.fromkeys((CONFIG_PATH, APPLIED_PATH), merged.content)
        file = program_file(self._host, program, is_planned=self._are_planned)
        return wanted | {PROGRAM_PATH: file.content}

    def _changes(
        self,
        units: Sequence[BootUnit],
        removals: Sequence[UnitRemoval],
        merged: Merged,
        exchange: _Exchange,
    ) -> Iterator[DiskStep]:
        """Yield the steps in order."""
        gates = self._disk.gates()
        strict, drop_ins = self._gate_steps(merged) if units else ([], [])
        # Gates have no capability to override file modes.
        yield from self._unhide()
        # If no config will be installed, nothing must be repaired from now on.
        yield from self._forget(merged)
        # A gate becomes strict before its scripts do.
        yield from strict
        # Nothing uses these files yet.
        yield from exchange.written
        # Units find their scripts, and people the config.
        yield from self._link(merged)
        if units:
            # A unit comes after its files, and before the scripts that it runs are exchanged.
            for unit in units:
                yield from self._install(unit)
            # All scripts, the installed config and the program, at once.
            yield from exchange.switched
            # The units that gates wait for come before the gates.
            yield from self._install(ready_unit())
        yield from self._remove(drop_in_of(gate) for gate in gates if gate not in self._gates)
        if not units:
            # There is nothing left to wait for, so gates are removed before the scripts.
            yield from exchange.switched
        # A new gate comes after the files that it needs.
        yield from drop_ins
        # By now, nothing waits for or requires the units to remove.
        yield from self._remove(self._paths_of(removals))
        # Upstream's links make a machine require the check. If there are no gates, removing an
        # optional feature keeps the links to other units.
        if units or gates:
            yield from self._remove(self._disk.upstream_links(*units))

    def _forget(self, merged: Merged) -> list[DiskStep]:
        """Return the step that removes the installed config if there is no new one."""
        if merged.content is not None or self._files.read(CONFIG_PATH) is None:
            return []
        return self._remove([CONFIG_PATH])

    def _link(self, merged: Merged) -> Iterator[DiskStep]:
        """Yield the steps that link files that belong to no unit to the generation in force."""
        for path in [PROGRAM_PATH] if merged.content is None else [CONFIG_PATH, PROGRAM_PATH]:
            yield from self._put(BootFile(path, b""))

    def _paths_of(self, removals: Sequence[UnitRemoval]) -> Iterator[str]:
        """Yield the paths of units to remove, beginning with the links to each."""
        for name, paths in removals:
            yield from (*self._disk.links_to(name), part_path(name), *paths)

    def _gate_steps(self, merged: Merged) -> tuple[list[DiskStep], list[DiskStep]]:
        """Return the steps for drop-ins to write before the scripts, and for those to write after.

        A gate becomes strict before its scripts do, and stays strict until they no longer are. A
        new gate comes after the files that it needs.
        """
        mode = self._mode(merged)
        before: list[DiskStep] = []
        after: list[DiskStep] = []
        for gate in self._gates:
            drop_in = gate_drop_in(gate, mode)
            is_first = mode is OverlapMode.STRICT and self._disk.has(drop_in.path)
            (before if is_first else after).extend(self._put(drop_in))
        return before, after

    def _mode(self, merged: Merged) -> OverlapMode:
        """Return the mode of the gates; that of the gates on the disk if the config is damaged."""
        if merged.config is not None:
            return mode_of(merged.config)
        if merged.content is None:
            return OverlapMode.WARN
        texts = [self._files.read(drop_in_of(gate)) for gate in self._disk.gates()]
        return OverlapMode.STRICT if any(map(is_strict, filter(None, texts))) else OverlapMode.WARN

    def _unhide(self) -> list[DiskStep]:
        """Return the steps that let gates enter the directories of their scripts.

        A gate runs as root, but without the capability to override file modes.
        """
        steps = []
        for folder in (SCRIPT_DIRECTORY, *generation_folders(self._files)):
            mode = self._files.folder_mode(folder)
            if mode is not None and mode & _ENTER != _ENTER:
                change = Change("~", f"{folder}/", f"its mode {mode:04o} hides it from gates")
                steps.append(DiskStep((change,), {change.subject: 0o755}))
        return steps

    # --- the installed config

    def _merged_config(self, parts: Sequence[BootPart], present: set[str]) -> Merged:
        """Return the config to install for the units that will be on the disk."""
        merged = next((part for part in parts if isinstance(part, NewConfig)), UNCHANGED)
        others = present.difference(unit.name for unit in units_in(parts))
        # Not through the link of the installed config, which may have been lost or replaced.
        installed = self._files.read(APPLIED_PATH)
        if installed is None:
            installed = self._files.read(f"{SCRIPT_DIRECTORY}/{link_of(CONFIG_PATH)}")
        return merged.merged_with(installed, others=others)

    # --- units

    def _install(self, unit: BootUnit) -> list[DiskStep]:
        """Return the steps for a unit's files, the links to its scripts, and those of [Install].

        A masked unit is skipped if no gate waits for it, and refused otherwise.
        """
        is_optional = not (unit.is_gating or unit.name == READY_UNIT)
        steps = []
        for file in unit.files:
            steps += self._put(file, is_optional=is_optional)
        for link in links_of(unit):
            # systemd uses only the file name of the target; the directory depends on the release.
            if (self._files.read_link(link) or "").rpartition("/")[2] != unit.name:
                steps.append(DiskStep((Change("+", link),), {link: unit_path(unit.name)}))
        return steps

    def _paths_of_all(self, removals: Sequence[UnitRemoval]) -> Iterator[str]:
        """Yield all paths that may be on the disk, in the order of removal."""
        # First, so that nothing repairs the rest.
        yield CONFIG_PATH
        # Gates before the units that they wait for.
        yield from map(drop_in_of, self._disk.gates())
        yield from self._disk.upstream_links()
        # The links that start units.
        for name in (READY_UNIT, *(removal.name for removal in removals)):
            yield from self._disk.links_to(name)
        for removal in removals:
            yield part_path(removal.name)
        yield from reversed(ready_unit().paths)
        for removal in removals:
            yield from removal.paths
        yield PROGRAM_PATH

    # --- single steps

    def _put(self, file: BootFile, *, is_optional: bool = False) -> list[DiskStep]:
        """Return the step that writes a file or links to a script, or [] if none is needed."""
        if self._disk.foreign([file.path]):
            # An apply will be refused.
            return []
        state = link_of(file.path) if file.path in LINKED_PATHS else file.state
        now = state_of(self._files, file.path)
        if now == state:
            return []
        change = change_of(file.path, now, state)
        if now == MASK:
            change = hindered("~", file.path, MASKED, optional=is_optional)
        return [DiskStep((change,), {file.path: state})]

    def _remove(self, paths: Iterable[str]) -> list[DiskStep]:
        """Return the steps that remove the paths that exist, are ours, and are not masked.

        The directory of a link or drop-in is also removed if it is empty then.
        """
        steps = []
        for path in dict.fromkeys(filter(self._disk.has, paths)):
            folder = path.rpartition("/")[0]
            is_shared = folder in {SCRIPT_DIRECTORY, UNIT_DIRECTORY}
            steps.append(
                DiskStep((Change("-", path),), {path: None}, None if is_shared else folder)
            )
        return steps


# --- the exchange of all scripts, the installed config and the program, by renaming one link


class _Exchange(NamedTuple):
    """The steps that exchange the files in force."""

    #: Write files that are not in force, or rewrite those that are.
    written: list[DiskStep]
    #: Put the new files in force, all at once.
    switched: list[DiskStep]


def _switched(
    disk: Survey,
    generation: Generation,
    switch: DiskStep,
    plain: Generation | None,
    links: Iterable[str],
) -> _Exchange:
    """Return the steps that exchange the files in force, or upstream's `plain` ones.

    Upstream's files are turned into a generation first, with further `links` to it, so that all
    files are exchanged at once.
    """
    now = disk.files.read_link(GENERATION_LINK)
    adopted = []
    # A killed run may already have done this.
    if plain is not None and now in {None, plain.name}:
        now = plain.name
        states = {GENERATION_LINK: now} | {path: link_of(path) for path in links}
        adopted = [*_written(disk, plain), *(DiskStep((), {path: states[path]}) for path in states)]
    # So there is never more than two generations.
    discarded = _discard_folders(disk.files, {generation.name, now})
    written = [*discarded, *adopted, *_written(disk, generation)]
    if now is None:
        # The links to the first generation must work before a unit uses them.
        return _Exchange([*written, switch], [])
    return _Exchange(written, [switch])


def _discard_folders(files: FileStore, keep: Collection[str | None] = ()) -> list[DiskStep]:
    """Return the steps that remove generations except those to keep, and the link if none is."""
    steps = []
    if not keep and files.exists(GENERATION_LINK):
        steps.append(DiskStep((), {GENERATION_LINK: None}))
    for folder in generation_folders(files):
        if folder.rpartition("/")[2] not in keep:
            removed = dict.fromkeys(f"{folder}/{name}" for name in files.names(folder))
            steps.append(DiskStep((), removed, folder))
    return steps


def _unit_of(path: str) -> str:
    return f"{path.rpartition('/')[2].removesuffix('.sh')}.service"


def _changes_to(
    generation: Generation, paths: Iterable[str], files: FileStore, in_force: Mapping[str, bytes]
) -> dict[str, Change]:
    """Return the change of each path whose file in force differs from that of a generation.

    A change of the config's copy in force is reported only if the installed config does not change.
    """
    wanted = generation.contents
    changes = {
        path: Change("~" if path in in_force else "+", path)
        for path in paths
        if (in_force.get(path), files.mode(path)) != BootFile(path, wanted[path]).state
    }
    if CONFIG_PATH in changes:
        changes.pop(APPLIED_PATH, None)
    return changes


def _written(
    disk: Survey,
    generation: Generation,
    changes: Mapping[str, Change] = {},
    unchanged: Collection[str] = (),
) -> list[DiskStep]:
    """Return the steps that write the files of a generation, except the `unchanged` ones.

    If the generation is in force, they are reported as `changes`.
    """
    steps = []
    for path, file in zip(generation.contents, generation.files, strict=True):
        if path not in unchanged and state_of(disk.files, file.path) != file.state:
            reported = (changes[path],) if path in changes else ()
            steps.append(DiskStep(reported, {file.path: file.state}))
    return steps
