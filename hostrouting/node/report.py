"""The report on a node: the proof, all findings besides, the facts of a status, and the verdict."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from hostrouting.base.commands import CHECK, FIX, SHOW_HISTORY, command_line
from hostrouting.base.findings import NodeFinding, Severity, first_of, rfc3339
from hostrouting.base.values import LightValue
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.config import HostRoutingConfig, OverlapMode
from hostrouting.host.units import template_of
from hostrouting.node.words import cut, in_full, in_short, text_of
from hostrouting.route_overlap.report import defaults_of
from phases.mistakes import NoTruth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.route_overlap.report import OverlapReport

Verdict: TypeAlias = Literal["right", "unknown", "waiting", "warning", "wrong"]
#: The kind of the finding about a program that a boot lacks.
NO_PROGRAM = "no-program"
#: The kinds of findings whose command comes before an apply: what makes one needless first, then
#: what stands in its way. An apply in vain is no step.
_ORDER: Final = (
    "device-down",
    "lost-default",
    "lost-rule",
    "moved-exit",
    "read-only",
    "no-room",
    "exposed",
    "boot-file",
)
_EDITED: Final = ", edited by hand since its apply: the scripts in force expect something else"
_AHEAD: Final = "unknown, since its time is later than that of this clock"


@attrs.frozen(kw_only=True)
class NodeFacts(LightValue):
    """What `status` shows of a node under the installed config, besides findings."""

    #: True for a node, False for an image: only that of a node has routes and gates in force.
    is_live: bool = True
    #: The checksum of the installed config, as in the journal.
    checksum: str = ""
    #: The time of the look, and that of the last change of the config, its units and gates.
    at: float = 0.0
    changed_at: float = 0.0
    #: The number of routes that the config has, and of those that are not in force; None if no time
    #: was left to look.
    routes: int = 0
    lost_routes: int | None = 0
    #: The number of boot files that differ; None if no time was left to look.
    differing_files: int | None = 0
    #: The unit and its state of each section that is enabled; None for one that is not.
    siblings: Mapping[str, Mapping[str, str] | None] = attrs.field(factory=dict)
    #: Each unit with a gate: its `state` (of the finding about it, such as `held` or `down`, or
    #: `open`, or `shut` if a start would be held now), the `reason` of that finding, and its
    #: `active_state` for systemd; None if no time was left to look.
    gates: Mapping[str, Mapping[str, str]] | None = attrs.field(factory=dict)
    #: True if the scripts in force expect something else than the config: the file was edited.
    edited: bool = False
    #: Without a config, the routes that are in force until the next boot.
    kept: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Return the facts for JSON: counts and states."""
        lost = self.lost_routes
        in_force = None if lost is None else self.routes - lost
        return {
            "checksum": self.checksum,
            "edited": self.edited,
            "routes": {"wanted": self.routes, "in_force": in_force},
            "boot_files": {"differ": self.differing_files},
            **self.siblings,
            "gates": self.gates,
        }

    @property
    def last_change(self) -> str:
        """The time since the last change, in words."""
        age = self.at - self.changed_at
        return f"{timedelta(seconds=int(age))} ago" if age >= 0 else _AHEAD

    @property
    def routes_in_force(self) -> str:
        """The number of routes in force, in words."""
        in_force = f"{self.routes - (self.lost_routes or 0)} of {self.routes} routes are in force"
        return _unless_unread(self.lost_routes, in_force if self.routes else "no route is wanted")


@attrs.frozen
class NodeReport(LightValue, NoTruth):
    """The proof, all findings besides, the checks that could not be made, and what is to do."""

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
    #: Of `node_status`, which prints them.
    facts: NodeFacts | None = None
    #: In place of a verdict: that no config is in force, with what a run has left, or why the state
    #: is unknown.
    absence: str = ""

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
        """The findings whose command comes before an apply, in the order of these commands."""
        rest = (finding for finding in self.findings if finding not in self.overlap.notes)
        found = (*self.overlap.causes, *rest)
        before = [each for each in found if each.kind in _ORDER and each.command and not each.apply]
        return sorted(before, key=lambda finding: _ORDER.index(finding.kind))

    @property
    def addresses(self) -> Iterator[NodeFinding]:
        """The findings of the proof, each about a part of a CIDR."""
        for cidr in self.overlap.cidrs:
            for part in cidr.findings:
                yield NodeFinding(part.kind, cidr.cidr, part.sentence(), self.severity, part=part)

    @property
    def wrong(self) -> list[NodeFinding]:
        """What is wrong, each once: what has to go first, addresses, and the other findings.

        Without an error there is nothing, but for what the proof has.
        """
        overlap = self.overlap
        aimless = [defaults_of(overlap, family) for family in overlap.without_exit]
        wrong = [
            *overlap.causes,
            *(_whole("no-exit", defaults) for defaults in aimless),
            *self._wrong_addresses(),
            *filter(_is_wrong, self.findings),
        ]
        return list(dict.fromkeys([*self.causes, *wrong])) if wrong else []

    def _wrong_addresses(self) -> Iterator[NodeFinding]:
        all_but = {cidr.cidr: cidr.all_but for cidr in self.overlap.cidrs}
        for found in self.addresses:
            own = all_but[found.subject]
            sentence = f"{found.subject} is right, all but {own}"
            yield _whole("all-but", sentence) if own else found

    @property
    def remarks(self) -> list[NodeFinding]:
        """What a summary of a right node names: its warnings, and the choice between exits."""
        chosen = [finding for finding in self.findings if finding.kind == "chosen-exit"]
        return [*self._named, *chosen]

    @property
    def held(self) -> list[NodeFinding]:
        """The findings about units that wait for routing."""
        return [each for each in self.findings if (each.kind, each.severity) == ("held", "error")]

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
        if wrong := self.wrong:
            text = in_short(wrong)
        elif held := self.held:
            text = f"{held[0].subject} {held[0].reason}"
        elif self.unread:
            text = f"no time was left to look at {first_of(self.unread)}"
        return f"{self.verdict}: {text}"

    @property
    def sentence(self) -> str:
        """The headline; with facts, those that are right, too."""
        if self.absence:
            return self.absence
        word: str = self.verdict
        if self.facts is None:
            return self.headline
        if word in {"wrong", "warning"}:
            return "; ".join([self.headline, *self._held])
        parts = [*self._live.values()] or ["the image is as the config wants it"]
        if word == "waiting":
            parts.sort(key=lambda part: part not in self._held)
        if self.facts.is_live and self.not_asked:
            word = "right as far as asked" if word == "right" else word
            unread = f"not looked at: {first_of(self.not_asked)}"
            parts.insert(0 if word == "unknown" else len(parts), unread)
        if remarks := self.remarks:
            parts.append(in_short(remarks))
        return f"{word}: {', '.join(parts)}"

    @property
    def is_in_order(self) -> bool:
        """True if all was looked at, and nothing is wrong or warned of."""
        return self.overlap.ok and not self._severe and not self.not_asked

    @property
    def next(self) -> str | None:
        """The command that repairs the node; None if there is none.

        An apply or a `check --fix` needs the `path` that `check_node` got. With the facts of a
        node, it may be one that shows what is wrong: None if only warnings are left, and no single
        command helps against them.
        """
        if self.absence:
            return self.step
        remedy = None if self.is_in_order else self._remedy
        facts = self.facts
        if facts is None or not facts.is_live:
            return remedy if facts is None else None
        shows_all = self.verdict in {"right", "waiting"} and not self.not_asked
        return remedy or (None if shows_all else CHECK)

    @property
    def _remedy(self) -> str | None:
        # Of a node that is right the summary names the first warning.
        for finding in self.causes or (self._named[:1] if self.ok else ()):
            if finding.command and not finding.apply:
                return finding.command
        # A route that waits for a default route has another step first: `check` names it.
        if (self.is_worse or self.overlap.has_lost_exit) and self.is_fixable:
            return _fix(self.path)
        configured = any(report.configured_routes for report in self.overlap.cidrs)
        if self.step and (self._repairable or configured):
            return self.step
        if self.is_fixable:
            return _fix(self.path)
        return next(iter(self.overlap.commands), None)

    @property
    def _severe(self) -> list[NodeFinding]:
        """The errors and warnings, but for those of units that are held."""
        return [each for each in self.findings if each.severity != "note" and each.kind != "held"]

    @property
    def _named(self) -> list[NodeFinding]:
        """The warnings that a summary names: what an apply repairs, or else all."""
        # Of gates that are open the state of the gates has the reason.
        rest = [finding for finding in self._severe if finding.kind != "disabled"]
        # What has a command comes first.
        rest.sort(key=lambda finding: not finding.command)
        return list(dict.fromkeys([*self.causes, *self._repairable])) or rest

    @property
    def _repairable(self) -> list[NodeFinding]:
        return [finding for finding in self._severe if finding.apply == "now"]

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON: as of `status` if it has facts, else as of `check`."""
        if self.facts is not None:
            return self._status(self.facts)
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
        }
        return answer | {name: value for name, value in more.items() if value}

    def _status(self, facts: NodeFacts) -> dict[str, Any]:
        cidrs = self.overlap.cidrs
        return {
            "ok": self.ok,
            "state": self.verdict,
            "verdict": self.sentence,
            "next": self.next,
            "config": None if self.absence else INTENT_PATH,
            "mode": str(self.mode),
            "last_change": None if self.absence else rfc3339(facts.changed_at),
            "cidrs": {"expected": len(cidrs), "right": sum(cidr.ok for cidr in cidrs)},
            "break_glass": self.break_glass or None,
            **facts.to_mapping(),
            "findings": [each.to_mapping() for each in (*self.addresses, *self.findings)],
            "not_asked": [*self.not_asked],
        }

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Return the report as text lines: as of `status` if it has facts, else as of `check`.

        `verbose` offers to silence findings, too.
        """
        if self.facts is not None:
            return self._lines_of_status(self.facts)
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

    def _lines_of_status(self, facts: NodeFacts) -> list[str]:
        if self.absence:
            steps = "to keep them, apply their config; to remove them, run: hostrouting reset"
            return [self.absence, *(f"  {route}" for route in facts.kept), steps]
        lines = [*self._summary()]
        lines += [f"  not looked at: {reason}" for reason in self.not_asked]
        states = {**self._facts(facts), **self._live}
        lines += [f"{name}: {text}" for name, text in states.items()]
        gates = facts.gates or {}
        lines += [f"  {unit}: {_of_gate(gate)}" for unit, gate in gates.items()]
        if self.next:
            return [*lines, f"next: {self.next}"]
        return [*lines, "next: nothing to do"] if self.is_in_order else lines

    def _summary(self) -> Iterator[str]:
        """Yield the first line of a status, and lines on what that has in short, or as a number."""
        sentence = self.sentence
        wrong = self.wrong
        remarks = self.remarks
        if cut(sentence) != sentence:
            # The lines of routes, proof and gates have what is left out.
            if wrong:
                sentence = self.headline
            elif remarks and self.verdict == "right":
                word = sentence.partition(":")[0]
                sentence = f"{word}: {in_short(remarks)}"
        first = cut(sentence)
        yield first
        named = wrong or remarks
        command = self.next
        is_whole = len(named) == 1 and text_of(named[0], command) == in_short(named)
        if not (first == sentence and is_whole):
            yield from in_full(named, command)

    def _facts(self, facts: NodeFacts) -> dict[str, str]:
        """Return what is true of an image, too, each by its name."""
        differing = facts.differing_files
        files = f"{differing} differ" if differing else "right"
        states = {
            "config": f"{INTENT_PATH}{_EDITED if facts.edited else ''}",
            "mode": str(self.mode),
            "checksum": facts.checksum,
            "last change": f"{facts.last_change}; for all changes, run: {SHOW_HISTORY}",
            "boot files": _unless_unread(differing, files),
            "break glass": self.break_glass or "not set",
        }
        for name, sibling in facts.siblings.items():
            state = f"{sibling['unit']} ({sibling['active_state']})" if sibling else "not enabled"
            states[name] = state
        foreign = [each.text for each in self.findings if each.kind == "foreign-file"]
        return {**states, "foreign files": "; ".join(foreign)} if foreign else states

    @property
    def break_glass(self) -> str:
        """Why all gates are open; empty if they are not."""
        return next((each.reason for each in self.findings if each.kind == "disabled"), "")

    @property
    def _live(self) -> dict[str, str]:
        """The state of the routes, the proof and the gates; empty for an image."""
        facts = self.facts
        if facts is None or not facts.is_live:
            return {}
        opened = "every gate is open: the break glass is set" if self.break_glass else ""
        gates = "".join(self._held) or opened or "no gate is held"
        return {
            "routes": facts.routes_in_force,
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


def _whole(kind: str, sentence: str) -> NodeFinding:
    """Return what stands for several findings in a first line; no answer lists it by its kind."""
    return NodeFinding(kind, sentence, "")


def _is_wrong(finding: NodeFinding) -> bool:
    # Units that are held wait for what is wrong.
    is_error = finding.severity == "error" and finding.kind != "held"
    return is_error or finding.kind == "not-applied"


def _fix(path: str) -> str:
    if path == INTENT_PATH:
        return FIX
    return f"{command_line('check', path)} --fix | {command_line('apply', '-')}"


def _unless_unread(value: object, text: str) -> str:
    return "unknown: no time was left to look" if value is None else text


def _of_gate(gate: Mapping[str, str]) -> str:
    return gate["reason"] or f"{gate['state']} ({gate['active_state']})"
