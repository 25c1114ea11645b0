"""The verdict on a node in one sentence, with the facts that it is made of: `hostrouting status`.

It is based on the findings of `hostrouting check` under the installed config.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import attrs

from hostrouting.base.commands import CHECK, FIX, SHOW_HISTORY
from hostrouting.base.findings import NodeFinding, first_of
from hostrouting.boot import (
    INTENT_PATH,
    NOT_INSTALLED,
    Boot,
    Intent,
    installed_checksum,
    require_intent,
)
from hostrouting.boot.layout import FREE_UNITS, drop_in_of, unit_path
from hostrouting.config import CONFIG, HostRoutingConfig, OverlapMode, Sibling
from hostrouting.exceptions import HostRoutingError
from hostrouting.host import HOST, Host
from hostrouting.net.routes import OUR_PROTOCOL, is_merged
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.check import NodeReport, check_node, look_after_apply
from hostrouting.node.fix import fixed
from hostrouting.route_overlap import OverlapReport
from hostrouting.static_routes.refusals import why_merged
from phases.arguments import checked
from phases.exceptions import CONTEXT_OVER, DeadlineExceededError
from phases.mistakes import CONTEXT, NoTruth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phases import Context


_AHEAD = "unknown, since its time is later than that of this clock"


@attrs.frozen
class NodeStatus(NoTruth):
    """The state of a node under the installed config."""

    _tested = ".report.ok, .sentence"

    report: NodeReport
    #: The state of the routes, the proof and the gates; empty for an image.
    live: Mapping[str, str]
    #: The config, and the state of its files and units, each by its name.
    facts: Mapping[str, str]
    #: The state of each unit with a gate: the reason of the finding about it (it is held, or down,
    #: since when); or else `open`, or `shut` if a start would be held now, with the state of
    #: systemd in brackets.
    gates: Mapping[str, str]
    #: True if `check --fix` has an answer, for findings that routes could resolve.
    is_fixable: bool = False
    #: Why no config is in force, and what a run has left; empty where one is.
    absence: str = ""

    def __repr__(self) -> str:
        return f"<NodeStatus: {self.sentence.splitlines()[0]}>"

    @property
    def sentence(self) -> str:
        """The verdict, with the first cause, the first held unit and the next step."""
        if self.absence:
            return self.absence
        wrong = self._wrong
        word: str = self.verdict
        parts = list(self.live.values())
        if wrong:
            first = map(_fact, self.report.causes)
            parts[:2] = [first_of(list(dict.fromkeys([*first, *wrong])))]
        elif named := [*self._named, *self._chosen]:
            parts.append(first_of([f"{finding.subject}: {finding.reason}" for finding in named]))
        if self.live and self.report.not_asked:
            word = "right as far as asked" if word == "right" else word
            parts.append(f"not looked at: {first_of(self.report.not_asked)}")
        sentence = f"{word}: {', '.join(parts) or 'the image is as the config wants it'}"
        return f"{sentence}; run: {self.next}" if self.next else sentence

    @property
    def verdict(self) -> Literal["right", "waiting", "warning", "wrong"]:
        """The state of the node: `waiting` if only units are held, `warning` without an error."""
        has_errors = "error" in self.report.severities
        if self._wrong:
            return "wrong" if has_errors else "warning"
        return "waiting" if has_errors else "right"

    @property
    def _wrong(self) -> list[str]:
        """What is wrong: causes, addresses, and findings."""
        overlap = self.report.overlap
        findings = [
            finding
            for finding in self.report.findings
            if (finding.severity == "error" and finding.kind != "held")
            or finding.kind == "not-applied"
        ]
        return [*map(_fact, overlap.causes), *overlap.lines(), *map(_fact, findings)]

    @property
    def next(self) -> str | None:
        """The command that repairs the node or shows more; None if it is right or an image."""
        overlap = self.report.overlap
        if not self.live or (overlap.ok and not self._severe and not self.report.not_asked):
            return None
        # Of a node that is right the sentence names the first warning.
        for finding in self.report.causes or (self._named[:1] if self.report.ok else ()):
            if finding.command:
                return finding.command
        # A route that waits for a default route has another step first: `check` names it.
        step = self.report.step
        if self.report.is_worse and self.is_fixable:
            return FIX
        if step and (self._repairable or any(proof.configured_routes for proof in overlap.cidrs)):
            return step
        if self.is_fixable:
            return FIX
        return next(iter(overlap.commands), CHECK)

    @property
    def _severe(self) -> list[NodeFinding]:
        findings = self.report.findings
        return [found for found in findings if found.severity != "note" and found.kind != "held"]

    @property
    def _repairable(self) -> list[NodeFinding]:
        return [finding for finding in self._severe if finding.apply == "now"]

    @property
    def _named(self) -> list[NodeFinding]:
        """The warnings that the sentence names: what an apply repairs, or else all."""
        # Of gates that are open the state of the gates has the reason.
        rest = [finding for finding in self._severe if finding.kind != "disabled"]
        # What has a command comes first.
        rest.sort(key=lambda finding: not finding.command)
        return list(dict.fromkeys([*self.report.causes, *self._repairable])) or rest

    @property
    def _chosen(self) -> list[NodeFinding]:
        """The notes on the default route that decides, of several: it may lead nowhere."""
        return [finding for finding in self.report.findings if finding.kind == "chosen-exit"]

    def to_mapping(self) -> dict[str, Any]:
        """Return the status for JSON."""
        verdict = {"ok": self.report.ok, "verdict": self.sentence, "next": self.next}
        return {**verdict, **self.facts, **self.live, "units": self.gates}

    def lines(self) -> list[str]:
        """Return the status as text lines, the sentence first."""
        facts = {**self.facts, **self.live, **self.gates, "next": self.next or "nothing to do"}
        lines = (f"{name.replace('_', ' ')}: {text}" for name, text in facts.items())
        return [self.sentence, *lines]


def _fact(finding: NodeFinding) -> str:
    """Return what is wrong; a cause reads as a sentence."""
    colon = ":" if finding.apply or finding.severity == "error" else ""
    return f"{finding.subject}{colon} {finding.reason}"


@checked(ctx=CONTEXT, host=HOST, config=CONFIG.or_none)
def node_status(
    ctx: Context,
    host: Host,
    *,
    config: HostRoutingConfig | None = None,
    applied: NodeReport | None = None,
) -> NodeStatus:
    """Return what `hostrouting status` prints; change nothing, and need no root.

    It waits for nothing but a router that does not answer, for 2.5 s.

    `config` is the installed one, if a run has just put it in force, and `applied` what
    `look_after_apply` returned for it: to read and to compare 10,000 routes again takes 0.2 s.
    Where nothing is installed, `absence` says so, and the report has it as an error. Raises
    `InvalidConfigError` for a damaged config.

    >>> from hostrouting import Configure, StaticRoute, StaticRoutesConfig
    >>> from phases import Context, run
    >>> from hostrouting.testing import FakeHost
    >>> host = FakeHost()
    >>> node_status(Context(), host).sentence
    'no config is installed: there is no /etc/aks-flex-node/hostrouting.json'
    >>> host.routes.add_link("eth0")
    >>> host.routes.add_address("eth0", "10.224.0.4/16")
    >>> route = StaticRoute(destination="172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    >>> section = StaticRoutesConfig(enabled=True, routes=(route,))
    >>> run(Configure(HostRoutingConfig(static_routes=section), host=host)).ok
    True
    >>> status = node_status(Context(), host)
    >>> status.report.ok, status.live["routes"]
    (True, '1 of 1 routes are in force')
    """
    # What no time was left to read is unknown, which is an answer.
    ctx = ctx.expiring()

    def state(unit: str) -> str:
        try:
            unit_state = host.services.state(ctx, unit)
        except (HostRoutingError, DeadlineExceededError):
            return "unknown"
        return unit_state.active_state if unit_state.exists else "no such unit"

    def known(look: str, text: str) -> str:
        return f"unknown: no time was left to look at {look}" if look in report.unread else text

    if config is not None:
        applied = look_after_apply(ctx, config, host) if applied is None else applied
    else:
        if not host.files.exists(INTENT_PATH):
            return _status_without_config(ctx, host)
        config = require_intent(host.files)
    report = check_node(ctx, config, host, seconds=0, path=INTENT_PATH, applied=applied)
    findings = report.findings
    broken = next((finding.reason for finding in findings if finding.kind == "disabled"), "")
    wrong = [finding.kind for finding in findings].count("boot-file")
    routes = len(config.static_routes.routes)
    lost = report.lost_routes(config)
    gates = {
        unit: reason or f"{word} ({state(unit)})"
        for unit, (word, reason) in report.gates(config).items()
    }
    held = [
        f"{finding.subject} {finding.reason}"
        for finding in findings
        if (finding.kind, finding.severity) == ("held", "error")
    ]
    # A run that repairs a unit or a gate leaves the config as it is.
    boot = Boot(host)
    paths = [INTENT_PATH, *map(unit_path, boot.installed_units()), *map(drop_in_of, config.gates)]
    age = ctx.clock.time() - max(host.files.modified(path) or 0 for path in paths)
    changed = f"{timedelta(seconds=int(age))} ago" if age >= 0 else _AHEAD
    facts = {
        "config": INTENT_PATH,
        "mode": str(report.mode),
        "checksum": installed_checksum(host.files),
        "last_change": f"{changed}; for all: {SHOW_HISTORY}",
        "boot_files": known("files", f"{wrong} differ" if wrong else "right"),
        "break_glass": broken or "not set",
    }
    for name, section in config.sections.items():
        if not isinstance(section, Sibling) or section.unit not in FREE_UNITS:
            continue
        facts[name] = "not enabled"
        if section.enabled:
            facts[name] = f"{section.unit} ({state(section.unit)})"
    in_force = f"{routes - lost} of {routes} routes are in force"
    proof = report.overlap.headline
    live = {
        "routes": known("routes", in_force if routes else "no route is wanted"),
        "proof": proof or "no CIDR is expected",
        "gates": first_of(held) if held else broken or known("held", "no gate is held"),
    }
    has_remedy = report.overlap.suggested_routes or report.overlap.moved_exits or report.is_worse
    is_fixable = bool(has_remedy) and _is_fixable(ctx, config, host)
    return NodeStatus(report, live if host.is_live else {}, facts, gates, is_fixable)


def _status_without_config(ctx: Context, host: Host) -> NodeStatus:
    absence = _absence(ctx, host)
    # As of a recorded node without a config.
    finding = NodeFinding("not-applied", "hostRouting", absence)
    report = NodeReport(overlap=OverlapReport(), mode=OverlapMode.WARN, findings=(finding,))
    return NodeStatus(report, {}, {"config": NOT_INSTALLED}, {}, absence=absence)


def _is_fixable(ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    # Imported late: a node that is right needs no answer.
    try:
        return isinstance(fixed(ctx, config, host, seconds=0), HostRoutingConfig)
    except (HostRoutingError, DeadlineExceededError):
        return False


def verdict_now(
    ctx: Context,
    host: Host,
    config: HostRoutingConfig | None = None,
    applied: NodeReport | None = None,
) -> tuple[str, NodeReport | None]:
    """Return the sentence of `status`, or why it is unknown, and the report behind it."""
    try:
        is_installed = host.files.exists(INTENT_PATH)
        # A config with nothing but a sweep installs nothing.
        is_known = is_installed or config is not None
        status = node_status(ctx, host, config=config, applied=applied) if is_known else None
        sentence = status.sentence if status is not None and is_installed else _absence(ctx, host)
    except (HostRoutingError, *CONTEXT_OVER) as error:
        reason = " ".join(str(error).split())
        unknown = f"the state of the node is unknown: {reason}; run: {CHECK}"
        return unknown if host.is_live else f"unknown: {reason}", None
    return sentence, None if status is None else status.report


def _absence(ctx: Context, host: Host) -> str:
    """Return a sentence: no config is installed, and a run has left these."""
    boot = Boot(host)
    nothing = HostRoutingConfig(gates=())
    planned = boot.drift(ctx, *boot_parts(nothing), Intent(config=nothing))
    left = [change.subject for change in planned if change.action == "-"] or boot.installed_units()
    absence = f"{NOT_INSTALLED} in the image"
    step = "a reset with --root removes that"
    if host.is_live:
        absence = NOT_INSTALLED
        step = "apply a config again, or run: hostrouting reset"
        for family in host.routes.families:
            for route in host.routes.routes_of(OUR_PROTOCOL, family):
                left.append(str(route))
                # A reset leaves it.
                step = why_merged(route) if is_merged(route) else step
    return f"{absence}, but a run has left {first_of(left)}; {step}" if left else absence
