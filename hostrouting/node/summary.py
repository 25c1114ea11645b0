"""The summary of a report: a line with the first of its causes, and the causes in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from hostrouting.base.commands import CHECK
from hostrouting.base.values import LightValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Verdict: TypeAlias = Literal["right", "unknown", "waiting", "warning", "wrong"]
#: The columns of the first line of an answer.
_COLUMNS: Final = 80
#: The causes below the first line; `check` has all of them.
_MOST_CAUSES: Final = 8
#: What is wrong with addresses, behind their CIDR, or a part of it.
CLAUSES: Final = {
    "overlap": "leaves by {dev}",
    "no-route": "has no route",
    "blocked": "is blocked",
    "local": "is the node itself, on {dev}",
    "dead-end": "leaves by {dev}, which has no carrier",
    "unknown-exit": "leaves by {dev}",
    "undecided": "is undecided",
    "announced": "will leave by the fabric",
}


@attrs.frozen
class Cause(LightValue):
    """One thing that is wrong, in short and in full."""

    #: What is wrong, and how: a number of others goes between the two.
    subject: str
    clause: str
    text: str

    @property
    def is_short(self) -> bool:
        """True if its text has nothing that the cause in short lacks."""
        return self.text == f"{self.subject}{self.clause}"

    def counted(self, more: int) -> str:
        """Return the cause in short, with the number of others, which stands before a clause.

        >>> Cause("ip", ": the node lacks it", "").counted(2)
        'ip (1 of 3): the node lacks it'
        >>> Cause("eth0 is set down", "", "").counted(2)
        'eth0 is set down, and 2 more'
        """
        if not more:
            return f"{self.subject}{self.clause}"
        if not self.clause:
            return f"{self.subject}, and {more} more"
        # The clause is not about the others.
        return f"{self.subject} (1 of {more + 1}){self.clause}"


def cut(text: str) -> str:
    """Return a text on one line of 80 columns at most.

    >>> cut("right: " + ", ".join(f"10.{number}.0.0/16" for number in range(10)))
    'right: 10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16, ...'
    """
    if len(text) <= _COLUMNS:
        return text
    room = _COLUMNS - len(" ...")
    kept, _, _ = text[: room + 1].rpartition(" ")
    # Of a path that takes most of the line the beginning is better than nothing.
    return f"{kept} ..." if " " in kept else f"{text[:room]} ..."


def shortest(causes: Sequence[Cause]) -> str:
    """Return the first cause in short, and the number of the rest."""
    return causes[0].counted(len(causes) - 1)


def in_full(causes: Sequence[Cause]) -> Iterator[str]:
    """Yield lines on what the first line of an answer has in short, or as a number."""
    yield from (f"  {cause.text}" for cause in causes[:_MOST_CAUSES])
    if rest := len(causes[_MOST_CAUSES:]):
        yield f"  and {rest} more: {CHECK}"
