"""The proof of a recorded node: a pure function of record and config, with a small result."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.boot import NOT_INSTALLED
from hostrouting.check import NodeReport
from hostrouting.config import OverlapMode
from hostrouting.fib import UnknownDecisionError
from hostrouting.findings import NodeFinding
from hostrouting.forecast import foreseen
from hostrouting.net.addresses import IPV6
from hostrouting.route_overlap import OverlapReport
from hostrouting.route_overlap.task import announced_fabric, prove_config, prove_now
from hostrouting.static_routes import ConfigureStaticRoutes
from phases import Context

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.fleet.record import Record

#: What only the node itself can answer.
_NOT_ASKED: Final = ("units, gates and boot files", "probes and leftovers", "silent routers")
_NOT_ASKED_OF_IPV6: Final = ("the kernel's choice of sources", "link-local and multicast addresses")


@attrs.frozen(kw_only=True)
class Verdict:
    """The verdict on a recorded node."""

    #: Or the place of a line that is no record.
    hostname: str
    is_record: bool = True
    #: As of `check`; of a plan, as afterwards, with an error of the kind `worse` for each range that is worse off.
    report: NodeReport | None = None
    #: Why there is no report.
    undecided: str = ""
    #: Of a plan: the number of changed routes, and if the proof fails without them.
    changes: int = 0
    overlaps_now: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """Return the verdict for JSON: as of `check --json`, and more."""
        told = attrs.asdict(self, recurse=False)
        del told["report"]
        return told | (self.report.to_mapping() if self.report else {"ok": False})

    def lines(self) -> list[str]:
        """Return a line for each reason why the node is not right."""
        if not self.report:
            return [self.undecided]
        return [*self.report.overlap.lines(), *(each.text for each in self.report.findings if each.severity != "note")]


def prove_record(record: Record, config: HostRoutingConfig | None = None, *, planned: bool = False) -> Verdict:
    """Return what `check` finds of the routing of a recorded node, or `plan`; without a config, under its own."""
    used = config or record.config
    if used is None:
        reason = "the installed config is damaged" if record.checksum else NOT_INSTALLED
        finding = NodeFinding("not-applied", "hostRouting", reason)
        nothing = OverlapReport(expected_devs=(), cidrs=())
        return Verdict(
            hostname=record.hostname, report=NodeReport(overlap=nothing, mode=OverlapMode.WARN, findings=(finding,))
        )
    model, section, ctx = record.fib, used.route_overlap, Context()
    host = record.host_of(model)
    fabric = record.fabric if section.fabric == "auto" else announced_fabric(ctx, section.fabric, host)
    routes = ConfigureStaticRoutes(used, host=host)
    make = partial(NodeReport, mode=section.mode, not_asked=_NOT_ASKED + _NOT_ASKED_OF_IPV6 * (IPV6 in used.families))
    try:
        if not planned:
            overlap = prove_now(used, fabric, host)
            # A config that is not applied yet has no routes to be lost.
            findings = () if config else routes.findings(ctx)
            report = make(overlap=overlap, findings=(*overlap.notes, *findings))
            return Verdict(hostname=record.hostname, report=report)
        changes, stuck = routes.planned()
        before = prove_config(used, fabric, model)
        forecast = foreseen(used, fabric, model, changes, stuck, before=before)
    except UnknownDecisionError as error:
        return Verdict(hostname=record.hostname, undecided=str(error))
    worse = tuple(NodeFinding("worse", "leaves right today, and would not", line) for line in forecast.worse)
    return Verdict(
        hostname=record.hostname,
        report=make(overlap=forecast.report, findings=worse) if forecast.report else None,
        undecided=forecast.undecided,
        changes=len(changes),
        overlaps_now=not before.ok,
    )
