"""The files that a config installs for every boot, for Configure, `check` and `render`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot.layout import gate_drop_in, has_program, ready_unit, units_in
from hostrouting.route_overlap import script as overlap
from hostrouting.static_routes import script as routes

if TYPE_CHECKING:
    from hostrouting.boot import Boot, BootFile, BootUnit, Departure
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import FileStore, Host
    from phases import Change, Context

__all__ = [
    "DEPARTURES",
    "PROBE_UNIT",
    "MissingTool",
    "boot_files",
    "boot_parts",
    "installs_units",
    "missing_tools",
    "plan_boot_files",
]

#: The removal of the pair.
DEPARTURES: Final = (routes.DEPARTURE, overlap.DEPARTURE)
#: Repeated here, so that nodes without probes need not import their room.
PROBE_UNIT: Final = "probe-snat.service"


_SHUT: Final = "the first boot would find the gates shut, and they stay shut"


class MissingTool(NamedTuple):
    """A program that a boot of the image needs, with its package and the consequence of its absence."""

    name: str
    package: str
    consequence: str

    def __str__(self) -> str:
        return f"the image has no {self.name}: {self.consequence}; install the package {self.package} in it"


def boot_parts(config: HostRoutingConfig) -> tuple[BootUnit | Departure, BootUnit | Departure]:
    """Return the units of the static routes and of the check; the departure of one that is not configured."""
    return routes.boot_part(config), overlap.boot_part(config)


def plan_boot_files(ctx: Context, config: HostRoutingConfig, boot: Boot) -> list[Change]:
    """Return the changes that the next apply would make to the pair's boot files, even if a gate would be refused."""
    parts = boot_parts(config)
    return boot.drift(*parts) or boot.plan_install(ctx, *parts)


def installs_units(config: HostRoutingConfig) -> bool:
    """Return True if the config installs anything."""
    return bool(config.static_routes.routes or config.probe_snat.enabled or config.route_overlap.expected_cidrs)


def missing_tools(config: HostRoutingConfig, files: FileStore) -> list[MissingTool]:
    """Return the programs that the units of this config run and that an image lacks."""
    needed = []
    if units_in(boot_parts(config)):
        packages = {"bash": "bash", "flock": "util-linux", "ip": "iproute2"}
        needed += [MissingTool(name, package, _SHUT) for name, package in packages.items()]
    if config.probe_snat.enabled:
        consequence = _SHUT if config.probe_snat.required else "IPv6 load-balancer probes would not reach pods"
        needed.append(MissingTool("nft", "nftables", consequence))
    return [tool for tool in needed if not has_program(files, tool.name)]


def boot_files(config: HostRoutingConfig, *, host: Host | None = None) -> list[BootFile]:
    """Return the exact files that `Configure` installs for every boot; none for an empty config.

    Reads only one thing of the machine, if the config leaves it open: the device of the probes.
    """
    static, check = boot_parts(config)
    files = [file for unit in units_in([static, *_probe_units(config, host), check]) for file in unit.files]
    if not files:
        return []
    return [*files, *ready_unit().files, *(gate_drop_in(gate) for gate in config.gates)]


def _probe_units(config: HostRoutingConfig, host: Host | None) -> list[BootUnit]:
    if not config.probe_snat.enabled:
        return []
    from hostrouting.probe_snat import boot_unit, rules_to_install

    return [boot_unit(rules_to_install(config, host=host), required=config.probe_snat.required)]
