"""The promises of the project, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from benchmarks import commands, fleet, gate, storm, watch
from benchmarks.cases import IP, OURS, Result
from benchmarks.measure import Contest

#: Below this, opening a socket and starting a process dominate.
_SMALLEST = 1000


@attrs.frozen
class Ratio:
    """The figure of a contender, as a multiple of the one beside it."""

    name: str
    beside: str

    def __call__(self, contest: Contest) -> float | None:
        """Return the ratio of a contest."""
        return contest.ratio(self.name, self.beside)


_Figure: TypeAlias = "Callable[[Contest], float | None]"


class Row(NamedTuple):
    """A figure of a case, and its limit.

    A limit leaves a third of room over the figure of a quiet machine; without a limit, the figure
    is reported.
    """

    promise: str
    case: str
    figure: _Figure
    limit: float | None = None
    unit: str = "x"
    #: The number of items that the row is about. 0: the worst of 1,000 and more, or the only.
    items: int = 0
    #: The contender that a user waits for.
    waits: str = ""


class Target(NamedTuple):
    """A row with its figure, None if it was not measured."""

    row: Row
    measured: float | None = None
    where: str = ""
    #: Of the contender beside it.
    spread: float | None = None
    #: How long a user waits, by the number of items: for information.
    milliseconds: Mapping[int, float] = {}

    @property
    def verdict(self) -> str:
        """`ok`, `MISSED`, `reported` or `not measured`."""
        measured, limit = self.measured, self.row.limit
        if measured is None:
            return "not measured"
        if limit is None:
            return "reported"
        return "ok" if measured <= limit else "MISSED"


_WHOLE, _COMPLETED = Ratio(commands.COMPLETE, IP), Ratio(commands.COMPLETED, commands.COMPLETE)
_FEW = 10


def _of_a_command(case: str, words: str, limit: float, completed: float) -> tuple[Row, Row]:
    """Return the rows of a command for complete routes, and for routes without gateway."""
    without = f"{words} without gateway, to complete ones"
    complete = Row(f"{words}, to ip -batch", case, _WHOLE, limit, items=commands.MOST)
    return (
        complete._replace(waits=commands.COMPLETE),
        complete._replace(
            promise=without, figure=_COMPLETED, limit=completed, waits=commands.COMPLETED
        ),
    )


def _of_few_routes(case: str, words: str, limit: float) -> Row:
    """Return the row of a command that does little, to the start of Python and attrs."""
    figure = Ratio(commands.COMPLETE, commands.ATTRS)
    return Row(f"{words} of {_FEW} routes, to import attrs", case, figure, limit, items=_FEW)


def _of_ipv6(case: str, words: str) -> Row:
    """Return the row of a command for routes of IPv6, to those of IPv4."""
    figure = Ratio(commands.IPV6, commands.COMPLETE)
    promise = f"{words} of IPv6, to IPv4"
    return Row(promise, case, figure, 1.5, items=commands.MOST, waits=commands.IPV6)


def _of_a_gated_start(words: str, name: str, beside: str) -> Row:
    """Return the row of one kind of a gated start, to another one."""
    return Row(words, gate.START, Ratio(name, beside), waits=name)


#: What a user waits for, and the distance to the kernel's own limit.
PROMISES = (
    _of_a_gated_start(
        "gated start, 8 routes, 4 CIDRs, to upstream-style", gate.SIMPLE, gate.UPSTREAM
    ),
    _of_a_gated_start("gated start with policy routing, to the same", gate.POLICY, gate.UPSTREAM),
    _of_a_gated_start("gated start, 1,000 routes, to 8 routes", gate.MANY_SIMPLE, gate.SIMPLE),
    _of_a_gated_start(
        "gated start with policy routing, 1,000 routes, to 8", gate.MANY_POLICY, gate.POLICY
    ),
    Row(
        "peak memory of a gated start, 1,000 routes",
        gate.MEMORY,
        gate.megabytes,
        40,
        " MB",
        items=gate.MANY,
    ),
    *_of_a_command(commands.PLAN, "plan of 10,000 routes", 20, 1.4),
    *_of_a_command(commands.APPLY, "apply of 10,000 routes", 21, 1.4),
    *_of_a_command(commands.CHECK, "check of 10,000 routes", 8, 1.4),
    Row(
        "a deleted route of 1,000 restored, to ip -batch",
        watch.DELETION,
        Ratio(watch.DELETED, IP),
        9,
        items=watch.ROUTES,
        waits=watch.DELETED,
    ),
    Row("watch at rest, 1,000 routes", watch.IDLE, watch.share, 0.07, " %"),
    Row(f"{storm.STORM}, 200,000 routes", storm.STORM, watch.share, 22, " %", items=storm.MANY),
    Row(
        f"{storm.STORM}, 200,000 routes: alarm",
        storm.ALARM,
        storm.seconds,
        15,
        " s",
        items=storm.MANY,
    ),
    Row(
        "a recorded node (fleet), to json.loads of its line",
        fleet.FLEET,
        Ratio(OURS, fleet.PARSER),
        20,
        waits=OURS,
    ),
    _of_few_routes(commands.PLAN, "first plan", 4),
    _of_few_routes(commands.APPLY, "first apply", 7.5),
    _of_few_routes(commands.CHECK, "check", 4),
    _of_ipv6(commands.APPLY, "apply of 10,000 routes"),
    _of_ipv6(commands.CHECK, "check of 10,000 routes"),
    Row(
        "check of 10,000 CIDRs, all wrong, to right",
        commands.CIDRS_CHECK,
        Ratio(commands.WRONG, commands.RIGHT),
        5.5,
        items=commands.MOST,
        waits=commands.WRONG,
    ),
)


def judged(rows: Sequence[Row], results: Mapping[str, Result]) -> list[Target]:
    """Compare each row with what was measured."""
    return [_judged(row, results.get(row.case)) for row in rows]


def _judged(row: Row, result: Result | None) -> Target:
    """Return the worst figure of the contests that the row is about."""
    contests = result.contests if result is not None else ()
    figures: dict[int, float] = {}
    for contest in contests:
        is_meant = contest.items >= _SMALLEST or len(contests) == 1
        if row.items == contest.items or (is_meant and not row.items):
            figure = row.figure(contest)
            figures |= {} if figure is None else {contest.items: figure}
    if result is None or not figures:
        return Target(row)
    items = max(figures, key=figures.__getitem__)
    where = "" if row.items or len(contests) == 1 else f"N={items:,}"
    spread = None
    if isinstance(row.figure, Ratio):
        [contest] = [contest for contest in contests if contest.items == items]
        spread = contest.spread(row.figure.beside)
    return Target(row, figures[items], where, spread, _waits(row, result))


def _waits(row: Row, result: Result) -> dict[int, float]:
    """Return the milliseconds of the whole work, or of an item, by the number of items."""
    return {
        contest.items: contest.wait(row.waits) / (1 if result.whole else contest.items)
        for contest in result.contests
        if row.waits in contest.samples
    }
