"""The work of each operation grows no faster than the routes and CIDRs, counted in lines
that run, and not timed.
"""

import json
import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import attrs
import pytest
from support.kernel import host_of, kernel_of, uplink
from support.needs import needs

from hostrouting import Configure, HostRoutingConfig, check_node
from hostrouting.boot.program import wanted_program
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.host import Host, RouteChange
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.node.at_boot import answer
from hostrouting.testing import FakeHost, KernelNode
from hostrouting.watch.routes import RouteReconciler
from phases import Context, plan, run

#: The second one is for the night: it takes minutes.
SIZES = [(100, 300, 1_000), pytest.param((100, 1_000, 10_000), marks=pytest.mark.soak)]


def lines_of(work: Callable[[], object]) -> int:
    """Return how many lines run, but for those of the fakes, which stand for other programs."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        return None if "/hostrouting/testing/" in frame.f_code.co_filename else count

    earlier = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(earlier)
    return lines


def lines_of_a_repair(host: Host, config: HostRoutingConfig) -> int:
    """Return the lines from the events of all routes' deletion until they are restored."""
    logger = logging.getLogger("hostrouting")
    reconciler = RouteReconciler(host, logger, InstalledConfig(config, host.files, logger))
    ctx = Context(timeout=600)
    reconciler.act(ctx)
    routes = host.routes.routes_of(142)
    with host.events.listen(ctx) as listener:
        host.routes.apply([RouteChange.remove(route) for route in routes])
        events = listener.take()

        def repair() -> None:
            reconciler.receive(events)
            reconciler.act(ctx)

        lines = lines_of(repair)
    assert len(host.routes.routes_of(142)) == len(routes)
    return lines


def operations(size: int) -> dict[str, int]:
    """Return the lines of each operation on a node that gets `size` routes and as many CIDRs, of which
    none are neighbours.
    """
    networks = [
        f"172.{16 + number // 2048}.{number // 8 % 256}.{number % 8 * 32}/28"
        for number in range(size)
    ]
    document = json.dumps(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": n} for n in networks]},
            "routeOverlap": {"expectedCidrs": networks, "mode": "STRICT"},
        }
    )
    with KernelNode.made() as kernel:
        uplink(kernel)
        host = attrs.evolve(host_of(kernel_of(kernel)), events=NetlinkEvents(netns=kernel.name))

        def of(act: Callable[[HostRoutingConfig], object]) -> int:
            # A config of its own for each: nothing is kept from the operation before.
            config = HostRoutingConfig.from_json(document)
            return lines_of(lambda: act(config))

        def apply(config: HostRoutingConfig) -> None:
            run(Configure(config, host=host), timeout=600).raise_for_failure()

        return {
            "read": lines_of(lambda: HostRoutingConfig.from_json(document)),
            "plan": of(lambda config: plan(Configure(config, host=host), Context(timeout=600))),
            "apply": of(apply),
            "again": of(apply),
            "check": of(lambda config: check_node(Context(timeout=600), config, host)),
            "ask": lines_of(lambda: answer(["ask", "STRICT"], host)),
            "watch": lines_of_a_repair(host, HostRoutingConfig.from_json(document)),
        }


@needs("kernel")
@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_work_grows_with_the_routes(sizes: tuple[int, ...]) -> None:
    """From few routes and CIDRs to many, the work for each further one grows by at most 20 %."""
    # A process makes the program of a boot once.
    wanted_program(FakeHost(), None)
    counts = [operations(size) for size in sizes]
    for name in counts[0]:
        slopes = [
            (after[name] - before[name]) / (more - fewer)
            for (before, after), (fewer, more) in zip(
                pairwise(counts), pairwise(sizes), strict=True
            )
        ]
        assert slopes[1] <= 1.2 * slopes[0], (name, slopes)
