"""The promises of the project, compared with the measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from benchmarks import fabric, families, fleet, one_file, pair, storm, sweep, watch
from benchmarks.cases import IP, OURS, VERIFIED, C, Result
from benchmarks.footprint import Imports, Memory
from benchmarks.measure import Contest

#: Below this, opening a socket and starting a process dominate.
_SMALLEST: Final = 1000
_BIG, _BIGGEST = 10_000, 100_000


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


def targets(results: Mapping[str, Result], memory: Memory | None, imports: Imports | None) -> list[Target]:
    """All promises."""

    def worst(promise: str, case: str, one: str, other: str, limit: float, *, at_least: bool = False) -> Target:
        return _worst(promise, results.get(case), one, other, limit, at_least=at_least)

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
        worst("deleting ebtables rules, to one ebtables-restore", sweep.SWEEP, OURS, sweep.TOOL, 2.5),
    ]
    whole = memory is not None and memory.items == _BIGGEST
    peak = memory.megabytes if memory is not None and whole else None
    found.append(Target("peak memory of 100,000 routes", peak, 80, unit=" MB"))
    for module, limit in ("hostrouting", 60), ("phases", 20):
        extra = imports.over_bare(f"import {module}") if imports is not None else None
        found.append(Target(f"import {module}, over bare Python", extra, limit, unit=" ms"))
    return (
        found
        + _pair(results)
        + _one_file(results)
        + _fabric(results)
        + _families(results)
        + _watch(results)
        + _storm(results)
        + _fleet(results)
    )


def _pair(results: Mapping[str, Result]) -> list[Target]:
    def at(case: str, items: int, measured: Callable[[Contest], float | None]) -> float | None:
        contests = results[case].contests if case in results else ()
        return next((measured(contest) for contest in contests if contest.items == items), None)

    boot = at(pair.BOOT, pair.AT_BOOT, lambda one: one.ratio(OURS, pair.UPSTREAM))
    many = at(pair.MANY_AT_BOOT, pair.MANY, lambda one: one.ratio(pair.UPSTREAM, OURS))
    again = at(pair.MANY_AGAIN, pair.MANY, lambda one: one.ratio(pair.UPSTREAM, OURS))
    cidrs = at(pair.MANY_CIDRS, pair.MANY, lambda one: one.ratio(pair.UPSTREAM, OURS))
    check = at(pair.CHECK, pair.CHECKED, lambda one: one.milliseconds(OURS))
    analysis = at(pair.PROOF, pair.PROVEN, lambda one: one.seconds(pair.ANALYSIS))
    apply = at(pair.APPLY, pair.APPLIED, lambda one: one.ratio(OURS, IP))
    return [
        Target("boot scripts of 8 routes and 4 CIDRs, to upstream-style ones", boot, 0.5),
        Target("upstream-style boot script of 1,000 routes, to ours", many, 40, at_least=True),
        Target("the same where they are in force already", again, 120, at_least=True),
        Target("upstream-style check of 1,000 CIDRs, 1,000 routes, to ours", cidrs, 15, at_least=True),
        Target("hostrouting check of 4 CIDRs among 50 routes, whole process", check, 120, unit=" ms"),
        Target("proof of a /8 with 900,000 routes, without dump and lookups", analysis, 0.15, unit=" s"),
        Target("hostrouting apply of 10,000 routes, whole process, to ip -batch", apply, 3),
    ]


def _one_file(results: Mapping[str, Result]) -> list[Target]:
    def ratio(case: str) -> float | None:
        return results[case].contests[0].ratio(one_file.FILE, one_file.INSTALLED) if case in results else None

    return [
        Target("hostrouting.pyz --version, to that of the wheel", ratio(one_file.START), 1.3),
        Target("hostrouting.pyz check, to that of the wheel", ratio(one_file.CHECK), 1.3),
    ]


def _fabric(results: Mapping[str, Result]) -> list[Target]:
    def ratio(case: str) -> float | None:
        return results[case].contests[0].ratio(fabric.ANNOUNCED, fabric.WITHOUT) if case in results else None

    return [
        Target("boot check with 8 announced networks, to without", ratio(fabric.BOOT), 1.25),
        Target("hostrouting check with 8 announced networks, to without", ratio(fabric.CHECK), 1.15),
    ]


def _families(results: Mapping[str, Result]) -> list[Target]:
    def ratio(name: str) -> float | None:
        found = results.get(families.BOOT)
        return found.contests[0].ratio(name, families.IPV4) if found else None

    return [
        Target("boot check of 8 routes and 4 CIDRs of IPv6, to IPv4", ratio(families.IPV6), 1.3),
        Target("boot check of 8 routes and 4 CIDRs of both families, to IPv4", ratio(families.MIXED), 1.7),
    ]


def _watch(results: Mapping[str, Result]) -> list[Target]:
    def one(case: str, figure: Callable[[Contest], float], number: int = 0) -> float | None:
        return figure(results[case].contests[number]) if case in results else None

    def p50(name: str) -> Callable[[Contest], float]:
        return lambda measured: measured.milliseconds(name)

    def p99(measured: Contest) -> float:
        return watch.slowest(measured, OURS)

    changed = [(watch.CHANGES, kind, f"of another {kind}") for kind in watch.KINDS]
    found: list[Target] = []
    for case, name, words in [(watch.DELETION, OURS, "deleted"), *changed]:
        found.append(Target(f"a route {words} restored, median", one(case, p50(name)), 13, unit=" ms"))
    return [
        *found,
        Target("a route deleted restored, 99 of 100", one(watch.DELETION, p99), 50, unit=" ms"),
        Target("a route deleted restored, of 10,000, median", one(watch.DELETION, p50(OURS), 1), 55, unit=" ms"),
        Target("1,000 routes deleted and restored", one(watch.AT_ONCE, p50(OURS)), 200, unit=" ms"),
        Target("watch beside a deletion every 10 ms", one(watch.LOOP, watch.share), 5, unit=" %"),
        Target("watch idle", one(watch.IDLE, watch.share), 0.05, unit=" %"),
    ]


def _fleet(results: Mapping[str, Result]) -> list[Target]:
    found = []
    for name, limit in fleet.LIMITS.items():
        spent = results[name].contests[-1].microseconds_per_item(OURS) if name in results else None
        found.append(Target(f"a recorded node ({name}), of processor time", spent, limit, unit=" us"))
    return found


def _storm(results: Mapping[str, Result]) -> list[Target]:
    found: list[Target] = []
    for number, count in enumerate(storm.SIZES):
        for kind in storm.KINDS:
            share, alarm = (
                next((one for one in results[name].contests if one.items == count), None) if name in results else None
                for name in (kind, f"{kind}{storm.ALARM}")
            )
            words = f"{kind}, {count:,} routes"
            limit = storm.LONGEST_ALARMS[kind][number]
            found += [
                Target(words, share and watch.share(share), 15, unit=" %"),
                Target(f"{words}: alarm", alarm and alarm.seconds(OURS), limit, unit=" s"),
            ]
    return found


def _worst(promise: str, result: Result | None, one: str, other: str, limit: float, *, at_least: bool) -> Target:
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
    """Return the target that an item costs no more among many than among some; a slower C is no miss."""
    ratios = {contest.items: contest.ratio(name, C) for contest in (result.contests if result is not None else ())}
    some, many = ratios.get(_BIG), ratios.get(_BIGGEST)
    grown = many / some if some and many else None
    return Target(f"{what}, to C: at {_BIGGEST:,} over at {_BIG:,}", grown, 1.15)
