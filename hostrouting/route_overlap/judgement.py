"""The parts of a CIDR whose answers are not fine, and the devices that may carry expected traffic."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal, NamedTuple

from hostrouting.net.routes import ObservedRoute
from hostrouting.route_overlap.blockers import rule_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.net.routes import Lookup
    from hostrouting.net.rules import Rule
    from hostrouting.route_overlap.parts import Part

__all__ = ["AllowedDevices", "BadPart"]


class BadPart(NamedTuple):
    """A part with an answer that is not fine; `blocker` is the refusing route or rule if the answer is an errno."""

    part: Part
    answer: Lookup
    blocker: ObservedRoute | Rule | None

    @property
    def kind(self) -> Literal["overlap", "no-route", "blocked", "local"]:
        """One of the kinds of `Finding`."""
        if self.answer.route is None:
            return "no-route" if self.answer.errno == errno.ENETUNREACH else "blocked"
        return "local" if self.answer.route.kind == "local" else "overlap"

    @property
    def text(self) -> str | None:
        """The deciding route or rule."""
        decider = self.answer.route or self.blocker
        if decider is None:
            return None
        return str(decider) if isinstance(decider, ObservedRoute) else rule_text(decider)


class AllowedDevices(dict["str | None", bool]):
    """The devices that may carry expected traffic: expected ones and those that match a pattern; a dict for speed."""

    def __init__(self, expected: Iterable[str], patterns: Iterable[str]) -> None:
        # A route with several next hops has no device: its next hops need a closer look.
        super().__init__([(None, False), *((dev, True) for dev in expected)])
        self._patterns = tuple(patterns)

    def __missing__(self, dev: str) -> bool:
        from fnmatch import fnmatchcase

        # Byte for byte, as bash does in the C locale.
        name = dev.encode(errors="surrogateescape").decode("latin-1")
        self[dev] = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return self[dev]

    def refused(self, devs: Iterable[str]) -> tuple[str, ...]:
        """Return those of `devs` that are not allowed."""
        return tuple(dev for dev in devs if not self[dev])

    def answer_is_fine(self, answer: Lookup) -> bool:
        """Return True if every next hop is allowed."""
        return answer.route is not None and bool(answer.route.devs) and not self.refused(answer.route.devs)

    def bad_answer(self, part: Part) -> tuple[Lookup, int] | None:
        """Return an answer that is not fine, with its source (0: none); of several the one that a connection gets."""
        for answer, source in zip((*part.sourced, part.plain), (*part.sources, 0), strict=True):
            if not self.answer_is_fine(answer):
                return answer, source
        return None
