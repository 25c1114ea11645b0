"""Watch: how soon a route that another program takes or changes is right again, as netlink shows
it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network, collapse_addresses
from pathlib import Path

from benchmarks import world
from benchmarks.cases import COMMAND, IP, OURS, Group, Result, Setting
from benchmarks.measure import BenchmarkError, Contender, Contest, Sample, contest, environment
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.host import Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents, NetlinkListener
from hostrouting.net.addresses import format_ipv4
from hostrouting.net.events import RouteEvent
from phases import Context
from phases.context import wait

DELETION = "watch, a route deleted"
IDLE = "watch, idle for a minute"
NAMES = (DELETION, IDLE)
DELETED = "deleted"
LEGEND = """\
Watch: milliseconds from the event that a route is deleted, which `ip route` does, to the event that it is in force
again, in a table of N routes. ip: one that reads all routes, and replaces one. Idle: processor time of a watch that also
checks the addresses of all its routes, and its memory."""

ROUTES = 1000
_SECONDS = 60.0
_IDLE_SECONDS = 60.0
#: A smaller run than this only shows that the measurements work.
_FEWEST_ROUNDS = 7
_BETWEEN = 1.0


def watch(setting: Setting) -> list[Result]:
    """Measure all of it on the routes of one config."""
    world.clean()
    own_routes, rounds = world.uniform(ROUTES), setting.rounds(ROUTES)
    period = _IDLE_SECONDS if rounds >= _FEWEST_ROUNDS else 10.0
    try:
        with _watching(setting, own_routes), _listening() as seen:
            deletion = {DELETION: lambda: _deletion(seen, own_routes, rounds)}
            results = setting.results(deletion)
        return results + setting.results({IDLE: lambda: _idle(setting, own_routes, period)})
    finally:
        world.sweep()


def share(measured: Contest) -> float:
    """Return the part of a core that watch took, in percent."""
    [sample] = measured.samples[OURS]
    return 100 * sample.cpu / sample.wall


# --- the cases


def _deletion(seen: _Seen, own_routes: Sequence[Route], rounds: int) -> Result:
    contenders = [
        Contender(IP, partial(_read_and_replace, own_routes[0])),
        Contender(DELETED, lambda: seen.restored(own_routes)),
    ]
    measured = contest(contenders, ROUTES, rounds=rounds)
    return Result(DELETION, [measured], [(DELETED, IP)], whole=True)


def _idle(setting: Setting, own_routes: Sequence[Route], seconds: float) -> Result:
    with _watching(setting, own_routes, proven=True) as process:
        # In its first seconds a watch proves the node once more.
        time.sleep(seconds / 10)
        before, started = cpu(process), time.perf_counter()
        time.sleep(seconds)
        sample = Sample(time.perf_counter() - started, cpu(process) - before)
        remark = f"{_megabytes(process):.1f} MB resident"
    return Result(IDLE, [Contest(ROUTES, {OURS: [sample]}, clock="cpu")], [], remark, whole=True)


# --- another program


def _read_and_replace(route: Route) -> Sample:
    """Do the work of a repair by `ip`: read the routes, and write one."""
    lines = "\n".join(["route show table all", f"route replace {route}", ""])
    started = time.perf_counter()
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True, capture_output=True)
    return Sample(time.perf_counter() - started, 0)


# --- watch, and the eyes on it


@contextmanager
def _watching(setting: Setting, routes: Sequence[Route], *, proven: bool = False) -> Iterator[int]:
    """Run the command until the end of the block; yield its process. Where `proven`, it proves all
    addresses, too.
    """
    wanted = [
        {
            "destination": f"{format_ipv4(route.network)}/{route.prefix_length}",
            "gateway": str(route.gateway),
            "dev": route.dev,
        }
        for route in routes
    ]
    document: dict[str, object] = {"staticRoutes": {"enabled": True, "routes": wanted}}
    if proven:
        networks = collapse_addresses(
            IPv4Network((route.network, route.prefix_length)) for route in routes
        )
        document["routeOverlap"] = {
            "expectedCidrs": list(map(str, networks)),
            "expectedDevs": [world.DEVICE],
        }
    with running(
        setting.folder / ("proven" if proven else "watched"), document, routes=len(routes)
    ) as process:
        # It has begun.
        time.sleep(3)
        yield process


@contextmanager
def running(folder: Path, document: Mapping[str, object], *, routes: int) -> Iterator[int]:
    """Run the command with a config until the end of the block, on files below `folder`/root; yield
    its process.
    """
    config, root = folder / "watch.json", folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(document))
    # A watch keeps an installed config only.
    installed = root / CONFIG_PATH.lstrip("/")
    installed.parent.mkdir(parents=True, exist_ok=True)
    installed.write_text(json.dumps(document))
    words = [sys.executable, str(COMMAND), str(root), "watch", str(config)]
    with subprocess.Popen(words, env=environment(), cwd="/", stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _SECONDS
            while len(NetlinkBackend().routes_of(142)) < routes:
                if time.monotonic() > until or process.poll() is not None:
                    raise BenchmarkError("watch did not put the routes in force")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()


class _Seen:
    """The events of routes, with the time at which they came."""

    def __init__(self, ctx: Context, listener: NetlinkListener) -> None:
        self._ctx = ctx
        self._listener = listener
        self._next = 0

    def restored(self, routes: Sequence[Route]) -> Sample:
        """Delete the next one of the routes; return how long it was not in force."""
        self._next += 1
        route = routes[self._next % len(routes)]
        # More changes a second than this are paced.
        time.sleep(_BETWEEN)
        self.forget()
        world.ip_batch([f"route delete {route}"])
        first = 0.0
        for event in self._events():
            if event.route.network != route.network:
                continue
            first = first or time.perf_counter()
            if event.verb != "remove" and event.route.fulfils(route):
                return Sample(time.perf_counter() - first, 0)
        raise BenchmarkError(f"route '{route}' was not restored")

    def forget(self) -> None:
        """Forget all events by now."""
        self._listener.take()

    def _events(self) -> Iterator[RouteEvent]:
        until = time.monotonic() + _SECONDS
        while wait(self._ctx, lambda: self._listener.has_news, until=until):
            yield from (event for event in self._listener.take() if isinstance(event, RouteEvent))


@contextmanager
def _listening() -> Iterator[_Seen]:
    ctx = Context()
    with NetlinkEvents().listen(ctx) as listener:
        yield _Seen(ctx, listener)


def cpu(process: int) -> float:
    """Return the seconds that a process took from the processor: exact for itself, in ticks for its
    ended children.
    """
    # The number of its clock, as clock_getcpuclockid(3) makes it. In ticks of 10 ms, an idle minute
    # is two or three.
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(~process << 3 | 2) + (int(words[13]) + int(words[14])) / os.sysconf(
        "SC_CLK_TCK"
    )


def _megabytes(process: int) -> float:
    [line] = [
        line
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) * 1024 / 1e6


GROUP = Group(NAMES, watch, LEGEND)
