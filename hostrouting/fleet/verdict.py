"""Check a recorded node: a pure function of record and config."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from hostrouting.base.findings import NodeFinding
from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.config.sections import HostRoutingConfig, require_config
from hostrouting.fib import UnknownDecisionError
from hostrouting.fleet.record import NodeRecord
from hostrouting.net.addresses import IPV6
from hostrouting.node.plan_report import planned_report
from hostrouting.node.report import NodeReport
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import expectation_on
from hostrouting.route_overlap.fabric import announced_fabric
from hostrouting.static_routes.entries import findings
from hostrouting.static_routes.forecast import Forecaster
from hostrouting.static_routes.plan import plan_routes
from phases import Context

#: What can only be checked on the node itself.
_NOT_ASKED = ("units, gates and boot files", "probes and leftovers", "silent routers")
_NOT_ASKED_OF_IPV6 = ("the kernel's choice of sources", "link-local and multicast addresses")


@attrs.frozen(kw_only=True)
class NodeVerdict:
    """The verdict on a recorded node."""

    #: The position of the line if it is not a record; empty for a node without a name.
    hostname: str
    is_record: bool = True
    #: The report of `check`; for a plan, as it would be afterwards, with an error of the kind
    #: `worse` for each range that would be misrouted.
    report: NodeReport | None = None
    #: Why the report is None; empty with a report.
    undecided: str = ""
    #: For a plan: the number of changed routes, and if there is an overlap without them.
    changes: int = 0
    overlaps_now: bool = False

    @property
    def ok(self) -> bool:
        """True if the node was checked and no finding is an error."""
        return self.report is not None and self.report.ok

    def to_mapping(self) -> dict[str, Any]:
        """Return the verdict for JSON: the output of `check --json`, and more."""
        fields = attrs.asdict(self, filter=lambda field, _: field.name != "report")
        return fields | ({"ok": False} if self.report is None else self.report.to_mapping())

    def __str__(self) -> str:
        reasons = [self.undecided]
        if (report := self.report) is not None:
            serious = (finding.text for finding in report.findings if finding.severity != "note")
            reasons = [*report.overlap.lines(), *serious]
        return f"{self.hostname or 'a node without a name'}: {'; '.join(reasons) or 'right'}"


def check_record(
    record: NodeRecord, config: HostRoutingConfig | None = None, *, planned: bool = False
) -> NodeVerdict:
    """Return what `check` or `plan` would find about the routing of a recorded node.

    Without `config`, the config in the record is used, and lost routes are findings as well; if the
    record has no config, the finding is `not-applied`.
    """
    used = record.config if config is None else require_config(config)
    verdict = partial(NodeVerdict, hostname=record.hostname)
    if used is None:
        reason = "the installed config is damaged" if record.checksum else NOT_INSTALLED
        finding = NodeFinding("not-applied", "hostRouting", reason)
        return verdict(report=NodeReport(findings=(finding,)))
    host = record.host
    section = used.route_overlap
    ctx = Context()
    try:
        if planned:
            plan = plan_routes(used, host)
            # `{}` drops all addresses on purpose.
            earlier = record.config if used.asks else None
            forecaster = Forecaster(ctx, used, host, earlier=earlier, fabric=record.fabric)
            overlaps_now = not forecaster.look().ok
            verdict = partial(verdict, changes=len(plan.changes), overlaps_now=overlaps_now)
            forecast = forecaster.of(plan)
            if forecast.report is None:
                return verdict(undecided=forecast.undecided)
            report = planned_report(used, forecast).after
        else:
            fabric = record.fabric
            if section.fabric != "auto":
                fabric = announced_fabric(ctx, section.fabric, host)
            overlap = check_egress(host, expectation_on(host, used, fabric))
            # Routes of a config that was not applied are not lost.
            lost = () if config else findings(plan_routes(used, host))
            report = NodeReport(overlap, section.mode, (*overlap.notes, *lost))
    except UnknownDecisionError as error:
        return verdict(undecided=str(error))
    not_asked: tuple[str, ...] = _NOT_ASKED
    if IPV6 in used.families:
        not_asked += _NOT_ASKED_OF_IPV6
    return verdict(report=attrs.evolve(report, not_asked=not_asked))
