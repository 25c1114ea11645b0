"""The promises of the project, compared with the measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import attrs
from benchmarks import fabric, families, fleet, one_file, pair, start, storm, sweep, watch
from benchmarks.cases import IP, OURS, VERIFIED, C, Result
from benchmarks.footprint import Memory
from benchmarks.measure import Contest

#: Below this, opening a socket and starting a process dominate.
_SMALLEST = 1000
_BIG, _BIGGEST = 10_000, 100_000


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
    """One promise: the limit of a figure of a case."""

    promise: str
    case: str
    figure: _Figure
    limit: float
    unit: str = "x"
    #: The number of items that the promise is about. 0: the worst of 1,000 and more, or the only.
    items: int = 0
    at_least: bool = False


class Target(NamedTuple):
    """A row with its figure, None if it was not measured."""

    promise: str
    measured: float | None
    limit: float
    unit: str = "x"
    where: str = ""
    at_least: bool = False
    #: The name of the case.
    case: str = ""
    #: Of the contender beside it.
    spread: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `MISSED` or `not measured`."""
        if self.measured is None:
            return "not measured"
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "ok" if kept else "MISSED"


_FASTER = Ratio(pair.UPSTREAM, OURS)
_ANNOUNCED = Ratio(fabric.ANNOUNCED, fabric.WITHOUT)
_PARENT = Ratio(OURS, fleet.WORKERS)
_ONE_FILE = Ratio(one_file.FILE, one_file.INSTALLED)

_ROWS = (
    Row("apply without reading back, to C", "install", Ratio(OURS, C), 1.6),
    Row("apply with verification, to C", "install", Ratio(VERIFIED, C), 1.9),
    *(
        Row(f"ip -batch, to apply {how}", "install", Ratio(IP, name), 2.2, at_least=True)
        for how, name in (("without reading back", OURS), ("with verification", VERIFIED))
    ),
    Row("lookup, to C", "lookup", Ratio(OURS, C), 2.2),
    Row("dump of a uniform table, to ip route show", "dump, uniform", Ratio(OURS, IP), 0.6),
    Row("dump of a mixed table, to ip route show", "dump, mixed", Ratio(OURS, IP), 1.1),
    Row(
        "deleting ebtables rules, to one ebtables-restore",
        sweep.SWEEP,
        Ratio(OURS, sweep.TOOL),
        2.5,
    ),
    Row(
        "boot scripts of 8 routes and 4 CIDRs, to upstream-style ones",
        pair.BOOT,
        Ratio(OURS, pair.UPSTREAM),
        0.5,
        items=pair.AT_BOOT,
    ),
    *(
        Row(promise, case, _FASTER, limit, items=pair.MANY, at_least=True)
        for promise, case, limit in (
            ("upstream-style boot script of 1,000 routes, to ours", pair.MANY_AT_BOOT, 40),
            ("the same where they are in force already", pair.MANY_AGAIN, 70),
            ("upstream-style check of 1,000 CIDRs, 1,000 routes, to ours", pair.MANY_CIDRS, 15),
        )
    ),
    Row(
        "boot script of 1,000 routes without gateway, to complete ones",
        pair.COMPLETED,
        Ratio(pair.WITHOUT_GATEWAY, OURS),
        1.5,
        items=pair.MANY,
    ),
    Row(
        "hostrouting check, 10,000 routes, 1,000 CIDRs to 10",
        pair.CHECK,
        Ratio(pair.MANY_EXPECTED, pair.FEW_EXPECTED),
        2,
        items=pair.APPLIED,
    ),
    Row(
        "proof of a /8 with 900,000 routes, to its dump and lookups",
        pair.PROOF,
        Ratio(pair.ANALYSIS, pair.KERNEL),
        0.2,
        items=pair.PROVEN,
    ),
    *(
        Row(promise, case, Ratio(OURS, IP), limit, items=pair.APPLIED)
        for promise, case, limit in (
            ("hostrouting apply of 10,000 routes, whole process, to ip -batch", pair.APPLY, 3.6),
            ("the same again, nothing to change", pair.APPLY_AGAIN, 3.3),
        )
    ),
    Row("hostrouting.pyz --version, to that of the wheel", one_file.START, _ONE_FILE, 1.3),
    Row("hostrouting.pyz check, to that of the wheel", one_file.CHECK, _ONE_FILE, 1.3),
    Row(
        "imports of an agent, instructions, to bare Python",
        start.AGENT,
        Ratio(OURS, start.BARE),
        10,
    ),
    Row(
        "hostrouting check of an applied config, instructions, to attrs",
        start.CHECK,
        Ratio(OURS, start.ATTRS),
        2.8,
    ),
    Row(
        "check of the program of a boot, instructions, to attrs",
        start.PROGRAM,
        Ratio(OURS, start.ATTRS),
        2.2,
    ),
    Row("boot check with 8 announced networks, to without", fabric.BOOT, _ANNOUNCED, 1.85),
    Row("hostrouting check with 8 announced networks, to without", fabric.CHECK, _ANNOUNCED, 1.15),
    *(
        Row(
            f"boot check of 8 routes and 4 CIDRs of {words}, to IPv4",
            families.BOOT,
            Ratio(name, families.IPV4),
            limit,
        )
        for words, name, limit in (
            ("IPv6", families.IPV6, 1.75),
            ("both families", families.MIXED, 1.85),
        )
    ),
    *(
        Row(
            f"a route {words} restored, of {count:,}, to ip -batch",
            watch.REPAIRS,
            Ratio(name, IP),
            limit,
            items=count,
        )
        for words, name, count, limit in (
            ("deleted", watch.DELETED, watch.ROUTES, 3),
            *((f"of another {kind}", kind, watch.ROUTES, 3) for kind in watch.KINDS),
            ("deleted", watch.DELETED, watch.MANY, 2),
        )
    ),
    Row(
        "1,000 routes deleted at once and restored, to ip -batch",
        watch.AT_ONCE,
        Ratio(OURS, IP),
        12,
    ),
    Row("watch beside a deletion every 10 ms", watch.LOOP, watch.share, 5, " %"),
    Row("watch idle", watch.IDLE, watch.share, 0.05, " %"),
    *(
        row
        for count, share, alarms in storm.LIMITS
        for kind, alarm in zip(storm.KINDS, alarms, strict=True)
        for words in [f"{kind}, {count:,} routes"]
        for row in (
            Row(words, kind, watch.share, share, " %", items=count),
            Row(f"{words}: alarm", f"{kind}{storm.ALARM}", storm.seconds, alarm, " s", items=count),
        )
    ),
    *(
        Row(
            f"a recorded node ({name}), to json.loads of its line",
            name,
            Ratio(OURS, fleet.PARSER),
            limit,
        )
        for name, limit in fleet.LIMITS.items()
    ),
    Row("the parent of recorded nodes, to its workers", fleet.PARENT, _PARENT, 0.1),
)


def targets(results: Mapping[str, Result], memory: Memory | None) -> list[Target]:
    """All promises."""
    peak = memory.megabytes if memory is not None and memory.items == _BIGGEST else None
    return [
        *(_judged(row, results.get(row.case)) for row in _ROWS),
        _growth("apply without reading back", results.get("install"), OURS),
        _growth("apply with verification", results.get("install"), VERIFIED),
        Target("peak memory of 100,000 routes", peak, 80, unit=" MB"),
    ]


def _judged(row: Row, result: Result | None) -> Target:
    """Return the worst figure of the contests that the row is about."""
    contests = result.contests if result is not None else ()
    figures: dict[int, float] = {}
    for contest in contests:
        is_meant = contest.items >= _SMALLEST or len(contests) == 1
        if row.items == contest.items or (is_meant and not row.items):
            figure = row.figure(contest)
            figures |= {} if figure is None else {contest.items: figure}
    empty = Target(row.promise, None, row.limit, row.unit, at_least=row.at_least, case=row.case)
    if not figures:
        return empty
    items = (min if row.at_least else max)(figures, key=figures.__getitem__)
    where = "" if row.items or len(contests) == 1 else f"N={items:,}"
    spread = None
    if isinstance(row.figure, Ratio):
        [contest] = [contest for contest in contests if contest.items == items]
        spread = contest.spread(row.figure.beside)
    return empty._replace(measured=figures[items], where=where, spread=spread)


def _growth(what: str, result: Result | None, name: str) -> Target:
    """Return the target that an item costs no more among many than among some; a slower C is no
    miss.
    """
    ratios = {
        contest.items: contest.ratio(name, C)
        for contest in (result.contests if result is not None else ())
    }
    some, many = ratios.get(_BIG), ratios.get(_BIGGEST)
    grown = many / some if some and many else None
    promise = f"{what}, to C: at {_BIGGEST:,} over at {_BIG:,}"
    return Target(promise, grown, 1.15, case="install")
