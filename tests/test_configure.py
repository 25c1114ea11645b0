"""Configure: both tasks under one lock, on fakes."""

from __future__ import annotations

import pytest

from hostrouting.config import HostRoutingConfig
from hostrouting.configure import Configure, boot_files
from hostrouting.exceptions import InvalidConfigError, LockHeldError, RouteOverlapError
from hostrouting.testing import FakeHost
from phases import Context, TaskFailedError, execute, plan, run, undo
from phases.testing import ManualClock

ROUTES = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
OVERLAP = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    host.routes.add_link("eth0")
    host.routes.add_address("eth0", "10.224.0.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")
    host.routes.add_link("ib0")
    host.routes.add_address("ib0", "172.16.1.4/16")
    return host


def configure(host: FakeHost, **sections: object) -> Configure:
    return Configure(HostRoutingConfig.from_mapping({"gates": [], **sections}), host=host)


def ours(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == 142]


def test_routes_come_before_their_proof(host: FakeHost) -> None:
    """The routes mend what the check would find; afterwards the node is proven."""
    execute(configure(host, **ROUTES, **OVERLAP))
    assert ours(host) == ["172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"]
    assert host.files.exists("/run/aks-flex-node/route-overlap.ok")
    assert not host.files.exists("/run/aks-flex-node/route-overlap.detected")


def test_an_overlap_under_strict_is_persisted_and_raised(host: FakeHost) -> None:
    """The error is reached through the task's, the marker is there, and so is the unit that holds the gate."""
    with pytest.raises(TaskFailedError) as caught:
        execute(configure(host, **OVERLAP))
    (failure,) = caught.value.failures
    assert isinstance(failure, RouteOverlapError)
    assert not failure.report.ok
    assert host.files.exists("/run/aks-flex-node/route-overlap.detected")
    assert host.files.exists("/etc/systemd/system/check-route-overlap.service")


def test_a_plan_is_what_is_done_and_nothing_more(host: FakeHost) -> None:
    """Planning changes nothing; after doing it, there is nothing left to plan."""
    task = configure(host, **ROUTES, **OVERLAP)
    before = (host.routes.routes(), host.files.tree)
    planned = plan(task)
    assert planned.unplannable == ()
    assert "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in [str(change) for change in planned.changes]
    assert (host.routes.routes(), host.files.tree) == before
    execute(task)
    assert plan(task).changes == ()


def test_undo_leaves_the_machine_as_it_was(host: FakeHost) -> None:
    """Routes, scripts, units, links and markers are gone."""
    before = host.routes.routes()
    task = configure(host, **ROUTES, **OVERLAP)
    execute(task)
    undo(task)
    assert host.routes.routes() == before
    assert not host.files.names("/etc/systemd/system")
    assert not host.files.names("/etc/aks-flex-node")
    assert not host.files.names("/run/aks-flex-node")


def test_nothing_configured_is_nothing_at_all(host: FakeHost) -> None:
    """A node that does not need us is not touched."""
    execute(configure(host))
    assert ours(host) == []
    assert not host.files.exists("/etc/systemd/system/hostrouting-ready.service")
    assert boot_files(HostRoutingConfig()) == []


def test_the_lock_is_held_from_the_first_task_to_the_last(host: FakeHost) -> None:
    """A second run waits under its own deadline, and then says who holds the lock."""
    host.lock.holder = 4711
    clock = ManualClock(auto=True)
    with pytest.raises(TaskFailedError) as caught:
        execute(configure(host, **ROUTES), Context(timeout=5, clock=clock))
    (failure,) = caught.value.failures
    assert isinstance(failure, LockHeldError)
    assert "4711" in str(failure)
    assert ours(host) == []


def test_a_task_can_be_left_out_by_name(host: FakeHost) -> None:
    """Upstream's names are what `skip` goes by."""
    report = run(configure(host, **ROUTES, **OVERLAP), skip=["configure-static-routes"])
    assert [(each.name, each.status) for each in report.walk()] == [
        ("configure-static-routes", "skipped"),
        ("check-route-overlap", "failed"),
        ("configure", "failed"),
    ]


def test_a_section_that_this_release_cannot_do_is_refused(host: FakeHost) -> None:
    """Nobody should believe that a section is in force which nobody brings about."""
    with pytest.raises(InvalidConfigError) as caught:
        configure(host, probeSnat={"enabled": True}, watch={"enabled": True})
    assert [str(error) for error in caught.value.errors] == [
        "hostRouting.probeSnat.enabled: this release cannot do that yet; set it to false",
        "hostRouting.watch.enabled: this release cannot do that yet; set it to false",
    ]


def test_an_image_gets_files_and_units_only() -> None:
    """Nothing is asked of a kernel that an image does not have."""
    host = FakeHost(is_live=False)
    execute(configure(host, **ROUTES, **OVERLAP))
    assert host.files.exists("/etc/aks-flex-node/static-routes.sh")
    assert host.files.exists("/etc/systemd/system/hostrouting-ready.service.requires/check-route-overlap.service")
    assert not host.files.names("/run/aks-flex-node")
