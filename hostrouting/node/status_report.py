"""The report of `status`: the check under the installed config, and further facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from hostrouting.base.commands import SHOW_HISTORY
from hostrouting.base.findings import NextStep, first_of, rfc3339
from hostrouting.base.values import LightValue
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.node.report import NodeReport
from hostrouting.node.sentences import cut, in_full, in_short, text_of
from phases.mistakes import NoTruth

_EDITED: Final = ", edited since its apply, which is still in force"
_OPENED: Final = "every gate is open: the break glass is set"
_AHEAD: Final = "unknown, since its time is later than that of this clock"


@attrs.frozen(kw_only=True)
class NodeFacts(LightValue):
    """What `status` shows of a node under the installed config, besides findings."""

    #: True for a node, False for an image: only that of a node has routes and gates in force.
    is_live: bool = True
    #: The checksum of the installed config, as in the journal.
    checksum: str = ""
    #: The time of the check, and that of the last change of the config, its units and gates.
    at: float = 0.0
    changed_at: float = 0.0
    #: The number of routes that the config has, and of those that are not in force; None if no time
    #: was left to check.
    routes: int = 0
    lost_routes: int | None = 0
    #: The number of boot files that differ; None if no time was left to check.
    differing_files: int | None = 0
    #: The unit of each optional feature with its state and, if its service says any, its `status`;
    #: None for a feature that is not enabled.
    features: Mapping[str, Mapping[str, str] | None] = attrs.field(factory=dict)
    #: Each unit with a gate: its `state` (of the finding about it, such as `held` or `down`, or
    #: `open`, or `shut` if a start would be held now), the `reason` of that finding, and its
    #: `active_state` for systemd; None if no time was left to check.
    gates: Mapping[str, Mapping[str, str]] | None = attrs.field(factory=dict)
    #: True if the installed config was edited: the one that was applied is in force.
    edited: bool = False
    #: Without a config, the routes that are in force until the next boot.
    kept: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class StatusReport(LightValue, NoTruth):
    """The state of a node under the installed config."""

    check: NodeReport = attrs.field(factory=NodeReport)
    facts: NodeFacts = attrs.field(factory=NodeFacts)
    #: In place of a verdict: that no config is in force, with what a run has left, or why the state
    #: is unknown.
    absence: str = ""

    @property
    def ok(self) -> bool:
        """True if all was checked in time, and no finding is an error."""
        return self.check.ok

    @property
    def sentence(self) -> str:
        """The verdict with the first cause, or with the facts of a healthy node."""
        if self.absence:
            return self.absence
        check = self.check
        word: str = check.verdict
        if word in {"wrong", "warning"} or check.under_way:
            return "; ".join([check.sentence, *self._held])
        parts = [*self._live.values()] or ["the image is as the config wants it"]
        # What matters most comes first.
        parts.sort(key=lambda part: part not in (self._held or [_OPENED]))
        if self.facts.is_live and check.not_asked:
            word = "right as far as checked" if word == "right" else word
            unread = f"not checked: {first_of(check.not_asked)}"
            parts.insert(0 if word == "unknown" else len(parts), unread)
        if remarks := check.remarks:
            parts.append(in_short(remarks))
        return f"{word}: {', '.join(parts)}"

    @property
    def next(self) -> str | None:
        """The command that repairs the node; None if there is none."""
        return (self.step and self.step.command) or None

    @property
    def step(self) -> NextStep | None:
        """What to do next; None if nothing is to do, or for an image."""
        if self.absence:
            return NextStep("look", self.check.command) if self.check.command else None
        return self.check.step if self.facts.is_live else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON."""
        check = self.check
        facts = self.facts
        cidrs = check.overlap.cidrs
        lost = facts.lost_routes
        in_force = None if lost is None else facts.routes - lost
        return {
            "ok": self.ok,
            "state": check.verdict,
            "verdict": self.sentence,
            "next": self.next,
            "step": self.step and self.step.to_mapping(),
            "config": None if self.absence else CONFIG_PATH,
            "mode": str(check.mode),
            "last_change": None if self.absence else rfc3339(facts.changed_at),
            "cidrs": {"expected": len(cidrs), "right": sum(cidr.ok for cidr in cidrs)},
            "break_glass": check.break_glass or None,
            "checksum": facts.checksum,
            "edited": facts.edited,
            "routes": {"wanted": facts.routes, "in_force": in_force},
            "boot_files": {"differ": facts.differing_files},
            **facts.features,
            "gates": facts.gates,
            "findings": check.all_findings(),
            "not_asked": [*check.not_asked],
        }

    def lines(self) -> list[str]:
        """Return the report as text lines."""
        if self.absence:
            steps = "to keep them, run: hostrouting apply CONFIG; to remove them: hostrouting reset"
            return [self.absence, *(f"  {route}" for route in self.facts.kept), steps]
        lines = [*self._summary()]
        lines += [f"  not checked: {reason}" for reason in self.check.not_asked]
        states = {**self._lasting, **self._live}
        lines += [f"{name}: {text}" for name, text in states.items()]
        gates = self.facts.gates or {}
        lines += [f"  {unit}: {_of_gate(gate)}" for unit, gate in gates.items()]
        if step := self.step:
            return [*lines, f"next: {step}"]
        return [*lines, "next: nothing to do"] if self.check.is_in_order else lines

    def _summary(self) -> Iterator[str]:
        """Yield the first line, and lines on what that has in short, or as a number."""
        check = self.check
        sentence = self.sentence
        # What is left out is in the lines of routes, addresses and gates.
        if cut(sentence) != sentence and not check.wrong:
            sentence = self._brief(sentence) if check.verdict == "right" else cut(sentence)
        yield sentence
        named = check.wrong or check.remarks
        is_whole = len(named) == 1 and text_of(named[0], self.next) == in_short(named)
        if not is_whole:
            yield from in_full(named, self.next)

    def _brief(self, sentence: str) -> str:
        """Return the sentence of a healthy node with a number in place of each CIDR."""
        word = sentence.partition(":")[0]
        cidrs = self.check.overlap.cidrs
        count = f"{sum(cidr.ok for cidr in cidrs)} of {len(cidrs)} CIDRs are right"
        live = {**self._live, **({"addresses": count} if cidrs else {})}
        return f"{word}: {', '.join(live.values())}" if self._live else cut(sentence)

    @property
    def _lasting(self) -> dict[str, str]:
        """What is also true of an image, by name."""
        facts = self.facts
        differing = facts.differing_files
        files = f"{differing} differ" if differing else "right"
        states = {
            "config": f"{CONFIG_PATH}{_EDITED if facts.edited else ''}",
            "mode": str(self.check.mode),
            "checksum": facts.checksum,
            "last change": f"{_last_change(facts)}; for all changes, run: {SHOW_HISTORY}",
            "boot files": _unless_unread(differing, files),
            "break glass": self.check.break_glass or "not set",
        }
        for name, feature in facts.features.items():
            states[name] = _of_feature(feature) if feature else "not enabled"
        # A file that is in the way of the config is among the errors.
        found = [each for each in self.check.findings if each.kind == "foreign-file"]
        foreign = [each.text for each in found if each.severity == "note"]
        return {**states, "foreign files": "; ".join(foreign)} if foreign else states

    @property
    def _live(self) -> dict[str, str]:
        """The state of routes, addresses and gates; empty for an image."""
        facts = self.facts
        if not facts.is_live:
            return {}
        opened = _OPENED if self.check.break_glass else "no gate held"
        gates = "".join(self._held) or opened
        return {
            "routes": _routes_in_force(facts),
            "addresses": self.check.overlap.headline or "no CIDR is expected",
            "gates": _unless_unread(facts.gates, gates),
        }

    @property
    def _held(self) -> list[str]:
        """The first unit that is held, and the number of the rest; empty without one."""
        held = [finding.subject for finding in self.check.held]
        if not held:
            return []
        return [f"{first_of(held)} {'are' if held[1:] else 'is'} held"]


def _unless_unread(value: object, text: str) -> str:
    return "unknown" if value is None else text


def _of_feature(feature: Mapping[str, str]) -> str:
    state = f"{feature['unit']} ({feature['active_state']})"
    return f"{state}: {feature['status']}" if "status" in feature else state


def _of_gate(gate: Mapping[str, str]) -> str:
    return gate["reason"] or f"{gate['state']} ({gate['active_state']})"


def _last_change(facts: NodeFacts) -> str:
    """Return the time since the last change."""
    # Imported here because only `status` shows an age.
    from datetime import timedelta

    age = facts.at - facts.changed_at
    return f"{timedelta(seconds=int(age))} ago" if age >= 0 else _AHEAD


def _routes_in_force(facts: NodeFacts) -> str:
    """Return the number of routes in force."""
    in_force = f"{facts.routes - (facts.lost_routes or 0)} of {facts.routes} routes in force"
    return _unless_unread(facts.lost_routes, in_force if facts.routes else "no route is wanted")
