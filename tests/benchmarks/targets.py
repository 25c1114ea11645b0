"""The promises of the project, compared with the measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from benchmarks import fabric, families, fleet, one_file, pair, start, storm, sweep, watch
from benchmarks.cases import IP, OURS, VERIFIED, C, Result
from benchmarks.footprint import BARE, Imports, Memory
from benchmarks.measure import Contest

#: Below this, opening a socket and starting a process dominate.
_SMALLEST: Final = 1000
_BIG, _BIGGEST = 10_000, 100_000
Figure: TypeAlias = "Callable[[Contest], float | None]"


class Target(NamedTuple):
    """One promise; `measured` is the worst of its figures, None if none was measured."""

    promise: str
    measured: float | None
    limit: float
    unit: str = "x"
    where: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """`ok`, `MISSED` or `not measured`."""
        if self.measured is None:
            return "not measured"
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "ok" if kept else "MISSED"


def targets(
    results: Mapping[str, Result], memory: Memory | None, imports: Imports | None
) -> list[Target]:
    """All promises."""

    def at(
        promise: str,
        case: str,
        figure: Figure,
        limit: float,
        unit: str = "x",
        *,
        items: int = 0,
        at_least: bool = False,
    ) -> Target:
        """Judge a figure of the one contest of a case, or of that with so many items."""
        contests = results[case].contests if case in results else ()
        measured = next((figure(one) for one in contests if items in {0, one.items}), None)
        return Target(promise, measured, limit, unit, at_least=at_least)

    def worst(
        promise: str, case: str, one: str, other: str, limit: float, *, at_least: bool = False
    ) -> Target:
        return _worst(promise, results.get(case), one, other, limit, at_least=at_least)

    peak = memory.megabytes if memory is not None and memory.items == _BIGGEST else None
    milliseconds = {
        module: imports.over_bare(f"import {module}") if imports is not None else None
        for module in ("hostrouting", "phases")
    }
    faster = _ratio(pair.UPSTREAM, OURS)
    announced = _ratio(fabric.ANNOUNCED, fabric.WITHOUT)
    one_to_wheel = _ratio(one_file.FILE, one_file.INSTALLED)
    found = [
        worst("apply without reading back, to C", "install", OURS, C, 1.3),
        worst("apply with verification, to C", "install", VERIFIED, C, 1.7),
        worst("ip -batch, to apply without reading back", "install", IP, OURS, 2.5, at_least=True),
        worst("ip -batch, to apply with verification", "install", IP, VERIFIED, 2.5, at_least=True),
        worst("lookup, to C", "lookup", OURS, C, 1.8),
        worst("dump of a uniform table, to ip route show", "dump, uniform", OURS, IP, 1.0),
        worst("dump of a mixed table, to ip route show", "dump, mixed", OURS, IP, 1.3),
        _growth("apply without reading back", results.get("install"), OURS),
        _growth("apply with verification", results.get("install"), VERIFIED),
        worst(
            "deleting ebtables rules, to one ebtables-restore", sweep.SWEEP, OURS, sweep.TOOL, 2.5
        ),
        Target("peak memory of 100,000 routes", peak, 80, unit=" MB"),
        Target("import hostrouting, over bare Python", milliseconds["hostrouting"], 60, unit=" ms"),
        Target("import phases, over bare Python", milliseconds["phases"], 20, unit=" ms"),
        at(
            "boot scripts of 8 routes and 4 CIDRs, to upstream-style ones",
            pair.BOOT,
            _ratio(OURS, pair.UPSTREAM),
            0.5,
            items=pair.AT_BOOT,
        ),
        *(
            at(promise, case, faster, limit, items=pair.MANY, at_least=True)
            for promise, case, limit in (
                ("upstream-style boot script of 1,000 routes, to ours", pair.MANY_AT_BOOT, 40),
                ("the same where they are in force already", pair.MANY_AGAIN, 120),
                ("upstream-style check of 1,000 CIDRs, 1,000 routes, to ours", pair.MANY_CIDRS, 15),
            )
        ),
        at(
            "hostrouting check of 4 CIDRs among 50 routes, whole process",
            pair.CHECK,
            _median(OURS),
            120,
            " ms",
            items=pair.CHECKED,
        ),
        at(
            "proof of a /8 with 900,000 routes, without dump and lookups",
            pair.PROOF,
            lambda contest: contest.seconds(pair.ANALYSIS),
            0.15,
            " s",
            items=pair.PROVEN,
        ),
        at(
            "hostrouting apply of 10,000 routes, whole process, to ip -batch",
            pair.APPLY,
            _ratio(OURS, IP),
            3,
            items=pair.APPLIED,
        ),
        at("hostrouting.pyz --version, to that of the wheel", one_file.START, one_to_wheel, 1.3),
        at("hostrouting.pyz check, to that of the wheel", one_file.CHECK, one_to_wheel, 1.3),
        at(
            "imports of an agent, instructions, to bare Python", start.AGENT, _ratio(OURS, BARE), 10
        ),
        at(
            "hostrouting check of an applied config, instructions, to attrs",
            start.CHECK,
            _ratio(OURS, start.ATTRS),
            2.3,
        ),
        at("boot check with 8 announced networks, to without", fabric.BOOT, announced, 1.25),
        at(
            "hostrouting check with 8 announced networks, to without", fabric.CHECK, announced, 1.15
        ),
        *(
            at(
                f"boot check of 8 routes and 4 CIDRs of {words}, to IPv4",
                families.BOOT,
                _ratio(name, families.IPV4),
                limit,
            )
            for words, name, limit in (
                ("IPv6", families.IPV6, 1.3),
                ("both families", families.MIXED, 1.7),
            )
        ),
    ]
    changed = [(watch.CHANGES, kind, f"of another {kind}") for kind in watch.KINDS]
    for case, name, words in [(watch.DELETION, OURS, "deleted"), *changed]:
        found.append(at(f"a route {words} restored, median", case, _median(name), 13, " ms"))
    found += [
        at(
            "a route deleted restored, 99 of 100",
            watch.DELETION,
            partial(watch.slowest, name=OURS),
            50,
            " ms",
        ),
        at(
            "a route deleted restored, of 10,000, median",
            watch.DELETION,
            _median(OURS),
            55,
            " ms",
            items=10_000,
        ),
        at("1,000 routes deleted and restored", watch.AT_ONCE, _median(OURS), 200, " ms"),
        at("watch beside a deletion every 10 ms", watch.LOOP, watch.share, 5, " %"),
        at("watch idle", watch.IDLE, watch.share, 0.05, " %"),
    ]
    for number, count in enumerate(storm.SIZES):
        for kind in storm.KINDS:
            words, alarm = f"{kind}, {count:,} routes", storm.LONGEST_ALARMS[kind][number]
            found.append(at(words, kind, watch.share, 15, " %", items=count))
            name = f"{kind}{storm.ALARM}"
            found.append(
                at(
                    f"{words}: alarm",
                    name,
                    lambda contest: contest.seconds(OURS),
                    alarm,
                    " s",
                    items=count,
                )
            )
    for name, limit in fleet.LIMITS.items():
        spent = results[name].contests[-1].microseconds_per_item(OURS) if name in results else None
        found.append(
            Target(f"a recorded node ({name}), of processor time", spent, limit, unit=" us")
        )
    return found


def _ratio(one: str, other: str) -> Figure:
    return lambda contest: contest.ratio(one, other)


def _median(name: str) -> Figure:
    return lambda contest: contest.milliseconds(name)


def _worst(
    promise: str, result: Result | None, one: str, other: str, limit: float, *, at_least: bool
) -> Target:
    ratios = {
        contest.items: ratio
        for contest in (result.contests if result is not None else ())
        if contest.items >= _SMALLEST and (ratio := contest.ratio(one, other)) is not None
    }
    if not ratios:
        return Target(promise, None, limit, at_least=at_least)
    items = (min if at_least else max)(ratios, key=ratios.__getitem__)
    return Target(promise, ratios[items], limit, where=f"N={items:,}", at_least=at_least)


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
    return Target(f"{what}, to C: at {_BIGGEST:,} over at {_BIG:,}", grown, 1.15)
