"""Count the rooms, files and functions that three typical operations pass through.

    python benchmarks/walks.py [WALK ...] [--files]

    route     a StaticRoute, from JSON to the kernel and to the boot script
    finding   an expected CIDR, from JSON to the finding of an overlap
    event     a deleted route in watch, from its event to the reading by which it is repaired

Needs root: the kernel is a network namespace of this process, the files lie below a
temporary folder, and only systemd is a fake. A *return* is a call into a file that the walk had
left. `sys.setprofile` sees each call of a Python function. Foreign code does not count, nor do the
fakes. --files lists the files in the order of their first call.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import attrs

import hostrouting
import phases
from hostrouting import HostRoutingConfig
from hostrouting.apply.carry_out import Apply
from hostrouting.apply.check import AddressCheck
from hostrouting.apply.plan import NodePlan, Wanted
from hostrouting.apply.run import locked
from hostrouting.boot.boot import Boot
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.host import IPV4, Host, ObservedRoute
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.static_routes.script import render_script
from hostrouting.testing import FakeHost
from hostrouting.watch.routes import RouteReconciler

PACKAGES = tuple(Path(str(package.__file__)).parent for package in (hostrouting, phases))
NODE = """
ip link set lo up
ip link add eth0 type ifb
ip link set eth0 up
ip address add 10.224.0.4/16 dev eth0
ip route add default via 10.224.0.1
ip link add ib0 type ifb
ip link set ib0 up
ip address add 172.16.1.4/16 dev ib0
"""
ROUTE = {"destination": "172.16.8.0/22"}
OVERLAP = {"expectedCidrs": ["172.16.8.0/22"]}


class Walk:
    """The calls from `with` to the end of the block."""

    def __init__(self) -> None:
        #: In the order of their first call.
        self.files: dict[str, None] = {}
        self.functions: set[tuple[str, int]] = set()
        self.returns = 0
        self._last = ""

    def __enter__(self) -> Walk:
        sys.setprofile(self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def __str__(self) -> str:
        """The row of the table."""
        rooms = {_room(file) for file in self.files}
        return f"{len(rooms):7}{len(self.files):7}{len(self.functions):11}{self.returns:9}"

    def _notice(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # The bodies of modules and classes are imports, which another walk may have done already.
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        # A comprehension or a lambda is read with the function that it stands in.
        if code.co_name.startswith("<"):
            return
        file = _own(code.co_filename)
        if file is None:
            return
        if file != self._last:
            self.returns += file in self.files
            self.files[file] = None
            self._last = file
        self.functions.add((file, code.co_firstlineno))


def _own(path: str) -> str | None:
    """Return the path below the project's root; None for code that is not part of a
    walk.
    """
    for package in PACKAGES:
        if path.startswith(f"{package}/"):
            inside = path.removeprefix(f"{package.parent}/")
            return None if inside.startswith("hostrouting/testing/") else inside
    return None


def _room(file: str) -> str:
    first, second, *_ = file.split("/")
    return first if first == "phases" else second.removesuffix(".py")


def _config(**sections: object) -> HostRoutingConfig:
    return HostRoutingConfig.from_json(json.dumps({"hostRouting": sections}))


def _context() -> phases.Context:
    return phases.Context(timeout=60)


def walk_route(host: Host) -> None:
    """Bring a route into the kernel, and render it for the boot; the installation of units and
    gates is left out.
    """
    config = _config(staticRoutes={"enabled": True, "routes": [ROUTE]})
    logger = logging.getLogger("walk")
    with locked(_context(), host, Boot(host), logger) as run:
        Apply(run, Wanted(config, is_proven=False)).settle(NodePlan(), run.ctx)
    assert b"172.16.8.0/22" in render_script(config)


def walk_finding(host: Host) -> None:
    """Find that the CIDR overlaps; the installation is left out here, too."""
    config = _config(routeOverlap=OVERLAP)
    AddressCheck(config, host, Boot(host), logging.getLogger("walk")).do(_context())


class _LastStep(NetlinkBackend):
    """The kernel's routes; a walk ends with the request for them."""

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        sys.setprofile(None)
        return super().routes(family)


def walk_event(host: Host) -> None:
    """Receive the event of a deleted route, and read the kernel's routes; the watch has begun
    before.
    """
    profile, logger = sys.getprofile(), logging.getLogger()
    sys.setprofile(None)
    config = _config(staticRoutes={"enabled": True, "routes": [ROUTE]})
    host = attrs.evolve(host, routes=_LastStep())
    routes = RouteReconciler(host, logger, InstalledConfig(config, host.files, logger))
    ctx = _context()
    with host.events.listen(ctx) as listener:
        routes.act(ctx)
        listener.take()
        subprocess.run(["ip", "route", "delete", ROUTE["destination"]], check=True)
        events = listener.take()
        sys.setprofile(profile)
        routes.receive(events)
        routes.act(ctx)


WALKS = {
    "event": walk_event,
    "finding": walk_finding,
    "route": walk_route,
}


def trace(name: str) -> Walk:
    """Go one walk on a node that is made in the network namespace of this process."""
    subprocess.run(["bash", "-ec", NODE], check=True)
    with TemporaryDirectory() as folder:
        fake = FakeHost()
        host = attrs.evolve(
            Host.live(), files=RootedFiles(folder), services=fake.services, lock=fake.lock
        )
        with Walk() as walk:
            WALKS[name](host)
    return walk


def main() -> None:
    """Print a line for each walk."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "walks", nargs="*", metavar="WALK", default=list(WALKS), help=", ".join(WALKS)
    )
    options.add_argument("--files", action="store_true", help="list the files, too")
    options.add_argument(
        "--here", action="store_true", help="in the network namespace of this process; one WALK"
    )
    arguments = options.parse_args()
    if arguments.here:
        logging.disable()
        walk = trace(arguments.walks[0])
        print(f"{arguments.walks[0]:10}{walk}")
        print("".join(f"    {file}\n" for file in walk.files if arguments.files), end="")
        return
    print(f"{'walk':10}{'rooms':>7}{'files':>7}{'functions':>11}{'returns':>9}", flush=True)
    for name in arguments.walks:
        command = ["unshare", "--net", sys.executable, __file__, "--here", name]
        subprocess.run([*command, *(["--files"] if arguments.files else [])], check=True)


if __name__ == "__main__":
    main()
