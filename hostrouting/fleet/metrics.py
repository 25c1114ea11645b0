"""The report of `check` for Prometheus, in the format of node_exporter's textfile collector."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hostrouting import __version__
from hostrouting.base.commands import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.node.report import NodeReport


def exposition(report: NodeReport, config: HostRoutingConfig, *, now: float) -> str:
    """Return the metrics of a live node.

    >>> from hostrouting.node.report import NodeReport
    >>> from hostrouting.config.sections import HostRoutingConfig, OverlapMode
    >>> from hostrouting.route_overlap.report import OverlapReport
    >>> overlap = OverlapReport()
    >>> report = NodeReport(overlap=overlap, mode=OverlapMode.WARN)
    >>> metrics = exposition(report, HostRoutingConfig(gates=("kubelet.service",)), now=1.5)
    >>> 'hostrouting_gate{unit="kubelet.service",state="open"} 1' in metrics.splitlines()
    True
    """
    findings = Counter(
        (each.subject if each.part else "", each.kind, each.severity)
        for each in (*report.findings, *report.addresses)
    )
    wanted = len(config.static_routes.routes)
    lost = report.lost_routes(config)
    routes = {
        ("in_force",): wanted - lost,
        ("lost",): lost,
        ("not_of_this_config",): report.left_routes,
    }
    gates = {(unit, state): 1 for unit, (state, _) in report.gates(config).items()}
    lines = [
        *_family(
            "findings",
            "Findings of hostrouting check; with a cidr if they are about expected addresses",
            findings,
            "cidr",
            "kind",
            "severity",
        ),
        *_family("routes", "Static routes by their state", routes, "state"),
        *_family("gate", "1 for the state of each unit with a gate", gates, "unit", "state"),
        *_family("checked_timestamp_seconds", "Time of this check", {(): now}),
        *_family("build_info", "1 for the version of hostrouting", {(__version__,): 1}, "version"),
    ]
    return "\n".join([*lines, ""])


def _family(name: str, text: str, samples: Mapping[Any, float], *labels: str) -> Iterator[str]:
    """Yield the lines of one metric; the labels of a sample are its key."""
    yield f"# HELP hostrouting_{name} {text}"
    yield f"# TYPE hostrouting_{name} gauge"
    for values, number in samples.items():
        escaped = (printable(value).replace("\\", r"\\").replace('"', r"\"") for value in values)
        pairs = ",".join(f'{label}="{value}"' for label, value in zip(labels, escaped, strict=True))
        yield f"hostrouting_{name}{{{pairs}}} {number}"
