"""Explain which route and device decide each part of a range, as values, JSON, text, and a picture.

On a terminal the range is a bar, with each part in the colour of its device.
"""

from __future__ import annotations

import os
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.net.addresses import format_ipv4, parse_cidr, parse_ipv4
from hostrouting.route_overlap.parts import DecidedPart, Node, adjacent, looked_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.host import RouteBackend
    from hostrouting.route_overlap.parts import Part

_BAR_WIDTH: Final = 64
#: Background colours that differ clearly with black letters on them.
_COLOURS: Final = (42, 46, 43, 45, 44, 47, 41)


@attrs.frozen
class ExplainedPart:
    """Addresses from `first` to `last`: the devices by which they leave and the deciding route, or why they do not."""

    first: int
    last: int
    devs: tuple[str, ...]
    route: str | None
    reason: str | None

    @property
    def by(self) -> str:
        """The devices of the part, in a word."""
        return "+".join(self.devs) if self.devs else "nowhere"

    def to_mapping(self) -> dict[str, Any]:
        """Return the part for JSON."""
        first, last = format_ipv4(self.first), format_ipv4(self.last)
        return {**attrs.asdict(self), "first": first, "last": last}


@attrs.frozen
class Explanation:
    """One range of the question, divided where the answer changes."""

    asked: str
    parts: tuple[ExplainedPart, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        return {"asked": self.asked, "parts": [part.to_mapping() for part in self.parts]}

    def lines(self, *, picture: bool = False) -> Iterator[str]:
        """Return the text: a heading, the bar if `picture`, and a line for each part."""
        yield self.asked
        colours = dict(zip(dict.fromkeys(part.by for part in self.parts), cycle(_COLOURS), strict=False))
        if picture and len(self.parts) > 1:
            # By its size each part has cells, and at least one.
            cell = (self.parts[-1].last - self.parts[0].first + 1) / _BAR_WIDTH
            bars = (" " * max(1, int((part.last - part.first + 1) / cell)) for part in self.parts)
            yield "  " + "".join(_painted(bar, colours[part.by]) for part, bar in zip(self.parts, bars, strict=True))
        wide = max(len(part.by) for part in self.parts)
        for part in self.parts:
            by = f"{part.by:{wide}}"
            by = _painted(f" {by} ", colours[part.by]) if picture else by
            span = format_ipv4(part.first) + (f" - {format_ipv4(part.last)}" if part.last != part.first else "")
            yield f"  {by}  {span:33}  {part.route or part.reason}"


def explain(backend: RouteBackend, asked: Sequence[str]) -> list[Explanation]:
    """Ask the kernel about addresses and CIDRs; adjacent parts with the same answer are merged."""
    cidrs = [_as_cidr(text) for text in asked]
    node = Node(backend)
    return [
        Explanation(text, tuple(map(_explained, adjacent(_decided(parts, node), same=_same))))
        for text, parts in zip(asked, looked_up(node, cidrs), strict=True)
    ]


def _decided(parts: Iterable[Part], node: Node) -> Iterator[DecidedPart]:
    for part in parts:
        # A connection gets the answer for the source that it will have, if rules select by source.
        answer, source = part.answers[0]
        yield DecidedPart(part, answer, node.decider(answer, source))


def _same(one: DecidedPart) -> tuple[object, ...]:
    return one.devs, str(one.decider), one.kind, one.answer.errno


def _as_cidr(text: str) -> str:
    if "/" in text:
        parse_cidr(text)
        return text
    try:
        parse_ipv4(text)
    except ValueError as error:
        raise ValueError(f"{error}, nor an IPv4 CIDR such as '172.16.0.0/16'") from None
    return f"{text}/32"


def _explained(group: Sequence[DecidedPart]) -> ExplainedPart:
    first = group[0]
    reasons = {
        "local": "an address of this node",
        "no-route": "no route at all",
        "blocked": f"a route or rule refuses it ({os.strerror(first.answer.errno)})",
    }
    route = str(first.decider) if first.decider else None
    return ExplainedPart(first.part.first, group[-1].part.last, first.devs, route, reasons.get(first.kind))


def _painted(text: str, colour: int) -> str:
    return f"\x1b[30;{colour}m{text}\x1b[0m"
