"""Explain which route and device decide each part of a range, as values, JSON, text, and a picture.

On a terminal, the range is drawn as a bar with a colour for each device: red if the config does not
expect the device. No line is wider than the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import attrs

import hostrouting.host
from hostrouting.base.commands import Painted, printable
from hostrouting.base.findings import UNDECIDED_WORDS
from hostrouting.base.values import LightValue
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS, RouteOverlapConfig
from hostrouting.host import Host
from hostrouting.net.addresses import Address, Prefix, address_bits
from hostrouting.route_overlap.answers import looked_up, read
from hostrouting.route_overlap.cidr_parts import CidrPart
from hostrouting.route_overlap.judgement import DecidedPart
from hostrouting.route_overlap.snapshot import (
    UNDECIDED,
    AllowedDevices,
    RoutingSnapshot,
    SourcedLookup,
    allowed_devices,
    is_same,
    lost_rule_findings,
    watched,
)
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.net.rules import Rule

_BAR_WIDTH = 64
#: Background colours that are easy to tell apart with black text, and their bright forms.
_COLOURS = (42, 46, 43, 45, 44, 47, 102, 106, 103, 105, 104, 107)
_RED = 41


@attrs.frozen
class ExplainedPart(LightValue):
    """A range of addresses with its devices and deciding route, or the reason why there are none.

    `rule` is the rule that selects the table of the route, unless every node searches that table.
    `is_expected` is False if the config does not expect or allow a device; None without a config.
    """

    first: Address
    last: Address
    devs: tuple[str, ...]
    route: str | None
    rule: str | None
    reason: str | None
    is_expected: bool | None = None
    #: The background colour of its devices on a terminal.
    colour: int = attrs.field(default=_RED, eq=False, repr=False)

    @property
    def by(self) -> str:
        """The devices of the part as one word."""
        return "+".join(self.devs) if self.devs else "nowhere"

    @property
    def span(self) -> str:
        """The first and the last address."""
        return f"{self.first}" + (f" - {self.last}" if self.last != self.first else "")

    def to_mapping(self) -> dict[str, Any]:
        """Return the part for JSON."""
        fields = attrs.asdict(self, recurse=False)
        del fields["colour"]
        return {**fields, "first": str(self.first), "last": str(self.last), "devs": list(self.devs)}


@attrs.frozen
class Explanation(LightValue):
    """One requested range, divided where the answer changes."""

    asked: str
    parts: tuple[ExplainedPart, ...]

    @property
    def verdict(self) -> str:
        """The devices through which the range leaves, as one line."""
        unexpected = {part.by for part in self.parts if part.is_expected is False}
        ways = dict.fromkeys(part.by for part in self.parts)
        named = (f"{by} (not expected)" if by in unexpected else by for by in ways)
        return f"{self.asked}: {', '.join(named)}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        return {"asked": self.asked, "parts": [part.to_mapping() for part in self.parts]}

    def lines(self, *, width: int = sys.maxsize, picture: bool = False) -> Iterator[str]:
        """Yield a heading, the bar if `picture`, and each part in as few lines as `width` allows.

        The bar is left out if there are more parts than cells.
        """
        masked = _as_prefix(self.asked).masked
        host_bits = "" if masked == _as_prefix(self.asked) else f" has host bits; this is {masked}"
        yield from wrap(f"{self.asked}{host_bits}", width)
        spare = min(_BAR_WIDTH, width - 4) - len(self.parts)
        if picture and len(self.parts) > 1 and spare >= 0:
            # Each part gets cells by its size, but at least one.
            sizes = [part.last.number - part.first.number + 1 for part in self.parts]
            bars = (" " * (1 + size * spare // sum(sizes)) for size in sizes)
            painted = (
                _painted(bar, part.colour) for part, bar in zip(self.parts, bars, strict=True)
            )
            yield Painted("  " + "".join(painted))
        wide = max(len(part.by) for part in self.parts)
        for part in self.parts:
            by = part.by
            # In addition to the colour, which not everybody sees, and which a pipe does not show.
            mark = "! " if part.is_expected is False else "  "
            decider = f"{part.route or part.reason}"
            if part.rule:
                decider = f"{decider}, by the rule {part.rule}"
            lines = [f"{mark}{by:{wide}}  {part.span:33}  {decider}"]
            if len(lines[0]) > width:
                fold = partial(wrap, width=width, subsequent_indent="    ")
                lines = fold(f"{by}  {part.span}", initial_indent=mark)
                lines += fold(decider, initial_indent="    ", break_on_hyphens=False)
            if picture:
                shown = printable(by)
                line = printable(lines[0]).replace(shown, _painted(shown, part.colour), 1)
                lines[0] = Painted(line)
            yield from lines


def explain_routing(
    node: Host | hostrouting.host.Routing,
    ranges: Sequence[str],
    *,
    overlap: RouteOverlapConfig | None = None,
) -> list[Explanation]:
    """Return the kernel's decisions on addresses and CIDRs, as `hostrouting explain` prints them.

    `node` is a host, or just a backend. Adjacent parts with the same answer are merged. With
    `overlap`, devices that it does not expect or allow are red. Raises `ValueError` for a text that
    is neither an address nor a CIDR.

    >>> from hostrouting.testing import FakeHost
    >>> host = FakeHost()
    >>> host.routes.add_link("eth0")
    >>> host.routes.add_address("eth0", "10.224.0.4/16")
    >>> [explanation] = explain_routing(host, ["10.224.0.0/15"])
    >>> [(part.by, part.span) for part in explanation.parts][-1]
    ('nowhere', '10.225.0.0 - 10.225.255.255')
    """
    # Each character of a text would be an address.
    if isinstance(ranges, str):
        raise wrong_argument("ranges", ranges, "a list of texts", f"[{ranges!r}]")
    prefixes = [_as_prefix(text) for text in ranges]
    snapshots: dict[int, RoutingSnapshot] = {}
    looked: dict[Prefix, Sequence[CidrPart]] = {}
    node = watched(node)
    for family in sorted({prefix.family for prefix in prefixes}):
        own = [prefix for prefix in prefixes if prefix.family == family]
        snapshots[family], found = read(partial(RoutingSnapshot, node, family), own)
        looked.update(zip(own, found.parts, strict=True))
    allowed = {}
    if overlap and overlap.cidrs:
        patterns = (*DEFAULT_ALLOWED_DEVS, *overlap.allowed_devs)
        for family, node_of in snapshots.items():
            allowed[family] = allowed_devices(node_of, patterns, overlap.expected_devs or None)
    colours: dict[tuple[str, ...], int] = {}
    explanations = []
    for text, prefix in zip(ranges, prefixes, strict=True):
        snapshot = snapshots[prefix.family]
        views = {view: _first_answers(view, prefix) for view in snapshot.views}
        merged: list[ExplainedPart] = []
        for part in looked[prefix]:
            new = _explained(snapshot, views, allowed.get(prefix.family), colours, part)
            if merged and attrs.evolve(merged[-1], first=new.first, last=new.last) == new:
                new = attrs.evolve(new, first=merged.pop().first)
            merged.append(new)
        explanations.append(Explanation(text, tuple(merged)))
    return explanations


def _first_answers(node: RoutingSnapshot, prefix: Prefix) -> dict[int, SourcedLookup]:
    """Return the first answer of each part of a network, by the first address of the part."""
    [parts] = looked_up(node, [prefix]).parts
    return {part.first: part.answers[0] for part in parts}


def _explained(
    node: RoutingSnapshot,
    views: Mapping[RoutingSnapshot, Mapping[int, SourcedLookup]],
    allowed: AllowedDevices | None,
    colours: dict[tuple[str, ...], int],
    part: CidrPart,
) -> ExplainedPart:
    """Return the answer for a part: equal routes count, and so do answers for other protocols."""
    # A connection gets the first answer: if rules select by source, it is the answer for the source
    # that the connection will have.
    decided = DecidedPart.of(node, part, *part.answers[0])
    ways = [lookup.route for lookup in node.candidates(*part.answers[0])]
    equal = [way for way in ways if way and is_same(decided.answer.route, way)]
    reasons = {
        "local": "an address of this node",
        "no-route": "; ".join(["no route at all", *map(str, lost_rule_findings(node))]),
        "undecided": UNDECIDED_WORDS.get(UNDECIDED.get(decided.answer.errno, "")),
        "blocked": f"a route or rule refuses it ({os.strerror(decided.answer.errno)})",
    }
    deciders: list[ObservedRoute | Rule | None] = [*equal] or [decided.decider]
    for view, answers in views.items():
        answer, source = answers[part.first]
        equal += [answer.route] if answer.route else []
        deciders.append(view.decider(answer, source))
    devs = tuple(dict.fromkeys(dev for way in equal for dev in way.devs))
    is_expected = None
    if allowed is not None:
        may_carry = bool(devs) and all(map(allowed.may_carry, devs))
        is_expected = may_carry or node.is_own_block(decided.decider)
    colour = _RED
    if is_expected is not False:
        colour = colours.setdefault(devs, _COLOURS[len(colours) % len(_COLOURS)])
    named = dict.fromkeys(node.named(decider) for decider in deciders if decider)
    rule = None
    if decided.rule is not None and decided.rule is not decided.decider:
        rule = str(decided.rule)
    return ExplainedPart(
        first=Address(node.family, part.first),
        last=Address(node.family, part.last),
        devs=devs,
        route="; ".join(named) or None,
        rule=rule,
        reason=reasons.get(decided.kind),
        is_expected=is_expected,
        colour=colour,
    )


def _as_prefix(text: str) -> Prefix:
    if "/" in text:
        return Prefix.parse(text)
    try:
        address = Address.parse(text)
    except ValueError as error:
        family = (
            "IPv6 CIDR such as 'fd00::/64'" if ":" in text else "IPv4 CIDR such as '172.16.0.0/16'"
        )
        raise ValueError(f"{error}, nor an {family}") from None
    return Prefix(*address, address_bits(address.family))


def _painted(text: str, colour: int) -> str:
    return f"\x1b[30;{colour}m{text}\x1b[0m"
