"""What all cases share, and those of the library called in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import world
from benchmarks.measure import (
    Contender,
    Contest,
    Sample,
    contest,
    fastest,
    in_process,
    process,
    program,
    self_timed,
)
from hostrouting.host import Route, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4

OURS, VERIFIED = "ours", "verified"
C, IP = "C", "ip"
INSTALL, LOOKUP, UNIFORM, MIXED = "install", "lookup", "dump, uniform", "dump, mixed"

LEGEND = """\
Microseconds an item (a route, an address), medians of rounds in which all contenders take turns. A ratio is the
median of the rounds' ratios, so it is not exactly that of the two columns.
  ours      the library called in this process: values in, values out, opening its socket included
  verified  the same, with the routes read back (the default of apply)
  C         yardstick.c: the largest batches that pay, one barrier, no values made; times itself, without its start
  ip        `ip -batch FILE` or `ip -4 route show table all`: the whole process, which is how it is used"""

COMMAND = Path(__file__).with_name("apply_child.py")

#: C's batch sizes are tried on at most this many items.
_TRIAL = 10_000
_BATCHES = (128, 256, 512, 1024, 2048, 4096)
_DUMP_BYTES = 1 << 17


class Setting(NamedTuple):
    """The amount of measuring, and the tools for it."""

    sizes: Sequence[int]
    rounds: Callable[[int], int]
    folder: Path
    yardstick: Path | None
    #: Routes of the namespace itself, which each contender has to skip.
    own_routes: int
    #: The names of the results that are needed.
    needed: frozenset[str]

    def results(self, measures: Mapping[str, Callable[[], Result]]) -> list[Result]:
        """Measure the needed ones of these results."""
        return [measure() for name, measure in measures.items() if name in self.needed]


class Result(NamedTuple):
    """A case's contests, one for each number of items, and the ratios that its table shows."""

    name: str
    contests: Sequence[Contest]
    ratios: Sequence[tuple[str, str]]
    remark: str = ""
    #: The unit of the table: milliseconds of the whole work instead of microseconds an item.
    whole: bool = False


class Group(NamedTuple):
    """Results that are measured together, and the report's sentences about their tables."""

    names: Sequence[str]
    measure: Callable[[Setting], Sequence[Result]]
    legend: str


def command(name: str, root: Path, *words: str) -> Contender:
    """Make a contender of the `hostrouting` command, with the files and units below a folder."""
    return program(name, str(COMMAND), str(root), *words)


def install(setting: Setting) -> list[Result]:
    """Add routes to a table without routes of hostrouting."""
    batch = _best_batch(setting, _c_install, before=world.clean)
    contests = [_install(setting, count, batch) for count in setting.sizes]
    world.clean()
    ratios = [(OURS, C), (VERIFIED, C), (IP, OURS), (IP, VERIFIED)]
    return [Result(INSTALL, contests, ratios, _batch_remark(batch))]


def _install(setting: Setting, count: int, batch: int | None) -> Contest:
    routes = world.uniform(count)
    changes = [RouteChange.add(route) for route in routes]
    script = _script(setting, (f"route add {route}" for route in routes))
    contenders = [
        Contender(OURS, in_process(lambda: NetlinkBackend().apply(changes, verify=False))),
        Contender(VERIFIED, in_process(lambda: NetlinkBackend().apply(changes))),
        Contender(IP, lambda: process(["ip", "-batch", script])),
    ]
    if batch is not None:
        contenders.append(Contender(C, lambda: _c_install(setting, count, batch)))
    return contest(
        contenders,
        count,
        rounds=setting.rounds(count),
        before=world.clean,
        check=lambda: world.check_installed(count),
    )


def lookup(setting: Setting) -> list[Result]:
    """Addresses, spread over the biggest of the tables."""
    table = max(setting.sizes)
    world.fill(world.uniform(table))
    batch = _best_batch(
        setting, lambda setting, count, size: _c_lookup(setting, count, world.STEP, size)
    )
    contests = [
        _lookup(setting, count, table // count * world.STEP, batch) for count in setting.sizes
    ]
    remark = "; ".join(filter(None, (f"in a table of {table:,} routes", _batch_remark(batch))))
    return [Result(LOOKUP, contests, [(OURS, C), (IP, OURS)], remark)]


def _lookup(setting: Setting, count: int, step: int, batch: int | None) -> Contest:
    destinations = [world.FIRST + 1 + number * step for number in range(count)]
    script = _script(setting, (f"route get fibmatch {format_ipv4(one)}" for one in destinations))
    contenders = [
        Contender(OURS, in_process(lambda: NetlinkBackend().lookup(destinations), expected=count)),
        Contender(IP, lambda: process(["ip", "-o", "-batch", script])),
    ]
    if batch is not None:
        contenders.append(Contender(C, lambda: _c_lookup(setting, count, step, batch)))
    return contest(contenders, count, rounds=setting.rounds(count))


def dump(setting: Setting) -> list[Result]:
    """All routes of all tables, where they are alike and where they are not."""
    mixed = "/16 to /32; four gateways; metrics, sources, blackholes, multipath"
    return setting.results(
        {
            UNIFORM: lambda: _dumps(setting, UNIFORM, world.uniform, "one gateway"),
            MIXED: lambda: _dumps(setting, MIXED, world.mixed, mixed),
        }
    )


def _dumps(
    setting: Setting, name: str, make: Callable[[int], Sequence[Route]], remark: str
) -> Result:
    contests = []
    for count in setting.sizes:
        world.fill(make(count))
        contests.append(_dump(setting, count))
    return Result(name, contests, [(OURS, C), (OURS, IP)], remark)


def _dump(setting: Setting, count: int) -> Contest:
    contenders = [
        Contender(
            OURS, in_process(lambda: NetlinkBackend().routes(), expected=count + setting.own_routes)
        ),
        Contender(IP, lambda: process(["ip", "-4", "route", "show", "table", "all"])),
    ]
    if setting.yardstick:
        contenders.append(Contender(C, lambda: _c_dump(setting, count)))
    return contest(contenders, count, rounds=setting.rounds(count))


def _script(setting: Setting, lines: Iterable[str]) -> str:
    path = setting.folder / "script"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def _best_batch(
    setting: Setting,
    run: Callable[[Setting, int, int], Sample],
    *,
    before: Callable[[], None] | None = None,
) -> int | None:
    """How many messages a send suit C best; None without C."""
    if setting.yardstick is None:
        return None
    count = min(_TRIAL, max(setting.sizes))
    return fastest(_BATCHES, lambda size: run(setting, count, size), before=before)


def _batch_remark(batch: int | None) -> str:
    return (
        ""
        if batch is None
        else f"C with {batch} messages a send, its best of {', '.join(map(str, _BATCHES))}"
    )


def _c_install(setting: Setting, count: int, batch: int) -> Sample:
    return _c(
        setting,
        "install",
        count,
        batch,
        world.FIRST,
        world.STEP,
        world.LENGTH,
        world.GATEWAY,
        world.DEVICE,
    )


def _c_lookup(setting: Setting, count: int, step: int, batch: int) -> Sample:
    return _c(setting, "lookup", count, batch, world.FIRST + 1, step)


def _c_dump(setting: Setting, count: int) -> Sample:
    everything = count + setting.own_routes
    return self_timed([str(setting.yardstick), "dump", str(_DUMP_BYTES)], expected=everything)


def _c(setting: Setting, mode: str, count: int, *words: object) -> Sample:
    return self_timed([str(setting.yardstick), mode, str(count), *map(str, words)], expected=count)


GROUPS = {
    "install": Group((INSTALL,), install, LEGEND),
    "lookup": Group((LOOKUP,), lookup, LEGEND),
    "dump": Group((UNIFORM, MIXED), dump, LEGEND),
}
