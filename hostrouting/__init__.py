"""Host routing of a Kubernetes node: correct before the node joins, kept correct, and verified.

    base/           findings, and the words of the command
    config/         HostRoutingConfig and its sections: frozen, valid values
    net/            values: addresses, routes, rules, devices
    fib/            the model of a node's routing, a value
    host/           the machine as ports: Host, RouteBackend, and the adapters that implement them
    boot/           how a capability installs its boot half; the gates
    static_routes/  the routes that a node must have: plan, changes, repairs, forecast
    route_overlap/  prove_egress checks through which device each address leaves
    apply/          the story of a run: ConfigureStaticRoutes, CheckRouteOverlap, and all of a node
    azure/          ConfigureProbeSNAT lets IPv6 probes reach pods; CleanStaleCNI for azure-vnet
    watch/          the loop that keeps routes right and checks them
    node/           Configure, Reset and Watch; the findings of `check`, the verdict of `status`
    fleet/          recorded nodes, checked anywhere: `check --from`, `plan --from`
    cli/            the command
    testing/        fakes, contract suites and strategies (extra `testing`)
    exceptions.py   the error tree

A name below is imported on first use. `import hostrouting` loads no other module, and a program
that only reads a config does not load the code that calls the machine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder

# Without `typing`, which takes longer than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostrouting.apply.tasks import CheckRouteOverlap, ConfigureStaticRoutes
    from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT
    from hostrouting.azure.stale_cni.task import CleanStaleCNI
    from hostrouting.base.findings import NextStep, NodeFinding
    from hostrouting.boot.layout import BootFile
    from hostrouting.config.optional import (
        ProbeSNATConfig,
        StaleCNIConfig,
        WatchConfig,
    )
    from hostrouting.config.sections import (
        HostRoutingConfig,
        OverlapMode,
        RouteOverlapConfig,
        StaticRoute,
        StaticRoutesConfig,
    )
    from hostrouting.host import Host, RouteBackend
    from hostrouting.node.boot_files import RenderedFiles, render_files
    from hostrouting.node.check import check_node
    from hostrouting.node.configure import Configure, Reset
    from hostrouting.node.report import NodeReport
    from hostrouting.node.status import node_status
    from hostrouting.node.status_report import StatusReport
    from hostrouting.node.watch import Watch
    from hostrouting.route_overlap.check import prove_egress
    from hostrouting.route_overlap.explain import Explanation, explain_routing
    from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport, SuggestedRoute

__all__ = [
    "BootFile",
    "CheckRouteOverlap",
    "CidrReport",
    "CleanStaleCNI",
    "Configure",
    "ConfigureProbeSNAT",
    "ConfigureStaticRoutes",
    "Explanation",
    "Finding",
    "Host",
    "HostRoutingConfig",
    "NextStep",
    "NodeFinding",
    "NodeReport",
    "OverlapMode",
    "OverlapReport",
    "ProbeSNATConfig",
    "RenderedFiles",
    "Reset",
    "RouteBackend",
    "RouteOverlapConfig",
    "StaleCNIConfig",
    "StaticRoute",
    "StaticRoutesConfig",
    "StatusReport",
    "SuggestedRoute",
    "Watch",
    "WatchConfig",
    "check_node",
    "explain_routing",
    "node_status",
    "prove_egress",
    "render_files",
]

__version__ = "0.1.0"

#: The names of each module.
_NAMES = {
    "apply.tasks": ("CheckRouteOverlap", "ConfigureStaticRoutes"),
    "azure.probe_snat.task": ("ConfigureProbeSNAT",),
    "azure.stale_cni.task": ("CleanStaleCNI",),
    "base.findings": ("NextStep", "NodeFinding"),
    "boot.layout": ("BootFile",),
    "config.sections": (
        "HostRoutingConfig",
        "OverlapMode",
        "RouteOverlapConfig",
        "StaticRoute",
        "StaticRoutesConfig",
    ),
    "config.optional": ("ProbeSNATConfig", "StaleCNIConfig", "WatchConfig"),
    "host": ("Host", "RouteBackend"),
    "node.boot_files": ("RenderedFiles", "render_files"),
    "node.check": ("check_node",),
    "node.configure": ("Configure", "Reset"),
    "node.report": ("NodeReport",),
    "node.status": ("node_status",),
    "node.status_report": ("StatusReport",),
    "node.watch": ("Watch",),
    "route_overlap.explain": ("Explanation", "explain_routing"),
    "route_overlap.check": ("prove_egress",),
    "route_overlap.report": ("CidrReport", "Finding", "OverlapReport", "SuggestedRoute"),
}


def _refuse_foreign_runner() -> None:
    """Raise an ImportError with the remedy if another project's `phases` is found: PyPI has one."""
    # Its code is not run: `import hostrouting` need not load the runner.
    spec = PathFinder.find_spec("phases")
    get_code = getattr(spec and spec.loader, "get_code", None)
    if spec and spec.origin and get_code and "phases.runner" not in get_code("phases").co_names:
        raise ImportError(
            f"{spec.origin} is not hostrouting's own package 'phases', but another project's; run: "
            "pip uninstall --yes phases; pip install --force-reinstall --no-deps hostrouting (or, "
            "if this file is of no installed project, rename it)",
            name="phases",
            path=spec.origin,
        )


_refuse_foreign_runner()


if not TYPE_CHECKING:
    # A type checker would take any name for one of this module.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        [home] = (module for module, names in _NAMES.items() if name in names)
        return getattr(import_module(f"hostrouting.{home}"), name)


def __dir__() -> list[str]:
    return __all__
