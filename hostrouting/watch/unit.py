"""ConfigureWatch: the unit that keeps routing right after the boot, a timer or a service."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.base.errors import UnitError
from hostrouting.base.findings import LEFT, RESTARTED, STARTED, STATES, NodeFinding, hindered
from hostrouting.boot.layout import (
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    UnitRemoval,
    is_program,
    program_path,
    read_asset,
)
from hostrouting.boot.task import SectionTask
from hostrouting.config.optional import WatchConfig
from hostrouting.config.rules import write_duration
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.watch.networkd import DROP_IN_PATH, drop_in
from phases import Change, Context

if TYPE_CHECKING:
    from hostrouting.boot.installed_config import BootPart
    from hostrouting.host import FileStore, Host

#: The unit of the mode `service`.
_SERVICE: Final = WatchConfig.units[1]
_COMMAND = "hostrouting"
_PACKAGED: Final = "/usr/bin/hostrouting"
_IDLE = (
    "there is nothing to keep in this mode; the timer keeps the sections staticRoutes, "
    "routeOverlap and probeSnat, and mode 'service' keeps staleCni as well"
)
_NO_SWEEP = (
    "nothing is swept after an apply, because the timer does not sweep; set "
    "hostRouting.watch.mode to 'service'"
)
_NO_COUNT = (
    "each run of the timer gives its verdict at once, and only mode 'service' counts bad "
    "readings; set hostRouting.watch.mode to 'service', or take this one out"
)
_NO_COMMAND = "or set hostRouting.watch.mode to 'timer', which needs no command"
_COPY = "copy it to /usr/local/bin/hostrouting and run that"
#: systemd refuses a program with one of them in its path, even if it is escaped.
_REFUSED = frozenset("\"'\\\n\t")


def has_duties(config: HostRoutingConfig) -> bool:
    """Return True if the section is enabled and its unit has duties; a timer never sweeps."""
    asking = [section for section in config.sections.values() if section.asks]
    if config.watch.mode == "timer":
        asking = [section for section in asking if section.runs_at_boot]
    return config.watch.enabled and bool(asking)


def command_path(host: Host) -> str:
    """Return the path of the command `hostrouting` on a machine or image, or where it should be.

    If the host names none, the command of the running installation, which may be one file, comes
    first; then the one that was called, then one that systemd finds by its name. A path that the
    service could not start, or not after a boot, does not count. An image without one gets the path
    of the packages.
    """
    if host.command:
        return host.command
    # Imported here because sysconfig takes 5 ms, and only a node with a service needs it.
    import sysconfig

    files = host.files
    # Set if this module is loaded from a zip file, which is then the command.
    archive: str | None = getattr(__spec__.loader, "archive", None)
    beside = f"{sysconfig.get_path('scripts')}/{_COMMAND}"
    called = _absolute(sys.argv[0])
    paths = [_absolute(archive)] if archive else []
    paths += [beside, called] if called.endswith(f"/{_COMMAND}") else [beside]
    usable = next((path for path in paths if not _problem(files, path)), None)
    usable = usable or program_path(files, _COMMAND)
    fallback = beside if host.is_live else _PACKAGED
    return usable or next((path for path in paths if files.mode(path) is not None), fallback)


def usable_command(host: Host) -> tuple[str, str]:
    """Return `command_path`, and why a service could not start it after a boot, or ""."""
    command = command_path(host)
    return command, _problem(host.files, command)


def _absolute(path: str) -> str:
    # Python begins a path with // if it was relative to /, and abspath() keeps that.
    return "/" + os.path.abspath(path).lstrip("/")  # noqa: PTH100 (pathlib is slow to load)


def _problem(files: FileStore, path: str) -> str:
    """Return why the service cannot start the command, with the next step; "" if it can."""
    if files.mode(path) is None:
        return "is missing; install hostrouting there"
    if not is_program(files, path):
        return f"is not executable; run: chmod +x {quoted(path)}"
    if path.startswith(("/tmp/", "/var/tmp/")):  # noqa: S108 - no file is made there
        return f"is in a directory hidden from the service (PrivateTmp=yes); {_COPY}"
    if path.startswith(("/run/", "/var/run/", "/dev/shm/")):  # noqa: S108 - the same
        return f"is in a directory that is empty after a boot; {_COPY}"
    return (
        f"has a character in its path that systemd refuses; {_COPY}" if set(path) & _REFUSED else ""
    )


def boot_unit(config: HostRoutingConfig, command: str) -> BootUnit:
    """Return the unit for the mode of the config; `command` is the path for a service."""
    name = config.watch.unit
    sweep = config.stale_cni
    writes_records = sweep.enabled and sweep.sweep == "clean"
    values = {
        "@INTERVAL@": write_duration(config.watch.interval),
        "@COMMAND@": _quoted(command),
        "# @NETWORK@\n": _WITH_SWEEP if sweep.enabled else _WITHOUT_SWEEP,
        "# @FILES@\n": _WRITES_RECORDS if writes_records else _WRITES_STATE,
    }
    text = read_asset(__file__, name).decode()
    for place, value in values.items():
        text = text.replace(place, value)
    file = BootFile(f"{UNIT_DIRECTORY}/{name}", text.encode())
    return BootUnit(name=name, files=(file, *[drop_in()] * config.watch.keep_foreign_routes))


_WITHOUT_SWEEP = """\
# It changes routes and packet rules.
CapabilityBoundingSet=CAP_NET_ADMIN
RestrictAddressFamilies=AF_NETLINK AF_UNIX
IPAddressDeny=any
"""
_WITH_SWEEP = """\
# It changes routes and packet rules. ebtables-legacy opens a raw IPv4 socket for that.
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW
RestrictAddressFamilies=AF_NETLINK AF_UNIX AF_INET
IPAddressDeny=any
"""
_WRITES_STATE = """\
# The run lock is made in /run itself.
ProtectSystem=strict
ReadWritePaths=/run
"""
_WRITES_RECORDS = """\
# The folder of a sweep's record may be missing, and anywhere but in /etc and /usr.
ProtectSystem=full
"""


def _quoted(path: str) -> str:
    """Return a path as one word of a unit file.

    >>> _quoted("/opt/agent/bin/hostrouting"), _quoted("/srv/50% more")
    ('/opt/agent/bin/hostrouting', '"/srv/50%% more"')
    """
    escaped = path.replace("%", "%%")
    return path if path == escaped and not set(path) & set(" ;") else f'"{escaped}"'


class ConfigureWatch(SectionTask):
    """Install the unit that keeps routing right, and run it; remove that of an earlier config.

    A unit that runs is restarted if its file changed; the service reads a changed config by itself.
    An image gets the unit for its first boot.
    """

    name = "configure-watch"
    section = "watch"

    def do(self, ctx: Context) -> None:
        """Install or remove the unit, and start it without a wait: it needs the run lock first."""
        if obstacle := self._obstacle():
            raise UnitError(obstacle)
        with self._host.lock.hold(ctx) as held:
            if reason := self._idle_reason:
                ctx.skip(reason)
                return
            parts, unit = self._parts()
            changed = self._boot.install(held, *parts)
            if unit is None:
                return
            services = self._host.services
            for change in self._plan_start(held, unit.name, is_outdated=changed):
                if changed:
                    services.stop(held, unit.name)
                services.start(held, unit.name, wait=False)
                # An undo of the files stops a new unit.
                held.record(change, undo=lambda _: None)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make now."""
        ctx.check()
        if obstacle := self._obstacle():
            return [hindered("~", _SERVICE, obstacle, optional=True)]
        if self._idle_reason:
            return []
        parts, unit = self._parts()
        planned = self._boot.plan_install(ctx, *parts)
        # A masked unit is not installed, so it is not started either.
        masked = [change for change in planned if change.kind == LEFT]
        if unit is None or masked:
            return masked or planned
        return [*planned, *self._plan_start(ctx, unit.name, is_outdated=bool(planned))]

    def findings(self, ctx: Context) -> list[NodeFinding]:
        """Return the reasons why routing may not stay right; changes nothing, needs no root."""
        own = (*WatchConfig.units, DROP_IN_PATH)
        findings = [
            self._finding(ctx, change)
            for change in self.plan(ctx)
            # A unit is restarted because of its files, which have a finding.
            if change.kind != RESTARTED and any(name in change.subject for name in own)
        ]
        section = self._config.watch
        sweep = self._config.stale_cni
        has_timer = section.enabled and section.mode == "timer"
        if section.enabled and not has_duties(self._config):
            findings.append(NodeFinding("watch", "hostRouting.watch", _IDLE, "warning"))
        elif has_timer and sweep.enabled and sweep.sweep == "clean":
            findings.append(
                NodeFinding("watch", "hostRouting.staleCni.sweep", _NO_SWEEP, "warning")
            )
        if has_timer and section.readings != WatchConfig().readings:
            findings.append(NodeFinding("watch", "hostRouting.watch.readings", _NO_COUNT, "note"))
        return findings

    def _finding(self, ctx: Context, change: Change) -> NodeFinding:
        # A change with a detail cannot be made, also by an apply.
        kind, reason = "watch", self._obstacle() or change.detail
        helps = not change.detail
        if change.kind == STARTED:
            result = self._host.services.state(ctx, change.subject).result
            kind, reason, helps = "failed-unit", "does not run", True
            if result != "success":
                # Another start alone would end like the last one.
                reason += (
                    f", and its last run failed ({result}); read journalctl -u {change.subject}"
                )
        reason = reason or STATES[change.action]
        return NodeFinding(kind, change.subject, reason, "warning", apply="now" if helps else "")

    def _parts(self) -> tuple[list[BootPart], BootUnit | None]:
        """Return the parts to install, and the unit among them."""
        config = self._config
        unit = None
        if has_duties(config):
            unit = boot_unit(config, command_path(self._host))
        first, *rest = (name for name in WatchConfig.units if unit is None or name != unit.name)
        # With the drop-in for networkd, if it is not used.
        paths = () if unit and DROP_IN_PATH in unit.paths else (DROP_IN_PATH,)
        removals = [UnitRemoval(first, paths), *(UnitRemoval(name, ()) for name in rest)]
        return [*([unit] if unit else []), *removals, self._new_config], unit

    def _obstacle(self) -> str:
        if not has_duties(self._config) or self._config.watch.mode != "service":
            return ""
        command, problem = usable_command(self._host)
        return problem and f"the command {command} of {_SERVICE} {problem}, {_NO_COMMAND}"

    def _plan_start(self, ctx: Context, unit: str, *, is_outdated: bool) -> list[Change]:
        state = self._host.services.state(ctx, unit)
        # At its start it waits for the run lock; one whose process ended waits for the next.
        is_starting = state.active_state == "activating" and state.sub_state != "auto-restart"
        runs = state.is_running or is_starting
        if not self._host.is_live or (runs and not is_outdated):
            return []
        kind = RESTARTED if runs else STARTED
        return [Change("~", unit, kind, kind)]
