"""The promises of the project, and further figures for those who work on it, with their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from benchmarks import (
    cases,
    commands,
    fabric,
    fleet,
    footprint,
    gate,
    one_file,
    start,
    storm,
    sweep,
    watch,
)
from benchmarks.cases import IP, OURS, VERIFIED, C, Result
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
    #: The limit is the least that is promised.
    floor: bool = False
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
        kept = measured >= limit if self.row.floor else measured <= limit
        return "ok" if kept else "MISSED"


_TO_C, _TO_IP, _TO_ATTRS = Ratio(OURS, C), Ratio(OURS, IP), Ratio(OURS, start.ATTRS)
_WHOLE, _COMPLETED = Ratio(commands.COMPLETE, IP), Ratio(commands.COMPLETED, commands.COMPLETE)
_RESTORED = Ratio(watch.DELETED, IP)
_RECORDED = Ratio(OURS, fleet.PARSER)
_ONE_FILE = Ratio(one_file.FILE, one_file.INSTALLED)
_ANNOUNCED = Ratio(fabric.ANNOUNCED, fabric.WITHOUT)
_FORMS = {
    commands.APART: ("that are no neighbours, to neighbours", 1.4),
    commands.IPV6: ("of IPv6, to IPv4", 1.5),
    commands.GATED: ("with two gates, to none", 1.4),
}
_FEW = 10
_MANY_CIDRS = "check of 10,000 CIDRs"


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
    figure = Ratio(commands.COMPLETE, start.ATTRS)
    return Row(f"{words} of {_FEW} routes, to import attrs", case, figure, limit, items=_FEW)


def _of_forms(case: str, words: str, *forms: str) -> Iterator[Row]:
    """Yield the rows of a command for other forms of routes, to neighbours of IPv4."""
    for form in forms:
        words_of_form, limit = _FORMS[form]
        figure = Ratio(form, commands.COMPLETE)
        promise = f"{words} {words_of_form}"
        yield Row(promise, case, figure, limit, items=commands.MOST, waits=form)


def _of_a_storm(kind: str, count: int, share: float, alarm: float) -> tuple[Row, Row]:
    """Return the rows of the load of a storm, and of its alarm."""
    words = f"{kind}, {count:,} routes"
    return (
        Row(words, kind, watch.share, share, " %", items=count),
        Row(f"{words}: alarm", f"{kind}{storm.ALARM}", storm.seconds, alarm, " s", items=count),
    )


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
        _RESTORED,
        9,
        items=watch.ROUTES,
        waits=watch.DELETED,
    ),
    *_of_a_storm(storm.INSIDE, storm.MANY, 22, 15),
    Row(
        "a recorded node (fleet), to json.loads of its line", fleet.IPV4, _RECORDED, 20, waits=OURS
    ),
    _of_few_routes(commands.PLAN, "first plan", 4),
    _of_few_routes(commands.APPLY, "first apply", 7.5),
    _of_few_routes(commands.CHECK, "check", 4),
    *_of_forms(commands.APPLY, "apply of 10,000 routes", commands.IPV6),
    *_of_forms(commands.CHECK, "check of 10,000 routes", commands.IPV6, commands.APART),
    Row(
        f"{_MANY_CIDRS}, no neighbours, to neighbours",
        commands.CIDRS_CHECK,
        Ratio(commands.APART, commands.RIGHT),
        1.6,
        items=commands.MOST,
        waits=commands.APART,
    ),
    Row(
        f"{_MANY_CIDRS}, all wrong, to right",
        commands.CIDRS_CHECK,
        Ratio(commands.WRONG, commands.RIGHT),
        5.5,
        items=commands.MOST,
        waits=commands.WRONG,
    ),
)

FURTHER = (
    Row("apply with verification, to C", cases.INSTALL, Ratio(VERIFIED, C), 2.7),
    Row("lookup, to C", cases.LOOKUP, _TO_C, 3.4),
    Row(
        "ip -batch, to apply with verification", cases.INSTALL, Ratio(IP, VERIFIED), 1.3, floor=True
    ),
    *_of_a_command(commands.AGAIN, "apply of 10,000 routes again", 10, 1.4),
    *_of_forms(commands.APPLY, "apply of 10,000 routes", commands.APART, commands.GATED),
    *_of_forms(commands.AGAIN, "apply of 10,000 routes again", *_FORMS),
    *_of_forms(commands.CHECK, "check of 10,000 routes", commands.GATED),
    Row("apply without reading back, to C", cases.INSTALL, _TO_C, 1.9),
    Row("dump of a uniform table, to ip route show", cases.UNIFORM, _TO_IP, 0.75),
    Row("dump of a mixed table, to ip route show", cases.MIXED, _TO_IP, 1.2),
    Row("deletion of ebtables rules, to the tool", sweep.SWEEP, Ratio(OURS, sweep.TOOL), 2.5),
    _of_a_gated_start(
        "gated start, bytecode of another Python, to its own", gate.STALE, gate.SIMPLE
    ),
    _of_a_gated_start("the gated start after that, to the same", gate.RENEWED, gate.SIMPLE),
    _of_a_gated_start("the two units of a boot, to a gated start", gate.UNITS, gate.SIMPLE),
    Row(
        "gated start, page cache dropped, to cached",
        gate.COLD,
        Ratio(gate.DROPPED, gate.CACHED),
        waits=gate.DROPPED,
    ),
    Row(
        "check of 1,000 CIDRs among 10,000 routes, to 10 CIDRs",
        commands.AMONG_ROUTES,
        Ratio(commands.MANY_CIDRS, commands.FEW_CIDRS),
        2,
        items=commands.MOST,
    ),
    Row("hostrouting.pyz check, to that of the wheel", one_file.CHECK, _ONE_FILE, 1.5),
    Row("imports of an agent, instructions, to Python", start.AGENT, Ratio(OURS, start.BARE), 13),
    Row("check of an applied config, instructions, to attrs", start.CHECK, _TO_ATTRS, 3.6),
    Row("program of a gated start, instructions, to attrs", start.PROGRAM, _TO_ATTRS),
    Row("boot check with 8 announced networks, to without", fabric.BOOT, _ANNOUNCED, 1.5),
    Row("a deleted route of 10,000, to ip -batch", watch.DELETION, _RESTORED, 2, items=watch.MANY),
    Row("1,000 routes deleted at once and restored, to ip -batch", watch.AT_ONCE, _TO_IP, 12),
    Row("watch beside a deletion every 10 ms", watch.LOOP, watch.share, 5, " %"),
    Row("watch idle", watch.IDLE, watch.share, 0.07, " %"),
    *_of_a_storm(storm.INSIDE, storm.SOME, 16, 2.2),
    *_of_a_storm(storm.ELSEWHERE, storm.SOME, 13, 1.5),
    *_of_a_storm(storm.ELSEWHERE, storm.MANY, 20, 15),
    Row("a recorded node of both families, to json.loads of its line", fleet.BOTH, _RECORDED, 22),
    Row("peak memory of 100,000 routes", footprint.MEMORY, footprint.megabytes, 90, " MB", 100_000),
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
    items = (min if row.floor else max)(figures, key=figures.__getitem__)
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
