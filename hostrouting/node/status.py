"""The verdict on a node in one sentence, with the facts that it is made of: `hostrouting status`.

It is based on the findings of `hostrouting check` under the installed config.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from hostrouting.base.commands import CHECK, SHOW_HISTORY
from hostrouting.base.findings import NodeFinding, Severity, first_of, rfc3339
from hostrouting.base.values import LightValue
from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Intent, installed_checksum, not_installed, read_intent
from hostrouting.boot.layout import FREE_UNITS, INTENT_PATH, drop_in_of, unit_path
from hostrouting.config import HostRoutingConfig, OverlapMode, Sibling
from hostrouting.exceptions import HostRoutingError, UnitError
from hostrouting.net.routes import is_merged
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.check import check_node, look_after_apply, own_routes
from hostrouting.node.report import NodeReport, causes_of, held_of, remarks_of
from hostrouting.node.summary import Verdict, cut, in_full, shortest
from hostrouting.node.units import read_units
from hostrouting.route_overlap.report import OverlapReport
from hostrouting.route_overlap.script import config_in, config_in_force, render_script
from hostrouting.static_routes.refusals import why_merged
from phases.exceptions import CONTEXT_OVER, DeadlineExceededError
from phases.mistakes import NoTruth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.host import Host
    from hostrouting.net.routes import ObservedRoute
    from phases import Context


_EDITED = ", edited by hand since its apply: the scripts in force expect something else"
_AHEAD = "unknown, since its time is later than that of this clock"


@attrs.frozen(kw_only=True)
class NodeStatus(LightValue, NoTruth):
    """The state of a node under the installed config."""

    _tested = ".report.ok, .sentence"

    report: NodeReport
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
    #: Why all gates are open; empty if they are not.
    break_glass: str = ""
    #: The unit and its state of each section that is enabled; None for one that is not.
    siblings: Mapping[str, Mapping[str, str] | None] = attrs.field(factory=dict)
    #: Each unit with a gate: its `state` (of the finding about it, such as `held` or `down`, or
    #: `open`, or `shut` if a start would be held now), the `reason` of that finding, and its
    #: `active_state` for systemd; None if no time was left to look.
    gates: Mapping[str, Mapping[str, str]] | None = attrs.field(factory=dict)
    #: True if the scripts in force expect something else than the config: the file was edited.
    edited: bool = False
    #: Why no config is in force, and what a run has left; empty where one is.
    absence: str = ""
    #: Without a config, the routes that are in force until the next boot.
    kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<NodeStatus: {self.sentence.splitlines()[0]}>"

    @property
    def verdict(self) -> Verdict:
        """The state of the node: that of the report."""
        return self.report.verdict

    @property
    def sentence(self) -> str:
        """The verdict, with the first cause and the number of the rest."""
        if self.absence:
            return self.absence
        word: str = self.verdict
        if word in {"wrong", "warning"}:
            return "; ".join([self.report.headline, *self._held])
        parts = [*self._live.values()] or ["the image is as the config wants it"]
        if word == "waiting":
            parts.sort(key=lambda part: part not in self._held)
        if self.is_live and self.report.not_asked:
            word = "right as far as asked" if word == "right" else word
            unread = f"not looked at: {first_of(self.report.not_asked)}"
            parts.insert(0 if word == "unknown" else len(parts), unread)
        if remarks := remarks_of(self.report):
            parts.append(shortest(remarks))
        return f"{word}: {', '.join(parts)}"

    @property
    def next(self) -> str | None:
        """The command that repairs the node, or shows what is wrong; None for an image.

        None, too, where only warnings are left, and no single command helps against them.
        """
        if not self.is_live or self.absence:
            return None
        shows_all = self.verdict in {"right", "waiting"} and not self.report.not_asked
        return self.report.next or (None if shows_all else CHECK)

    def to_mapping(self) -> dict[str, Any]:
        """Return the status for JSON: counts, times and findings."""
        lost = self.lost_routes
        cidrs = self.report.overlap.cidrs
        return {
            "ok": self.report.ok,
            "state": self.verdict,
            "verdict": self.sentence,
            "next": self.next,
            "config": None if self.absence else INTENT_PATH,
            "mode": str(self.report.mode),
            "checksum": self.checksum,
            "edited": self.edited,
            "last_change": None if self.absence else rfc3339(self.changed_at),
            "routes": {
                "wanted": self.routes,
                "in_force": None if lost is None else self.routes - lost,
            },
            "cidrs": {"expected": len(cidrs), "right": sum(cidr.ok for cidr in cidrs)},
            "boot_files": {"differ": self.differing_files},
            "break_glass": self.break_glass or None,
            **self.siblings,
            "gates": self.gates,
            "findings": [*self._addresses(), *(each.to_mapping() for each in self.report.findings)],
            "not_asked": [*self.report.not_asked],
        }

    def _addresses(self) -> Iterator[dict[str, Any]]:
        """Yield the findings of the proof, as `check --json` has them."""
        for cidr in self.report.overlap.cidrs:
            values = cidr.to_mapping()["findings"]
            for finding, mapping in zip(cidr.findings, values, strict=True):
                yield {
                    "severity": self.report.severity,
                    "subject": cidr.cidr,
                    "reason": finding.sentence(),
                    **mapping,
                }

    def lines(self) -> list[str]:
        """Return the status as text lines: the sentence, its causes, the facts, the next step."""
        if self.absence:
            steps = "to keep them, apply their config; to remove them, run: hostrouting reset"
            return [self.absence, *(f"  {route}" for route in self.kept), steps]
        lines = [*self._summary()]
        lines += [f"  not looked at: {reason}" for reason in self.report.not_asked]
        facts = {**self._facts(), **self._live}
        lines += [f"{name}: {text}" for name, text in facts.items()]
        gates = self.gates or {}
        lines += [f"  {unit}: {_of_gate(gate)}" for unit, gate in gates.items()]
        if self.next:
            return [*lines, f"next: {self.next}"]
        return [*lines, "next: nothing to do"] if self.report.is_in_order else lines

    def _summary(self) -> Iterator[str]:
        """Yield the first line, and lines on what that has in short, or as a number."""
        sentence = self.sentence
        causes = causes_of(self.report)
        remarks = remarks_of(self.report)
        if cut(sentence) != sentence:
            # The lines of routes, proof and gates have what is left out.
            if causes:
                sentence = self.report.headline
            elif remarks and self.verdict == "right":
                word = sentence.partition(":")[0]
                sentence = f"{word}: {shortest(remarks)}"
        first = cut(sentence)
        yield first
        causes = causes or remarks
        is_said = first == sentence and [cause.is_short for cause in causes] == [True]
        if not is_said:
            yield from in_full(causes)

    def _facts(self) -> dict[str, str]:
        """Return what is true of an image, too, each by its name."""
        age = self.at - self.changed_at
        changed = f"{timedelta(seconds=int(age))} ago" if age >= 0 else _AHEAD
        files = f"{self.differing_files} differ" if self.differing_files else "right"
        facts = {
            "config": f"{INTENT_PATH}{_EDITED if self.edited else ''}",
            "mode": str(self.report.mode),
            "checksum": self.checksum,
            "last change": f"{changed}; for all changes, run: {SHOW_HISTORY}",
            "boot files": _unless_unread(self.differing_files, files),
            "break glass": self.break_glass or "not set",
        }
        for name, sibling in self.siblings.items():
            state = f"{sibling['unit']} ({sibling['active_state']})" if sibling else "not enabled"
            facts[name] = state
        foreign = [each.text for each in self.report.findings if each.kind == "foreign-file"]
        return {**facts, "foreign files": "; ".join(foreign)} if foreign else facts

    @property
    def _live(self) -> dict[str, str]:
        """The state of the routes, the proof and the gates; empty for an image."""
        if not self.is_live:
            return {}
        in_force = f"{self.routes - (self.lost_routes or 0)} of {self.routes} routes are in force"
        wanted = in_force if self.routes else "no route is wanted"
        opened = "every gate is open: the break glass is set" if self.break_glass else ""
        gates = "".join(self._held) or opened or "no gate is held"
        return {
            "routes": _unless_unread(self.lost_routes, wanted),
            "proof": self.report.overlap.headline or "no CIDR is expected",
            "gates": _unless_unread(self.gates, gates),
        }

    @property
    def _held(self) -> list[str]:
        """The first unit that is held, and the number of the rest; empty without one."""
        held = [finding.subject for finding in held_of(self.report)]
        if not held:
            return []
        return [f"{first_of(held)} {'are' if held[1:] else 'is'} held"]


def _unless_unread(value: object, text: str) -> str:
    return "unknown: no time was left to look" if value is None else text


def _of_gate(gate: Mapping[str, str]) -> str:
    return gate["reason"] or f"{gate['state']} ({gate['active_state']})"


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
    >>> status.report.ok, status.routes, status.lost_routes
    (True, 1, 0)
    """
    # What no time was left to read is unknown, which is an answer.
    ctx = ctx.expiring()

    def active_state(unit: str) -> str:
        try:
            unit_state = host.services.state(ctx, unit)
        except (HostRoutingError, DeadlineExceededError):
            return "unknown"
        return unit_state.active_state if unit_state.exists else "no such unit"

    if config is not None:
        applied = look_after_apply(ctx, config, host) if applied is None else applied
    else:
        # A link that leads nowhere is no config.
        config = read_intent(host.files)
        if config is None:
            return _status_without_config(ctx, host)
    # Each look names what systemd refuses.
    with suppress(UnitError, DeadlineExceededError):
        host = read_units(ctx, host, config.gates)
    report = check_node(ctx, config, host, seconds=0, path=INTENT_PATH, applied=applied)
    errors = [finding.kind for finding in report.findings if finding.severity == "error"]
    differing = errors.count("boot-file") + errors.count("foreign-file")
    broken = (finding.reason for finding in report.findings if finding.kind == "disabled")
    gates = {
        unit: {"state": word, "reason": reason, "active_state": active_state(unit)}
        for unit, (word, reason) in report.gates(config).items()
    }
    siblings = {
        name: {"unit": section.unit, "active_state": active_state(section.unit)}
        if section.enabled
        else None
        for name, section in config.sections.items()
        if isinstance(section, Sibling) and section.unit in FREE_UNITS
    }
    # A run that repairs a unit or a gate leaves the config as it is.
    boot = Boot(host)
    paths = [INTENT_PATH, *map(unit_path, boot.installed_units()), *map(drop_in_of, config.gates)]
    return NodeStatus(
        report=report,
        is_live=host.is_live,
        checksum=installed_checksum(host.files),
        edited=config_in_force(host.files) not in (None, config_in(render_script(config))),
        at=ctx.clock.time(),
        changed_at=max(host.files.modified(path) or 0 for path in paths),
        routes=len(config.static_routes.routes),
        lost_routes=None if "routes" in report.unread else report.lost_routes(config),
        differing_files=None if "files" in report.unread else differing,
        break_glass=next(broken, ""),
        siblings=siblings,
        gates=None if "held" in report.unread else gates,
    )


def _status_without_config(ctx: Context, host: Host) -> NodeStatus:
    absence = _absence(ctx, host)
    severity: Severity = "error"
    kept: list[ObservedRoute] = []
    # As after an `apply --live`.
    if host.is_live and not _left_files(ctx, host) and (kept := own_routes(host)):
        severity = "warning"
        count = "1 route is" if len(kept) == 1 else f"{len(kept)} routes are"
        absence = f"no config is installed; {count} in force until the next boot"
    foreign = Boot(host).foreign(Intent(config=HostRoutingConfig()))
    absence = "; ".join([absence, *(f"{found.subject} {found.reason}" for found in foreign)])
    # As of a recorded node without a config.
    findings = (NodeFinding("not-applied", "hostRouting", absence, severity), *foreign)
    report = NodeReport(overlap=OverlapReport(), mode=OverlapMode.WARN, findings=findings)
    return NodeStatus(
        report=report,
        is_live=host.is_live,
        absence=f"warning: {absence}" if kept else absence,
        routes=len(kept),
        kept=tuple(map(str, kept)),
    )


class Outcome(NamedTuple):
    """The state of a node after a run: a sentence, the next step, and the report behind it."""

    sentence: str
    next: str | None = None
    report: NodeReport | None = None

    def lines(self) -> list[str]:
        """Return the text, with the next step last and alone."""
        step = [f"next: {self.next}"] if self.next else []
        return [self.sentence, *step]


def verdict_now(
    ctx: Context,
    host: Host,
    config: HostRoutingConfig | None = None,
    applied: NodeReport | None = None,
) -> Outcome:
    """Return what `status` says of a node, or why that is unknown."""
    try:
        is_installed = host.files.mode(INTENT_PATH) is not None
        # A config with nothing but a sweep installs nothing.
        is_known = is_installed or config is not None
        status = node_status(ctx, host, config=config, applied=applied) if is_known else None
        if status is None:
            return Outcome(_absence(ctx, host))
        if not is_installed:
            return Outcome(_absence(ctx, host), report=status.report)
        return Outcome(status.sentence, status.next, status.report)
    except (HostRoutingError, *CONTEXT_OVER) as error:
        reason = " ".join(str(error).split())
        if host.is_live:
            return Outcome(f"the state of the node is unknown: {reason}", CHECK)
        return Outcome(f"unknown: {reason}")


def _absence(ctx: Context, host: Host) -> str:
    """Return a sentence: no config is installed, and a run has left these."""
    left = _left_files(ctx, host)
    absence = not_installed(host)
    step = "a reset with --root removes that"
    if host.is_live:
        routes = own_routes(host)
        step = "apply your config again"
        step += "; a reset would take its routes away" if routes else ", or run: hostrouting reset"
        for route in routes:
            left.append(str(route))
            # A reset leaves it.
            step = why_merged(route) if is_merged(route) else step
    return f"{absence}, but a run has left {first_of(left)}; {step}" if left else absence


def _left_files(ctx: Context, host: Host) -> list[str]:
    boot = Boot(host)
    nothing = HostRoutingConfig(gates=())
    planned = boot.drift(ctx, *boot_parts(nothing), Intent(config=nothing))
    return [change.subject for change in planned if change.action == "-"] or boot.installed_units()
