"""ConfigureStaticRoutes on a fake machine: do, plan, undo, every way to fail, and runs that are killed."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

import attrs
import pytest
from support.needs import needs
from support.static_route_worlds import config_of

from hostrouting.boot import units_in
from hostrouting.config import HostRoutingConfig, StaticRoute
from hostrouting.exceptions import (
    BackendError,
    HostFileError,
    HostRoutingError,
    LinkNotFoundError,
    RouteRejectedError,
    UnitError,
)
from hostrouting.host import OUR_PROTOCOL
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.static_routes.converge import RECORDS_PATH
from hostrouting.static_routes.script import DEPARTURE, boot_part
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import CancelledError, Context, Plannable, Task, Undoable
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import ObservedRoute, Route
    from hostrouting.host.netlink.commit import Failure

SCRIPT_PATH, UNIT_PATH = DEPARTURE.paths
CONFIG = config_of(
    [
        StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0"),
        StaticRoute(destination="172.16.8.0/22"),
        StaticRoute(destination="172.16.16.0/24"),
    ]
)
WANTED = [
    "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
    "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
    "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
]
NONE = HostRoutingConfig()
DROP_IN = "/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf"


class Killed(BaseException):
    """As if by `kill -9`: no handler catches it."""


class MortalBackend(MemoryBackend):
    """Whose caller can be killed between any two messages of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_in: int | None = None

    def take(self, verb: str, route: Route | ObservedRoute) -> Failure | None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in == 0:
                raise Killed
        return super().take(verb, route)


def made_host() -> FakeHost:
    """A GPU node: a default route, a fabric, and in our way a foreign route, upstream's, and our stale one."""
    node = MortalBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    node.add_link("ib0")
    node.add_address("ib0", "172.16.1.4/16")
    node.add_route("172.16.8.0/22", gateway="10.224.0.9", dev="eth0", protocol=4)
    node.add_route("172.16.16.0/24", gateway="10.224.0.1", dev="eth0")
    node.add_route("172.20.0.0/16", gateway="10.224.0.1", dev="eth0", protocol=OUR_PROTOCOL, table=100)
    return FakeHost(node)


@pytest.fixture
def host() -> FakeHost:
    return made_host()


@pytest.fixture
def ctx() -> Context:
    return Context(clock=ManualClock(auto=True))


def ours(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]


def others(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol != OUR_PROTOCOL]


def state(host: FakeHost) -> object:
    """All that a run can change."""
    return list(map(str, host.routes.routes())), host.files.tree.snapshot()


class TestDo:
    def test_it_is_a_task_in_full(self) -> None:
        """The task can be done, planned and undone, and has upstream's name."""
        task = ConfigureStaticRoutes(CONFIG)
        assert isinstance(task, Task)
        assert isinstance(task, Plannable)
        assert isinstance(task, Undoable)
        assert task.name == "configure-static-routes"

    def test_live_and_for_every_boot(self, host: FakeHost, ctx: Context) -> None:
        """Ours are exactly the config's, and script and unit are there; again changes nothing."""
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert ours(host) == WANTED
        [(script, unit)] = [part.files for part in units_in([boot_part(CONFIG)])]
        assert host.files.read(SCRIPT_PATH) == script.content
        assert host.files.read(UNIT_PATH) == unit.content
        assert host.files.exists("/etc/systemd/system/hostrouting-ready.service.requires/static-routes.service")
        before = state(host)
        generation = host.files.tree.file(SCRIPT_PATH)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert state(host) == before
        assert host.files.tree.file(SCRIPT_PATH) == generation

    def test_somebodys_route_is_displaced_with_a_warning(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A displaced route has a record, even if it differs from ours by its protocol alone."""
        with caplog.at_level(logging.WARNING):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert [record.getMessage() for record in caplog.records] == [
            (
                "foreign route '172.16.8.0/22 via 10.224.0.9 dev eth0 proto static' is displaced by "
                "'172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142'; it is restored when ours is removed"
            ),
            (
                "foreign route '172.16.16.0/24 via 10.224.0.1 dev eth0' is displaced by "
                "'172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142'; it is restored when ours is removed"
            ),
        ]
        content = host.files.read(RECORDS_PATH)
        assert content is not None
        assert b"via 10.224.0.9" in content
        assert b"172.16.16.0" in content

    def test_it_is_on_record_before_it_is_displaced(self, host: FakeHost, ctx: Context) -> None:
        """A record that cannot be written down displaces nothing."""
        before = host.routes.routes()
        host.files.fail_at(self.operations(ctx).index(("write", RECORDS_PATH)) + 1)
        with pytest.raises(HostFileError):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert host.routes.routes() == before

    @staticmethod
    def operations(ctx: Context) -> list[tuple[str, ...]]:
        host = made_host()
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        return host.files.operations.calls

    def test_a_route_that_left_the_config_gives_the_place_back(self, host: FakeHost, ctx: Context) -> None:
        """A route less in the config is one less on the node, and its place is the other's again."""
        before = others(host)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        ConfigureStaticRoutes(config_of(CONFIG.static_routes.routes[:1]), host=host).do(ctx)
        assert ours(host) == WANTED[:1]
        assert others(host) == before
        assert not host.files.exists(RECORDS_PATH)

    @pytest.mark.parametrize("take_away", ["no routes", "undo"])
    def test_without_routes_ours_is_removed(self, host: FakeHost, ctx: Context, take_away: str) -> None:
        """Routes, displaced ones, script, unit, gate: all as before."""
        before = others(host)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        if take_away == "undo":
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
        else:
            ConfigureStaticRoutes(NONE, host=host).do(ctx)
        assert ours(host) == []
        assert others(host) == before
        assert host.files.tree.snapshot() == {}

    def test_zero_impact(self, ctx: Context) -> None:
        """Without routes, on a node without an earlier config, nothing is changed and systemd is not called."""
        host = FakeHost()
        host.routes.add_link("eth0")
        before = state(host)
        ConfigureStaticRoutes(NONE, host=host).do(ctx)
        assert state(host) == before
        assert host.services.operations.calls == []

    def test_an_image_gets_files_only(self, ctx: Context) -> None:
        """Without a kernel to ask, script and unit can still be installed, planned and removed."""
        host = FakeHost(is_live=False)
        task = ConfigureStaticRoutes(CONFIG, host=host)
        assert f"+ {SCRIPT_PATH}" in map(str, task.plan(ctx))
        task.do(ctx)
        assert host.files.exists(SCRIPT_PATH)
        assert task.plan(ctx) == []
        task.undo(ctx)
        assert host.files.tree.snapshot() == {}


class TestPlan:
    def test_everything_is_shown(self, host: FakeHost, ctx: Context) -> None:
        """Routes, then files, and nothing is changed."""
        before = state(host)
        changes = list(map(str, ConfigureStaticRoutes(CONFIG, host=host).plan(ctx)))
        assert changes[:4] == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            (
                "~ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (displaces '172.16.8.0/22 via 10.224.0.9 dev eth0 "
                "proto static', restored when ours is removed)"
            ),
            (
                "~ 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142 (displaces '172.16.16.0/24 via 10.224.0.1 dev "
                "eth0', restored when ours is removed)"
            ),
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142",
        ]
        assert changes[4:6] == [f"+ {SCRIPT_PATH}", f"+ {UNIT_PATH}"]
        assert state(host) == before

    def test_afterwards_there_is_nothing_to_do(self, host: FakeHost, ctx: Context) -> None:
        """Finished changes are not planned again."""
        task = ConfigureStaticRoutes(CONFIG, host=host)
        task.do(ctx)
        assert task.plan(ctx) == []

    def test_a_route_that_differs_in_attributes_only(self, host: FakeHost, ctx: Context) -> None:
        """An operator gave our route an mtu: 'was' and the very same words would leave a reader puzzled."""
        task = ConfigureStaticRoutes(CONFIG, host=host)
        task.do(ctx)
        ours = next(route for route in host.routes.routes() if route.destination == "172.16.8.0/22")
        with_mtu = attrs.evolve(ours.to_route(), extra=((8, b"\x08\x00\x02\x00\x58\x02\x00\x00"),))
        host.routes.insert_route(with_mtu, verb="replace")
        assert [str(change) for change in task.plan(ctx)] == [
            "~ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (was the same with other attributes)"
        ]

    def test_the_way_back(self, host: FakeHost, ctx: Context) -> None:
        """Without routes in the config, the plan lists the routes that would be removed and restored."""
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        before = state(host)
        changes = list(map(str, ConfigureStaticRoutes(NONE, host=host).plan(ctx)))
        assert changes[-5:] == [
            "- 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            "+ 172.16.8.0/22 via 10.224.0.9 dev eth0 proto static (restored)",
            "- 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
            "+ 172.16.16.0/24 via 10.224.0.1 dev eth0 (restored)",
            "- 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
        ]
        assert f"- {SCRIPT_PATH}" in changes
        assert state(host) == before

    def test_fields_that_cannot_be_looked_up_now(self, ctx: Context) -> None:
        """The plan does not wait: it names the fields that will be looked up, and leaves their place alone."""
        host = FakeHost()
        host.routes.add_link("eth0")
        host.routes.add_route("172.16.8.0/22", dev="eth0", protocol=OUR_PROTOCOL)
        changes = ConfigureStaticRoutes(config_of([CONFIG.static_routes.routes[1]]), host=host).plan(ctx)
        assert str(changes[0]) == (
            "+ 172.16.8.0/22 (looked up when a default route is there: table main has no IPv4 default route)"
        )
        assert not [change for change in changes if change.action == "-"]
        assert ctx.clock.monotonic() == 0

    def test_refusals_are_in_the_plan(self, host: FakeHost, ctx: Context) -> None:
        """The plan shows a connected route in the way."""
        config = config_of([StaticRoute(destination="172.16.0.0/16")])
        assert "will be refused: the kernel's own route '172.16.0.0/16 dev ib0" in str(
            ConfigureStaticRoutes(config, host=host).plan(ctx)[0]
        )


class TestWaiting:
    def test_no_default_route_in_time(self, ctx: Context, caplog: pytest.LogCaptureFixture) -> None:
        """After 30 s it fails, with the reason and the next step; it logged its wait once; the gate is there."""
        host = FakeHost()
        host.routes.add_link("eth0")
        before = others(host)
        with caplog.at_level(logging.INFO), pytest.raises(BackendError) as raised:
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert str(raised.value) == (
            "static routes cannot be completed: table main has no IPv4 default route, also not after 30 s. No route "
            "was changed. See the log of the DHCP client, or give 'dev' and 'gateway' of: "
            "172.16.8.0/22, 172.16.16.0/24"
        )
        assert ctx.clock.monotonic() == 30
        waits = [message for message in caplog.messages if not message.startswith("boot: ")]
        assert waits == ["waiting up to 30 s: table main has no IPv4 default route"]
        assert (ours(host), others(host)) == ([], before)
        assert host.files.exists(DROP_IN)

    def test_it_comes_in_time(self, caplog: pytest.LogCaptureFixture) -> None:
        """A lease that comes after 5 s is waited for, and the log names the fields that it gave."""
        host = FakeHost()
        host.routes.add_link("eth0")
        host.routes.add_address("eth0", "10.224.0.4/16")

        class Lease(ManualClock):
            def monotonic(self) -> float:
                now = super().monotonic()
                if now >= 5 and not any(route.prefix_length == 0 for route in host.routes.routes()):
                    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
                return now

        ctx = Context(clock=Lease(auto=True))
        with caplog.at_level(logging.INFO):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert (ours(host), ctx.clock.monotonic()) == (WANTED, 5)
        assert "the default route gave dev eth0 and gateway 10.224.0.1" in caplog.messages

    def test_the_context_is_heeded(self) -> None:
        """Of a short time half is for waiting, so that the reason can still be told; a cancellation ends it at once."""
        host = FakeHost()
        ctx = Context(timeout=3, clock=ManualClock(auto=True))
        with pytest.raises(BackendError, match=r"no IPv4 default route, also not after 1\.5 s"):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        ctx = Context(timeout=0.5, clock=ManualClock(auto=True))
        with pytest.raises(BackendError, match=r"no IPv4 default route, also not after 0\.2 s"):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        ctx = Context(clock=ManualClock(auto=True))
        ctx.cancel("enough")
        with pytest.raises(CancelledError):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)


class TestRefusals:
    def refused(self, host: FakeHost, ctx: Context, *routes: StaticRoute, may_heal: bool = False) -> BackendError:
        """Try these and one that is right: over an installed config, and on a node without one.

        No route may have changed. An installed config stays as it was, unless time may heal the new one.
        """
        task = ConfigureStaticRoutes(config_of([StaticRoute(destination="172.16.8.0/22"), *routes]), host=host)

        def refuse(*, installed: bool) -> BackendError:
            routes_before, files_before = host.routes.routes(), host.files.tree.snapshot()
            with pytest.raises(BackendError) as raised:
                task.do(ctx)
            assert raised.value.may_heal == may_heal
            assert host.routes.routes() == routes_before
            assert (host.files.tree.snapshot() == files_before) == (installed and not may_heal)
            assert host.files.exists(DROP_IN)
            return raised.value

        refuse(installed=False)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        return refuse(installed=True)

    def test_a_connected_route_in_the_way(self, host: FakeHost, ctx: Context) -> None:
        """The connected route is named and left in place, and the error gives the next step."""
        error = self.refused(host, ctx, StaticRoute(destination="172.16.0.0/16"))
        assert isinstance(error, RouteRejectedError)
        assert list(map(str, error.refusals)) == [
            (
                "+ 172.16.0.0/16 via 10.224.0.1 dev eth0 proto 142: the kernel's own route '172.16.0.0/16 dev ib0 "
                "proto kernel scope link src 172.16.1.4' has this destination and metric, and is never overwritten; "
                "configure narrower destinations, or another metric"
            )
        ]

    def test_unreachable_gateways(self, host: FakeHost, ctx: Context) -> None:
        """Each is named with the kernel's own words, together with all other refusals."""
        error = self.refused(
            host,
            ctx,
            StaticRoute(destination="172.17.0.0/24", gateway="10.9.9.9"),
            StaticRoute(destination="172.17.1.0/24", gateway="10.9.9.9"),
            StaticRoute(destination="172.16.0.0/16"),
        )
        assert isinstance(error, RouteRejectedError)
        assert [str(refusal).split(" via ")[0] for refusal in error.refusals] == [
            "+ 172.17.0.0/24",
            "+ 172.17.1.0/24",
            "+ 172.16.0.0/16",
        ]
        assert "Nexthop has invalid gateway" in str(error)

    def test_a_missing_device(self, host: FakeHost, ctx: Context) -> None:
        """The device is named, and whose it is."""
        error = self.refused(
            host, ctx, StaticRoute(destination="172.17.0.0/24", gateway="10.224.0.1", dev="eth7"), may_heal=True
        )
        assert isinstance(error, LinkNotFoundError)
        assert error.dev == "eth7"
        assert "correct the 'dev' of:\n  172.17.0.0/24 via 10.224.0.1 dev eth7 proto 142" in str(error)

    def test_all_routes_of_a_missing_device(self, host: FakeHost, ctx: Context) -> None:
        """Those that lack a gateway, which would be looked up, and those that have one: each is to be corrected."""
        error = self.refused(
            host,
            ctx,
            StaticRoute(destination="172.17.0.0/24", gateway="10.224.0.1", dev="eth7"),
            StaticRoute(destination="172.17.1.0/24", dev="eth7"),
            may_heal=True,
        )
        assert "eth7" in str(error)
        assert {"172.17.0.0/24", "172.17.1.0/24"} <= set(str(error).split())

    def test_a_plan_for_a_missing_device_that_is_to_be_looked_up(self, host: FakeHost, ctx: Context) -> None:
        """No default route will ever give it a gateway: the plan says the same as the apply."""
        config = config_of([StaticRoute(destination="172.17.1.0/24", dev="eth7")])
        assert str(ConfigureStaticRoutes(config, host=host).plan(ctx)[0]) == (
            "+ 172.17.1.0/24 dev eth7 (will be refused: there is no network device eth7; correct its 'dev')"
        )

    def test_a_device_that_is_not_ready(self, host: FakeHost, ctx: Context) -> None:
        """Down, or without an IPv4 address yet: the kernel's words are those for a typo, but it is waited for."""
        host.routes.add_link("eth1")
        refused = StaticRoute(destination="172.17.0.0/24", gateway="10.9.0.1", dev="eth1")
        error = self.refused(host, ctx, refused, may_heal=True)
        assert isinstance(error, RouteRejectedError)
        assert ctx.clock.monotonic() == 60

    def test_an_address_that_comes_in_time(self, host: FakeHost) -> None:
        """The README's own kind of route, with gateway and device, is waited for like one that is looked up."""
        host.routes.add_link("eth1")

        class Lease(ManualClock):
            def monotonic(self) -> float:
                now = super().monotonic()
                if now >= 3 and not next(link for link in host.routes.links() if link.name == "eth1").addresses:
                    host.routes.add_address("eth1", "10.9.0.4/16")
                return now

        ctx = Context(clock=Lease(auto=True))
        task = config_of([StaticRoute(destination="172.17.0.0/24", gateway="10.9.0.1", dev="eth1")])
        ConfigureStaticRoutes(task, host=host).do(ctx)
        assert "172.17.0.0/24 via 10.9.0.1 dev eth1 proto 142" in ours(host)
        assert ctx.clock.monotonic() == 3

    def test_a_gateway_outside_the_devices_net_is_a_mistake(self, host: FakeHost, ctx: Context) -> None:
        """The device is up and has its address, so no lease will help: it is refused at once."""
        self.refused(host, ctx, StaticRoute(destination="172.17.0.0/24", gateway="10.9.0.1", dev="eth0"))
        assert ctx.clock.monotonic() == 0

    @pytest.mark.parametrize(
        ("gateway", "dev", "foreseen"),
        [
            ("10.224.0.1", "eth0", None),
            ("10.224.0.4", "eth0", None),
            (
                "10.9.0.1",
                "eth0",
                "refused: no network of eth0 has the gateway 10.9.0.1; correct its 'gateway' or 'dev'",
            ),
            ("10.224.0.1", "ib0", "refused: no network of ib0 has the gateway 10.224.0.1; correct its"),
            ("10.224.0.1", "eth7", "refused: there is no network device eth7; correct its 'dev'"),
            ("10.9.0.1", "eth1", "waits up to 30 s, since eth1 has no IPv4 address"),
            ("10.9.0.1", "eth2", "waits up to 30 s, since eth2 is down"),
        ],
    )
    @pytest.mark.parametrize("real", [pytest.param(True, marks=needs("kernel")), False])
    def test_a_plan_foresees_refusals(
        self, ctx: Context, gateway: str, dev: str, foreseen: str | None, real: bool
    ) -> None:
        """In memory and in the kernel: a plan names the routes that fail, and why, as the failure does."""
        with KernelNode.made() if real else nullcontext(MemoryBackend()) as node:
            for name in ("eth0", "ib0", "eth1", "eth2"):
                node.add_link(name, up=name != "eth2")
            node.add_address("eth0", "10.224.0.4/16")
            node.add_address("ib0", "172.16.1.4/16")
            node.add_route("default", gateway="10.224.0.1", dev="eth0")
            backend = NetlinkBackend(netns=f"/run/netns/{node.name}") if isinstance(node, KernelNode) else node
            host = FakeHost(MemoryBackend())
            object.__setattr__(host, "routes", backend)
            route = StaticRoute(destination="172.17.0.0/24", gateway=gateway, dev=dev)
            task = ConfigureStaticRoutes(config_of([route]), host=host)
            [change] = [change for change in task.plan(ctx) if change.subject.startswith("172.17.0.0/24")]
            if foreseen is None:
                assert change.detail is None
                task.do(ctx)
                return
            assert foreseen in str(change.detail)
            with pytest.raises(BackendError) as raised:
                task.do(ctx)
            assert "waits" in foreseen or foreseen.partition("; ")[0].partition(": ")[2] in str(raised.value).replace(
                "no such device: eth7", "there is no network device eth7"
            )

    def test_a_gate_that_cannot_wait(self, host: FakeHost, ctx: Context) -> None:
        """A refusal by Boot comes before any route is changed."""
        host.services.fail_at(1)
        before = state(host)
        with pytest.raises(UnitError):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert state(host) == before

    def test_a_route_that_cannot_be_restored_stops_nothing(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A displaced route whose gateway is gone stays on record, with a warning; ours is removed."""
        host.routes.add_address("eth0", "10.225.0.4/16")
        host.routes.add_route("172.16.1.0/24", gateway="10.225.0.1", dev="eth0", protocol=16)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        host.routes.remove_address("eth0", "10.225.0.4/16")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
        assert caplog.messages == [
            (
                "displaced route '172.16.1.0/24 via 10.225.0.1 dev eth0 proto dhcp' is not restored: "
                "Nexthop has invalid gateway (Network is unreachable). It stays on record in "
                f"{RECORDS_PATH}, and is tried again by reset"
            )
        ]
        assert ours(host) == []
        assert "172.16.8.0/22 via 10.224.0.9 dev eth0 proto static" in others(host)
        assert list(host.files.tree.snapshot()) == [RECORDS_PATH]
        host.routes.add_address("eth0", "10.225.0.4/16")
        ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
        assert "172.16.1.0/24 via 10.225.0.1 dev eth0 proto dhcp" in others(host)
        assert host.files.tree.snapshot() == {}

    def test_a_route_that_lost_its_device_is_given_up(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A displaced route over a device that has gone cannot come back, and is named."""
        host.routes.add_link("tun0")
        host.routes.add_route("172.16.1.0/24", dev="tun0", protocol=16)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        host.routes.remove_link("tun0")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ConfigureStaticRoutes(NONE, host=host).do(ctx)
        assert caplog.messages == [
            (
                "displaced route '172.16.1.0/24 dev tun0 proto dhcp scope link' is not restored: "
                "there is no device tun0 any more"
            )
        ]
        assert host.files.tree.snapshot() == {}


def attempts(prepare: Callable[[FakeHost, int], None]) -> list[FakeHost]:
    """Hosts on which `do` was broken at its first, second, ... operation, as long as there was one to break."""
    broken: list[FakeHost] = []
    for number in range(1, 400):
        host = made_host()
        prepare(host, number)
        try:
            ConfigureStaticRoutes(CONFIG, host=host).do(Context(clock=ManualClock(auto=True)))
        except (HostRoutingError, Killed):
            broken.append(host)
        else:
            return broken
    raise AssertionError("there is no end to it")


def die_in_batch(host: FakeHost, number: int) -> None:
    assert isinstance(host.routes, MortalBackend)
    host.routes.dies_in = number


FAULTS: dict[str, Callable[[FakeHost, int], None]] = {
    "a file operation fails": lambda host, number: host.files.fail_at(number),
    "killed at a file operation": lambda host, number: host.files.fail_at(number, Killed()),
    "systemd does not answer": lambda host, number: host.services.fail_at(number),
    "killed at a request to systemd": lambda host, number: host.services.fail_at(number, Killed()),
    "the kernel refuses a route": lambda host, number: host.routes.fail_at(number),
    "killed within a batch": die_in_batch,
}


@pytest.mark.thorough
class TestCrashes:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_next_run_ends_in_the_wanted_state(self, fault: str, ctx: Context) -> None:
        """Wherever a run broke off, the next one completes its work."""
        right = made_host()
        ConfigureStaticRoutes(CONFIG, host=right).do(ctx)
        broken = attempts(FAULTS[fault])
        assert len(broken) > 1
        for host in broken:
            if isinstance(host.routes, MortalBackend):
                host.routes.dies_in = None
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
            # A run that was killed may leave a route after ours that it was about to displace: ours decides, too.
            assert ours(host) == ours(right)
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
            assert others(host) == others(made_host())

    @pytest.mark.parametrize("fault", FAULTS)
    def test_it_can_be_undone(self, fault: str, ctx: Context) -> None:
        """Wherever a run broke off, undo leaves the node as it was before."""
        before = others(made_host())
        for host in attempts(FAULTS[fault]):
            if isinstance(host.routes, MortalBackend):
                host.routes.dies_in = None
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
            assert others(host) == before
            assert ours(host) == []
            assert host.files.tree.snapshot() == {}

    @pytest.mark.parametrize(
        "fault", ["a file operation fails", "systemd does not answer", "the kernel refuses a route"]
    )
    def test_routes_change_all_or_not_at_all(self, fault: str) -> None:
        """A run that fails has changed every route, or none."""
        before = list(map(str, made_host().routes.routes()))
        for host in attempts(FAULTS[fault]):
            assert list(map(str, host.routes.routes())) == before or ours(host) == WANTED
