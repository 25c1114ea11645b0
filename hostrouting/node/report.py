"""The report of a check: what was found on a node, in order, with a verdict and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import attrs

from hostrouting.base.commands import CHECK
from hostrouting.base.findings import NextStep, NodeFinding, Severity, first_of
from hostrouting.base.values import LightValue
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.host.units import template_of
from hostrouting.node.sentences import in_short, sentence_of
from hostrouting.route_overlap.report import CAUSES, OverlapReport, defaults_of
from phases.mistakes import NoTruth

Verdict: TypeAlias = Literal["right", "unknown", "waiting", "warning", "wrong"]
#: The kind of the finding about a program that a boot lacks.
NO_PROGRAM = "no-program"
#: The kinds of findings that must be resolved before an apply: another run, the node's devices, and
#: what prevents an apply.
_ORDER: Final = ("under-way", *CAUSES, "no-lock", "read-only", "no-room", "exposed", "boot-file")

#: The warnings about units and gateways that do not do their work on a node without errors.
_AILING: Final = frozenset(
    {"failed-unit", "failed-trigger", "gate-down", "gate-failed", "silent-gateway"}
)


@attrs.frozen
class NodeReport(LightValue, NoTruth):
    """The check of the expected addresses, all other findings, and what could not be checked."""

    overlap: OverlapReport = attrs.field(factory=OverlapReport)
    mode: OverlapMode = OverlapMode.WARN
    findings: tuple[NodeFinding, ...] = ()
    #: The apply that brings back our routes after a command that drops them.
    reapply: str | None = None
    #: The command that most findings name.
    command: str | None = None
    #: The apply of an edited installed config, if that works where the config in force fails.
    edit: str | None = None
    #: The command that applies the answer of `check --fix`, if it has one.
    fix: str | None = None
    not_asked: tuple[str, ...] = ()
    #: Their names, and of those for which no time was left.
    unanswered: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    #: The objects that a cleanup would leave alone: object, address, kind and reason of each.
    spared: tuple[dict[str, object], ...] = ()

    @property
    def severities(self) -> frozenset[Severity]:
        """The severities of all findings."""
        severities = {finding.severity for finding in self.findings}
        return frozenset(severities if self.overlap.ok else {*severities, self.severity})

    @property
    def severity(self) -> Severity:
        """The severity of the findings about expected addresses."""
        # A node without a default route reaches nothing, in either mode.
        is_error = self.mode is OverlapMode.STRICT or self.overlap.without_outbound_dev
        return "error" if is_error else "warning"

    @property
    def ok(self) -> bool:
        """True if all was checked in time, and no finding is an error."""
        return not self.unread and "error" not in self.severities

    @property
    def fails(self) -> bool:
        """True if STRICT mode holds the gates."""
        return self.mode is OverlapMode.STRICT and not self.overlap.ok

    @property
    def is_wrong(self) -> bool:
        """True if an apply has not reached its aim, now or for the next boot."""
        kinds = {finding.kind for finding in self.findings if finding.severity == "error"}
        is_lost = not kinds.isdisjoint(("lost-route", NO_PROGRAM))
        return is_lost or (self.severity == "error" and not self.overlap.ok)

    @property
    def causes(self) -> list[NodeFinding]:
        """The findings that come before an apply, the lowest layer first."""
        rest = (finding for finding in self.findings if finding not in self.overlap.notes)
        found = (*self.overlap.causes, *rest)
        before = [each for each in found if each.kind in _ORDER and not each.apply]
        # Without a command, a file may follow from anything.
        before = [each for each in before if each.command or each.kind != "boot-file"]
        return sorted(before, key=lambda finding: _ORDER.index(finding.kind))

    @property
    def addresses(self) -> Iterator[NodeFinding]:
        """The findings about expected addresses, each about a part of a CIDR."""
        for cidr in self.overlap.cidrs:
            for part in cidr.findings:
                yield NodeFinding(part.kind, cidr.cidr, part.sentence(), self.severity, part=part)

    @property
    def wrong(self) -> list[NodeFinding]:
        """What is wrong, each once: causes, addresses, and the other findings.

        Without an error there is nothing, except for what was found about addresses.
        """
        overlap = self.overlap
        if overlap.is_correct and not any(map(_is_wrong, self.findings)):
            return [*self.ailing]
        aimless = [defaults_of(overlap, family) for family in overlap.without_outbound_dev]
        wrong = [
            *overlap.causes,
            *(_whole("no-exit", defaults) for defaults in aimless),
            *self._wrong_addresses(),
            *filter(_is_wrong, self.findings),
        ]
        return list(dict.fromkeys([*self.causes, *wrong]))

    @property
    def ailing(self) -> list[NodeFinding]:
        """The warnings about units and gateways that do not do their work."""
        ailing = [each for each in self.findings if each.kind in _AILING]
        return [finding for finding in ailing if finding.severity == "warning"]

    @property
    def first(self) -> list[NodeFinding]:
        """The findings of which the rest are consequences."""
        wrong = self.wrong
        if causes := self.causes or [each for each in wrong if each.kind == "no-exit"]:
            return causes
        lost = [each for each in wrong if each.kind == "lost-route" and each.apply == "now"]
        repaired = {each.cidr for each in self.overlap.cidrs if lost and each.configured_routes}
        primary = [
            each for each in wrong if each.subject not in repaired and each.kind != "failed-unit"
        ]
        return primary or wrong

    def _wrong_addresses(self) -> Iterator[NodeFinding]:
        all_but = {cidr.cidr: cidr.all_but for cidr in self.overlap.cidrs}
        for found in self.addresses:
            own = all_but[found.subject]
            sentence = f"{found.subject} is right, all but {own}"
            yield _whole("all-but", sentence) if own else found

    @property
    def remarks(self) -> list[NodeFinding]:
        """What a summary of a healthy node names: warnings, and a choice of default routes."""
        chosen = [finding for finding in self.findings if finding.kind == "chosen-exit"]
        return [*self._named, *chosen]

    @property
    def held(self) -> list[NodeFinding]:
        """The findings about units that wait for routing."""
        return [each for each in self.findings if (each.kind, each.severity) == ("held", "error")]

    @property
    def under_way(self) -> list[NodeFinding]:
        """The finding about another run; errors may pass when that ends."""
        return [each for each in self.findings if each.kind == "under-way"]

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
        rest = "shut" if self.fails and not is_broken else "open"
        return gates | {gate: (rest, "") for gate in config.gates if gate not in named}

    @property
    def verdict(self) -> Verdict:
        """The state of the node.

        Without an error it is `warning`; it is `waiting` if only units are held, or another run is
        under way, and `unknown` if nothing is wrong as far as there was time to check.
        """
        has_errors = "error" in self.severities
        if self.under_way:
            return "waiting"
        # Making 10,000 causes takes a while.
        if not self.overlap.is_correct or any(map(_is_wrong, self.findings)):
            return "wrong" if has_errors else "warning"
        if has_errors:
            return "waiting"
        if self.ailing:
            return "warning"
        return "unknown" if self.unread else "right"

    @property
    def is_in_order(self) -> bool:
        """True if all was checked, and nothing is wrong or warned of."""
        return self.overlap.ok and not self._severe and not self.not_asked

    @property
    def _severe(self) -> list[NodeFinding]:
        """The errors and warnings, except for those of units that are held."""
        return [each for each in self.findings if each.severity != "note" and each.kind != "held"]

    @property
    def _named(self) -> list[NodeFinding]:
        """The warnings that a summary names: what an apply repairs, or else all."""
        # The state of the gates already says why they are open.
        rest = [finding for finding in self._severe if finding.kind != "disabled"]
        # What has a command comes first.
        rest.sort(key=lambda finding: not finding.command)
        return list(dict.fromkeys([*self.causes, *self._repairable])) or rest

    @property
    def _repairable(self) -> list[NodeFinding]:
        """The errors and warnings that an apply repairs now."""
        return [finding for finding in self._severe if finding.apply == "now"]

    @property
    def break_glass(self) -> str:
        """Why all gates are open; empty if they are not."""
        return next((each.reason for each in self.findings if each.kind == "disabled"), "")

    @property
    def sentence(self) -> str:
        """The verdict with the first cause, and the number of the rest."""
        text = self.overlap.headline or "no findings"
        if self.verdict == "waiting":
            cause = (self.under_way or self.held)[0]
            text = f"{cause.subject} {cause.reason}"
        elif first := self.first:
            text = in_short(first)
        elif self.unread:
            text = f"there was no time to check {first_of(self.unread)}"
        return f"{self.verdict}: {text}"

    @property
    def next(self) -> str | None:
        """The command that repairs the node; None if there is none.

        An apply or a `check --fix` needs the `path` that `check_node` got.
        """
        return (self.step and self.step.command) or None

    @property
    def step(self) -> NextStep | None:
        """What to do next; None if nothing is to do.

        While a lower layer fails, no command for a higher one helps: a device has to get back what
        it lacks before an apply.
        """
        if self.is_in_order:
            return None
        if self.edit and not self.under_way:
            return NextStep("fix", self.edit)
        if self.causes:
            return self._step_against(self.causes[0])
        if command := self._command_that_repairs:
            return NextStep("fix", command)
        return self._manual_step

    def _step_against(self, cause: NodeFinding) -> NextStep:
        """Return the step against a lower layer, with the apply that has to follow."""
        if not cause.command:
            return _by_hand(cause)
        follows = cause.drops_routes and self.reapply
        command = f"{cause.command} && {self.reapply}" if follows else cause.command
        return NextStep("look" if self.under_way else "fix", command)

    @property
    def _command_that_repairs(self) -> str | None:
        """The command that repairs a node on which no lower layer fails."""
        # The summary of a healthy node names the first warning.
        for finding in self._named[:1] if self.ok else ():
            if finding.command and not finding.apply:
                return finding.command
        configured = any(cidr.configured_routes for cidr in self.overlap.cidrs)
        # A route that waits needs another step first.
        if all(finding.apply != "later" for finding in self.findings):
            if self.command and (self._repairable or configured):
                return self.command
            if self.fix:
                return self.fix
        # An open gate helps an unhealthy node.
        opened = [each.command for each in self.findings if each.kind == "disabled" and self.ok]
        return next(filter(None, [*self.overlap.commands, *opened]), None)

    @property
    def _manual_step(self) -> NextStep | None:
        """What a person has to do where no command helps."""
        overlap = self.overlap
        if self.verdict == "right":
            # The warnings about it say what to do.
            unread = "".join(self.not_asked[:1])
            return NextStep("owner", text=f"not checked: {unread}") if unread else None
        refused = [each for each in self.findings if each.is_refused]
        stepped = [each for each in (*self.first, *overlap.explanations) if each.step]
        waiting = [each for each in self.findings if each.apply == "later"]
        if found := refused or stepped or waiting:
            return _by_hand(found[0])
        if sentences := [*overlap.manual_steps, *self.not_asked]:
            return NextStep("owner", text=sentences[0].removesuffix("."))
        if overlap.suggested_routes:
            return NextStep("owner", text=f"add the routes to the config that this shows: {CHECK}")
        found = self.first or self._named
        return _by_hand(found[0]) if found else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON."""
        more = {
            "findings": [finding.to_mapping() for finding in self.findings],
            "not_asked": list(self.not_asked),
            "unread": list(self.unread),
            "spared": list(self.spared),
        }
        answer = {
            **self.overlap.to_mapping(mode=self.mode),
            "ok": self.ok,
            "verdict": self.sentence,
            "next": self.next,
            "step": self.step and self.step.to_mapping(),
        }
        return answer | {name: value for name, value in more.items() if value}

    def all_findings(self) -> list[dict[str, Any]]:
        """Return all findings for JSON, those about addresses first."""
        return [each.to_mapping() for each in (*self.addresses, *self.findings)]

    def lines(self) -> list[str]:
        """Return the report as text lines."""
        overlap = self.overlap
        explanations = overlap.explanations
        first = self.sentence
        is_said = first == f"{self.verdict}: {overlap.headline}"
        lines = [first, "" if is_said else overlap.verdict, *map(str, explanations), overlap.steps]
        findings = (finding for finding in self.findings if finding not in explanations)
        step = self.step
        command = step.command if step else None
        lines += [f"{each.severity}: {each.kind}: {each.text_before(command)}" for each in findings]
        lines += [f"note: not checked: {reason}" for reason in self.not_asked]
        lines += [f"next: {step}"] if step else []
        return [*filter(None, lines)]


def _by_hand(finding: NodeFinding) -> NextStep:
    """Return what a person has to do against a finding."""
    return NextStep("owner", text=sentence_of(finding))


def _whole(kind: str, sentence: str) -> NodeFinding:
    """Return what stands for several findings in a first line; no answer lists it by its kind."""
    return NodeFinding(kind, sentence, "")


def _is_wrong(finding: NodeFinding) -> bool:
    # Units that are held wait for what is wrong.
    is_error = finding.severity == "error" and finding.kind != "held"
    return is_error or finding.kind == "not-applied"
