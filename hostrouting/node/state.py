"""What was found on a node: the proof, other findings and facts, with their order and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

import attrs

from hostrouting.base.findings import NodeFinding, Severity, first_of
from hostrouting.base.values import LightValue
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.host.units import template_of
from hostrouting.route_overlap.proven import CAUSES, OverlapReport, defaults_of
from phases.mistakes import NoTruth

Verdict: TypeAlias = Literal["right", "unknown", "waiting", "warning", "wrong"]
#: The kind of the finding about a program that a boot lacks.
NO_PROGRAM = "no-program"
#: The kinds of findings that come before an apply: what makes it needless, the way out of the node,
#: and what stands in its way.
_ORDER: Final = ("under-way", *CAUSES, "no-lock", "read-only", "no-room", "exposed", "boot-file")

#: The warnings of a node that is right, but does not do all of its work.
_AILING: Final = frozenset({"failed-unit", "failed-trigger", "gate-failed", "silent-gateway"})


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
    #: True if the installed config was edited: the one that was applied is in force.
    edited: bool = False
    #: Without a config, the routes that are in force until the next boot.
    kept: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class PlanFacts(LightValue):
    """What `plan` shows of a node after an apply, besides findings."""

    #: True if an apply is refused, unless it is forced.
    is_refused: bool
    #: The units with a gate, and why each gate is open all the same.
    gates: tuple[str, ...]
    broken: str
    #: Why the proof is missing.
    undecided: str


@attrs.frozen
class NodeState(LightValue, NoTruth):
    """The proof, all findings besides, and the checks that could not be made."""

    overlap: OverlapReport = attrs.field(factory=OverlapReport)
    mode: OverlapMode = OverlapMode.WARN
    findings: tuple[NodeFinding, ...] = ()
    #: The command that findings name for most of them.
    command: str | None = None
    #: The apply of an edited installed config, if that works where the config in force fails.
    edit: str | None = None
    #: The command that applies the answer of `check --fix`, if it has one.
    fix: str | None = None
    not_asked: tuple[str, ...] = ()
    #: Their names, and of those for which no time was left.
    unanswered: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    #: The objects that a sweep would leave alone: object, address, kind and reason of each.
    spared: tuple[dict[str, object], ...] = ()
    #: Of `node_status`, which prints them.
    facts: NodeFacts | None = None
    #: Of a plan: the proof is that of the node after an apply.
    planned: PlanFacts | None = None
    #: In place of a verdict: that no config is in force, with what a run has left, or why the state
    #: is unknown.
    absence: str = ""

    @property
    def severities(self) -> frozenset[Severity]:
        """The severities of all findings."""
        severities = {finding.severity for finding in self.findings}
        return frozenset(severities if self.overlap.ok else {*severities, self.severity})

    @property
    def worse(self) -> list[NodeFinding]:
        """What is worse off by an apply, of a plan."""
        return [finding for finding in self.findings if finding.kind == "worse"]

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
    def fails(self) -> bool:
        """True if STRICT holds the gates; of a plan, if it will, or if an apply is refused."""
        is_refused = self.planned is not None and self.planned.is_refused
        return is_refused or (self.mode is OverlapMode.STRICT and not self.overlap.ok)

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
        """The findings that come before an apply, the lowest layer first."""
        rest = (finding for finding in self.findings if finding not in self.overlap.notes)
        found = (*self.overlap.causes, *rest)
        before = [each for each in found if each.kind in _ORDER and not each.apply]
        # Without a command, a file may follow from anything.
        before = [each for each in before if each.command or each.kind != "boot-file"]
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
        if overlap.is_proven and not any(map(_is_wrong, self.findings)):
            return [*self.ailing]
        aimless = [defaults_of(overlap, family) for family in overlap.without_exit]
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
        """Of what is wrong, that of which the rest is a consequence."""
        wrong = self.wrong
        if causes := self.causes or [each for each in wrong if each.kind == "no-exit"]:
            return causes
        lost = [each for each in wrong if each.kind == "lost-route" and each.apply == "now"]
        mended = {each.cidr for each in self.overlap.cidrs if lost and each.configured_routes}
        primary = [
            each for each in wrong if each.subject not in mended and each.kind != "failed-unit"
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
        """What a summary of a right node names: its warnings, and the choice between exits."""
        chosen = [finding for finding in self.findings if finding.kind == "chosen-exit"]
        return [*self._named, *chosen]

    @property
    def held(self) -> list[NodeFinding]:
        """The findings about units that wait for routing."""
        return [each for each in self.findings if (each.kind, each.severity) == ("held", "error")]

    @property
    def under_way(self) -> list[NodeFinding]:
        """The finding about another run, beside which errors may pass."""
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
        """The state of the node: `waiting` if only units are held, or another run is under way.

        It is `warning` without an error.

        It is `unknown` if nothing is wrong as far as time was left to look.
        """
        has_errors = "error" in self.severities
        if self.under_way:
            return "waiting"
        # To make 10,000 causes takes a while.
        if not self.overlap.is_proven or any(map(_is_wrong, self.findings)):
            return "wrong" if has_errors else "warning"
        if has_errors:
            return "waiting"
        if self.ailing:
            return "warning"
        return "unknown" if self.unread else "right"

    @property
    def is_in_order(self) -> bool:
        """True if all was looked at, and nothing is wrong or warned of."""
        return self.overlap.ok and not self._severe and not self.not_asked

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

    @property
    def break_glass(self) -> str:
        """Why all gates are open; empty if they are not."""
        return next((each.reason for each in self.findings if each.kind == "disabled"), "")


# The constructor of a class in another file has no names for the types of these fields.
attrs.resolve_types(NodeState)


def _whole(kind: str, sentence: str) -> NodeFinding:
    """Return what stands for several findings in a first line; no answer lists it by its kind."""
    return NodeFinding(kind, sentence, "")


def _is_wrong(finding: NodeFinding) -> bool:
    # Units that are held wait for what is wrong.
    is_error = finding.severity == "error" and finding.kind != "held"
    return is_error or finding.kind == "not-applied"
