"""The exchange of all scripts, the intent and the program of a boot, by one rename of a link.

A generation is a folder with all of them; the link leads to the one in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot.generation import (
    GENERATION_LINK,
    IDLE,
    LOST,
    SCRIPT_PATHS,
    Generation,
    Survey,
    contents_in_force,
    generation_folders,
    link_of,
    program_file,
)
from hostrouting.boot.layout import PROGRAM_PATH, BootFile
from hostrouting.boot.recorded import DiskStep
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hostrouting.host import FileStore, Host

_IDLE: Final = dict.fromkeys(SCRIPT_PATHS, IDLE)


class Exchange(NamedTuple):
    """The steps from the files in force to other ones."""

    #: Write files that are not in force yet, or again.
    written: list[DiskStep]
    #: Put them in force, all at once.
    switched: list[DiskStep]
    #: Remove those that were in force.
    discarded: list[DiskStep]


def exchange(
    host: Host,
    disk: Survey,
    wanted: Mapping[str, bytes],
    present: Collection[str],
    *,
    is_planned: bool,
) -> Exchange:
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
    changes = {
        path: Change("~" if path in in_force else "+", path)
        for path in wanted
        if path in linked and _is_other(files, path, in_force, generation)
    }
    now = files.read_link(GENERATION_LINK)
    plain = _adoptable(upstream, now)
    discarded = discard_folders(files, generation.folder, plain)
    if now == generation.name:
        # Those that are right were read through their links: the program is large.
        right = linked & wanted.keys() - changes.keys()
        return Exchange(_mended(disk, generation, changes, right), [], discarded)
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
        return Exchange([*_adopted(disk, plain, unwanted), *written], [switch], discarded)
    if now is None:
        # The links to the files of the first generation must resolve before a unit runs them.
        return Exchange([*written, switch], [], discarded)
    return Exchange(written, [switch], discarded)


def discard_folders(
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


def _is_other(
    files: FileStore, path: str, in_force: Mapping[str, bytes], generation: Generation
) -> bool:
    """Return True if the file in force differs from that of a generation."""
    state = (in_force.get(path), files.mode(path))
    return state != BootFile(path, generation.contents[path]).state


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
