"""The verdict on a node in one sentence, with the facts that it is made of: `hostrouting status`.

All of it is what `hostrouting check` finds, under the installed config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.base.commands import CHECK, FIX, SHOW_HISTORY
from hostrouting.boot import (
    INTENT_PATH,
    NOT_INSTALLED,
    Boot,
    Intent,
    installed_checksum,
    require_intent,
)
from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import ConfigMistake, HostRoutingError, InvalidConfigError
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.check import check_node
from phases.exceptions import CONTEXT_OVER, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.host import Host
    from hostrouting.node.check import NodeReport
    from phases import Context


_AHEAD: Final = "unknown, since its time is later than that of this clock"


@attrs.frozen
class NodeStatus:
    """The state of a node under the installed config."""

    report: NodeReport
    #: What is true of the live node, none of it for an image: its routes, its proof, its gates.
    live: Mapping[str, str]
    #: The config, and what is true of its files and units, each by its name.
    facts: Mapping[str, str]
    #: The state of each unit with a gate: the words of the finding about it (it is held, or down,
    #: since when); or else `open`, or `shut` if a start would be held now, with the state of
    #: systemd in brackets.
    gates: Mapping[str, str]

    @property
    def sentence(self) -> str:
        """The verdict, with the first cause, the first held unit and the next step."""
        errors = [
            found
            for found in self.report.findings
            if found.severity == "error" or found.kind == "not-applied"
        ]
        causes = [f"{found.subject}: {found.reason}" for found in errors if found.kind != "held"]
        causes = self.report.overlap.lines() + causes
        # Then the other errors are held units.
        word = "wrong" if causes else "waiting" if not self.report.ok else "right"
        told = [_first(causes), *list(self.live.values())[2:]] if causes else [*self.live.values()]
        if self.live and self.report.not_asked:
            word = "right as far as asked" if word == "right" else word
            told.append(f"not looked at: {_first(self.report.not_asked)}")
        sentence = f"{word}: {', '.join(told) or 'the image is as the config wants it'}"
        return f"{sentence}; run: {self.next}" if self.next else sentence

    @property
    def next(self) -> str | None:
        """The command that mends the node, or that tells more; None if there is no need, and for an image."""
        overlap = self.report.overlap
        findings = [
            found
            for found in self.report.findings
            if found.severity != "note" and found.kind != "held"
        ]
        if not self.live or (overlap.ok and not findings and not self.report.not_asked):
            return None
        # A route that waits for a default route has another step first: `check` names it.
        step = self.report.step
        is_mended = any(found.apply == "now" for found in findings) or any(
            each.configured_routes for each in overlap.cidrs
        )
        if step and is_mended:
            return step
        return FIX if overlap.suggested_routes else CHECK

    def to_mapping(self) -> dict[str, Any]:
        """Return the status for JSON."""
        told = {
            "ok": self.report.ok and not self.report.unread,
            "verdict": self.sentence,
            "next": self.next,
        }
        return {**told, **self.facts, **self.live, "units": self.gates}

    def lines(self) -> list[str]:
        """Return the status as text lines, the sentence first."""
        told = {**self.facts, **self.live, **self.gates, "next": self.next or "nothing to do"}
        return [
            self.sentence,
            *(f"{name.replace('_', ' ')}: {text}" for name, text in told.items()),
        ]


def node_status(ctx: Context, host: Host, config: HostRoutingConfig | None = None) -> NodeStatus:
    """Return the state of a node; change nothing, need no root, and wait for nothing that may heal.

    `config` is the installed one, if a run has just put it in force: to read one of 10,000 routes
    takes 0.1 s, and so does it to compare them again. Raises `InvalidConfigError` where nothing is
    installed.
    """
    from datetime import timedelta

    def state(unit: str) -> str:
        try:
            found = host.services.state(ctx, unit)
        except (HostRoutingError, DeadlineExceededError):
            return "unknown"
        return found.active_state if found.exists else "no such unit"

    def known(look: str, text: str) -> str:
        return f"unknown: no time was left to look at {look}" if look in report.unread else text

    is_applied = config is not None
    if config is None:
        if not host.files.exists(INTENT_PATH):
            raise InvalidConfigError([ConfigMistake("", _absence(ctx, host))])
        config = require_intent(host.files)
    report = check_node(ctx, config, host, seconds=0, path=INTENT_PATH, is_applied=is_applied)
    broken = next((found.reason for found in report.findings if found.kind == "disabled"), "")
    wrong = sum(found.kind == "boot-file" for found in report.findings)
    routes, lost = len(config.static_routes.routes), report.lost_routes(config)
    gates = {
        unit: told or f"{word} ({state(unit)})"
        for unit, (word, told) in report.gates(config).items()
    }
    held = [
        f"{found.subject} {found.reason}"
        for found in report.findings
        if (found.kind, found.severity) == ("held", "error")
    ]
    unit = f"hostrouting-watch.{config.watch.mode}"
    age = ctx.clock.time() - (host.files.modified(INTENT_PATH) or 0)
    facts = {
        "config": INTENT_PATH,
        "checksum": installed_checksum(host.files),
        "last_change": f"{f'{timedelta(seconds=int(age))} ago' if age >= 0 else _AHEAD}; for all: {SHOW_HISTORY}",
        "boot_files": known("files", f"{wrong} differ" if wrong else "right"),
        "break_glass": broken or "not set",
        "watch": f"{unit} ({state(unit)})" if config.watch.enabled else "not enabled",
    }
    live = {
        "routes": known(
            "routes",
            f"{routes - lost} of {routes} routes are in force" if routes else "no route is wanted",
        ),
        "proof": report.overlap.verdict.partition("\n")[0].removesuffix(":")
        or "no CIDR is expected",
        "gates": _first(held) if held else broken or known("held", "no gate is held"),
    }
    return NodeStatus(report, live if host.is_live else {}, facts, gates)


def verdict_now(
    ctx: Context, host: Host, config: HostRoutingConfig | None = None
) -> tuple[str, Sequence[Mapping[str, object]]]:
    """Return the sentence of `status`, for the end of a run, and the objects that a sweep would leave alone.

    If there is none, the sentence is the reason.
    """
    try:
        is_installed = host.files.exists(INTENT_PATH)
        # A config with nothing but a sweep installs nothing.
        found = node_status(ctx, host, config) if is_installed or config else None
        sentence = found.sentence if found and is_installed else _absence(ctx, host)
    except (HostRoutingError, *CONTEXT_OVER) as error:
        told = " ".join(str(error).split())
        return (
            f"the state of the node is unknown: {told}; run: {CHECK}"
            if host.is_live
            else f"unknown: {told}",
            (),
        )
    return sentence, found.report.spared if found else ()


def _absence(ctx: Context, host: Host) -> str:
    """Return that no config is installed, and what an earlier one has left."""
    boot, nothing = Boot(host, gates=()), HostRoutingConfig(gates=())
    planned = boot.drift(ctx, *boot_parts(nothing), Intent(config=nothing))
    left = [change.subject for change in planned if change.action == "-"] or boot.installed_units()
    if host.is_live:
        for family in host.routes.families:
            left += map(str, host.routes.routes_of(OUR_PROTOCOL, family))
    told = NOT_INSTALLED if host.is_live else f"{NOT_INSTALLED} in the image"
    step = (
        "apply a config again, or run: hostrouting reset"
        if host.is_live
        else "a reset with --root removes that"
    )
    return f"{told}, but an earlier one has left {_first(left)}; {step}" if left else told


def _first(texts: Sequence[str]) -> str:
    return f"{texts[0]} and {len(texts) - 1} more" if texts[1:] else texts[0]
