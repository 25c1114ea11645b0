"""The work of each operation grows no faster than the routes and CIDRs, counted in lines of Python
that run and not in time.
"""

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from support.needs import needs

from hostrouting import Configure, HostRoutingConfig
from hostrouting.host import Host
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.node.check import check_node
from hostrouting.testing import FakeHost, KernelNode
from phases import Context, plan, run

SIZES = 100, 1_000, 10_000


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


def operations(size: int) -> dict[str, int]:
    """Return the lines of each operation on a node that gets `size` routes and as many CIDRs."""
    networks = [
        f"172.{16 + number // 4096}.{number // 16 % 256}.{number % 16 * 16}/28"
        for number in range(size)
    ]
    document = json.dumps(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": n} for n in networks]},
            "routeOverlap": {"expectedCidrs": networks, "mode": "STRICT"},
        }
    )
    with KernelNode.made() as kernel:
        kernel.add_link("eth0")
        kernel.add_address("eth0", "10.224.0.4/16")
        kernel.add_route("default", gateway="10.224.0.1", dev="eth0")
        fake = FakeHost()
        host = Host(
            routes=NetlinkBackend(netns=kernel.name),
            services=fake.services,
            files=fake.files,
            lock=fake.lock,
        )

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
        }


@needs("kernel")
@pytest.mark.slow
def test_work_grows_with_the_routes() -> None:
    """From 100 to 1,000 and to 10,000 routes and CIDRs, each more costs the same, within 20 %."""
    counts = [operations(size) for size in SIZES]
    for name in counts[0]:
        slopes = [
            (after[name] - before[name]) / (more - fewer)
            for (before, after), (fewer, more) in zip(
                pairwise(counts), pairwise(SIZES), strict=True
            )
        ]
        assert slopes[1] <= 1.2 * slopes[0], (name, slopes)
