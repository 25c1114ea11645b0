"""A wait of a run is an event of its observer, with the reason and the longest time."""

from typing import Any

import pytest
from support.kernel import connect
from support.printed import ANOTHER_RUN, NOT_ENDED, NOTHING_LEADS

from hostrouting import Configure, HostRoutingConfig
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context, Event, run
from phases.context import Wait
from phases.testing import ManualClock

LATE = {"expectedCidrs": ["172.16.0.0/16"], "expectedDevs": ["eth0"], "mode": "STRICT"}


@pytest.fixture
def host() -> FakeHost:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    return FakeHost(node)


def waits(host: FakeHost, **config: Any) -> list[tuple[str, Wait | None]]:
    """Apply a config; return the path, the reason and the longest time of each wait."""
    events: list[Event] = []
    wanted = HostRoutingConfig.from_mapping({"hostRouting": {"gates": [], **config}})
    ctx = Context(timeout=100, clock=ManualClock(auto=True))
    run(Configure(wanted, host=host), ctx, observer=events.append)
    return [(each.path, each.wait) for each in events if each.status == "waiting"]


def test_a_lease(host: FakeHost) -> None:
    """A route without a gateway waits for a default route."""
    routes = [{"destination": "172.16.8.0/22"}]
    assert waits(host, staticRoutes={"enabled": True, "routes": routes}) == [
        ("configure/configure-static-routes", Wait("table main has no IPv4 default route", 30))
    ]


def test_a_unit_of_after(host: FakeHost) -> None:
    """The check waits until a unit of `after` is up."""
    host.files.write(
        "/etc/systemd/system/fabric.service", b"[Service]\nExecStart=/bin/a", mode=0o644
    )
    host.services.start(Context(), "fabric.service")
    host.services.stop(Context(), "fabric.service")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")
    reason = (
        f"fabric.service: is inactive (dead): {NOT_ENDED}; see: systemctl status 'fabric.service'"
    )
    assert waits(host, after=["fabric.service"], routeOverlap=LATE) == [
        ("configure/check-route-overlap", Wait(reason, 30))
    ]


def test_a_route_to_an_address(host: FakeHost) -> None:
    """The rules for IPv6 probes wait for a route to the address that the cloud has announced."""
    reason = f"{NOTHING_LEADS}2603:1062:0:1:fe80:1234:5678:9abc"
    assert waits(host, probeSnat={"enabled": True, "dev": "eth0", "detect": "imds"}) == [
        ("configure/configure-probe-snat", Wait(reason, 30))
    ]


def test_the_lock(host: FakeHost) -> None:
    """A run waits for the lock of another run at most for its own time, and names the holder."""
    host.lock.holder = 4711
    assert waits(host, after=["fabric.service"], routeOverlap=LATE) == [
        ("configure", Wait(f"{ANOTHER_RUN}4711)", 100))
    ]
