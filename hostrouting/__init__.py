"""Host routing of a Kubernetes node: right before it joins, kept right, and proven.

    configure.py    Configure: which tasks, in which order, under one lock
    static_routes/  ConfigureStaticRoutes: the routes that a node must have
    route_overlap/  CheckRouteOverlap, prove_egress: does every address leave as it should
    probe_snat/     ConfigureProbeSNAT: IPv6 load-balancer probes reach pods
    stale_cni/      CleanStaleCNI: what a removed CNI left behind goes, and nothing else
    boot/           how a capability persists itself, and the gates
    config.py       what the operator wrote: HostRoutingConfig and its sections, frozen and never wrong
    exceptions.py   the error tree
    host/           the machine behind ports: Host, RouteBackend, and the adapters that reach it
    testing/        fakes, contract suites and strategies (extra `testing`)
    cli.py          the command; findings.py: what its `check` finds beside overlaps
    addresses.py    strict readers of addresses and device names; rules.py, wire.py: of the config

A name below is loaded when it is first asked for: `import hostrouting` costs next to nothing, and
whoever reads a config does not pay for the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostrouting.config import (
        HostRoutingConfig,
        OverlapMode,
        ProbeSNATConfig,
        RouteOverlapConfig,
        StaleCNIConfig,
        StaleCNIForce,
        StaticRoute,
        StaticRoutesConfig,
        WatchConfig,
    )
    from hostrouting.configure import Configure
    from hostrouting.host import Host
    from hostrouting.probe_snat import ConfigureProbeSNAT
    from hostrouting.route_overlap import CheckRouteOverlap, OverlapReport, prove_egress
    from hostrouting.stale_cni import CleanStaleCNI
    from hostrouting.static_routes import ConfigureStaticRoutes

__all__ = [
    "CheckRouteOverlap",
    "CleanStaleCNI",
    "Configure",
    "ConfigureProbeSNAT",
    "ConfigureStaticRoutes",
    "Host",
    "HostRoutingConfig",
    "OverlapMode",
    "OverlapReport",
    "ProbeSNATConfig",
    "RouteOverlapConfig",
    "StaleCNIConfig",
    "StaleCNIForce",
    "StaticRoute",
    "StaticRoutesConfig",
    "WatchConfig",
    "prove_egress",
]

#: Where a name lives, if not in hostrouting.config.
_HOMES = {
    "CheckRouteOverlap": "route_overlap",
    "CleanStaleCNI": "stale_cni",
    "Configure": "configure",
    "ConfigureProbeSNAT": "probe_snat",
    "ConfigureStaticRoutes": "static_routes",
    "Host": "host",
    "OverlapReport": "route_overlap",
    "prove_egress": "route_overlap",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hostrouting.{_HOMES.get(name, 'config')}"), name)


def __dir__() -> list[str]:
    return __all__
