"""The unit of the watch in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.capability import Capability, Inquiry
from hostrouting.boot.layout import unit_path
from hostrouting.config import WatchConfig

if TYPE_CHECKING:
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot import Part
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.watch.unit import ConfigureWatch
    from phases import Context


def _task() -> type[ConfigureWatch]:
    from hostrouting.watch.unit import ConfigureWatch

    return ConfigureWatch


def _parts(config: HostRoutingConfig, host: Host | None) -> list[Part]:
    if not config.watch.enabled:
        return []
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


def _networkd(ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return the findings about systemd-networkd, which removes routes that it did not add."""
    if not inquiry.host.is_live or not inquiry.config.static_routes.routes:
        return []
    from hostrouting.watch.networkd import networkd_findings

    return networkd_findings(ctx, inquiry.config, inquiry.host)


WATCH: Final = Capability(
    section="watch",
    name="configure-watch",
    task=_task,
    parts=_parts,
    installs=_installs,
    findings={"watch": _findings},
    warnings={"networkd": _networkd},
)
