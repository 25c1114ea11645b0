"""The unit of the watch in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.findings import NodeFinding
from hostrouting.boot.capability import Capability, Inquiry
from hostrouting.boot.layout import READY_UNIT, unit_path
from hostrouting.config.optional import WatchConfig
from hostrouting.route_overlap.script import MARKER_OK

if TYPE_CHECKING:
    from hostrouting.boot.installed_config import BootPart
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.watch.unit import ConfigureWatch
    from phases import Context


def _task() -> type[ConfigureWatch]:
    # Imported here because only a node whose section is enabled needs it.
    from hostrouting.watch.unit import ConfigureWatch

    return ConfigureWatch


def _parts(config: HostRoutingConfig, host: Host | None) -> list[BootPart]:
    if not config.watch.enabled:
        return []
    # Imported here because only a node whose section is enabled needs it.
    from hostrouting.host import Host
    from hostrouting.watch.unit import boot_unit, command_path, has_duties

    if not has_duties(config):
        return []
    return [boot_unit(config, command_path(Host.given_or_live(host)))]


def _installs(_ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    return bool(_parts(config, host))


def _findings(ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    files = inquiry.host.files
    is_installed = any(files.exists(unit_path(unit)) for unit in WatchConfig.units)
    if not inquiry.config.watch.enabled and not is_installed:
        return []
    return _task()(inquiry.config, host=inquiry.host).findings(ctx)


def _unwatched(_ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return a note about a node whose marker may be out of date."""
    config = inquiry.config
    is_applied = inquiry.host.files.exists(unit_path(READY_UNIT))
    effects = []
    if config.static_routes.routes:
        effects.append("a route that another program removes stays lost")
    if config.route_overlap.cidrs:
        effects.append(f"{MARKER_OK} may be out of date")
    if config.watch.enabled or not is_applied or not effects:
        return []
    reason = f"without it {' and '.join(effects)}, until a gated unit starts"
    step = 'write in hostRouting: "watch": {"enabled": true}'
    return [NodeFinding("not-watched", "hostRouting.watch", reason, "note", step)]


def _first(host: Host) -> tuple[WatchConfig | None, str]:
    """Return the section of a service if its command will exist after a boot."""
    # Imported here because only `init` looks for the command.
    from hostrouting.watch.unit import usable_command

    command, problem = usable_command(host)
    if problem:
        timer = '"watch": {"enabled": true} is a timer, which needs no command'
        return None, f"missing: watch: the command {command} {problem}; {timer}"
    return WatchConfig(enabled=True, mode="service"), f"watch: {command}, which a boot finds"


def _networkd(ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return the findings about systemd-networkd, which removes routes that it did not add."""
    if not inquiry.host.is_live or not inquiry.config.static_routes.routes:
        return []
    # Imported here because only `check` and an apply look at networkd.
    from hostrouting.watch.networkd import networkd_findings

    return networkd_findings(ctx, inquiry.config, inquiry.host)


WATCH: Final = Capability(
    section="watch",
    name="configure-watch",
    task=_task,
    parts=_parts,
    installs=_installs,
    findings={"watch": _findings, "not-watched": _unwatched},
    warnings={"networkd": _networkd},
    first=_first,
)
