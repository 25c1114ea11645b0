"""ConfigureStaticRoutes on a fake machine: do, plan and undo."""

import logging

import attrs
import pytest
from support.printed import UNTIL_REMOVED
from support.run_nodes import own_routes, state
from support.static_route_nodes import CONFIG, NONE, WANTED, other_routes
from support.static_route_scripts import config_of, static_route

from hostrouting import ConfigureStaticRoutes, StaticRoute
from hostrouting.boot.layout import CONFIG_PATH, PROGRAM_PATH, units_in
from hostrouting.host import OUR_PROTOCOL
from hostrouting.static_routes.script import REMOVAL, boot_part
from hostrouting.testing import FakeHost
from hostrouting.testing.contracts.routes import metrics
from phases import Context

SCRIPT_PATH, UNIT_PATH = REMOVAL.paths


class TestDo:
    def test_live_and_for_every_boot(self, host: FakeHost, ctx: Context) -> None:
        """A run ends in exactly the configured own routes with script and unit installed, and a
        second run changes nothing.
        """
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert own_routes(host) == WANTED
        [(script, unit)] = [part.files for part in units_in([boot_part(CONFIG)])]
        assert host.files.read(SCRIPT_PATH) == script.content
        assert host.files.read(UNIT_PATH) == unit.content
        assert host.files.exists(
            "/etc/systemd/system/hostrouting-ready.service.requires/static-routes.service"
        )
        before = state(host)
        generation = host.files.tree.file(SCRIPT_PATH)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert state(host) == before
        assert host.files.tree.file(SCRIPT_PATH) == generation

    def test_a_foreign_route_is_hidden_with_a_warning(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A foreign route stays after the own one, even if it differs by its protocol alone."""
        before = other_routes(host)
        with caplog.at_level(logging.WARNING):
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        assert caplog.messages == [
            (
                "route '172.16.8.0/22 via 10.224.0.9 dev eth0 proto static' of another program is hidden by "
                "'172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142' until ours is removed"
            ),
            (
                "route '172.16.16.0/24 via 10.224.0.1 dev eth0' of another program is hidden by "
                "'172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142' until ours is removed"
            ),
        ]
        assert other_routes(host) == before

    @pytest.mark.parametrize("take_away", ["no routes", "undo"])
    def test_without_routes_the_own_one_is_removed(
        self, host: FakeHost, ctx: Context, take_away: str
    ) -> None:
        """A config without routes, or an undo, removes the own routes, script, unit and gate, and
        leaves foreign routes.
        """
        before = other_routes(host)
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        if take_away == "undo":
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
        else:
            ConfigureStaticRoutes(NONE, host=host).do(ctx)
        assert own_routes(host) == []
        assert other_routes(host) == before
        assert host.files.tree.snapshot() == {}

    def test_without_routes_the_files_of_the_boot_go(self, host: FakeHost, ctx: Context) -> None:
        """A config without routes removes the files in which a boot noted its wait and its log."""
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        for name in "waits-until", "static-routes.message":
            host.files.write(f"/run/hostrouting/{name}", b"30\n", mode=0o644)
        ConfigureStaticRoutes(NONE, host=host).do(ctx)
        assert host.files.tree.snapshot() == {}

    @pytest.mark.parametrize("destination", ["172.16.8.0/22", "fd00:9::/64"])
    def test_an_image_gets_files_only(self, destination: str, ctx: Context) -> None:
        """An image gets script and unit, by plan and by run, and loses them by undo, for both
        families.
        """
        host = FakeHost(is_live=False)
        task = ConfigureStaticRoutes(config_of([StaticRoute(destination=destination)]), host=host)
        assert f"+ {SCRIPT_PATH}" in map(str, task.plan(ctx))
        task.do(ctx)
        assert host.files.exists(SCRIPT_PATH)
        assert task.plan(ctx) == []
        task.undo(ctx)
        assert host.files.tree.snapshot() == {}


class TestPlan:
    def test_everything_is_shown(self, host: FakeHost, ctx: Context) -> None:
        """A plan lists the routes, then the files, and changes nothing."""
        before = state(host)
        changes = list(map(str, ConfigureStaticRoutes(CONFIG, host=host).plan(ctx)))
        assert changes[:4] == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            (
                "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (hides '172.16.8.0/22 via 10.224.0.9 dev eth0 "
                f"proto static' {UNTIL_REMOVED})"
            ),
            (
                "+ 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142 (hides '172.16.16.0/24 via 10.224.0.1 dev eth0' "
                f"{UNTIL_REMOVED})"
            ),
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142",
        ]
        # Those of all units follow.
        assert changes[4:8] == [
            f"+ {path}" for path in (CONFIG_PATH, PROGRAM_PATH, SCRIPT_PATH, UNIT_PATH)
        ]
        assert state(host) == before

    def test_a_route_that_differs_in_attributes_only(self, host: FakeHost, ctx: Context) -> None:
        """A plan for an own route that differs in attributes only, which its text does not have, explains
        that in words.
        """
        task = ConfigureStaticRoutes(CONFIG, host=host)
        task.do(ctx)
        own_route = next(
            route for route in host.routes.routes() if route.destination == "172.16.8.0/22"
        )
        initcwnd = 11
        with_window = attrs.evolve(own_route.to_route(), extra=metrics(initcwnd, 600))
        host.routes.insert_route(with_window, verb="replace")
        assert [str(change) for change in task.plan(ctx)] == [
            "~ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (was the same with other attributes)"
        ]

    def test_the_way_back(self, host: FakeHost, ctx: Context) -> None:
        """A plan for a config without routes lists the routes that would be removed."""
        ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
        before = state(host)
        changes = list(map(str, ConfigureStaticRoutes(NONE, host=host).plan(ctx)))
        assert changes[:3] == [f"- {route}" for route in WANTED]
        assert f"- {SCRIPT_PATH}" in changes
        assert state(host) == before

    def test_fields_that_cannot_be_looked_up_now(self, ctx: Context) -> None:
        """A plan names fields that will be looked up later, leaves their place alone, and does not
        wait.
        """
        host = FakeHost()
        host.routes.add_link("eth0")
        host.routes.add_route("172.16.8.0/22", dev="eth0", protocol=OUR_PROTOCOL)
        route = static_route("172.16.8.0/22 via 10.224.0.1")
        changes = ConfigureStaticRoutes(config_of([route]), host=host).plan(ctx)
        assert str(changes[0]) == (
            "+ 172.16.8.0/22 via 10.224.0.1 "
            "(is completed once there is a default route: table main has no IPv4 default route)"
        )
        assert not [change for change in changes if change.action == "-"]
        assert ctx.clock.monotonic() == 0
