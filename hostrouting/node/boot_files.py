"""The files that a config installs for every boot, for Configure, `check` and `render`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import (
    gate_drop_in,
    gating_list,
    links_of,
    program_path,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.exceptions import HostRoutingError
from hostrouting.node.capabilities import probe_task, probe_units, watch_units
from hostrouting.route_overlap import script as overlap
from hostrouting.static_routes import script as routes
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from hostrouting.boot import BootFile, BootUnit, Departure
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import FileStore, Host

#: The programs that the scripts of the pair run, each with its package.
_PACKAGES = {
    "bash": "bash",
    "ip": "iproute2",
    "flock": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
_SHUT = "the first boot would find the gates shut, and they stay shut"


# An apply needs those of one config three times: 2 ms for each 1,000 routes.
@lru_cache(maxsize=1)
def boot_parts(config: HostRoutingConfig) -> tuple[BootUnit | Departure, BootUnit | Departure]:
    """Return the units of the static routes and of the check, or their departures."""
    return routes.boot_part(config), overlap.boot_part(config)


def _needs_pair(config: HostRoutingConfig) -> bool:
    # Without rendering the scripts: that of 10,000 routes takes a while.
    return bool(config.static_routes.routes or config.route_overlap.cidrs)


def installs_units(ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    """Return True if an apply would install anything: probes alone need IPv6."""
    if _needs_pair(config) or watch_units(config, host):
        return True
    if not host.is_live or not config.probe_snat.enabled:
        return config.probe_snat.enabled
    try:
        return probe_task()(config, host=host).wants_rules(ctx)
    except (HostRoutingError, DeadlineExceededError):
        # Unknown; the apply will report the reason.
        ctx.check()
        return True


def missing_tools(config: HostRoutingConfig, files: FileStore) -> list[NodeFinding]:
    """Return the programs that the units of this config run and that an image lacks."""
    needed: dict[str, tuple[str, str, Severity]] = {}
    if _needs_pair(config):
        needed = {name: (package, _SHUT, "error") for name, package in _PACKAGES.items()}
    if config.probe_snat.enabled:
        is_required = config.probe_snat.required
        consequence = _SHUT if is_required else "IPv6 load-balancer probes would not reach pods"
        needed["nft"] = "nftables", consequence, "error" if is_required else "warning"
    return [
        NodeFinding(
            "missing-tool",
            name,
            f"the image lacks it: {consequence}; install the package {package} in it",
            severity,
        )
        for name, (package, consequence, severity) in needed.items()
        if not program_path(files, name)
    ]


def boot_files(config: HostRoutingConfig, *, host: Host | None = None) -> list[BootFile]:
    """Return the exact files that `Configure` installs for every boot; none for an empty config.

    Reads of the machine only the parts that the config leaves open: the device of the probes, and
    the path of the command that a service runs.
    """
    units = _units(config, host)
    if not units:
        return []
    return [
        Intent(config=config).file,
        gating_list([unit.name for unit in units if unit.is_gating]),
        *(file for unit in units for file in unit.files),
        *map(gate_drop_in, config.gates),
    ]


def boot_links(config: HostRoutingConfig, *, host: Host | None = None) -> dict[str, str]:
    """Return the text of each link that lets systemd start these units, by its path."""
    return {link: unit_path(unit.name) for unit in _units(config, host) for link in links_of(unit)}


def _units(config: HostRoutingConfig, host: Host | None) -> list[BootUnit]:
    static, check = boot_parts(config)
    units = units_in([static, *probe_units(config, host), check, *watch_units(config, host)])
    return [*units, ready_unit()] if units else []
