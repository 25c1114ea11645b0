"""The steps from the disk as it is to the disk as it should be; plans and runs use the same steps."""

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
    contents_in_force,
    generation_folders,
    intent_in_force,
    link_of,
)
from hostrouting.boot.intent import UNCHANGED, Intent
from hostrouting.boot.layout import (
    ASKED_PATH,
    GATE_UNITS,
    INTENT_PATH,
    READY_UNIT,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    Departure,
    drop_in_of,
    gate_drop_in,
    links_of,
    list_of_asked,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.recorded import FileState, change_of, state_of
from hostrouting.config import OWN_UNITS
from hostrouting.host.units import MASK
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostrouting.boot.generation import Survey
    from hostrouting.boot.intent import Part
    from hostrouting.boot.layout import BootUnit
    from hostrouting.host import FileStore

#: Why a file is not installed, and the next step. A mask is a decision, and removing it here would
#: undo that silently.
MASKED: Final = (
    "an administrator has masked it by a link to /dev/null; if it is to be installed, remove the link "
    "(systemctl unmask), otherwise take out the part of hostRouting that needs it"
)


class Step(NamedTuple):
    """The states that it gives to paths on the disk, and the changes that it makes."""

    changes: tuple[Change, ...]
    after: Mapping[str, FileState]
    #: A folder that is removed after it, if it is empty then.
    folder: str | None = None


@attrs.frozen
class Steps:
    """Compares a `FileStore` with the wanted files; changes nothing before a step is taken.

    A machine may lose its power between any two steps, and must boot all the same. So new scripts
    are written before the units that run them, units before the link that exchanges all scripts at
    once, then what the gates ask, and then the gates: they never wait for a file that is not there
    yet. Last of all go the units that left the config, and the links of upstream, by which a
    machine requires its check. A removal begins with the intent, so that nothing repairs the rest,
    then come the gates, and then the links by which units start: none fails for lack of another.
    """

    _files: FileStore
    _disk: Survey
    _gates: Sequence[str]

    def between(self, parts: Sequence[Part]) -> list[Step]:
        """Return the steps after which the units and the intent are installed, and the departures are not."""
        units = units_in(parts)
        # The check first: without the routes it would fail.
        gone = [part for part in reversed(parts) if isinstance(part, Departure)]
        leaving = {departure.name for departure in gone}
        remaining = self._installed() | {unit.name for unit in units}
        if remaining <= leaving:
            return self._farewell(gone)
        present = remaining - leaving
        intent = self._intent(parts, present)
        scripts = {
            file.path: file.content
            for unit in units
            for file in unit.files
            if file.path in SCRIPT_PATHS
        }
        wanted = scripts | self._asked(units, present) | intent
        generation = self._generation(wanted, present)
        plain = self._plain()
        written, switched = self._exchange(wanted, generation, plain)
        return [
            *(
                []
                if intent or self._files.read(INTENT_PATH) is None
                else self._remove([INTENT_PATH])
            ),
            *written,
            *(step for path in (*intent, ASKED_PATH) for step in self._put(BootFile(path, b""))),
            *(
                step
                for unit in units
                for step in self._install(unit, is_optional=not unit.is_asked)
            ),
            *(switched if units else ()),
            *(self._install(ready_unit()) if units else ()),
            *self._remove(
                drop_in_of(gate) for gate in self._disk.gates() if gate not in self._gates
            ),
            *(() if units else switched),
            *(
                step
                for gate in (self._gates if units else ())
                for step in self._put(gate_drop_in(gate))
            ),
            *self._remove(
                path
                for name, paths in gone
                for path in (*self._disk.links_to(name), unit_path(name), *paths)
            ),
            # Without gates of its own, a sibling that leaves the config does not take upstream's
            # from the others.
            *(
                self._remove(self._disk.foreign_links(*units))
                if units or self._disk.gates()
                else ()
            ),
            *self._discard_folders(keep=generation, plain=plain),
        ]

    def _installed(self) -> set[str]:
        # A unit that was disabled by hand counts as installed: its task enables it again or removes
        # it.
        files = {unit for unit in OWN_UNITS - GATE_UNITS if self._disk.has(unit_path(unit))}
        return files | set(self._disk.required_units())

    # --- the scripts and the intent, which change at once

    def _intent(self, parts: Sequence[Part], present: set[str]) -> dict[str, bytes]:
        """Return the content of the intent by its path, for these units on the disk; nothing if there is to be none."""
        intent = next((part for part in parts if isinstance(part, Intent)), UNCHANGED)
        others = present.difference(unit.name for unit in units_in(parts))
        content = intent.text_over(intent_in_force(self._files), others=others)
        return {} if content is None else {INTENT_PATH: content}

    def _asked(self, units: Sequence[BootUnit], present: set[str]) -> dict[str, bytes]:
        """Return the list of the units that gates ask, by its path: of these units, and of others that stay."""
        names = (self._files.read(ASKED_PATH) or b"").decode(errors="replace").split()
        known = OWN_UNITS & present
        # A list that was lost or damaged names none; an earlier version had links alone.
        earlier = known & {f"{name}.service" for name in names} or known.intersection(
            self._disk.required_units()
        )
        others = earlier.difference(unit.name for unit in units)
        file = list_of_asked({*(unit.name for unit in units if unit.is_asked), *others})
        return {file.path: file.content}

    def _generation(self, wanted: Mapping[str, bytes], present: set[str]) -> Generation:
        """Return the scripts that belong to the units, their list, and the intent if there is one."""
        in_force = contents_in_force(self._files)
        links = [path for path in SCRIPT_PATHS if self._files.read_link(path) == link_of(path)]
        there = {path: in_force.get(path, LOST) for path in links} | self._plain_scripts()
        units = {path: f"{path.rpartition('/')[2].removesuffix('.sh')}.service" for path in there}
        contents = {
            **{path: content for path, content in there.items() if units[path] in present},
            **wanted,
        }
        return Generation(dict.fromkeys(SCRIPT_PATHS, IDLE) | contents)

    def _plain(self) -> Generation | None:
        """Return a generation of upstream's scripts, which are plain files; None if there are none, or another one."""
        plain = self._plain_scripts()
        generation = Generation(dict.fromkeys(SCRIPT_PATHS, IDLE) | plain)
        now = self._files.read_link(GENERATION_LINK)
        return generation if plain and now in {None, generation.name} else None

    def _plain_scripts(self) -> dict[str, bytes]:
        plain = (path for path in SCRIPT_PATHS if self._files.read_link(path) is None)
        return {path: content for path in plain if (content := self._files.read(path)) is not None}

    def _adopted(self, plain: Generation, wanted: Mapping[str, bytes]) -> list[Step]:
        """Return the steps after which links lead to upstream's scripts, so that one step exchanges all of them.

        The links of wanted scripts are a part of their units.
        """
        unwanted = [path for path in self._plain_scripts() if path not in wanted]
        return [
            *(
                Step((), {file.path: file.state})
                for file in plain.files
                if self._disk.differs(file)
            ),
            Step((), {GENERATION_LINK: plain.name}),
            *(Step((), {path: link_of(path)}) for path in unwanted),
        ]

    def _exchange(
        self, wanted: Mapping[str, bytes], generation: Generation, plain: Generation | None
    ) -> tuple[list[Step], list[Step]]:
        """Return the steps that write the files, and the step that puts them in force once the units are written."""
        now = self._files.read_link(GENERATION_LINK)
        in_force = contents_in_force(self._files)
        news = self._news(wanted, generation, in_force)
        # Files that are not in force yet are reported with the link that puts them in force.
        told = news if now == generation.name else {}
        written = [
            Step((told[path],) if path in told else (), {file.path: file.state})
            for path, file in zip(generation.contents, generation.files, strict=True)
            if self._disk.differs(file)
        ]
        if now == generation.name:
            return written, []
        if now and not news and generation.contents.items() >= in_force.items() >= wanted.items():
            # The same files in another folder, a copy: only the link differs.
            news = {GENERATION_LINK: Change("~", GENERATION_LINK)}
        switch = Step(tuple(news.values()), {GENERATION_LINK: generation.name})
        if plain is not None:
            return [*self._adopted(plain, wanted), *written], [switch]
        # The first generation: the links to its files must lead somewhere before a unit runs them.
        return (written, [switch]) if now else ([*written, switch], [])

    def _news(
        self, wanted: Mapping[str, bytes], generation: Generation, in_force: Mapping[str, bytes]
    ) -> dict[str, Change]:
        """Return the changes of the wanted files with the right link; for the others, the link is the change."""
        linked = [path for path in wanted if self._files.read_link(path) == link_of(path)]
        return {
            path: Change("~" if path in in_force else "+", path)
            for path in linked
            if (in_force.get(path), self._files.mode(path))
            != BootFile(path, generation.contents[path]).state
        }

    def _discard_folders(
        self, *, keep: Generation | None, plain: Generation | None = None
    ) -> list[Step]:
        """Return the steps that remove the files that are no longer in force."""
        steps = (
            []
            if keep or not self._files.exists(GENERATION_LINK)
            else [Step((), {GENERATION_LINK: None})]
        )
        found = {folder: self._files.names(folder) for folder in generation_folders(self._files)}
        if plain is not None:
            found[plain.folder] = [file.path.rpartition("/")[2] for file in plain.files]
        for folder, names in found.items():
            if keep is None or folder != keep.folder:
                steps.append(Step((), dict.fromkeys(f"{folder}/{name}" for name in names), folder))
        return steps

    # --- units

    def _install(self, unit: BootUnit, *, is_optional: bool = False) -> list[Step]:
        """Return the steps for the links to its scripts, its other files, and the links of its [Install] section."""
        # systemd reads only the name of a link's target; images and releases write the rest in
        # different ways.
        links = [
            path
            for path in links_of(unit)
            if (self._files.read_link(path) or "").rpartition("/")[2] != unit.name
        ]
        return [
            *(step for file in unit.files for step in self._put(file, is_optional=is_optional)),
            *(Step((Change("+", link),), {link: unit_path(unit.name)}) for link in links),
        ]

    def _farewell(self, gone: Sequence[Departure]) -> list[Step]:
        """Return the steps that remove everything: the gates before units, so that none waits for a removed one."""
        names = [READY_UNIT, *(departure.name for departure in gone)]
        paths = [
            INTENT_PATH,
            *map(drop_in_of, self._disk.gates()),
            *self._disk.foreign_links(),
            *(link for name in names for link in self._disk.links_to(name)),
            *(unit_path(departure.name) for departure in gone),
            *reversed(ready_unit().paths),
            ASKED_PATH,
            *(path for departure in gone for path in departure.paths),
        ]
        return [*self._remove(paths), *self._discard_folders(keep=None)]

    # --- single steps

    def _put(self, file: BootFile, *, is_optional: bool = False) -> list[Step]:
        """Return the step that writes a file, or makes the link to a script; none if it is right."""
        state = link_of(file.path) if file.path in LINKED_PATHS else file.state
        now = state_of(self._files, file.path)
        if now == state:
            return []
        change = change_of(file.path, now, state)
        if now == MASK:
            change = hindered("~", file.path, MASKED, optional=is_optional)
        return [Step((change,), {file.path: state})]

    def _remove(self, paths: Iterable[str]) -> list[Step]:
        """Return the steps that remove those of the paths that exist and are not masked.

        The folder of a link or drop-in goes, too, if it is empty then.
        """
        present = {path: path.rpartition("/")[0] for path in paths if self._disk.has(path)}
        return [
            Step(
                (Change("-", path),),
                {path: None},
                None if folder in {SCRIPT_DIRECTORY, UNIT_DIRECTORY} else folder,
            )
            for path, folder in present.items()
        ]
