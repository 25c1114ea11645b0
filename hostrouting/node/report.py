"""The report on a node, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from hostrouting.base.commands import CHECK, FIX, SHOW_HISTORY, command_line
from hostrouting.base.findings import NextStep, NodeFinding, first_of, rfc3339
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.node.state import NodeState, PlanFacts
from hostrouting.node.words import cut, in_full, in_short, sentence_of, text_of
from hostrouting.route_overlap.proven import OverlapReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.node.state import NodeFacts
    from hostrouting.static_routes.forecast import Forecast

_EDITED: Final = ", edited since its apply, which is still in force"
_OPENED: Final = "every gate is open: the break glass is set"
_AHEAD: Final = "unknown, since its time is later than that of this clock"


@attrs.frozen
class NodeReport(NodeState):
    """The proof, all findings besides, the checks that could not be made, and what is to do."""

    @property
    def headline(self) -> str:
        """The verdict with the first cause, and the number of the rest."""
        text = self.overlap.headline or "no findings"
        if self.verdict == "waiting":
            cause = (self.under_way or self.held)[0]
            text = f"{cause.subject} {cause.reason}"
        elif first := self.first:
            text = in_short(first)
        elif self.unread:
            text = f"no time was left to look at {first_of(self.unread)}"
        return f"{self.verdict}: {text}"

    @property
    def sentence(self) -> str:
        """The headline; with facts, those that are right, too."""
        if self.absence:
            return self.absence
        if self.planned is not None:
            return "; ".join(self._lines_of_plan(self.planned, self.overlap.headline))
        word: str = self.verdict
        if self.facts is None:
            return self.headline
        if word in {"wrong", "warning"} or self.under_way:
            return "; ".join([self.headline, *self._held])
        parts = [*self._live.values()] or ["the image is as the config wants it"]
        # A long line loses its end.
        parts.sort(key=lambda part: part not in (self._held or [_OPENED]))
        if self.facts.is_live and self.not_asked:
            word = "right as far as asked" if word == "right" else word
            unread = f"not looked at: {first_of(self.not_asked)}"
            parts.insert(0 if word == "unknown" else len(parts), unread)
        if remarks := self.remarks:
            parts.append(in_short(remarks))
        return f"{word}: {', '.join(parts)}"

    @property
    def next(self) -> str | None:
        """The command that repairs the node; None if there is none.

        An apply or a `check --fix` needs the `path` that `check_node` got.
        """
        return (self.step and self.step.command) or None

    @property
    def step(self) -> NextStep | None:
        """What to do next; None if nothing is to do.

        Where a lower layer fails, no command for a higher one helps: whoever gives a device what it
        lacks comes before an apply.
        """
        if self.absence:
            return NextStep("look", self.command) if self.command else None
        is_image = self.facts is not None and not self.facts.is_live
        if is_image or self.is_in_order:
            return None
        if self.edit and not self.under_way:
            return NextStep("fix", self.edit)
        if self.causes:
            cause = self.causes[0]
            kind: Literal["fix", "look"] = "look" if self.under_way else "fix"
            return NextStep(kind, cause.command) if cause.command else _by_hand(cause)
        if command := self._command:
            return NextStep("fix", command)
        return self._by_hand

    @property
    def _command(self) -> str | None:
        """The command that repairs a node on which no lower layer fails."""
        # Of a node that is right the summary names the first warning.
        for finding in self._named[:1] if self.ok else ():
            if finding.command and not finding.apply:
                return finding.command
        configured = any(report.configured_routes for report in self.overlap.cidrs)
        # A route that waits has another step first.
        if all(finding.apply != "later" for finding in self.findings):
            if self.command and (self._repairable or configured):
                return self.command
            if self.fix:
                return self.fix
        # A gate that is open helps a node that is wrong.
        opened = [each.command for each in self.findings if each.kind == "disabled" and self.ok]
        return next(filter(None, [*self.overlap.commands, *opened]), None)

    @property
    def _by_hand(self) -> NextStep | None:
        """What somebody has to do where no command helps."""
        if self.verdict == "right":
            # The warnings about it say what to do.
            unread = "".join(self.not_asked[:1])
            return NextStep("owner", text=f"not looked at: {unread}") if unread else None
        refused = [each for each in self.findings if each.is_refused]
        stepped = [each for each in (*self.first, *self.overlap.explanations) if each.step]
        waiting = [each for each in self.findings if each.apply == "later"]
        if found := refused or stepped or waiting:
            return _by_hand(found[0])
        if sentences := [*self.overlap.manual_steps, *self.not_asked]:
            return NextStep("owner", text=sentences[0].removesuffix("."))
        if self.overlap.suggested_routes:
            return NextStep("owner", text=f"the config lacks routes, which it shows: {CHECK}")
        found = self.first or self._named
        return _by_hand(found[0]) if found else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON: as of `status` or `plan` by its facts, else as of `check`."""
        if self.facts is not None:
            return self._status(self.facts)
        if self.planned is not None:
            return self._plan(self.planned)
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
            **self._next,
        }
        return answer | {name: value for name, value in more.items() if value}

    def _status(self, facts: NodeFacts) -> dict[str, Any]:
        cidrs = self.overlap.cidrs
        lost = facts.lost_routes
        in_force = None if lost is None else facts.routes - lost
        return {
            "ok": self.ok,
            "state": self.verdict,
            "verdict": self.sentence,
            **self._next,
            "config": None if self.absence else INTENT_PATH,
            "mode": str(self.mode),
            "last_change": None if self.absence else rfc3339(facts.changed_at),
            "cidrs": {"expected": len(cidrs), "right": sum(cidr.ok for cidr in cidrs)},
            "break_glass": self.break_glass or None,
            "checksum": facts.checksum,
            "edited": facts.edited,
            "routes": {"wanted": facts.routes, "in_force": in_force},
            "boot_files": {"differ": facts.differing_files},
            **facts.siblings,
            "gates": facts.gates,
            "findings": self._all_findings,
            "not_asked": [*self.not_asked],
        }

    @property
    def _next(self) -> dict[str, object]:
        return {"next": self.next, "step": self.step and self.step.to_mapping()}

    def _plan(self, planned: PlanFacts) -> dict[str, Any]:
        """Return the report of a plan, without empty values."""
        overlap = self.overlap
        is_held = self.fails and not (planned.is_refused or planned.broken)
        values = {
            "verdict": self.sentence,
            "proof": overlap.to_mapping(mode=self.mode) if overlap.cidrs else None,
            "worse": [each.reason for each in self.worse],
            "holds": [*planned.gates] if is_held else [],
            "late": overlap.refusals,
            "undecided": planned.undecided,
            "findings": self._all_findings,
        }
        return {name: value for name, value in values.items() if value}

    @property
    def _all_findings(self) -> list[dict[str, Any]]:
        return [each.to_mapping() for each in (*self.addresses, *self.findings)]

    def lines(self) -> list[str]:
        """Return the report as text lines: as of `status` or `plan` by its facts, or of `check`."""
        if self.facts is not None:
            return self._lines_of_status(self.facts)
        if self.planned is not None:
            return [*self._lines_of_plan(self.planned, self.overlap.verdict)]
        overlap = self.overlap
        explanations = overlap.explanations
        first = self.headline
        is_said = first == f"{self.verdict}: {overlap.headline}"
        lines = [first, "" if is_said else overlap.verdict, *map(str, explanations), overlap.steps]
        findings = (finding for finding in self.findings if finding not in explanations)
        command = self.next
        lines += [f"{each.severity}: {each.kind}: {each.text_before(command)}" for each in findings]
        lines += [f"note: not looked at: {reason}" for reason in self.not_asked]
        lines += [f"next: {step}"] if (step := self.step) else []
        return [*filter(None, lines)]

    def _lines_of_plan(self, planned: PlanFacts, verdict: str) -> Iterator[str]:
        overlap = self.overlap
        if planned.undecided:
            yield f"after apply: unknown, since {planned.undecided}"
        if verdict:
            yield f"after apply: {verdict}"
            yield from overlap.refusals
            yield from (note.text for note in overlap.explanations)
        yield from (each.text for each in self.worse)
        if planned.is_refused:
            yield "apply would refuse this"
        elif self.fails:
            held = ", ".join(planned.gates) or "none, since no unit has a gate"
            if planned.broken:
                held = f"none, break-glass keeps them open: {planned.broken}"
            yield f"gates that STRICT holds then: {held}"

    def _lines_of_status(self, facts: NodeFacts) -> list[str]:
        if self.absence:
            steps = "to keep them, run: hostrouting apply CONFIG; to remove them: hostrouting reset"
            return [self.absence, *(f"  {route}" for route in facts.kept), steps]
        lines = [*self._summary()]
        lines += [f"  not looked at: {reason}" for reason in self.not_asked]
        states = {**self._facts(facts), **self._live}
        lines += [f"{name}: {text}" for name, text in states.items()]
        gates = facts.gates or {}
        lines += [f"  {unit}: {_of_gate(gate)}" for unit, gate in gates.items()]
        if step := self.step:
            return [*lines, f"next: {step}"]
        return [*lines, "next: nothing to do"] if self.is_in_order else lines

    def _summary(self) -> Iterator[str]:
        """Yield the first line of a status, and lines on what that has in short, or as a number."""
        sentence = self.sentence
        wrong = self.wrong
        remarks = self.remarks
        # The lines of routes, proof and gates have what is left out.
        if cut(sentence) != sentence and not wrong:
            word = sentence.partition(":")[0]
            is_right = remarks and self.verdict == "right"
            sentence = f"{word}: {in_short(remarks)}" if is_right else cut(sentence)
        yield sentence
        named = wrong or remarks
        command = self.next
        is_whole = len(named) == 1 and text_of(named[0], command) == in_short(named)
        if not is_whole:
            yield from in_full(named, command)

    def _facts(self, facts: NodeFacts) -> dict[str, str]:
        """Return what is true of an image, too, each by its name."""
        differing = facts.differing_files
        files = f"{differing} differ" if differing else "right"
        states = {
            "config": f"{INTENT_PATH}{_EDITED if facts.edited else ''}",
            "mode": str(self.mode),
            "checksum": facts.checksum,
            "last change": f"{_last_change(facts)}; for all changes, run: {SHOW_HISTORY}",
            "boot files": _unless_unread(differing, files),
            "break glass": self.break_glass or "not set",
        }
        for name, sibling in facts.siblings.items():
            state = f"{sibling['unit']} ({sibling['active_state']})" if sibling else "not enabled"
            states[name] = state
        # A file in a place that the config needs is among the errors.
        found = [each for each in self.findings if each.kind == "foreign-file"]
        foreign = [each.text for each in found if each.severity == "note"]
        return {**states, "foreign files": "; ".join(foreign)} if foreign else states

    @property
    def _live(self) -> dict[str, str]:
        """The state of the routes, the proof and the gates; empty for an image."""
        facts = self.facts
        if facts is None or not facts.is_live:
            return {}
        opened = _OPENED if self.break_glass else "no gate is held"
        gates = "".join(self._held) or opened
        return {
            "routes": _routes_in_force(facts),
            "proof": self.overlap.headline or "no CIDR is expected",
            "gates": _unless_unread(facts.gates, gates),
        }

    @property
    def _held(self) -> list[str]:
        """The first unit that is held, and the number of the rest; empty without one."""
        held = [finding.subject for finding in self.held]
        if not held:
            return []
        return [f"{first_of(held)} {'are' if held[1:] else 'is'} held"]


def planned_report(
    config: HostRoutingConfig, forecast: Forecast, *, broken: str | None = None
) -> NodeReport:
    """Return the report on a node after an apply, by its forecast.

    `broken` is the reason why every gate is open.
    """
    worse = (NodeFinding("worse", "worse than now", str(each)) for each in forecast.worse)
    return NodeReport(
        overlap=OverlapReport() if forecast.report is None else forecast.report,
        mode=config.route_overlap.mode,
        findings=tuple(worse),
        planned=PlanFacts(
            is_refused=forecast.is_refused,
            gates=config.gates,
            broken=broken or "",
            undecided=forecast.undecided,
        ),
    )


def _by_hand(finding: NodeFinding) -> NextStep:
    """Return what somebody has to do against a finding."""
    return NextStep("owner", text=sentence_of(finding))


def fix_line(path: str) -> str:
    """Return the command line that applies the answer of `check --fix`."""
    if path == INTENT_PATH:
        return FIX
    return f"{command_line('check', path)} --fix | {command_line('apply', '-')}"


def _unless_unread(value: object, text: str) -> str:
    return "unknown" if value is None else text


def _of_gate(gate: Mapping[str, str]) -> str:
    return gate["reason"] or f"{gate['state']} ({gate['active_state']})"


def _last_change(facts: NodeFacts) -> str:
    """Return the time since the last change."""
    # Imported late: only `status` shows an age.
    from datetime import timedelta

    age = facts.at - facts.changed_at
    return f"{timedelta(seconds=int(age))} ago" if age >= 0 else _AHEAD


def _routes_in_force(facts: NodeFacts) -> str:
    """Return the number of routes in force."""
    in_force = f"{facts.routes - (facts.lost_routes or 0)} of {facts.routes} routes are in force"
    return _unless_unread(facts.lost_routes, in_force if facts.routes else "no route is wanted")
