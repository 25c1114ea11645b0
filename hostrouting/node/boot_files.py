"""The files that a config installs for every boot, for Configure, `check` and `render`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.boot.generation import program_file
from hostrouting.boot.intent import Intent, mode_of
from hostrouting.boot.layout import (
    gate_drop_in,
    gating_entry,
    gating_list,
    links_of,
    program_path,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.program import interpreter_finding
from hostrouting.config import HostRoutingConfig, require_config
from hostrouting.exceptions import HostRoutingError
from hostrouting.host import Host
from hostrouting.node.capabilities import PROBE_UNIT, probe_task, probe_units, watch_units
from hostrouting.route_overlap import script as overlap
from hostrouting.static_routes import script as routes
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.boot import BootFile, BootUnit, Departure

#: The programs that the units of the pair run, each with its package.
_PACKAGES = {
    "bash": "bash",
    "ip": "iproute2",
    "flock": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
_SHUT = "a boot would find the gates shut, and they stay shut"


# An apply needs those of one config three times: 2 ms for each 1,000 routes.
@lru_cache(maxsize=1)
def boot_parts(
    config: HostRoutingConfig, exits: tuple[tuple[int, str], ...] = ()
) -> tuple[BootUnit | Departure, BootUnit | Departure]:
    """Return the units of the static routes and of the check, or their departures.

    `exits` are the items of those that a run pins: see `hostrouting.net.exits`.
    """
    return routes.boot_part(config, dict(exits)), overlap.boot_part(config)


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


def missing_programs(config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return the programs that the units of this config run and that the node or image lacks."""
    needed: dict[str, tuple[str, str, Severity]] = {}
    if _needs_pair(config):
        needed = {name: (package, _SHUT, "error") for name, package in _PACKAGES.items()}
    # A live node without IPv6 has no unit of the probes; whether an image needs it is unknown.
    if config.probe_snat.enabled and (not host.is_live or host.files.exists(unit_path(PROBE_UNIT))):
        is_required = config.probe_snat.required
        consequence = _SHUT if is_required else "IPv6 load-balancer probes would not reach pods"
        needed["nft"] = "nftables", consequence, "error" if is_required else "warning"
    interpreter = interpreter_finding(host) if _needs_pair(config) else None
    lacking = [
        NodeFinding(
            "no-program",
            name,
            f"the {'node' if host.is_live else 'image'} lacks it: {consequence}",
            severity,
            f"install the package {package}",
        )
        for name, (package, consequence, severity) in needed.items()
        if not program_path(host.files, name)
    ]
    return lacking if interpreter is None else [*lacking, interpreter]


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

    >>> from hostrouting.config import HostRoutingConfig, RouteOverlapConfig
    >>> section = RouteOverlapConfig(expected_cidrs=("172.16.0.0/16",))
    >>> rendered = render_files(HostRoutingConfig(route_overlap=section))
    >>> rendered.files[0].path, rendered.files[0].mode
    ('/etc/aks-flex-node/hostrouting.json', 420)
    >>> rendered.paths[-1]
    '/etc/systemd/system/multi-user.target.wants/hostrouting-ready.service'
    """
    static, check = boot_parts(require_config(config))
    units = units_in([static, *probe_units(config, host), check, *watch_units(config, host)])
    if not units:
        return RenderedFiles(files=(), links={})
    units = [*units, ready_unit()]
    intent = Intent(config=config).file
    mode = mode_of(intent.content)
    files = (
        intent,
        gating_list([gating_entry(unit) for unit in units if unit.is_gating]),
        program_file(Host.given_or_live(host)),
        *(file for unit in units for file in unit.files),
        *(gate_drop_in(gate, mode) for gate in config.gates),
    )
    links = {link: unit_path(unit.name) for unit in units for link in links_of(unit)}
    return RenderedFiles(files=files, links=links)
