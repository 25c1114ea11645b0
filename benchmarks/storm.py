"""Watch in a storm: another program changes thousands of routes a second, and an expected CIDR is
lost meanwhile.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks import fabric, watch, world
from benchmarks.cases import OURS, Group, Result, Setting
from benchmarks.measure import BenchmarkError, Contest, Sample
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK

ELSEWHERE = "storm outside the expected CIDRs"
#: The hard kind: each change may concern a proof, and announced networks are proven, too.
INSIDE = "storm inside the expected CIDRs"
KINDS = (ELSEWHERE, INSIDE)
#: The end of the name of a storm's second result.
ALARM = ": alarm"
NAMES = tuple(f"{kind}{part}" for kind in KINDS for part in ("", ALARM))
LEGEND = """\
Watch in a storm: milliseconds of processor time of `hostrouting watch`, while another program adds and removes routes
for 30 s, in a table of N foreign routes; and those from the loss of expected addresses to the alarm."""

#: Foreign routes.
SOME, MANY = 1000, 200_000
_SECONDS = 30.0
_RATE = 10_000
#: A smaller run than this only shows that the measurements work.
_FEWEST_ROUNDS = 7
_FEW_SIZES = (30,)
_FEW_SECONDS = 2.0
_LONGEST = 90.0
_TICK = 0.01
#: Of all foreign routes.
_PROTOCOL = "99"
_WAY = f"via {world.GATEWAY} dev {world.DEVICE} proto {_PROTOCOL}"
_LOST = f"10.244.9.0/24 via 203.0.113.2 dev bench2 proto {_PROTOCOL}"


class _Figures(NamedTuple):
    """What one storm showed."""

    share: Sample
    alarm: Sample
    #: Events a second.
    rate: float


def storm(setting: Setting) -> list[Result]:
    """Measure each kind of storm in a small and in a big table."""
    is_whole = setting.rounds(1000) >= _FEWEST_ROUNDS
    few = (_FEW_SIZES, _FEW_SECONDS)
    sizes, seconds = ((SOME, MANY), _SECONDS) if is_whole else few
    results = []
    with fabric.devices():
        for kind in KINDS:
            if setting.needed.isdisjoint({kind, f"{kind}{ALARM}"}):
                continue
            found = {count: _measured(setting, kind, count, seconds) for count in sizes}
            remark = f"{min(one.rate for one in found.values()):,.0f} events a second"
            shares = [
                Contest(count, {OURS: [one.share]}, clock="cpu") for count, one in found.items()
            ]
            alarms = [Contest(count, {OURS: [one.alarm]}) for count, one in found.items()]
            results += [
                Result(kind, shares, [], remark, whole=True),
                Result(f"{kind}{ALARM}", alarms, [], remark, whole=True),
            ]
    return results


def seconds(measured: Contest) -> float:
    """Return the seconds from the loss of addresses to the alarm."""
    return measured.seconds(OURS)


def _measured(setting: Setting, kind: str, count: int, seconds: float) -> _Figures:
    folder = setting.folder / f"storm-{KINDS.index(kind)}-{count}"
    if kind == INSIDE:
        fabric.announce(folder / "root")
    routes = [
        {"destination": cidr, "gateway": world.GATEWAY, "dev": world.DEVICE}
        for cidr in fabric.CIDRS[:2]
    ]
    document = {
        "staticRoutes": {"enabled": True, "routes": routes},
        "routeOverlap": {
            "expectedCidrs": list(fabric.CIDRS),
            "fabric": "auto" if kind == INSIDE else "off",
        },
    }
    world.ip_batch(f"route add {route.destination} {_WAY}" for route in world.uniform(count))
    try:
        with watch.running(folder, document, routes=len(routes)) as process:
            _until((folder / f"root{MARKER_OK}").exists)
            # The load of its beginning is over.
            time.sleep(seconds / 3)
            return _storm(
                process,
                folder / f"root{MARKER_DETECTED}",
                "20" if kind == ELSEWHERE else "10",
                seconds,
            )
    finally:
        world.flush("table", "main", "proto", _PROTOCOL)


def _storm(process: int, marker: Path, first: str, seconds: float) -> _Figures:
    """Change routes until the time is over and the alarm is there, which is due after the first
    second.
    """
    share: Sample | None = None
    alarm: Sample | None = None
    lost = rate = 0.0
    began, before = time.perf_counter(), watch.cpu(process)
    with _Program(first) as program:
        while not (share and alarm):
            time.sleep(_TICK)
            now = time.perf_counter() - began
            if now > _LONGEST:
                raise BenchmarkError(f"no alarm within {_LONGEST:.0f} s")
            if not lost and now >= 1:
                world.ip_batch([f"route add {_LOST}"])
                lost = now
            if not alarm and marker.exists():
                alarm = Sample(now - lost, 0)
            if not share and now >= seconds:
                share, rate = Sample(now, watch.cpu(process) - before), program.sent / now
            program.go_on(now)
    return _Figures(share, alarm, rate)


class _Program(ExitStack):
    """Another program, which adds and deletes routes below `first`.100.0.0/16."""

    def __init__(self, first: str) -> None:
        super().__init__()
        words = ["ip", "-batch", "-"]
        self._process = self.enter_context(
            subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
        )
        routes = [
            f"{first}.100.{number >> 8}.{number & 255}/32 {_WAY}\n" for number in range(_RATE // 2)
        ]
        self._lines = [f"route {verb} {route}" for verb in ("add", "delete") for route in routes]
        self._last = 0.0
        self.sent = 0

    def go_on(self, now: float) -> None:
        """Make the changes that are due; a program that is late does not catch up at once."""
        count = min(int((now - self._last) * _RATE), _RATE // 10)
        lines = [self._lines[number % _RATE] for number in range(self.sent, self.sent + count)]
        print("".join(lines), end="", file=self._process.stdin, flush=True)
        self.sent, self._last = self.sent + count, now


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _LONGEST
    while not done():
        if time.monotonic() > end:
            raise BenchmarkError("watch has not proven the expected CIDRs")
        time.sleep(0.1)


GROUP = Group(NAMES, storm, LEGEND)
