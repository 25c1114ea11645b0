"""Paths on the machine, and values for the files of a capability; reads only assets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from hostrouting.base.commands import command_line
from hostrouting.config.sections import GATE_UNITS, SECTIONS
from hostrouting.host.units import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.abc import ResourceLoader

    from hostrouting.config.optional import Section
    from hostrouting.config.sections import OverlapMode
    from hostrouting.host import FileStore

SCRIPT_DIRECTORY: Final = "/etc/aks-flex-node"
#: The installed config. People may edit it; edits take effect when it is applied.
CONFIG_PATH: Final = f"{SCRIPT_DIRECTORY}/hostrouting.json"
#: The link to the directory of the files in force.
GENERATION_LINK: Final = f"{SCRIPT_DIRECTORY}/hostrouting"
#: The copy of the config that is in force, as the last apply wrote it.
APPLIED_PATH: Final = f"{GENERATION_LINK}/applied.json"
#: The script that a gate runs before its unit starts, and the one that starts held units.
ASK_PATH: Final = f"{SCRIPT_DIRECTORY}/hostrouting-ask.sh"
RETRY_PATH: Final = f"{SCRIPT_DIRECTORY}/hostrouting-retry.sh"
#: The program that the scripts run.
PROGRAM_PATH: Final = f"{SCRIPT_DIRECTORY}/hostrouting.zip"
#: The scripts of the units.
SCRIPT_PATHS: Final = tuple(
    path for section in SECTIONS for path in section.files if path.endswith(".sh")
)
#: Locked as long as an apply may be undone; gates wait for that.
GATE_LOCK: Final = f"{SCRIPT_DIRECTORY}/hostrouting.lock"
#: Where systemd and its scripts look for programs.
PROGRAM_FOLDERS: Final = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
UNIT_DIRECTORY: Final = "/etc/systemd/system"
#: All files that a boot needs are in these directories.
BOOT_FOLDERS: Final = (f"{SCRIPT_DIRECTORY}/", f"{UNIT_DIRECTORY}/")
#: State of this boot; only hostrouting writes there.
STATE_DIRECTORY: Final = "/run/hostrouting"
#: Upstream's directory, which gets copies of the markers. Its agent deletes the directory when it
#: restarts, so nothing is read from it.
RUNTIME_DIRECTORY: Final = "/run/aks-flex-node"
#: The last answer to a gate; gates that start at the same time share it.
ANSWER: Final = f"{STATE_DIRECTORY}/answer"
#: The routes that runs without boot files have added; see `apply/live.py`.
LIVE_RECORD: Final = f"{STATE_DIRECTORY}/live-routes.json"
#: How long a run or boot waits for healthy routing. Start timeouts of gates must be longer.
WAIT_SECONDS: Final = 30.0
#: Until when runs wait after a boot, in seconds since the boot; the first run writes it.
WAITED: Final = f"{STATE_DIRECTORY}/waits-until"
#: The first starts the marked units once routing is healthy. The templates mark a unit that its
#: gate has refused, and a unit that waits for a gate; see their assets.
RETRY_UNIT, HELD_TEMPLATE, WAITS_TEMPLATE, READY_UNIT = GATE_UNITS

#: The units that keep routing healthy after the boot; gates never wait for them.
FREE_UNITS: Final = frozenset(
    unit for section in SECTIONS if not section.runs_at_boot for unit in section.units
)
#: The names of what a section installs: its units, or its files if it needs no unit.
PART_NAMES: Final = frozenset(name for section in SECTIONS for name in section.part_names())
#: The directories of files that are neither units nor with the scripts.
FURTHER_FOLDERS: Final = frozenset(
    path.rpartition("/")[0]
    for section in SECTIONS
    for path in section.files
    if not path.startswith(BOOT_FOLDERS)
)

#: The directory with a link to every unit that READY_UNIT requires.
READY_LINKS: Final = f"{UNIT_DIRECTORY}/{READY_UNIT}.requires"
#: The directory with a link to every unit that READY_UNIT starts but gates do not wait for.
READY_WANTS: Final = f"{UNIT_DIRECTORY}/{READY_UNIT}.wants"
#: The directories of the links that make a boot start units.
STARTING_LINKS: Final = tuple(
    f"{UNIT_DIRECTORY}/{target}.target.wants" for target in ("multi-user", "timers")
)
#: A gate's drop-in; hostrouting owns every file with this name.
DROP_IN_NAME: Final = "10-hostrouting.conf"
#: Exists while systemd may not have read all changes; a killed run leaves it for the next one. It
#: is under /run because a boot reads everything, but not in STATE_DIRECTORY, which would have to be
#: created and removed.
UNFINISHED: Final = "/run/hostrouting.unfinished"

_SCRIPTS = (
    # Next to the units, because gates need it even if the directory of the scripts is gone.
    f"{UNIT_DIRECTORY}/hostrouting-waiters.sh",
    ASK_PATH,
    RETRY_PATH,
)


class BootFile(NamedTuple):
    """A file that a boot needs."""

    path: str
    content: bytes

    @property
    def mode(self) -> int:
        """The permission bits: scripts are executable, and everything but a lock is readable."""
        # A user who can open a file can hold its lock.
        if self.path == GATE_LOCK:
            return 0o600
        return 0o755 if self.path.endswith(".sh") else 0o644

    @property
    def is_text(self) -> bool:
        """False for the program, which outputs do not show."""
        return self.path != PROGRAM_PATH

    @property
    def state(self) -> tuple[bytes, int]:
        """The content and the mode that the path should have."""
        return self.content, self.mode


class BootUnit(NamedTuple):
    r"""A unit with its files, in the order in which they are written.

    A file that needs no unit is represented by one whose name is its path.

    >>> text = b"[Service]\nType=oneshot\n[Install]\nRequiredBy=hostrouting-ready.service\n"
    >>> file = BootFile("/etc/systemd/system/a.service", text)
    >>> unit = BootUnit(name="a.service", files=(file,))
    >>> unit.words("RequiredBy"), unit.is_gating
    (['hostrouting-ready.service'], True)
    """

    name: str
    files: tuple[BootFile, ...]

    @property
    def paths(self) -> list[str]:
        """The paths of its files."""
        return [file.path for file in self.files]

    @property
    def is_unit(self) -> bool:
        """False for a file that needs no unit."""
        return not self.name.startswith("/")

    @property
    def is_gating(self) -> bool:
        """True if gates wait for it."""
        return READY_UNIT in self.words("RequiredBy")

    def words(self, setting: str) -> list[str]:
        """Return the words of a setting in the unit file."""
        if not self.is_unit:
            return []
        [text] = [file.content.decode() for file in self.files if file.path == unit_path(self.name)]
        return words([text], setting)


class UnitRemoval(NamedTuple):
    """A unit to remove with its files, or a file that needs no unit."""

    name: str
    paths: tuple[str, ...]


def units_in(parts: Iterable[object]) -> list[BootUnit]:
    """Return the units among parts to install or remove."""
    return [part for part in parts if isinstance(part, BootUnit)]


class BootTemplate(NamedTuple):
    """A unit and the script that it runs, both made from assets.

    `extra` maps the path of each further file to its asset.
    """

    name: str
    script: str
    #: The `__file__` of the module next to the assets.
    module: str
    extra: Mapping[str, str] = {}

    @property
    def removal(self) -> UnitRemoval:
        """The removal of the unit and all its files."""
        unit = f"{self.name}.service"
        return UnitRemoval(
            unit, (f"{SCRIPT_DIRECTORY}/{self.script}", unit_path(unit), *self.extra)
        )

    def read_script(self) -> bytes:
        """Return the script from the assets, with the function that runs the program."""
        return with_program(read_asset(self.module, self.script))

    def fill(self, script: bytes, **values: str) -> BootUnit:
        """Return the unit with this script; `values` replace lines `# @NAME@` in the unit file."""
        unit, (script_path, path, *_) = self.removal
        text = read_asset(self.module, unit).decode()
        for name, value in values.items():
            text = text.replace(f"# @{name}@\n", value)
        contents = {script_path: script, path: text.encode()}
        for extra_path, asset in self.extra.items():
            contents[extra_path] = read_asset(self.module, asset)
        return BootUnit(name=unit, files=tuple(map(BootFile, contents, contents.values())))


def unit_path(name: str) -> str:
    """Return the path of a unit file.

    >>> unit_path("static-routes.service")
    '/etc/systemd/system/static-routes.service'
    """
    return f"{UNIT_DIRECTORY}/{name}"


def part_path(name: str) -> str:
    """Return the path that shows if a part is installed: its unit file, or the part itself.

    >>> part_path("/etc/sysctl.d/90-a.conf")
    '/etc/sysctl.d/90-a.conf'
    """
    return name if name.startswith("/") else unit_path(name)


def paths_of(section: type[Section] | Section) -> tuple[str, ...]:
    """Return the paths of all files that an apply may install for a section, except links."""
    return (*map(unit_path, section.units), *section.files)


def links_of(unit: BootUnit) -> list[str]:
    """Return the links that `systemctl enable` makes for a unit's [Install] section."""
    return [
        f"{UNIT_DIRECTORY}/{target}.{folder}/{unit.name}"
        for setting, folder in (("RequiredBy", "requires"), ("WantedBy", "wants"))
        for target in unit.words(setting)
    ]


def drop_in_of(gate: str) -> str:
    """Return the path of a gate's drop-in.

    >>> drop_in_of("systemd-nspawn@.service")
    '/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf'
    """
    return f"{UNIT_DIRECTORY}/{gate}.d/{DROP_IN_NAME}"


def ready_unit() -> BootUnit:
    """Return hostrouting-ready.service with everything that gates need."""
    paths = (*_SCRIPTS, *map(unit_path, GATE_UNITS))
    assets = (with_program(read_asset(__file__, path.rpartition("/")[2])) for path in paths)
    files = [BootFile(GATE_LOCK, b""), *map(BootFile, paths, assets)]
    return BootUnit(name=READY_UNIT, files=tuple(files))


def gate_drop_in(gate: str, mode: OverlapMode) -> BootFile:
    """Return the drop-in of a gate; only the mode differs.

    The mode is in the drop-in because it decides what happens if the script is lost.
    """
    gating = [unit for section in SECTIONS if section.runs_at_boot for unit in section.units]
    installed = map(paths_of, SECTIONS)
    removals = [f"#                  rm -f {' '.join(paths)}\n" for paths in installed if paths]
    text = read_asset(__file__, DROP_IN_NAME).decode()
    text = text.replace("@MODE@", str(mode))
    text = text.replace("@PASSES@", "= 10" if mode == "STRICT" else "!= 11")
    text = text.replace("@UNITS@", " ".join(unit.removesuffix(".service") for unit in gating))
    text = text.replace("# @FILES@\n", "".join(removals))
    return BootFile(drop_in_of(gate), text.encode())


def is_strict(drop_in: bytes) -> bool:
    """Return True for the drop-in of a gate in STRICT mode.

    >>> from hostrouting import OverlapMode
    >>> is_strict(gate_drop_in("kubelet.service", OverlapMode.STRICT).content)
    True
    """
    return b" STRICT; " in drop_in


def with_program(script: bytes) -> bytes:
    """Return a script with `# @PROGRAM@` replaced by the function that runs the program."""
    marker = b"# @PROGRAM@\n"
    if marker not in script:
        return script
    return script.replace(marker, read_asset(__file__, "program.sh"))


def program_path(files: FileStore, name: str) -> str | None:
    """Return the path where systemd and its scripts find a program, or None."""
    paths = (f"{folder}/{name}" for folder in PROGRAM_FOLDERS)
    return next((path for path in paths if is_program(files, path)), None)


def is_program(files: FileStore, path: str) -> bool:
    """Return True if the path is an executable file."""
    mode = files.mode(path)
    return mode is not None and bool(mode & 0o111)


def read_asset(module: str, name: str) -> bytes:
    """Return a file from the directory `assets` next to a module, which is given by its `__file__`.

    `@hostrouting apply@` becomes the command line for the installed config. This module's loader
    reads the file, also from a zip file; importlib.resources would take 20 ms.
    """
    loader = cast("ResourceLoader", __spec__.loader)
    return re.sub(
        rb"@hostrouting ([a-z]+)@",
        lambda match: command_line(match[1].decode(), CONFIG_PATH).encode(),
        loader.get_data(f"{module.rpartition('/')[0]}/assets/{name}"),
    )
