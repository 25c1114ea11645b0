"""The findings about wrong parts: adjacent parts with the same answer are one finding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hostrouting.base.commands import quoted
from hostrouting.net.addresses import IPV4, format_address
from hostrouting.net.routes import ObservedRoute
from hostrouting.route_overlap.judgement import DecidedPart, Kind, removal
from hostrouting.route_overlap.report import Finding
from hostrouting.route_overlap.snapshot import (
    UNDECIDED,
    AllowedDevices,
    RoutingSnapshot,
    owner_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def findings_of(bad: Iterable[DecidedPart], node: RoutingSnapshot) -> tuple[Finding, ...]:
    """Return the findings: adjacent parts with the same answer are one finding."""
    groups: list[list[DecidedPart]] = []
    common: object = None
    for decided in bad:
        decision = _announcement(decided, node) or (*decided.answer[1:], decided.rule)
        if decision == common and groups[-1][-1].part.last + 1 == decided.part.first:
            groups[-1].append(decided)
        else:
            groups.append([decided])
        common = decision
    return tuple(_finding(group, node) for group in groups)


def _announcement(decided: DecidedPart, node: RoutingSnapshot) -> tuple[str, str] | None:
    return node.announced.announcement(decided.answer.route) if node.announced else None


def _finding(group: Sequence[DecidedPart], node: RoutingSnapshot) -> Finding:
    part, answer, _, rule = group[0]
    first = format_address(node.family, part.first)
    last = format_address(node.family, group[-1].part.last)
    make = partial(Finding, first=first, last=last)
    if announcement := _announcement(group[0], node):
        taken = [decided.part.first for decided in group if decided.kind == "local"]
        own = tuple(format_address(IPV4, number) for number in taken)
        network, source = announcement
        return make(kind="announced", own=own, network=network, source=source)
    kind, dev = _kind_and_device(group[0], node.allowed)
    # Adjacent blackholes give one answer, but are different routes. The kernel names table local
    # only after a rule of the node was changed, so findings never name it.
    deciders = (
        node.named(decided.decider).replace(" table local", "")
        for decided in group
        if decided.decider
    )
    command = None
    if kind == "local":
        command = removal(node, answer)
    elif rule is not None:
        command = quoted(*rule.deletion(node.selecting))
    kept = [decided for decided in group if decided.stays(node)]
    program = rule and rule.program
    if kind == "blocked" and kept:
        routes = (each.decider for each in kept if isinstance(each.decider, ObservedRoute))
        program = " and ".join(dict.fromkeys(map(owner_of, routes)))
    own_parts = kept if answer.route else []
    return make(
        kind=kind,
        command=command,
        own=tuple(format_address(node.family, decided.part.first) for decided in own_parts),
        rule=rule and str(rule),
        program=program,
        devs=answer.route.devs if answer.route else (),
        dev=dev,
        cause=UNDECIDED.get(answer.errno),
        route="; ".join(dict.fromkeys(deciders)) or None,
    )


def _kind_and_device(decided: DecidedPart, allowed: AllowedDevices) -> tuple[Kind, str | None]:
    """Return the kind of the finding about a part, and the first device that causes it."""
    kind = decided.kind
    route = decided.answer.route
    refused = allowed.refused(route) if route else ()
    wrong = [dev for dev in refused if dev not in allowed.dead_ends]
    tunnels = allowed.tunnels(route) if route else ()
    if tunnels and allowed.expected and not wrong:
        return "undecided", tunnels[0]
    if kind == "overlap" and not allowed.expected:
        kind = "unknown-exit"
    elif kind == "overlap" and not wrong:
        kind = "dead-end"
    own = route.devs if route and kind == "local" else ()
    return kind, next(iter(wrong or refused or own), None)
