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

#: Each change may concern the check, and announced networks are checked as well.
STORM = "storm inside the expected CIDRs"
ALARM = f"{STORM}: alarm"
LEGEND = """\
Watch in a storm: milliseconds of processor time of `hostrouting watch`, while another program adds and removes routes
for 30 s, in a table of N foreign routes; and those from the loss of expected addresses to the alarm."""

#: Foreign routes.
MANY = 200_000
_SECONDS = 30.0
_RATE = 10_000
#: A smaller run than this only shows that the measurements work.
_FEWEST_ROUNDS = 7
_FEW = 30
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
    """Measure a storm in a big table."""
    is_whole = setting.rounds(1000) >= _FEWEST_ROUNDS
    count, seconds = (MANY, _SECONDS) if is_whole else (_FEW, _FEW_SECONDS)
    with fabric.devices():
        found = _measured(setting, count, seconds)
    remark = f"{found.rate:,.0f} events a second"
    share = Contest(count, {OURS: [found.share]}, clock="cpu")
    alarm = Contest(count, {OURS: [found.alarm]})
    return [
        Result(STORM, [share], [], remark, whole=True),
        Result(ALARM, [alarm], [], remark, whole=True),
    ]


def seconds(measured: Contest) -> float:
    """Return the seconds from the loss of addresses to the alarm."""
    return measured.seconds(OURS)


def _measured(setting: Setting, count: int, seconds: float) -> _Figures:
    folder = setting.folder / "storm"
    fabric.announce(folder / "root")
    routes = [
        {"destination": cidr, "gateway": world.GATEWAY, "dev": world.DEVICE}
        for cidr in fabric.CIDRS[:2]
    ]
    document = {
        "staticRoutes": {"enabled": True, "routes": routes},
        "routeOverlap": {"expectedCidrs": list(fabric.CIDRS), "fabric": "auto"},
    }
    world.ip_batch(f"route add {route.destination} {_WAY}" for route in world.uniform(count))
    try:
        with watch.running(folder, document, routes=len(routes)) as process:
            _until((folder / f"root{MARKER_OK}").exists)
            # The load of its beginning is over.
            time.sleep(seconds / 3)
            return _storm(process, folder / f"root{MARKER_DETECTED}", seconds)
    finally:
        world.flush("table", "main", "proto", _PROTOCOL)


def _storm(process: int, marker: Path, seconds: float) -> _Figures:
    """Change routes until the time is over and the alarm is there, which is due after the first
    second.
    """
    share: Sample | None = None
    alarm: Sample | None = None
    lost = rate = 0.0
    began, before = time.perf_counter(), watch.cpu(process)
    with _Program() as program:
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
    """Another program, which adds and deletes routes of 10.100.0.0/16."""

    def __init__(self) -> None:
        super().__init__()
        words = ["ip", "-batch", "-"]
        self._process = self.enter_context(
            subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
        )
        routes = [
            f"10.100.{number >> 8}.{number & 255}/32 {_WAY}\n" for number in range(_RATE // 2)
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


GROUP = Group((STORM, ALARM), storm, LEGEND)
