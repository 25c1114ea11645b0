"""Another program acts between the plan of an apply and its changes: the run is right, undone, or
degraded, and never wrong without a word.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import pytest
from support.kernel import connect, host_of, kernel_of, needs_kernel, uplink
from support.patience import at_once
from support.run_nodes import gpu_node, routed

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.boot.layout import drop_in_of
from hostrouting.boot.recorded import DiskStep
from hostrouting.exceptions import WorseRoutingError
from hostrouting.host import IPV4, OUR_PROTOCOL, ObservedRoute, RouteBackend, RouteChange
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.testing import FakeHost, KernelNode
from phases import Context, run

SMALL = routed("172.20.8.0/22")
MORE = routed("172.20.8.0/22", "172.20.16.0/24")


@pytest.fixture
def host() -> FakeHost:
    return gpu_node()


def before_a_batch(host: Host, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Act once, after the routes were compared and directly before they are changed."""
    apply = host.routes.apply

    def change(changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        monkeypatch.setattr(host.routes, "apply", apply)
        act()
        apply(changes, verify=verify)

    monkeypatch.setattr(host.routes, "apply", change)


@needs_kernel
@pytest.mark.parametrize("is_installed", [False, True])
def test_a_connected_route_that_a_change_has_hidden_undoes_it(
    monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    """An apply removes its new route, which the kernel accepts before a foreign one, if the route
    hides a connected one that came after the comparison; the error names the connected route.
    """
    with KernelNode.made() as kernel:
        uplink(kernel, eth1="192.168.9.1/24")
        kernel.ip("route add 172.20.16.0/24 via 10.224.0.9 proto static")
        host = host_of(kernel_of(kernel), is_live=True)
        if is_installed:
            assert run(Configure(SMALL, host=host), at_once()).ok
        before = host.routes.routes_of(OUR_PROTOCOL)
        before_a_batch(host, monkeypatch, lambda: kernel.add_address("eth1", "172.20.16.1/24"))
        report = run(Configure(MORE, host=host), at_once())
        assert "the kernel's own route '172.20.16.0/24 dev eth1" in str(report.error)
        assert host.routes.routes_of(OUR_PROTOCOL) == before
        assert (
            require_installed_config(host).static_routes
            == (SMALL if is_installed else MORE).static_routes
        )


def test_a_lease_that_flips_at_every_reading_degrades_the_run(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run during which the gateway of the default route changes at every reading ends with its
    route installed, and is degraded.
    """
    read = host.routes.routes
    routers = ["10.224.0.9", "10.224.0.1"]

    def flip(family: int = IPV4) -> list[ObservedRoute]:
        [default] = [route for route in read(IPV4) if not route.prefix_length]
        host.routes.delete_route(default)
        routers.reverse()
        host.routes.add_route("default", gateway=routers[0], dev="eth0")
        return read(family)

    monkeypatch.setattr(host.routes, "routes", flip)
    report = run(Configure(SMALL, host=host), at_once())
    assert report.ok
    assert report.degraded
    assert len(host.routes.routes_of(OUR_PROTOCOL)) == 1


def test_a_plan_names_what_has_changed_since(host: FakeHost) -> None:
    """A plan of routes names a change of the default route that completes its routes, or of a route
    in their place, and ignores any other route.
    """
    config = routed("172.20.8.0/22")
    plan = plan_routes(config, host)
    host.routes.add_route("172.20.0.0/22", gateway="10.224.0.7", dev="eth0")
    assert plan.changed_since(host.routes) == ""
    host.routes.add_route("172.20.8.0/22", gateway="10.224.0.7", dev="eth0")
    assert "172.20.8.0/22 via 10.224.0.7 dev eth0" in plan.changed_since(host.routes)
    [default] = [route for route in host.routes.routes() if not route.prefix_length]
    plan = plan_routes(config, host)
    host.routes.delete_route(default)
    host.routes.add_route("default", gateway="10.224.0.9", dev="eth0")
    assert "172.20.8.0/22 via 10.224.0.9 dev eth0" in plan.changed_since(host.routes)


def test_a_file_that_changes_after_the_comparison_is_compared_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop-in that another program writes while a run waits for the gates is replaced, and the
    report lists the replacement as a change.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    path = drop_in_of("b.service")
    hold = host.lock.hold_file

    def wait(ctx: Context, lock: str) -> AbstractContextManager[object]:
        host.files.write(path, b"# Installed by hostrouting\n", mode=0o644)
        return hold(ctx, lock)

    monkeypatch.setattr(host.lock, "hold_file", wait)
    report = run(Configure(attrs.evolve(SMALL, gates=("b.service",)), host=host), at_once())
    assert report.ok
    assert f"~ {path}" in [*map(str, report.changes)]
    assert b"ExecStartPre" in (host.files.read(path) or b"")


def test_a_file_that_changes_after_each_comparison_is_written_in_the_end(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop-in that another program writes after each comparison of the files is replaced at the
    24th try.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    path = drop_in_of("b.service")
    compare = Boot.steps_to_install
    tries: list[int] = []

    def compared(boot: Boot, *given: Any) -> list[DiskStep]:
        steps = compare(boot, *given)
        tries.append(len(tries))
        host.files.write(path, b"# Installed by hostrouting\n%d" % len(tries), mode=0o644)
        return steps

    monkeypatch.setattr(Boot, "steps_to_install", compared)
    assert run(Configure(attrs.evolve(SMALL, gates=("b.service",)), host=host), at_once()).ok
    assert len(tries) == 24
    assert b"ExecStartPre" in (host.files.read(path) or b"")


def test_a_plan_that_is_made_again_is_judged_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply whose default route moves to another device after the plan is refused before any
    change if its route would then take addresses from a right route.
    """
    connect(host.routes, eth1="192.168.9.4/24")
    host.routes.add_route("172.20.16.0/20", gateway="10.224.0.9", dev="eth0")
    compare = RoutePlan.changed_since

    def move(plan: RoutePlan, routes: RouteBackend) -> str:
        [default] = [route for route in host.routes.routes() if not route.prefix_length]
        host.routes.delete_route(default)
        host.routes.add_route("default", gateway="192.168.9.1", dev="eth1")
        return compare(plan, routes)

    monkeypatch.setattr(RoutePlan, "changed_since", move)
    before_a_batch(host, monkeypatch, lambda: pytest.fail("a route is changed"))
    mapping = routed("172.20.16.0/24").to_mapping()
    mapping["routeOverlap"]["expectedDevs"] = ["eth0"]
    report = run(Configure(HostRoutingConfig.from_mapping(mapping), host=host), at_once())
    [failure, *_] = report.failures
    assert isinstance(failure, WorseRoutingError)
