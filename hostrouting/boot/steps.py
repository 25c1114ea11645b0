"""The steps from the disk as it is to the disk as it should be, for plans and for runs.

All scripts, the intent and the program of a boot are exchanged by one rename of a link. A
generation is a folder with all of them; the link leads to the one in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.findings import hindered
from hostrouting.boot.generation import (
    GENERATION_LINK,
    IDLE,
    LINKED_PATHS,
    LOST,
    SCRIPT_PATHS,
    Generation,
    Survey,
    contents_in_force,
    generation_folders,
    link_of,
    program_file,
)
from hostrouting.boot.intent import UNCHANGED, Intent, Merged, Part, mode_of
from hostrouting.boot.layout import (
    GATING_PATH,
    INTENT_PATH,
    PART_NAMES,
    PROGRAM_PATH,
    READY_UNIT,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    Departure,
    drop_in_of,
    gate_drop_in,
    gating_entries,
    gating_entry,
    gating_list,
    links_of,
    part_path,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.recorded import DiskStep, change_of, state_of
from hostrouting.config import OWN_UNITS, OverlapMode
from hostrouting.host.units import MASK
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.host import FileStore, Host

_IDLE: Final = dict.fromkeys(SCRIPT_PATHS, IDLE)
#: Why a file is not installed, and the next step. A mask is a decision, and removing it here would
#: undo that silently.
MASKED: Final = (
    "an administrator has masked it by a link to /dev/null; if it is to be installed, remove the "
    "link (systemctl unmask), otherwise take out the part of hostRouting that needs it"
)


#: The permission bits by which its owner may list a folder and enter it.
_LOOK_INTO: Final = 0o500


@attrs.frozen(eq=False, repr=False)
class Steps:
    """Compares the files of a host with the wanted ones; changes nothing itself.

    A machine may lose its power between any two steps, and must boot all the same: `between` and
    `_removal` have the steps in their order, each with its reason.
    """

    _host: Host
    _disk: Survey
    _gates: Sequence[str]
    #: True for steps that nothing carries out.
    _are_planned: bool = False

    @property
    def _files(self) -> FileStore:
        return self._host.files

    def between(self, parts: Sequence[Part]) -> list[DiskStep]:
        """Return the steps that install the units and the intent, and remove the departures."""
        units = units_in(parts)
        # The check first: without the routes it would fail.
        departures = [part for part in reversed(parts) if isinstance(part, Departure)]
        leaving = {departure.name for departure in departures}
        remaining = self._remaining(units)
        if remaining <= leaving:
            return self._removal(departures)
        present = remaining - leaving
        intent = self._intent(parts, present)
        return self._changes(units, departures, intent, self._exchanged(units, present, intent))

    def _remaining(self, units: Sequence[BootUnit]) -> set[str]:
        """Return the names of the units that are wanted, or on the disk.

        One that was disabled by hand counts as installed: its task enables it again or removes it.
        """
        remaining = {name for name in PART_NAMES if self._disk.has(part_path(name))}
        return remaining | {*self._disk.required_units(), *(unit.name for unit in units)}

    def _exchanged(self, units: Sequence[BootUnit], present: set[str], intent: Merged) -> _Exchange:
        """Return the steps that exchange all scripts, the intent and the program at once."""
        files = [file for unit in units for file in unit.files]
        scripts = {file.path: file.content for file in files if file.path in SCRIPT_PATHS}
        wanted = scripts | self._gating(units, present)
        if intent.content is not None:
            wanted[INTENT_PATH] = intent.content
        return _exchange(self._host, self._disk, wanted, present, is_planned=self._are_planned)

    def _changes(
        self,
        units: Sequence[BootUnit],
        departures: Sequence[Departure],
        intent: Merged,
        exchange: _Exchange,
    ) -> list[DiskStep]:
        """Return the steps in their order."""
        gates = self._disk.gates()
        strict, drop_ins = self._gate_steps(intent) if units else ([], [])
        return [
            # Gates look without the capability to override modes.
            *self._unhide(),
            # Nothing repairs what a config without an intent has.
            *self._forget(intent),
            # A gate is strict before its scripts are.
            *strict,
            # Nothing runs these files yet.
            *exchange.written,
            # A unit finds its script, and a gate the list of what it asks.
            *self._link(intent),
            # A unit comes after its files, and before the scripts that it runs.
            *self._install_all(units),
            # All scripts, the intent and the program, at once.
            *(exchange.switched if units else ()),
            # What gates wait for comes before them.
            *(self._install(ready_unit()) if units else ()),
            # Without units there is nothing to wait for, so gates go before the scripts.
            *self._remove(drop_in_of(gate) for gate in gates if gate not in self._gates),
            *(() if units else exchange.switched),
            # A new gate waits for files that exist.
            *drop_ins,
            # Nothing waits for, or requires, what has left the config.
            *self._remove(self._paths_of(departures)),
            # Upstream's links, by which a machine requires its check. Without gates, the removal of
            # a sibling keeps those to other units.
            *self._remove(self._disk.upstream_links(*units) if units or gates else ()),
            # No link leads to the earlier files any more.
            *exchange.discarded,
        ]

    def _forget(self, intent: Merged) -> list[DiskStep]:
        """Return the step that removes the intent of a config that leaves none."""
        if intent.content is not None or self._files.read(INTENT_PATH) is None:
            return []
        return self._remove([INTENT_PATH])

    def _link(self, intent: Merged) -> Iterator[DiskStep]:
        """Yield the steps by which paths that are no unit's lead to the generation in force."""
        paths = [GATING_PATH, PROGRAM_PATH]
        for path in paths if intent.content is None else [INTENT_PATH, *paths]:
            yield from self._put(BootFile(path, b""))

    def _paths_of(self, departures: Sequence[Departure]) -> Iterator[str]:
        """Yield what departures have on the disk, the links to a unit first."""
        for name, paths in departures:
            yield from (*self._disk.links_to(name), part_path(name), *paths)

    def _gate_steps(self, intent: Merged) -> tuple[list[DiskStep], list[DiskStep]]:
        """Return the steps for the drop-ins to write before the scripts, and for those after them.

        A gate becomes strict before its scripts are, and stays so until they are not. A new gate
        waits for the files that it needs.
        """
        mode = self._mode(intent)
        before: list[DiskStep] = []
        after: list[DiskStep] = []
        for gate in self._gates:
            drop_in = gate_drop_in(gate, mode)
            is_first = mode is OverlapMode.STRICT and self._disk.has(drop_in.path)
            (before if is_first else after).extend(self._put(drop_in))
        return before, after

    def _mode(self, intent: Merged) -> OverlapMode:
        """Return the mode of the gates for an intent; that of the gates on the disk if damaged."""
        if intent.config is not None:
            return mode_of(intent.config)
        if intent.content is None:
            return OverlapMode.WARN
        texts = [self._files.read(drop_in_of(gate)) for gate in self._disk.gates()]
        is_strict = any(text is not None and b" mode=STRICT " in text for text in texts)
        return OverlapMode.STRICT if is_strict else OverlapMode.WARN

    def _unhide(self) -> list[DiskStep]:
        """Return the steps that let a gate into the folders of its scripts.

        The gate looks with root's identity, but without the capability to override modes.
        """
        steps = []
        for folder in (SCRIPT_DIRECTORY, *generation_folders(self._files)):
            mode = self._files.folder_mode(folder)
            if mode is not None and mode & _LOOK_INTO != _LOOK_INTO:
                change = Change("~", f"{folder}/", f"its mode {mode:04o} hides it from gates")
                steps.append(DiskStep((change,), {change.subject: 0o755}))
        return steps

    # --- the intent, and the list of units that gates wait for

    def _intent(self, parts: Sequence[Part], present: set[str]) -> Merged:
        """Return the intent for the units on the disk."""
        intent = next((part for part in parts if isinstance(part, Intent)), UNCHANGED)
        others = present.difference(unit.name for unit in units_in(parts))
        # The intent of the scripts in force, even if its link was lost or replaced.
        installed = self._files.read(f"{SCRIPT_DIRECTORY}/{link_of(INTENT_PATH)}")
        return intent.merged_with(installed, others=others)

    def _gating(self, units: Sequence[BootUnit], present: set[str]) -> dict[str, bytes]:
        """Return the list of the units that gates wait for, by its path, with those that stay."""
        listed = {
            f"{entry.partition(':')[0]}.service": entry
            for entry in gating_entries(self._files.read(GATING_PATH))
        }
        # A list that was lost or damaged is empty.
        installed = OWN_UNITS & present
        earlier = installed & listed.keys() or installed & {*self._disk.required_units()}
        others = earlier.difference(unit.name for unit in units)
        entries = {gating_entry(unit) for unit in units if unit.is_gating}
        entries |= {listed.get(name, name.removesuffix(".service")) for name in others}
        file = gating_list(entries)
        return {file.path: file.content}

    # --- units

    def _install_all(self, units: Iterable[BootUnit]) -> Iterator[DiskStep]:
        """Yield the steps for units; a mask of one that no gate waits for is no refusal."""
        for unit in units:
            yield from self._install(unit, is_optional=not unit.is_gating)

    def _install(self, unit: BootUnit, *, is_optional: bool = False) -> list[DiskStep]:
        """Return the steps for its files, the links to its scripts, and those of [Install]."""
        steps = []
        for file in unit.files:
            steps += self._put(file, is_optional=is_optional)
        for link in links_of(unit):
            # systemd reads only the name of a link's target; the folder depends on the release.
            if (self._files.read_link(link) or "").rpartition("/")[2] != unit.name:
                steps.append(DiskStep((Change("+", link),), {link: unit_path(unit.name)}))
        return steps

    def _removal(self, departures: Sequence[Departure]) -> list[DiskStep]:
        """Return the steps that remove everything."""
        names = (READY_UNIT, *(departure.name for departure in departures))
        paths = [
            # Nothing repairs the rest.
            INTENT_PATH,
            # Gates, before the units that they wait for.
            *map(drop_in_of, self._disk.gates()),
            *self._disk.upstream_links(),
            # The links by which units start.
            *(link for name in names for link in self._disk.links_to(name)),
            *(part_path(departure.name) for departure in departures),
            *reversed(ready_unit().paths),
            GATING_PATH,
            *(path for departure in departures for path in departure.paths),
            PROGRAM_PATH,
        ]
        return [*self._remove(paths), *_discard_folders(self._files)]

    # --- single steps

    def _put(self, file: BootFile, *, is_optional: bool = False) -> list[DiskStep]:
        """Return the step that writes a file or links to a script, or [] if it is right."""
        if self._disk.foreign([file.path]):
            # An apply is refused.
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
        """Return the steps that remove those of the paths that exist, are own and not masked.

        The folder of a link or drop-in is removed, too, if it is empty then.
        """
        steps = []
        for path in dict.fromkeys(filter(self._disk.has, paths)):
            folder = path.rpartition("/")[0]
            is_shared = folder in {SCRIPT_DIRECTORY, UNIT_DIRECTORY}
            steps.append(
                DiskStep((Change("-", path),), {path: None}, None if is_shared else folder)
            )
        return steps


# --- the exchange of all scripts, the intent and the program, by one rename of a link


class _Exchange(NamedTuple):
    """The steps from the files in force to other ones."""

    #: Write files that are not in force yet, or again.
    written: list[DiskStep]
    #: Put them in force, all at once.
    switched: list[DiskStep]
    #: Remove those that were in force.
    discarded: list[DiskStep]


def _exchange(
    host: Host,
    disk: Survey,
    wanted: Mapping[str, bytes],
    present: Collection[str],
    *,
    is_planned: bool,
) -> _Exchange:
    """Return the steps that put the `wanted` files in force.

    The scripts of other units stay, if these are `present`. Steps that are only planned have no new
    program.
    """
    files = host.files
    in_force = contents_in_force(files)
    program = program_file(host, in_force.get(PROGRAM_PATH), is_planned=is_planned)
    wanted = {**wanted, PROGRAM_PATH: program.content}
    linked = {path for path in _IDLE | wanted if files.read_link(path) == link_of(path)}
    upstream = _upstream_scripts(files)
    # The installed scripts of further units on the disk stay.
    installed = {path: in_force.get(path, LOST) for path in _IDLE if path in linked} | upstream
    kept = {path: text for path, text in installed.items() if _unit_of(path) in present}
    generation = Generation.of(_IDLE | kept | wanted)
    # A new link is a change itself.
    changes = _changes_to(generation, filter(linked.__contains__, wanted), files, in_force)
    now = files.read_link(GENERATION_LINK)
    plain = _adoptable(upstream, now)
    discarded = _discard_folders(files, generation.folder, plain)
    if now == generation.name:
        # Those that are right were read through their links: the program is large.
        right = linked & wanted.keys() - changes.keys()
        return _Exchange(_mended(disk, generation, changes, right), [], discarded)
    written = _written(disk, generation)
    is_same = generation.contents.items() >= in_force.items() >= wanted.items()
    if now and not changes and is_same:
        # The same files in another folder, a copy: only the link differs.
        changes = {GENERATION_LINK: Change("~", GENERATION_LINK)}
    # Files that are not in force yet are reported with the link that puts them in force.
    switch = DiskStep(tuple(changes.values()), {GENERATION_LINK: generation.name})
    if plain is not None:
        # The links of wanted scripts are a part of their units.
        unwanted = [path for path in upstream if path not in wanted]
        return _Exchange([*_adopted(disk, plain, unwanted), *written], [switch], discarded)
    if now is None:
        # The links to the files of the first generation must resolve before a unit runs them.
        return _Exchange([*written, switch], [], discarded)
    return _Exchange(written, [switch], discarded)


def _discard_folders(
    files: FileStore, keep: str = "", plain: Generation | None = None
) -> list[DiskStep]:
    """Return the steps that remove the files that are no longer in force, and the `plain` ones."""
    steps = []
    if not keep and files.exists(GENERATION_LINK):
        steps.append(DiskStep((), {GENERATION_LINK: None}))
    contents = {folder: files.names(folder) for folder in generation_folders(files)}
    if plain is not None:
        contents[plain.folder] = [file.path.rpartition("/")[2] for file in plain.files]
    for folder, names in contents.items():
        if folder != keep:
            removed = dict.fromkeys(f"{folder}/{name}" for name in names)
            steps.append(DiskStep((), removed, folder))
    return steps


def _upstream_scripts(files: FileStore) -> dict[str, bytes]:
    """Return the scripts that are files at their well-known paths, as upstream installs them."""
    plain = [path for path in SCRIPT_PATHS if files.read_link(path) is None]
    return {path: text for path in plain if (text := files.read(path)) is not None}


def _adoptable(upstream: dict[str, bytes], now: str | None) -> Generation | None:
    """Return a generation of upstream's scripts, by which they are all exchanged at once.

    None without any, or if another generation is in force: not the one of a run that was killed.
    """
    if not upstream:
        return None
    plain = Generation.of(_IDLE | upstream)
    return plain if now is None or now == plain.name else None


def _unit_of(path: str) -> str:
    return f"{path.rpartition('/')[2].removesuffix('.sh')}.service"


def _changes_to(
    generation: Generation, paths: Iterable[str], files: FileStore, in_force: Mapping[str, bytes]
) -> dict[str, Change]:
    """Return the change of each path whose file in force differs from that of a generation."""
    wanted = generation.contents
    return {
        path: Change("~" if path in in_force else "+", path)
        for path in paths
        if (in_force.get(path), files.mode(path)) != BootFile(path, wanted[path]).state
    }


def _mended(
    disk: Survey, generation: Generation, changes: Mapping[str, Change], right: Collection[str]
) -> list[DiskStep]:
    """Return the steps that mend files of the generation in force, which are reported."""
    steps = []
    for path, file in zip(generation.contents, generation.files, strict=True):
        if path not in right and disk.differs(file):
            reported = (changes[path],) if path in changes else ()
            steps.append(DiskStep(reported, {file.path: file.state}))
    return steps


def _written(disk: Survey, generation: Generation) -> list[DiskStep]:
    """Return the steps that write the files of a generation."""
    wrong = filter(disk.differs, generation.files)
    return [DiskStep((), {file.path: file.state}) for file in wrong]


def _adopted(disk: Survey, plain: Generation, unwanted: Collection[str]) -> list[DiskStep]:
    """Return the steps by which upstream's scripts become a generation, and links lead to it."""
    steps = _written(disk, plain)
    steps.append(DiskStep((), {GENERATION_LINK: plain.name}))
    steps += [DiskStep((), {path: link_of(path)}) for path in unwanted]
    return steps
