"""The report of `hostrouting check`: the proof, all findings besides, and their summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.base.commands import FIX, command_line
from hostrouting.base.findings import NodeFinding, Severity, first_of
from hostrouting.base.values import LightValue
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.config import HostRoutingConfig, OverlapMode
from hostrouting.host.units import template_of
from hostrouting.net.addresses import Prefix
from hostrouting.node.causes import in_order
from hostrouting.node.summary import CLAUSES, Cause, Verdict, cut, shortest
from hostrouting.route_overlap.report import defaults_of
from phases.mistakes import NoTruth

if TYPE_CHECKING:
    from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport

#: The kind of the finding about a program that a boot lacks.
NO_PROGRAM = "no-program"


@attrs.frozen
class NodeReport(LightValue, NoTruth):
    """The proof, all findings besides, and the checks that could not be made."""

    overlap: OverlapReport
    mode: OverlapMode
    findings: tuple[NodeFinding, ...] = ()
    #: The path of the config, as commands name it.
    path: str = ""
    #: The command that findings name for most of them.
    step: str | None = None
    #: True if an apply would make right addresses wrong.
    is_worse: bool = False
    #: True if `check --fix` has an answer, for findings that routes could resolve.
    is_fixable: bool = False
    not_asked: tuple[str, ...] = ()
    #: Those of them for which no time was left, by their names here.
    unread: tuple[str, ...] = ()
    #: The objects that a sweep would leave alone: object, address, kind and reason of each.
    spared: tuple[dict[str, object], ...] = ()

    @property
    def severities(self) -> frozenset[Severity]:
        """The severities of all findings."""
        severities = {finding.severity for finding in self.findings}
        return frozenset(severities if self.overlap.ok else {*severities, self.severity})

    @property
    def severity(self) -> Severity:
        """The severity of the findings of the proof."""
        # A node without a default route reaches nothing, in either mode.
        is_error = self.mode is OverlapMode.STRICT or self.overlap.without_exit
        return "error" if is_error else "warning"

    @property
    def ok(self) -> bool:
        """True if all was looked at in time, and all findings are less severe than an error."""
        return not self.unread and "error" not in self.severities

    @property
    def is_wrong(self) -> bool:
        """True if an apply has not reached its aim, now or for the next boot."""
        kinds = {finding.kind for finding in self.findings if finding.severity == "error"}
        is_lost = not kinds.isdisjoint(("lost-route", NO_PROGRAM))
        return is_lost or (self.severity == "error" and not self.overlap.ok)

    @property
    def first_wrong(self) -> str:
        """The first that an apply has not reached, and the number of the rest."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        return self.overlap.first_wrong or first_of([str(finding) for finding in errors])

    @property
    def causes(self) -> list[NodeFinding]:
        """The findings whose command comes before an apply, in this order."""
        rest = (finding for finding in self.findings if finding not in self.overlap.notes)
        return in_order((*self.overlap.causes, *rest))

    @property
    def left_routes(self) -> int:
        """The number of routes that an earlier config has left."""
        lost = [finding for finding in self.findings if finding.kind == "lost-route"]
        return [finding.action for finding in lost].count("-")

    def lost_routes(self, config: HostRoutingConfig) -> int:
        """Return the number of routes of the config that are not in force."""
        kinds = [finding.kind for finding in self.findings]
        if "not-applied" in kinds:
            return len(config.static_routes.routes)
        return kinds.count("lost-route") - self.left_routes

    def gates(self, config: HostRoutingConfig) -> dict[str, tuple[str, str]]:
        """Return the state of each unit with a gate, and the reason of its finding, if any.

        The state is the kind of that finding (`held`, `down`, ...), or `open`, or `shut` if a start
        would be held now.
        """
        gates = {
            finding.subject: (finding.kind.removeprefix("gate-"), finding.reason)
            for finding in self.findings
            if finding.kind.startswith(("held", "gate-"))
        }
        named = {*gates, *map(template_of, gates)}
        is_broken = any(finding.kind == "disabled" for finding in self.findings)
        rest = (
            "shut"
            if self.mode is OverlapMode.STRICT and not self.overlap.ok and not is_broken
            else "open"
        )
        return gates | {gate: (rest, "") for gate in config.gates if gate not in named}

    @property
    def verdict(self) -> Verdict:
        """The state of the node: `waiting` if only units are held, `warning` without an error.

        It is `unknown` if nothing is wrong as far as time was left to look.
        """
        has_errors = "error" in self.severities
        # To make 10,000 causes takes a while.
        if not self.overlap.is_proven or any(map(_is_wrong, self.findings)):
            return "wrong" if has_errors else "warning"
        if has_errors:
            return "waiting"
        return "unknown" if self.unread else "right"

    @property
    def headline(self) -> str:
        """The verdict with the first cause, and the number of the rest."""
        text = self.overlap.headline or "no findings"
        if causes := causes_of(self):
            text = shortest(causes)
        elif held := held_of(self):
            text = f"{held[0].subject} {held[0].reason}"
        elif self.unread:
            text = f"no time was left to look at {first_of(self.unread)}"
        return f"{self.verdict}: {text}"

    @property
    def is_in_order(self) -> bool:
        """True if all was looked at, and nothing is wrong or warned of."""
        return self.overlap.ok and not _severe(self) and not self.not_asked

    @property
    def next(self) -> str | None:
        """The command that repairs the node; None if there is none.

        An apply or a `check --fix` needs the `path` that `check_node` got.
        """
        if self.is_in_order:
            return None
        # Of a node that is right the summary names the first warning.
        for finding in self.causes or (_named(self)[:1] if self.ok else ()):
            if finding.command:
                return finding.command
        # A route that waits for a default route has another step first: `check` names it.
        if (self.is_worse or self.overlap.has_lost_exit) and self.is_fixable:
            return _fix(self.path)
        configured = any(report.configured_routes for report in self.overlap.cidrs)
        if self.step and (_repairable(self) or configured):
            return self.step
        if self.is_fixable:
            return _fix(self.path)
        return next(iter(self.overlap.commands), None)

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for `check --json`, without empty lists of `findings` and the like."""
        more = {
            "findings": [finding.to_mapping() for finding in self.findings],
            "not_asked": list(self.not_asked),
            "unread": list(self.unread),
            "spared": list(self.spared),
        }
        answer = {**self.overlap.to_mapping(mode=self.mode), "ok": self.ok, "next": self.next}
        return answer | {name: value for name, value in more.items() if value}

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Return the report as text lines; `verbose` offers to silence findings, too."""
        overlap = self.overlap
        explanations = overlap.explanations
        first = cut(self.headline)
        is_said = first == f"{self.verdict}: {overlap.headline}"
        lines = [first, "" if is_said else overlap.verdict, *map(str, explanations), overlap.steps]
        lines += [overlap.allowance] if verbose else []
        step = self.next
        findings = (finding for finding in self.findings if finding not in explanations)
        lines += [f"{each.severity}: {each.kind}: {each.text_before(step)}" for each in findings]
        lines += [f"note: not looked at: {reason}" for reason in self.not_asked]
        lines += [f"next: {step}"] if step else []
        return [*filter(None, lines)]


def causes_of(report: NodeReport) -> list[Cause]:
    """Return what is wrong: what has to go first, addresses and findings, each once."""
    overlap = report.overlap
    known = report.next
    first = [_of_finding(finding, known) for finding in overlap.causes]
    aimless = [defaults_of(overlap, family) for family in overlap.without_exit]
    first += [Cause(defaults, "", defaults) for defaults in aimless]
    addresses = [
        _of_addresses(cidr, finding) for cidr in overlap.cidrs for finding in cidr.findings
    ]
    findings = [_of_finding(finding, known) for finding in report.findings if _is_wrong(finding)]
    wrong = [*first, *addresses, *findings]
    causes = [_of_finding(finding, known) for finding in report.causes]
    return list(dict.fromkeys([*causes, *wrong])) if wrong else []


def remarks_of(report: NodeReport) -> list[Cause]:
    """Return what a summary of a right node names: its warnings, and the choice between exits."""
    chosen = [finding for finding in report.findings if finding.kind == "chosen-exit"]
    return [_of_remark(finding, report.next) for finding in (*_named(report), *chosen)]


def held_of(report: NodeReport) -> list[NodeFinding]:
    """Return the findings about units that wait for routing."""
    return [each for each in report.findings if (each.kind, each.severity) == ("held", "error")]


def _severe(report: NodeReport) -> list[NodeFinding]:
    """Return the errors and warnings, but for those of units that are held."""
    return [each for each in report.findings if each.severity != "note" and each.kind != "held"]


def _named(report: NodeReport) -> list[NodeFinding]:
    """Return the warnings that a summary names: what an apply repairs, or else all."""
    # Of gates that are open the state of the gates has the reason.
    rest = [finding for finding in _severe(report) if finding.kind != "disabled"]
    # What has a command comes first.
    rest.sort(key=lambda finding: not finding.command)
    return list(dict.fromkeys([*report.causes, *_repairable(report)])) or rest


def _repairable(report: NodeReport) -> list[NodeFinding]:
    return [finding for finding in _severe(report) if finding.apply == "now"]


def _is_wrong(finding: NodeFinding) -> bool:
    # Units that are held wait for what is wrong.
    is_error = finding.severity == "error" and finding.kind != "held"
    return is_error or finding.kind == "not-applied"


def _fix(path: str) -> str:
    if path == INTENT_PATH:
        return FIX
    return f"{command_line('check', path)} --fix | {command_line('apply', '-')}"


def _of_addresses(report: CidrReport, finding: Finding) -> Cause:
    if report.all_but:
        text = f"{report.cidr} is right, all but {report.all_but}"
        return Cause(text, "", text)
    cidr = Prefix.parse(report.cidr)
    is_whole = finding.bounds == (cidr.network, cidr.last)
    part = "" if is_whole else "part of "
    clause = CLAUSES[finding.kind].format(dev=finding.dev)
    return Cause(f"{part}{report.cidr} {clause}", "", finding.sentence())


def _of_finding(finding: NodeFinding, following: str | None) -> Cause:
    """Return the cause of a finding; one without a colon reads as a sentence."""
    if finding.apply or finding.severity == "error":
        return _of_remark(finding, following)
    return Cause(f"{finding.subject} {finding.reason}", "", finding.text_before(following))


def _of_remark(finding: NodeFinding, following: str | None) -> Cause:
    subject = finding.subject
    if finding.is_refused:
        # Behind a long route it would be cut off.
        subject = f"will be refused: {subject}"
    return Cause(subject, f": {finding.reason}", finding.text_before(following))
