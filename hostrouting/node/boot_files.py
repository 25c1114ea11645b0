"""The files that a config installs for every boot, for Configure, `check` and `render`."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.base.refused_files import disk_command
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import NewConfig, mode_of
from hostrouting.boot.layout import (
    SCRIPT_DIRECTORY,
    SCRIPT_PATHS,
    UNIT_DIRECTORY,
    BootFile,
    gate_drop_in,
    links_of,
    program_path,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.program import interpreter_finding
from hostrouting.boot.steps import program_file
from hostrouting.config.sections import HostRoutingConfig, OverlapMode, require_config
from hostrouting.host import Host
from hostrouting.host.files.lock import LOCK
from hostrouting.node.capabilities import CAPABILITIES
from hostrouting.route_overlap import script as overlap
from hostrouting.static_routes import script as routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.capability import Program
    from hostrouting.boot.layout import BootUnit, UnitRemoval
    from hostrouting.host import FileStore
    from phases import Context

#: systemd refuses to read unit files if less is free (RELOAD_DISK_SPACE_MIN).
_FREE_IN_RUN: Final = 16 << 20
_NOT_INSTALLED: Final = "an apply cannot install anything"
#: What an error of a folder means, by its errno: the kind of the finding and the state of its file
#: system.
_DISK_STATES: Final = {
    errno.EROFS: ("read-only", "is read-only (dmesg shows an error of the disk)"),
    errno.ENOSPC: ("no-room", "has less than {} kB or no inode free"),
}
_SHUT = "a boot would find the gates shut, and they stay shut"


def boot_parts(
    config: HostRoutingConfig,
) -> tuple[BootUnit | UnitRemoval, BootUnit | UnitRemoval]:
    """Return the units of the static routes and of the check, or their removals."""
    return routes.boot_part(config), overlap.boot_part(config)


def installs_units(ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    """Return True if an apply would install anything."""
    return any(capability.would_install(ctx, config, host) for capability in CAPABILITIES)


def missing_programs(config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return the programs that the units of this config need and that are not installed."""
    place = "on this node" if host.is_live else "in the image"
    needed: dict[str, tuple[Program, str, Severity]] = {}
    for capability in CAPABILITIES:
        section = capability.in_config(config)
        if not section.asks:
            continue
        # Whether an image needs a unit that depends on the node is unknown.
        if section.reads_node and host.is_live and not Boot(host).has_part_of(section):
            continue
        for program in capability.programs:
            if section.required:
                needed[program.name] = program, _SHUT, "error"
            else:
                needed.setdefault(program.name, (program, program.consequence, "warning"))
    findings = [
        NodeFinding(
            "no-program",
            name,
            f"is not installed {place}: {consequence}",
            severity,
            f"install the package {program.package}",
        )
        for name, (program, consequence, severity) in needed.items()
        if not program_path(host.files, name)
    ]
    asking = [section for section in config.sections.values() if section.asks]
    is_needed = any(path in SCRIPT_PATHS for section in asking for path in section.files)
    if is_needed and (found := interpreter_finding(host)):
        # In STRICT mode no gate opens without it.
        is_strict = mode_of(config) is OverlapMode.STRICT
        findings += [attrs.evolve(found, severity="error") if is_strict else found]
    return findings


class RenderedFiles(NamedTuple):
    """The files that `Configure` installs for every boot, and the links that start their units."""

    files: tuple[BootFile, ...]
    #: The text of each link by its path.
    links: Mapping[str, str]

    @property
    def paths(self) -> list[str]:
        """The path of each file and link."""
        return [*(file.path for file in self.files), *self.links]


def render_files(config: HostRoutingConfig, *, host: Host | None = None) -> RenderedFiles:
    """Return what `hostrouting render --out` writes; nothing for an empty config.

    What the config leaves open is read from the host: the device of the probes, and the path of the
    command that a service runs.

    >>> from hostrouting.config.sections import HostRoutingConfig, RouteOverlapConfig
    >>> section = RouteOverlapConfig(expected_cidrs=("172.16.0.0/16",))
    >>> rendered = render_files(HostRoutingConfig(route_overlap=section))
    >>> rendered.files[0].path, rendered.files[0].mode
    ('/etc/aks-flex-node/hostrouting.json', 420)
    >>> rendered.paths[-1]
    '/etc/systemd/system/multi-user.target.wants/hostrouting-ready.service'
    """
    require_config(config)
    parts = (capability.parts(config, host) for capability in CAPABILITIES)
    units = units_in(chain.from_iterable(parts))
    if not units:
        return RenderedFiles(files=(), links={})
    units = [*units, ready_unit()]
    config_file = NewConfig(config=config).file
    mode = mode_of(config)
    files = [config_file, program_file(Host.given_or_live(host))]
    links: dict[str, str] = {}
    for unit in units:
        files += unit.files
        links |= dict.fromkeys(links_of(unit), unit_path(unit.name))
    files += [gate_drop_in(gate, mode) for gate in config.gates]
    return RenderedFiles(files=tuple(files), links=links)


def obstacles(files: FileStore) -> Iterator[NodeFinding]:
    """Yield a warning for each thing that keeps an apply from its lock, or from writing files."""
    if files.folder_mode(LOCK) is not None:
        reason = "is a folder, so an apply cannot take its lock"
        command = quoted("mv", LOCK, f"{LOCK}.moved")
        yield NodeFinding("no-lock", LOCK, reason, "warning", command=command)
    folders = (SCRIPT_DIRECTORY, UNIT_DIRECTORY)
    found = (_obstacle(files, folder, 1 << 16, _NOT_INSTALLED) for folder in folders)
    yield from [*filter(None, found)][:1]
    if in_run := _obstacle(files, "/run", _FREE_IN_RUN, "systemd reads no unit files"):
        yield in_run


def _obstacle(files: FileStore, folder: str, size: int, effect: str) -> NodeFinding | None:
    try:
        files.refuse_unwritable(folder, size=size)
    except HostFileError as error:
        # The apply reports other errors: this process may run as another user.
        if error.errno in _DISK_STATES:
            kind, state = _DISK_STATES[error.errno]
            reason = f"{state.format(size >> 10)}, so {effect}"
            command = disk_command(error.errno, folder)
            if error.errno == errno.ENOSPC:
                # The command only shows what can be removed.
                step = f"remove what is not needed; see: {command}"
                return NodeFinding(kind, folder, reason, "warning", step)
            return NodeFinding(kind, folder, reason, "warning", command=command)
    return None


def unmasking(path: str) -> str:
    """Return the command that removes the mask of a boot file."""
    folder, _, name = path.rpartition("/")
    return quoted("systemctl", "unmask", name) if folder == UNIT_DIRECTORY else quoted("rm", path)
