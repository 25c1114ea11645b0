"""ConfigureStaticRoutes on a fake machine: waiting for DHCP and for devices, and every way to fail."""

import errno
import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
from support.boots import DROP_IN
from support.kernel import connect, uplink
from support.needs import needs
from support.patience import at_once
from support.printed import (
    AS_BEFORE,
    CORRECT_GATEWAY,
    GIVE_ROUTER,
    NEVER_OVERWRITTEN,
    SEE_DHCP,
    WAITING,
)
from support.run_nodes import gpu_node, own_routes, state
from support.static_route_nodes import CONFIG, WANTED, other_routes
from support.static_route_scripts import config_of, static_route

from hostrouting import Configure, ConfigureStaticRoutes, HostRoutingConfig, StaticRoute
from hostrouting.exceptions import BackendError, RouteRejectedError, UnitError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.static_routes.entries import accepted, findings
from hostrouting.static_routes.plan import plan_routes
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import CancelledError, Context, TaskFailedError, execute, plan, run, with_retry
from phases.testing import ManualClock


class LateClock(ManualClock):
    """A clock at which something arrives after some seconds."""

    def __init__(self, seconds: float, arrive: Callable[[], object]) -> None:
        super().__init__(auto=True)
        self._seconds = seconds
        self._arrive = arrive

    def monotonic(self) -> float:
        now = super().monotonic()
        if now >= self._seconds:
            self._arrive()
            self._seconds = math.inf
        return now


def configure(host: FakeHost, ctx: Context) -> None:
    ConfigureStaticRoutes(CONFIG, host=host).do(ctx)


class TestWaiting:
    def test_no_default_route_in_time(self, ctx: Context, caplog: pytest.LogCaptureFixture) -> None:
        """A run without a default route fails after 30 s with the reason and the next step, logs
        its wait once, and has installed the gate.
        """
        host = FakeHost()
        host.routes.add_link("eth0")
        before = other_routes(host)
        with caplog.at_level(logging.INFO), pytest.raises(BackendError) as raised:
            configure(host, ctx)
        assert str(raised.value) == (
            "static routes are still incomplete: table main has no IPv4 default route after 30 s. No route "
            f"was changed. Fix that ({SEE_DHCP}), or give "
            "'dev' and 'gateway' of: 172.16.8.0/22, 172.16.16.0/24"
        )
        assert raised.value.retryable
        assert ctx.clock.monotonic() == 30
        waits = [message for message in caplog.messages if not message.startswith("boot: ")]
        assert waits == [
            f"{WAITING}table main has no IPv4 default route",
            AS_BEFORE,
        ]
        assert own_routes(host) == []
        assert other_routes(host) == before
        assert host.files.exists(DROP_IN)

    def test_the_device_is_down(self, ctx: Context) -> None:
        """The error for a missing default route names a device that is set down, with its command,
        instead of the DHCP client.
        """
        host = FakeHost()
        host.routes.add_link("eth0", up=False)
        with pytest.raises(
            BackendError,
            match=r"Fix that \(eth0 is down; run: ip link set eth0 up\), or",
        ):
            configure(host, ctx)

    def test_it_comes_in_time(self) -> None:
        """A lease that comes after 5 s is waited for."""
        host = FakeHost()
        connect(host.routes, eth0="10.224.0.4/16")
        lease = partial(
            host.routes.add_route, "default", gateway="10.224.0.1", dev="eth0", protocol=16
        )
        ctx = Context(clock=LateClock(5, lease))
        configure(host, ctx)
        assert own_routes(host) == WANTED
        assert ctx.clock.monotonic() == 5

    def test_the_context_is_heeded(self) -> None:
        """A run with little time waits for half of it, so that the reason can be reported; a
        cancellation ends the wait at once.
        """
        host = FakeHost()
        ctx = at_once(3)
        with pytest.raises(BackendError, match=r"no IPv4 default route after 1\.5 s"):
            configure(host, ctx)
        ctx = at_once(0.5)
        with pytest.raises(BackendError, match=r"no IPv4 default route after 0\.2 s"):
            configure(host, ctx)
        ctx = at_once()
        ctx.cancel("enough")
        with pytest.raises(CancelledError):
            configure(host, ctx)


class TestRefusals:
    def refused(
        self, host: FakeHost, ctx: Context, *routes: StaticRoute, retryable: bool = False
    ) -> BackendError:
        """Try these and one that is right: over an installed config, and on a node without one.

        No route may have changed, and an installed config stays as it was.
        """
        task = ConfigureStaticRoutes(
            config_of([StaticRoute(destination="172.16.8.0/22"), *routes]), host=host
        )

        def refuse(*, installed: bool) -> BackendError:
            routes_before = host.routes.routes()
            files_before = host.files.tree.snapshot()
            with pytest.raises(BackendError) as raised:
                task.do(ctx)
            assert raised.value.retryable == retryable
            assert host.routes.routes() == routes_before
            assert (host.files.tree.snapshot() == files_before) == installed
            assert host.files.exists(DROP_IN)
            return raised.value

        refuse(installed=False)
        configure(host, ctx)
        return refuse(installed=True)

    def test_a_connected_route_in_the_way(self, host: FakeHost, ctx: Context) -> None:
        """A connected route in the place of a wanted one is named in the refusal and left in
        place.
        """
        error = self.refused(host, ctx, StaticRoute(destination="172.16.0.0/16"))
        assert isinstance(error, RouteRejectedError)
        assert list(map(str, error.refusals)) == [
            (
                "+ 172.16.0.0/16 via 10.224.0.1 dev eth0 proto 142: the kernel's own route '172.16.0.0/16 dev ib0 "
                f"proto kernel scope link src 172.16.1.4' {NEVER_OVERWRITTEN}"
            )
        ]

    def test_the_loopback_device(self, host: FakeHost, ctx: Context) -> None:
        """A route that the loopback device should complete is refused, and not worth another try."""
        error = self.refused(host, ctx, StaticRoute(destination="172.17.0.0/24", dev="lo"))
        assert "lo is the loopback device" in str(error)

    def test_a_device_that_is_not_ready(self, host: FakeHost, ctx: Context) -> None:
        """A route by a device without an IPv4 address is waited for, though the kernel's words are
        those for a typo, and the refusal can be retried.
        """
        host.routes.add_link("eth1")
        refused = static_route("172.17.0.0/24 via 10.9.0.1 dev eth1")
        error = self.refused(host, ctx, refused, retryable=True)
        assert isinstance(error, RouteRejectedError)
        assert ctx.clock.monotonic() == 60

    @pytest.mark.parametrize("number", [errno.ENOMEM, errno.EBUSY, errno.ENOBUFS])
    def test_a_kernel_without_memory(self, host: FakeHost, ctx: Context, number: int) -> None:
        """A run on a kernel without memory fails at once, and `with_retry` tries it again."""
        host.routes.refuse_at(1, number=number)
        with pytest.raises(RouteRejectedError) as raised:
            configure(host, ctx)
        assert raised.value.retryable
        assert not raised.value.may_heal
        assert ctx.clock.monotonic() == 0
        host.routes.refuse_at(1, number=number)
        again = with_retry(ConfigureStaticRoutes(CONFIG, host=host), attempts=2, backoff=3)
        assert run(again, ctx).ok
        assert ctx.clock.monotonic() == 3
        assert own_routes(host) == WANTED

    def test_a_mistake_beside_a_device_that_is_not_ready(
        self, host: FakeHost, ctx: Context
    ) -> None:
        """Two refused routes, of which one may be late, are refused at once, as a wait would fix
        only that one.
        """
        host.routes.add_link("eth1")
        late = static_route("172.17.0.0/24 via 10.9.0.1 dev eth1")
        mistake = static_route("172.17.1.0/24 via 10.9.9.9 dev eth0")
        self.refused(host, ctx, late, mistake)
        assert ctx.clock.monotonic() == 0

    def test_an_address_that_comes_in_time(self, host: FakeHost) -> None:
        """A route with gateway and device is waited for like one that is looked up."""
        host.routes.add_link("eth1")
        ctx = Context(clock=LateClock(3, partial(host.routes.add_address, "eth1", "10.9.0.4/16")))
        config = config_of([static_route("172.17.0.0/24 via 10.9.0.1 dev eth1")])
        ConfigureStaticRoutes(config, host=host).do(ctx)
        assert "172.17.0.0/24 via 10.9.0.1 dev eth1 proto 142" in own_routes(host)
        assert ctx.clock.monotonic() == 3

    @pytest.mark.parametrize(
        ("gateway", "dev", "foreseen"),
        [
            ("10.224.0.1", "eth0", None),
            (
                "10.9.0.1",
                "eth0",
                f"refused: the gateway 10.9.0.1 is not on a network of eth0; {CORRECT_GATEWAY}",
            ),
            (
                "10.224.0.1",
                "ib0",
                "refused: the gateway 10.224.0.1 is not on a network of ib0; correct its",
            ),
            ("10.224.0.1", "eth7", "refused: there is no network device eth7; correct its 'dev'"),
            (None, "eth7", "refused: there is no network device eth7; correct its 'dev'"),
            (
                None,
                "lo",
                "refused: lo is the loopback device; correct its 'dev'",
            ),
            ("fd00:1::1", "eth0", None),
            (
                "fd00:2::1",
                "eth0",
                "refused: the gateway fd00:2::1 is not on a network of eth0; correct its",
            ),
            ("10.9.0.1", "eth1", "waits up to 30 s, since eth1 has no IPv4 address"),
            ("10.9.0.1", "eth2", "waits up to 30 s, since eth2 is down"),
        ],
    )
    @pytest.mark.parametrize("real", [pytest.param(True, marks=needs("kernel")), False])
    def test_a_plan_foresees_refusals(
        self, ctx: Context, gateway: str | None, dev: str, foreseen: str | None, real: bool
    ) -> None:
        """A plan names the routes that will be refused, and why, as the failure does, in memory and
        in the kernel.
        """
        with KernelNode.made() if real else nullcontext(MemoryBackend()) as node:
            for name in "eth0", "ib0", "eth1", "eth2":
                node.add_link(name, up=name != "eth2")
            node.add_address("eth0", "10.224.0.4/16")
            node.add_address("eth0", "fd00:1::4/64")
            node.add_address("ib0", "172.16.1.4/16")
            node.add_route("default", gateway="10.224.0.1", dev="eth0")
            backend = (
                NetlinkBackend(netns=f"/run/netns/{node.name}")
                if isinstance(node, KernelNode)
                else node
            )
            host = FakeHost(MemoryBackend())
            object.__setattr__(host, "routes", backend)
            route = StaticRoute(destination="172.17.0.0/24", gateway=gateway, dev=dev)
            task = ConfigureStaticRoutes(config_of([route]), host=host)
            [change] = [
                change for change in task.plan(ctx) if change.subject.startswith("172.17.0.0/24")
            ]
            if foreseen is None:
                assert change.detail is None
                task.do(ctx)
                return
            assert foreseen in str(change.detail)
            assert change.kind == ("awaited" if foreseen.startswith("waits") else "refused")
            with pytest.raises(BackendError) as raised:
                task.do(ctx)
            assert "waits" in foreseen or foreseen.partition("; ")[0].partition(": ")[2] in str(
                raised.value
            ).replace("no such device: eth7", "there is no network device eth7")

    @needs("kernel")
    def test_the_rule_of_table_main_is_gone(self, ctx: Context) -> None:
        """The refusal on a node without the rule of table main names the rule and the command that
        adds it.
        """
        with KernelNode.made() as node:
            uplink(node)
            node.ip("rule del pref 32766")
            host = FakeHost(NetlinkBackend(netns=node.name))
            task = ConfigureStaticRoutes(
                config_of([StaticRoute(destination="172.16.8.0/22")]), host=host
            )
            with pytest.raises(RouteRejectedError) as raised:
                task.do(ctx)
        assert list(map(str, raised.value.refusals)) == [
            (
                "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142: Nexthop has invalid gateway (Network is unreachable); "
                "the IPv4 rule '32766: from all lookup main' is missing; run: ip rule add pref 32766 lookup main"
            )
        ]
        assert ctx.clock.monotonic() == 0

    @pytest.mark.parametrize(
        ("gateway", "dev"), [("10.224.0.4", "eth0"), ("172.16.1.4", "ib0"), ("fd00:1::4", "eth0")]
    )
    def test_a_gateway_of_the_nodes_own(
        self, host: FakeHost, ctx: Context, gateway: str, dev: str
    ) -> None:
        """A gateway that is an address of the node is refused by a plan and by a run before any
        change, although the kernel accepts the route, by which it sends nothing.
        """
        host.routes.add_address("eth0", "fd00:1::4/64")
        good = static_route("172.17.1.0/24 via 10.224.0.1")
        bad = StaticRoute(
            destination="fd00:9::/64" if ":" in gateway else "172.17.0.0/24",
            gateway=gateway,
            dev="eth0",
        )
        config = config_of([good, bad])
        before = state(host)
        for task in ConfigureStaticRoutes(config, host=host), Configure(config, host=host):
            for act in plan, execute:
                with pytest.raises(TaskFailedError) as raised:
                    act(task, ctx)
                [refused] = raised.value.failures
                assert str(refused) == (
                    f"hostRouting.staticRoutes.routes[1].gateway: {gateway!r} is an address of this node, on {dev}; "
                    f"{GIVE_ROUTER}"
                )
                assert state(host) == before

    def test_a_gate_that_cannot_wait(self, host: FakeHost, ctx: Context) -> None:
        """A refusal by Boot comes before any route is changed."""
        host.services.fail_at(1)
        before = state(host)
        with pytest.raises(UnitError):
            configure(host, ctx)
        assert state(host) == before


def test_only_a_refused_route_leaves_its_place_to_a_suggested_one() -> None:
    """The accepted section of a config keeps a route that waits for a default route, and does not have one
    whose gateway is on no link; an apply repairs the former later, and the latter never.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    waits = StaticRoute(destination="172.16.8.0/22")
    refused = static_route("172.16.16.0/24 via 10.99.0.1 dev eth0")
    planned = plan_routes(config_of([waits, refused]), FakeHost(node))
    assert accepted(planned).routes == (waits,)
    assert [found.apply for found in findings(planned)] == ["later", ""]


def test_an_announced_fabric_excuses_no_route_that_leads_there() -> None:
    """A route into an announced fabric is an overlap of the run that adds it."""
    overlap = {"expectedCidrs": ["172.20.8.0/24"], "fabric": ["172.20.8.0/24"], "mode": "STRICT"}
    route = {"destination": "172.20.8.0/25", "gateway": "172.16.0.1", "dev": "ib0"}
    section = {"enabled": True, "routes": [route]}
    config = HostRoutingConfig.from_mapping({"staticRoutes": section, "routeOverlap": overlap})
    report = run(ConfigureStaticRoutes(config, host=gpu_node()), at_once())
    assert "172.20.8.0/24: overlap 172.20.8.0-172.20.8.127 through ib0 " in str(report.error)
