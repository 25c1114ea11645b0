"""The script of the unit: which program it runs, and the routes that it adds where no Python can
run it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.boot_units import assert_systemd_accepts
from support.examples import FEW
from support.infiniband import infiniband, namespace_of
from support.kernel import host_of, kernel_of, needs_kernel
from support.needs import needs
from support.patience import at_once
from support.static_route_scripts import config_of, install, static_route
from support.without_python import NO_PYTHON, run, run_program

from hostrouting import HostRoutingConfig, StaticRoute
from hostrouting.boot.layout import units_in
from hostrouting.exceptions import BackendError
from hostrouting.host import IPV6, Host, ObservedRoute
from hostrouting.net.outbound import named_devices
from hostrouting.net.routes import route_key
from hostrouting.static_routes.at_boot import repair_once
from hostrouting.static_routes.script import boot_part, render_script
from hostrouting.testing import FakeHost, KernelNode

ADDED = "<4>routes were added without Python, and routing was not checked"
LEFT = "<3>not added, because no outbound device has a default route:"
UNKNOWN = "<3>routes could not be checked: the program failed with status {}; run: hostrouting apply /etc/aks-flex-node/hostrouting.json"
ROUTE = static_route("172.20.1.0/24 via 10.0.0.1 dev e0")
#: Needs the device and the gateway of a default route.
OPEN = StaticRoute(destination="172.20.2.0/24")


def own(node: KernelNode) -> list[str]:
    return [*map(str, [*kernel_of(node).routes_of(142), *kernel_of(node).routes_of(142, IPV6)])]


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with a default route through e0."""
    with KernelNode.made() as node:
        node.add_link("e0")
        node.add_address("e0", "10.0.0.4/16")
        node.ip("route add default via 10.0.0.1 dev e0 proto dhcp metric 100")
        yield node


class TestFiles:
    @pytest.mark.slow
    def test_shellcheck_finds_nothing(self, tmp_path: Path) -> None:
        """ShellCheck finds nothing in the rendered script."""
        (tmp_path / "script.sh").write_bytes(render_script(config_of([ROUTE, OPEN], devs=["e0"])))
        subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    @needs("systemd-analyze")
    def test_systemd_accepts_the_unit(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing for the unit, whose exposure is 3.2 at most."""
        [unit] = units_in([boot_part(config_of([ROUTE]))])
        assert_systemd_accepts(unit, tmp_path)


@needs_kernel
class TestWithoutPython:
    def test_routes_are_added_once_per_boot(self, node: KernelNode, tmp_path: Path) -> None:
        """Without Python the routes are added at the first start of the unit in a boot, and at no
        later one; the status says that the routing is unknown.
        """
        script = render_script(config_of([ROUTE, OPEN], devs=["e0"]))
        again = "run; ip route flush proto 142; run"
        assert run(node, script, tmp_path, again) == [NO_PYTHON, ADDED, "12", NO_PYTHON, "12"]
        assert own(node) == []
        run(node, script, tmp_path)
        assert own(node) == [
            f"{route} via 10.0.0.1 dev e0 proto 142" for route in ("172.20.1.0/24", "172.20.2.0/24")
        ]

    def test_a_run_is_not_disturbed(self, node: KernelNode, tmp_path: Path) -> None:
        """While a run holds its lock no route is added, and the next start of the unit adds them."""
        script = render_script(config_of([ROUTE]))
        held = (
            "flock /run/hostrouting.lock bash -p $script || echo $?; ip route show proto 142; run"
        )
        assert run(node, script, tmp_path, held) == [NO_PYTHON, "12", NO_PYTHON, ADDED, "12"]
        assert len(own(node)) == 1

    def test_a_lease_is_waited_for(self, node: KernelNode, tmp_path: Path) -> None:
        """A default route that comes later is waited for."""
        node.ip("route del default")
        lease = """
            printf '%s\\n' '#!/bin/sh' 'echo >> /run/slept; [ $(wc -l < /run/slept) != 3 ] || ip route add default via 10.0.0.1 dev e0' > /run/programs/sleep
            run; wc -l < /run/slept
        """
        script = render_script(config_of([ROUTE, OPEN], devs=["e0"]))
        assert run(node, script, tmp_path, lease) == [NO_PYTHON, ADDED, "12", "3"]
        assert len(own(node)) == 2

    def test_what_no_expected_device_completes_is_named(
        self, node: KernelNode, tmp_path: Path
    ) -> None:
        """Where the config names no device, or it has no default route, a route that needs one is
        left out, and named after the wait; all others are added.
        """
        more = static_route("fd00:1::/48 dev e0")
        script = render_script(config_of([ROUTE, OPEN, more]))
        count = "printf '#!/bin/sh\\necho >> /run/slept\\n' > /run/programs/sleep; run; wc -l < /run/slept"
        left = f"{LEFT} {OPEN.destination} {more.destination}"
        assert run(node, script, tmp_path, count) == [NO_PYTHON, ADDED, left, "12", "30"]
        assert own(node) == ["172.20.1.0/24 via 10.0.0.1 dev e0 proto 142"]

    @pytest.mark.parametrize(
        ("program", "status", "printed", "adds"),
        [
            ("exit 10", "10", [], False),
            ("exit 11", "11", [], False),
            ("echo why; exit 12", "12", ["why"], False),
            ("echo too old; exit 13", "12", ["too old", ADDED], True),
            ("exit 1", "12", [UNKNOWN.format(1)], False),
            ("kill -9 $$", "12", [UNKNOWN.format(137)], False),
        ],
    )
    def test_only_a_missing_python_adds_routes(
        self,
        node: KernelNode,
        tmp_path: Path,
        program: str,
        status: str,
        printed: list[str],
        *,
        adds: bool,
    ) -> None:
        """The script has the status of the program, and adds routes itself only where no Python can
        run it: a program that fails or is killed may do so next to a run.
        """
        lines = run_program(node, render_script(config_of([ROUTE])), tmp_path, program)
        assert lines == [*printed, status]
        assert bool(own(node)) == adds

    @pytest.mark.parametrize(
        "name", ["a;b", "$(id)", "`id`", "*", "a'b", 'a"b', "a\\", "#x", "e0#", "-x"]
    )
    def test_a_device_of_the_kernel_may_have_any_name(
        self, node: KernelNode, tmp_path: Path, name: str
    ) -> None:
        """The name of a device is data: no route leaves through another one because of it, and none is
        one of another program.
        """
        node.ip("route del default")
        node.add_link("e1")
        node.run("ip", "link", "set", "e1", "down")
        node.run("ip", "link", "set", "e1", "name", name)
        node.run("ip", "link", "set", "dev", name, "up")
        node.run("ip", "address", "add", "10.1.0.4/16", "dev", name)
        node.run("ip", "route", "add", "default", "dev", name)
        before = kernel_of(node).routes()
        script = render_script(config_of([OPEN], devs=["10.1.0.0/16"]))
        run(node, script.replace(b"try < 30", b"try < 1"), tmp_path)
        added = [route for route in kernel_of(node).routes() if route not in before]
        assert [*map(str, added)] in ([], [f"{OPEN.destination} dev {name} proto 142 scope link"])

    def test_a_link_is_not_followed(self, node: KernelNode, tmp_path: Path) -> None:
        """A link in the place of the note that routes were added is neither followed nor replaced,
        and no route is added.
        """
        planted = (
            "ln -s /run/target /run/hostrouting/restored; run; [ -e /run/target ] || echo none"
        )
        lines = run(node, render_script(config_of([ROUTE])), tmp_path, planted)
        assert lines == [NO_PYTHON, "12", "none"]
        assert own(node) == []


# --- against the program


class World(NamedTuple):
    """Commands of `ip` on a node with two devices, of which the second one may be InfiniBand."""

    commands: Sequence[str]
    is_infiniband: bool

    def arrange(self, node: KernelNode, stack: ExitStack) -> None:
        for at in range(2):
            dev = f"e{at}"
            if at and self.is_infiniband:
                stack.enter_context(infiniband(namespace_of(node), dev, "10.1.0.4/16"))
            else:
                node.ip(f"link add {dev} type veth peer name wire{at}")
                node.set_up(dev)
                node.set_up(f"wire{at}")
                node.add_address(dev, f"10.{at}.0.4/16")
            node.ip(f"-6 address add fe80::{at}4/64 dev {dev} nodad")
            node.ip(f"-6 address add fd00:{at}::4/64 dev {dev} nodad")
            for family, gateway in enumerate((f"10.{at}.0.1", f"fe80::{at}1")):
                node.ip(f"nexthop add id {2 * at + family + 1} via {gateway} dev {dev}")
        for command in self.commands:
            with suppress(BackendError):
                node.ip(command)


@st.composite
def _defaults(draw: st.DrawFn) -> list[str]:
    """Default routes of each form by both devices; each has a metric of its own."""
    commands = []
    metrics = iter(draw(st.permutations(range(100, 108))))
    for at in range(2):
        for number, gateway in enumerate((f"10.{at}.0.1", f"fe80::{at}1")):
            way = f"via {gateway} dev e{at}"
            forms = [way, way, f"{way} onlink", f"dev e{at}", f"nhid {2 * at + number + 1}"]
            # Those of few packets are none.
            forms.append((f"{way} tos 8", f"from fd00:{at}::/64 {way}")[number])
            for form in draw(st.lists(st.sampled_from(forms), max_size=2)):
                family = ("-4", "-6")[number]
                commands.append(f"{family} route add default {form} metric {next(metrics)}")
    return commands


_FOREIGN = st.builds(
    "route add {} {} {}".format,
    st.sampled_from(["172.20.1.0/24", "172.20.0.0/16", "fd00:9::/48", "fd00:9::9/128"]),
    st.sampled_from(["dev e0", "dev e1"]),
    st.sampled_from(["metric 5", "metric 5 proto static", "", "table 100"]),
)
WORLDS = st.builds(
    lambda defaults, foreign, is_infiniband: World([*defaults, *foreign], is_infiniband),
    _defaults(),
    st.lists(_FOREIGN, max_size=3),
    st.booleans(),
)
_ROUTES = st.lists(
    st.builds(
        StaticRoute,
        destination=st.sampled_from(["172.20.1.0/24", "172.20.0.0/16", "10.0.0.0/16"]),
        # One of them is on no link.
        gateway=st.sampled_from([None, None, "10.0.0.7", "10.1.0.7", "192.0.2.1", "fe80::7"]),
        dev=st.sampled_from([None, None, "e0", "e1", "absent"]),
        metric=st.sampled_from([0, 0, 5]),
    )
    | st.builds(
        StaticRoute,
        destination=st.sampled_from(["fd00:9::/48", "fd00:9::9/128"]),
        gateway=st.sampled_from([None, None, "fe80::7", "fd00:1::7"]),
        dev=st.sampled_from([None, None, "e0", "e1"]),
        metric=st.sampled_from([0, 0, 5]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda route: (route.destination, route.metric),
)
#: What the config names, or else what the last apply has found.
_NAMED = st.sampled_from(
    [
        ["e0"],
        ["e1"],
        ["10.0.0.0/16"],
        ["absent", "e0"],
        ["absent", "10.1.0.0/16"],
        [],
    ]
)
_FOUND = st.sampled_from([[], ["e0"], ["e1"]])


def hosted(
    node: KernelNode, routes: Sequence[StaticRoute], named: Sequence[str], found: Sequence[str]
) -> tuple[HostRoutingConfig, Host]:
    """Return an installed config of the routes, and its host."""
    section = {"expectedCidrs": ["198.51.100.0/24"], "expectedDevs": named}
    document = config_of(routes).to_mapping() | {"routeOverlap": section, "foundDevs": found}
    config = HostRoutingConfig.from_mapping(document)
    return config, host_of(kernel_of(node), install(FakeHost(), config), is_live=True)


def all_routes(node: KernelNode) -> list[ObservedRoute]:
    return [*kernel_of(node).routes(), *kernel_of(node).routes(IPV6)]


@needs_kernel
@settings(max_examples=FEW)
@given(world=WORLDS, routes=_ROUTES, named=_NAMED, found=_FOUND)
@example(
    world=World(["route add default via 10.0.0.1 dev e0 onlink"], is_infiniband=False),
    routes=[OPEN, StaticRoute(destination="172.20.1.0/24", gateway="10.0.0.7")],
    named=["e0"],
    found=[],
)
@example(
    world=World(["route add default nhid 1"], is_infiniband=False),
    routes=[OPEN],
    named=[],
    found=["e0"],
)
@example(
    world=World(["route add default via 10.1.0.1 dev e1"], is_infiniband=True),
    routes=[OPEN, static_route("172.20.1.0/24 via 10.1.0.7 dev e1")],
    named=["e1"],
    found=[],
)
@example(
    world=World(
        [
            "route add default via 10.0.0.1 dev e0 tos 8",
            "-6 route add default from fd00:0::/64 via fe80::01 dev e0",
            "route add default dev e0 metric 50",
            "route add default via 10.0.0.1 dev e0 onlink metric 100",
        ],
        is_infiniband=False,
    ),
    routes=[OPEN, StaticRoute(destination="fd00:9::/48")],
    named=["e0"],
    found=[],
)
# The network is one of IPv4.
@example(
    world=World(["-6 route add default via fe80::1 dev e0"], is_infiniband=False),
    routes=[StaticRoute(destination="fd00:9::/48")],
    named=["10.0.0.0/16"],
    found=[],
)
def test_it_adds_what_the_program_would(
    tmp_path_factory: pytest.TempPathFactory,
    world: World,
    routes: list[StaticRoute],
    named: list[str],
    found: list[str],
) -> None:
    """Without Python, exactly those routes of the program are added whose key is free, and that
    only the default route of an expected device completes, which is not InfiniBand.
    Nothing that existed changes.
    """
    with ExitStack() as stack:
        node, other = (stack.enter_context(KernelNode.made()) for _ in range(2))
        world.arrange(node, stack)
        world.arrange(other, stack)
        before = all_routes(node)
        config, host = hosted(other, routes, named, found)
        repair_once(at_once(), config, host)
        links = host.routes.links()
        infiniband_devs = {link.name for link in links if link.infiniband}
        of_program = {
            route_key(route): route for route in all_routes(other) if route.protocol == 142
        }
        wanted = set()
        for route in config.static_routes.routes:
            present = of_program.get(route.route_key)
            if present is None or any(route_key(one) == route.route_key for one in before):
                continue
            is_complete = bool(route.gateway and route.dev)
            may_leave = named_devices(config.devs, links)
            if is_complete or (
                present.dev not in infiniband_devs and (route.dev or present.dev in may_leave)
            ):
                wanted.add(str(present))
        script = render_script(config).replace(b"try < 30", b"try < 1")
        lines = run(node, script, tmp_path_factory.mktemp("script"))
        after = all_routes(node)
        assert [route for route in after if route in before] == before
        assert {str(route) for route in after if route not in before} == wanted
        assert lines[-1] == "12"
