"""The boot script and its unit: their files, and the behaviour of the script apart from the task."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from support.boot_units import assert_systemd_accepts
from support.counted_ip import IP, another_ip, counted_ip, take_counts
from support.filled import asset, changes
from support.kernel import connect, needs_kernel
from support.needs import needs
from support.printed import (
    CORRECT_GATEWAY,
    DECIDES_AGAIN,
    INCOMPLETE,
    NEVER_OVERWRITTEN,
    NO_DEVICE,
    SEE_DHCP,
    UNPROVEN,
    WAITING,
    no_gateway,
)
from support.static_route_scripts import boot, boot_with_program, config_of, impatient, static_route

from hostrouting import HostRoutingConfig, StaticRoute
from hostrouting.boot.layout import units_in
from hostrouting.static_routes.script import boot_part, render_script
from hostrouting.testing import KernelNode

CONFIG = config_of(
    [
        static_route("172.16.1.0/24 via 172.18.1.1 dev eth0"),
        StaticRoute(destination="172.16.2.0/24"),
        static_route("10.0.0.0/8 via 10.1.0.1 metric 100"),
        static_route("169.254.169.254/32 dev bond0.100 metric 4294967295"),
    ]
)
[UNIT] = units_in([boot_part(CONFIG)])


class TestFiles:
    def test_script_of_both_families(self) -> None:
        """The script has the routes as ip prints them, in the kernel's order, in which an IPv6
        network follows all that lies in it; the parts that a default route completes are between
        bars.
        """
        plain = asset("static_routes/static-routes.sh", COMMON="boot/common.sh")
        routes = [
            StaticRoute(destination="fd00::/16"),
            static_route("fd00:1::/32 dev eth0"),
            static_route("10.0.0.0/8 via fe80::1"),
            static_route("fd00:1::9/128 via fe80::1 dev eth0 metric 5"),
        ]
        assert changes(plain, render_script(config_of(routes))) == [
            *("-@ROUTES@'", "-counts[4]=@COUNT@"),
            *("+10.0.0.0/8 via inet6 fe80::1 |dev ?| ", "+'", "+counts[4]=1"),
            *("-tables[4]='@TABLE@'", "+tables[4]='route show root 10.0.0.0/8'"),
            *("-exits[4]='@EXIT@'", "+exits[4]=''"),
            *("-@ROUTES6@'", "-counts[6]=@COUNT6@", "-tables[6]='@TABLE6@'"),
            "+fd00:1::9 via fe80::1 dev eth0 metric 5 pref medium",
            "+fd00:1::/32 |via ? dev eth0| metric 1 pref medium",
            "+fd00::/16 |via ? dev ?| metric 1 pref medium",
            *("+'", "+counts[6]=3", "+tables[6]='route show root fd00::/16'"),
        ]

    def test_where_they_go(self) -> None:
        """The files are the script and then the unit that names it, with their modes, and the
        script is the same if it is rendered again.
        """
        assert [(file.path, oct(file.mode)) for file in UNIT.files] == [
            ("/etc/aks-flex-node/static-routes.sh", "0o755"),
            ("/etc/systemd/system/static-routes.service", "0o644"),
        ]
        assert UNIT.files[0].content == render_script(CONFIG)

    @pytest.mark.slow
    def test_shellcheck_finds_nothing(self, tmp_path: Path) -> None:
        """ShellCheck finds nothing in the rendered script, with and without routes."""
        both = config_of(
            [StaticRoute(destination="fd00::/8"), StaticRoute(destination="10.0.0.0/8")]
        )
        for config in CONFIG, both, HostRoutingConfig():
            (tmp_path / "script.sh").write_bytes(render_script(config))
            subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    @needs("systemd-analyze")
    def test_systemd_verifies_them(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing for the unit, whose exposure is 3.2 at most."""
        assert_systemd_accepts(UNIT, tmp_path)


#: What most tests here want, on a node whose eth0 has the gateway on its link.
ROUTE = static_route("172.20.1.0/24 via 10.224.0.1 dev eth0")
CONFIG_OF_ROUTE = config_of([ROUTE])
JOURNAL = {"JOURNAL_STREAM": "8:4711"}


@contextmanager
def waiting(
    node: KernelNode, folder: Path, route: StaticRoute, reason: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the script until it waits, for this reason."""
    script = impatient(config_of([route]), waits=30, folder=str(folder)).decode()
    argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{WAITING}{reason}\n"
        yield process


def own_routes(node: KernelNode) -> list[str]:
    """Return the routes of hostrouting in any table, as ip shows them."""
    return [line.strip() for line in node.ip("route show table all proto 142").splitlines()]


def own_route(route: StaticRoute) -> str:
    """Return how ip shows a route of a config among those of hostrouting."""
    return f"{route.destination} via {route.gateway} dev {route.dev}"


def foreign_lines(shown: str) -> list[str]:
    """Return the lines of a listing of routes without those of hostrouting."""
    return [line for line in shown.splitlines() if "142" not in line]


@needs_kernel
class TestRunning:
    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
            yield node

    def test_the_default_route_is_waited_for(self, node: KernelNode, tmp_path: Path) -> None:
        """The script waits for a late lease, and logs the limit of the wait once."""
        open_route = StaticRoute(destination="172.16.1.0/24")
        reason = f"172.16.1.0/24 via ? dev ?: {INCOMPLETE}"
        with waiting(node, tmp_path, open_route, reason) as process:
            node.ip("route append default via 10.224.0.1 dev eth0 proto 16")
            assert process.communicate(timeout=300)[0] == "routes in force: 1\n"
        assert own_routes(node) == ["172.16.1.0/24 via 10.224.0.1 dev eth0"]

    @pytest.mark.parametrize(
        ("missing", "reason", "steps"),
        [
            (
                "address del 10.224.0.4/16 dev eth0",
                "Error: Nexthop has invalid gateway.",
                "address add 10.224.0.4/16 dev eth0",
            ),
            ("link set eth0 down", "Error: Nexthop has invalid gateway.", "link set eth0 up"),
            (
                "link del eth0",
                'Cannot find device "eth0"',
                "link add eth0 type ifb; link set eth0 up; address add 10.224.0.4/16 dev eth0",
            ),
        ],
    )
    def test_a_route_that_may_heal_is_waited_for(
        self, node: KernelNode, tmp_path: Path, missing: str, reason: str, steps: str
    ) -> None:
        """A route that the kernel refuses because its device or address is late is tried again
        during the wait.
        """
        node.ip(missing)
        refused = f"{own_route(ROUTE)}: ip has complained first: {reason}"
        with waiting(node, tmp_path, ROUTE, refused) as process:
            for step in steps.split("; "):
                node.ip(step)
            assert process.communicate(timeout=300)[0] == "routes in force: 1\n"
        assert own_routes(node) == [own_route(ROUTE)]
        assert (tmp_path / "waited").exists()

    @pytest.mark.parametrize(
        ("gateway", "dev", "reason"),
        [
            (None, "ib0", f"172.16.2.0/24 via ? dev ib0: {INCOMPLETE}"),
            (None, "eth9", f"172.16.2.0/24 via ? dev eth9: {INCOMPLETE}"),
            (
                "10.224.0.1",
                "eth9",
                (
                    "172.16.2.0/24 via 10.224.0.1 dev eth9: ip has complained first: "
                    'Cannot find device "eth9"'
                ),
            ),
        ],
    )
    def test_a_route_that_does_not_heal(
        self, node: KernelNode, gateway: str | None, dev: str, reason: str
    ) -> None:
        """A route that stays refused is logged with its reason before and after the wait; a
        complete route is in force.
        """
        whole = static_route("172.16.1.0/24 via 10.224.0.1 dev eth0")
        refused = StaticRoute(destination="172.16.2.0/24", gateway=gateway, dev=dev)
        status, [wait, refusal] = boot(node, whole, refused, waits=1)
        assert status == 11
        assert wait == f"waiting up to 1 s: {reason}"
        assert refusal == f"refused: {reason}"
        assert own_routes(node) == [own_route(whole)]

    def test_now_is_one_look(self, node: KernelNode, tmp_path: Path) -> None:
        """The script neither waits nor notes a wait with `now`, and has the same verdict and exit
        status.
        """
        route = static_route("172.16.1.0/24 via 10.9.9.9 dev eth0")
        at_once = boot(node, route, now=True, waits=30, folder=tmp_path)
        assert not (tmp_path / "waited").exists()
        status, (wait, *lines) = boot(node, route, waits=1, folder=tmp_path)
        assert (tmp_path / "waited").exists()
        assert wait.startswith("waiting up to 1 s: ")
        assert (status, lines) == at_once
        assert status == 11

    def test_a_start_after_the_first_verdict_does_not_wait(
        self, node: KernelNode, tmp_path: Path
    ) -> None:
        """A node that was right at its boot and lost its default route gets the verdict without a
        wait.
        """
        node.ip("route append default via 10.224.0.1 dev eth0 proto 16")
        route = StaticRoute(destination="172.16.1.0/24")
        assert boot(node, route, waits=30, folder=tmp_path, environment=JOURNAL) == (
            10,
            ["<5>routes in force: 1"],
        )
        node.ip("route flush all proto dhcp")
        node.ip("route flush proto 142")
        status, [line] = boot(node, route, waits=30, folder=tmp_path, environment=JOURNAL)
        verdict = f"<3>refused: 172.16.1.0/24 via ? dev ?: {INCOMPLETE}"
        assert status == 11
        assert line == verdict
        assert [path.name for path in tmp_path.iterdir()] == ["static-routes.told"]

    def test_a_repair_is_logged_in_one_line(self, node: KernelNode, tmp_path: Path) -> None:
        """The journal has the verdict of the first run, and of a later one only the routes that it
        added, in one line.
        """
        first = static_route("172.20.0.0/24 via 10.224.0.1 dev eth0")
        second = static_route("172.20.1.0/24 via 10.224.0.1 dev eth0")
        refused = static_route("172.20.2.0/24 via 10.9.9.9 dev eth0")

        def logged(*routes: StaticRoute) -> list[str]:
            _, lines = boot(node, *routes, folder=tmp_path, environment=JOURNAL)
            return lines

        assert logged(first, second) == ["<5>routes in force: 2"]
        assert logged(first, second) == []
        node.ip("route del 172.20.1.0/24")
        assert logged(first, second) == ["<4>repaired: + 172.20.1.0/24 via 10.224.0.1 dev eth0"]
        node.ip("route flush proto 142")
        assert logged(first, second) == [
            "<4>repaired: + 172.20.0.0/24 via 10.224.0.1 dev eth0, and 1 more"
        ]
        assert logged(first, second) == []
        node.ip("route del 172.20.1.0/24")
        # Beside a refusal that stays.
        fact = (
            "refused: 172.20.2.0/24 via 10.9.9.9 dev eth0: ip has complained first: "
            "Error: Nexthop has invalid gateway."
        )
        assert logged(first, refused) == [f"<3>{fact}"]
        [short] = logged(first, refused)
        assert re.fullmatch(r"<3>as before, since \d\d:\d\d: " + re.escape(fact), short)

    @pytest.mark.parametrize(
        "commands",
        [
            # The first of a device decides.
            "default via 10.224.0.1 dev eth0; default via 10.224.0.9 dev eth0 metric 5",
            "default via 10.224.0.1 dev eth0 metric 5 mtu 1400; default via 172.16.1.9 dev ib0 metric 9",
        ],
    )
    def test_which_default_route_completes_a_route(self, node: KernelNode, commands: str) -> None:
        """A route is completed by the first default route of a device, and by that of two devices
        with the lower metric.
        """
        for command in commands.split("; "):
            node.ip(f"route add {command}")
        config = config_of([StaticRoute(destination="172.20.1.0/24")])
        assert boot(node, *config.static_routes.routes) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(ROUTE)]

    def test_another_default_route_may_complete_a_route(self, node: KernelNode) -> None:
        """A route by the device of a second default route is left to the program, which completes
        it.
        """
        node.ip("route add default via 10.224.0.1 dev eth0")
        node.ip("route add default via 172.16.1.9 dev ib0 metric 9")
        config = config_of([StaticRoute(destination="172.20.1.0/24", dev="ib0")])
        assert boot(node, *config.static_routes.routes)[0] == 12
        assert own_routes(node) == []
        assert boot_with_program(node, config) == (10, ["routes in force: 1"])
        assert own_routes(node) == ["172.20.1.0/24 via 172.16.1.9 dev ib0"]

    def test_an_expired_default_route(self, node: KernelNode, tmp_path: Path) -> None:
        """A default route that has expired and stays listed for a while is left to the program."""
        node.ip("-6 address add fe80::1/64 dev eth0 nodad")
        node.ip("-6 route add default via fe80::a dev eth0 expires 100")
        route = StaticRoute(destination="fd00:1::/48")
        environment = another_ip(
            tmp_path, f'{IP} "$@" 2>&1 | sed "s/expires [0-9]*sec/expires -5sec/"'
        )
        assert boot(node, route, environment=environment)[0] == 12
        assert boot(node, route) == (10, ["routes in force: 1"])

    def test_a_route_that_is_not_wanted(self, node: KernelNode) -> None:
        """The script does not remove an unwanted route. The program removes even a default route of
        hostrouting, which would complete itself, and completes the wanted route by another one.
        """
        node.ip("route add default via 10.224.0.9 dev eth0 proto 142")
        node.ip("route add default via 10.224.0.1 dev eth0 metric 5")
        config = config_of([StaticRoute(destination="172.20.1.0/24")])
        status, [line] = boot(node, *config.static_routes.routes)
        assert status == 12
        assert own_routes(node) == ["default via 10.224.0.9 dev eth0"]
        assert line.startswith(f"static routes {UNPROVEN}row (default via 10.224.0.9 dev eth0); ")
        assert boot_with_program(node, config) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(ROUTE)]

    def test_an_addition_without_effect(self, node: KernelNode, tmp_path: Path) -> None:
        """A route that ip accepts and the kernel does not have is not in force."""
        environment = another_ip(tmp_path, f'sed "s/^route add .*//" | {IP} "$@"')
        status, [line] = boot(node, ROUTE, environment=environment)
        assert status == 12
        assert line.startswith(f"static routes {UNPROVEN}missing ({own_route(ROUTE)}); ")

    def test_a_device_without_carrier(self) -> None:
        """A route by a device without carrier is in force, and is found again by the next run."""
        with KernelNode.made() as node:
            node.add_link("eth0", carrier=False)
            node.add_address("eth0", "10.224.0.4/16")
            for _ in range(2):
                assert boot(node, ROUTE) == (10, ["routes in force: 1"])
            assert own_routes(node) == [f"{ROUTE} linkdown"]

    def test_a_gateway_that_is_taken_to_be_on_the_link(self, node: KernelNode) -> None:
        """A route by an `onlink` default gateway is left to the program, which adds the word."""
        node.ip("route add default via 192.0.2.1 dev eth0 onlink")
        config = config_of([StaticRoute(destination="172.20.1.0/24")])
        assert boot(node, *config.static_routes.routes)[0] == 12
        assert boot_with_program(node, config) == (10, ["routes in force: 1"])
        assert own_routes(node) == ["172.20.1.0/24 via 192.0.2.1 dev eth0 onlink"]

    def test_a_dead_next_hop_is_passed_over(self, node: KernelNode) -> None:
        """The kernel passes over a dead next hop of a default route: the script leaves such a route
        to the program, which completes by the living next hop.
        """
        node.ip("route add default nexthop via 172.16.1.1 dev ib0 nexthop via 10.224.0.1 dev eth0")
        node.ip("link set ib0 down")
        config = config_of([StaticRoute(destination="172.20.1.0/24")])
        assert boot(node, *config.static_routes.routes)[0] == 12
        assert boot_with_program(node, config) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(ROUTE)]

    @pytest.mark.parametrize("now", [False, True])
    @pytest.mark.parametrize(
        "foreign_route", ["via 10.224.0.9 dev eth0 proto dhcp", "via 10.224.0.1 dev eth0"]
    )
    def test_a_foreign_route_in_the_place_is_kept_after_the_own_one(
        self, node: KernelNode, foreign_route: str, now: bool
    ) -> None:
        """A foreign route in the place is left to the program, which adds the own route before it;
        the script accepts both afterwards.
        """
        node.ip(f"route add 172.20.1.0/24 {foreign_route}")
        assert boot(node, ROUTE, now=now)[0] == 12
        assert own_routes(node) == []
        hidden = (
            f"foreign route '172.20.1.0/24 {foreign_route}' is hidden by '172.20.1.0/24 via 10.224.0.1 "
            f"dev eth0 proto 142'; {DECIDES_AGAIN}"
        )
        ran = boot_with_program(node, CONFIG_OF_ROUTE, now=now)
        assert ran == (10, [hidden, "routes in force: 1"])
        both = f"172.20.1.0/24 via 10.224.0.1 dev eth0 proto 142 \n172.20.1.0/24 {foreign_route} \n"
        assert node.ip("route show 172.20.1.0/24") == both
        assert boot(node, ROUTE) == (10, ["routes in force: 1"])
        assert node.ip("route show 172.20.1.0/24") == both

    @pytest.mark.parametrize(
        "command",
        [
            # The kernel refuses to add the same route once more.
            "prepend 172.20.1.0/24 via 10.224.0.9 dev eth0",
            "prepend 172.20.1.0/24 via 10.224.0.9 dev eth0 proto 142",
            "prepend blackhole 172.20.1.0/24",
            "append 172.20.1.0/24 via 10.224.0.9 dev eth0 proto 142",
            "append 172.20.1.0/24 via 10.224.0.1 dev eth0 onlink proto 142",
            "add 172.20.1.0/24 tos 8 via 10.224.0.9 dev eth0",
            "add 172.21.0.0/16 proto 142 nexthop via 10.224.0.1 dev eth0 nexthop dev ib0",
            "add blackhole 172.21.0.0/16 proto 142",
            "add local 172.21.0.0/16 dev lo table main proto 142",
        ],
    )
    def test_what_is_not_plain_is_for_the_program(self, node: KernelNode, command: str) -> None:
        """The script changes nothing on a node that is not plain, and calls it neither right nor
        wrong; the program changes no foreign route.
        """
        assert boot(node, ROUTE)[0] == 10
        node.ip(f"route {command}")
        before = node.ip("-o route show")
        status, [line] = boot(node, ROUTE, now=True)
        assert node.ip("-o route show") == before
        assert status == 12
        assert re.match(rf"static routes {UNPROVEN}(place|row) \(.*\); ", line)
        assert boot_with_program(node, CONFIG_OF_ROUTE)[0] == 10
        assert own_routes(node) == [own_route(ROUTE)]
        [first, *_] = node.ip("route show 172.20.1.0/24").splitlines()
        assert ("tos" in first) or first == f"{ROUTE} proto 142 "
        after = node.ip("-o route show")
        assert foreign_lines(after) == foreign_lines(before)

    def test_a_connected_route_that_came_after_the_own_one(self, node: KernelNode) -> None:
        """A connected route behind the own one is accepted, but the own route is never put before a
        connected one.
        """
        assert boot(node, ROUTE)[0] == 10
        node.ip("address add 172.20.1.4/24 dev ib0")
        assert boot(node, ROUTE) == (10, ["routes in force: 1"])
        node.ip("route del 172.20.1.0/24 proto 142")
        assert boot(node, ROUTE)[0] == 12
        assert boot_with_program(node, CONFIG_OF_ROUTE) == (
            11,
            [
                (
                    f"refused: {ROUTE}: the kernel's own route '172.20.1.0/24 dev ib0 proto kernel "
                    f"scope link src 172.20.1.4' {NEVER_OVERWRITTEN}"
                )
            ],
        )
        assert own_routes(node) == []
        # Nor before a foreign one that hides it.
        node.ip("route prepend 172.20.1.0/24 via 10.224.0.9 dev eth0")
        assert boot(node, ROUTE)[0] == 12
        assert own_routes(node) == []

    @pytest.mark.parametrize(
        "also", ["", "add 172.20.1.0/32 via 10.224.0.9 dev eth0", "append 172.20.1.0/24 dev eth0"]
    )
    def test_one_ip_where_all_is_right(self, node: KernelNode, tmp_path: Path, also: str) -> None:
        """One process of `ip` proves that the routes are in force, even if a foreign route follows
        or another place decides an address.
        """
        assert boot(node, ROUTE)[0] == 10
        if also:
            node.ip(f"route {also}")
        (tmp_path / "static-routes.told").touch()
        environment = another_ip(tmp_path, f'echo >>{tmp_path}/calls; exec {IP} "$@"')
        assert boot(node, ROUTE, folder=tmp_path, environment=environment) == (
            10,
            ["routes in force: 1"],
        )
        assert (tmp_path / "calls").read_text() == "\n"

    def test_two_ip_at_a_boot(self, node: KernelNode, tmp_path: Path) -> None:
        """A boot runs `ip` twice: once to find the places empty, and once to add the routes and
        prove them.
        """
        environment = another_ip(tmp_path, f'echo >>{tmp_path}/calls; exec {IP} "$@"')
        assert boot(node, ROUTE, environment=environment) == (10, ["routes in force: 1"])
        assert (tmp_path / "calls").read_text() == "\n\n"

    @pytest.mark.parametrize("name", ["main", "254"])
    def test_a_table_with_the_name_of_main(
        self, node: KernelNode, tmp_path: Path, name: str
    ) -> None:
        """A table 100 that a file names like main does not pass for it."""
        assert boot(node, ROUTE)[0] == 10
        node.ip(f"route add {ROUTE} proto 142 table 100")
        node.ip("route prepend 172.20.1.0/24 via 10.224.0.9 dev eth0 proto dhcp")
        names = tmp_path / "rt_tables"
        names.write_text(f"255 local\n254 main\n253 default\n100 {name}\n")
        bind = f'mount --bind {names} /etc/iproute2/rt_tables; exec {IP} "$@"'
        environment = another_ip(tmp_path / "bin", f"exec unshare --mount sh -c '{bind}' sh \"$@\"")
        assert boot(node, ROUTE, environment=environment)[0] == 12

    def test_a_place_that_another_program_takes_meanwhile(
        self, node: KernelNode, tmp_path: Path
    ) -> None:
        """The script overwrites no route of a daemon that is faster after each look, and leaves the
        answer to the program.
        """
        environment = another_ip(
            tmp_path,
            f"""
            text=$(cat)
            {IP} "$@" <<<"$text"; status=$?
            [[ $text != *'route show root'* ]] ||
              {IP} route prepend 172.20.1.0/24 via 10.224.0.247 dev eth0 proto bird 2> /dev/null
            exit $status
            """,
        )
        (tmp_path / "static-routes.told").touch()
        assert boot(node, ROUTE, folder=tmp_path, environment=environment) == (
            12,
            [
                (
                    f"static routes {UNPROVEN}place (172.20.1.0/24 via 10.224.0.247 "
                    "dev eth0 proto bird); /nonexistent is no file that can be read; run: hostrouting apply "
                    "/etc/aks-flex-node/hostrouting.json"
                )
            ],
        )
        node.ip("route flush 172.20.1.0/24")
        script = "touch /run/aks-flex-node/static-routes.told"
        status, _ = boot_with_program(node, CONFIG_OF_ROUTE, before=script, environment=environment)
        assert status == 10
        assert node.ip("route show 172.20.1.0/24").splitlines() == [
            "172.20.1.0/24 via 10.224.0.1 dev eth0 proto 142 ",
            "172.20.1.0/24 via 10.224.0.247 dev eth0 proto bird ",
        ]

    @pytest.mark.slow
    def test_what_grows_with_the_routes(self, node: KernelNode, tmp_path: Path) -> None:
        """Each further route costs a boot one command and two rows, a later start the rows alone,
        and neither a process.
        """
        counts = []
        for size in 1_000, 10_000:
            destinations = [f"11.{n >> 16}.{n >> 8 & 255}.{n & 255}/32" for n in range(size)]
            routes = [attrs.evolve(ROUTE, destination=destination) for destination in destinations]
            (tmp_path / "static-routes.told").unlink(missing_ok=True)
            for _ in "a boot", "a later start":
                boot(node, *routes, folder=tmp_path, environment=counted_ip(tmp_path))
                counts.append(take_counts(tmp_path))
                (tmp_path / "static-routes.told").touch()
            node.ip("route flush root 11.0.0.0/8")
        cold, warm, cold_of_more, warm_of_more = counts
        assert cold_of_more == (cold.processes, cold.commands + 9_000, cold.lines + 9_000 * 2)
        assert cold.lines < 3_000
        assert warm_of_more == (warm.processes, warm.commands, warm.lines + 9_000 * 2)
        assert warm.lines < 3_000

    @pytest.mark.parametrize(
        "program",
        [
            "",
            "kill -9 $$",
            "head -c 9 >/dev/null; echo 172.16.1.0/24; exit 0",
            # After the first sentinel of several.
            r"""head -c 9 >/dev/null; printf 'Object "end" is unknown, try "ip help".\nCommand failed -:1\n'""",
        ],
    )
    def test_a_broken_ip(self, node: KernelNode, tmp_path: Path, program: str) -> None:
        """An `ip` that is missing, killed, or ends half-way gives the script no verdict; the
        program does not need it.
        """
        if program:
            another_ip(tmp_path, program)
        for tool in "bash", "head", "timeout":
            (tmp_path / tool).symlink_to(shutil.which(tool) or "")
        environment = {"PATH": str(tmp_path)}
        status, [line] = boot(node, ROUTE, environment=environment)
        assert status == 12
        assert re.match(rf"static routes {UNPROVEN}ip( \(.*\))?; ", line)
        assert boot_with_program(node, CONFIG_OF_ROUTE, environment=environment) == (
            10,
            ["routes in force: 1"],
        )

    def test_a_surplus_route_by_a_nexthop_object(self, node: KernelNode) -> None:
        """A surplus route by a nexthop object is removed by the program from each table, as one by
        a gateway.
        """
        node.ip("nexthop add id 5 via 10.224.0.7 dev eth0")
        for route in (
            "172.30.0.0/16 nhid 5",
            "172.31.0.0/16 nhid 5 table 100",
            "172.31.0.0/17 via 10.224.0.7 dev eth0 table 100",
        ):
            node.ip("route add", *route.split(), "proto 142")
        assert boot(node, ROUTE)[0] == 12
        assert boot_with_program(node, CONFIG_OF_ROUTE) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(ROUTE)]

    def test_an_own_route_that_stands_needs_no_default_route(self, node: KernelNode) -> None:
        """A completed route stays in force after the default route is lost, as the program
        finds.
        """
        node.ip("route append default via 10.224.0.1 dev eth0")
        config = config_of([StaticRoute(destination="172.20.1.0/24")])
        assert boot(node, *config.static_routes.routes)[0] == 10
        node.ip("route del default")
        assert boot(node, *config.static_routes.routes, now=True)[0] == 12
        assert boot_with_program(node, config, now=True) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(ROUTE)]

    def test_each_refused_route_is_named(self, node: KernelNode) -> None:
        """The script names each refused route with ip's first complaint, and the program each with
        its reason; the other routes are in force.

        The mode of a gate's unit, or a variable of that name, does not open it.
        """
        routes = [
            static_route("172.16.1.0/24 via 10.9.9.9 dev eth0"),
            static_route("172.16.2.0/24 via 10.224.0.1 dev eth0"),
            static_route("172.16.3.0/24 via 10.224.0.1 dev eth7"),
            StaticRoute(destination="172.16.4.0/24", dev="ib0"),
        ]
        complaint = "ip has complained first: Error: Nexthop has invalid gateway."
        assert boot(node, *routes) == (
            11,
            [
                f"refused: 172.16.4.0/24 via ? dev ib0: {INCOMPLETE}",
                f"refused: 172.16.1.0/24 via 10.9.9.9 dev eth0: {complaint}",
                f"refused: 172.16.3.0/24 via 10.224.0.1 dev eth7: {complaint}",
            ],
        )
        assert own_routes(node) == ["172.16.2.0/24 via 10.224.0.1 dev eth0"]
        assert boot_with_program(node, config_of(routes), environment={"mode": "WARN"}) == (
            11,
            [
                (f"refused: 172.16.4.0/24 dev ib0: {no_gateway('ib0')}; {SEE_DHCP}"),
                f"refused: 172.16.3.0/24 via 10.224.0.1 dev eth7: {NO_DEVICE}",
                (
                    "refused: 172.16.1.0/24 via 10.9.9.9 dev eth0: Nexthop has invalid gateway "
                    f"(Network is unreachable); no network of eth0 has the gateway 10.9.9.9; {CORRECT_GATEWAY}"
                ),
            ],
        )
        assert own_routes(node) == ["172.16.2.0/24 via 10.224.0.1 dev eth0"]

    def test_a_run_is_under_way(self, node: KernelNode) -> None:
        """A run that holds the lock leaves the script without an answer of the program, and nothing
        changes.
        """
        node.ip("route add blackhole 172.21.0.0/16 proto 142")
        held = "exec 7> /run/hostrouting.lock; flock 7"
        status, [line] = boot_with_program(node, CONFIG_OF_ROUTE, before=held)
        assert status == 12
        assert line.startswith(
            f"static routes {UNPROVEN}row (blackhole 172.21.0.0/16); another run of "
        )
        assert own_routes(node) == ["blackhole 172.21.0.0/16"]

    def test_the_program_finds_what_may_be_late(self, node: KernelNode) -> None:
        """The script waits for the reason that the program returns, and prints its refusal in the
        end.
        """
        node.ip("link set eth0 down")
        refused = f"{ROUTE}: Nexthop has invalid gateway (Network is unreachable)"
        assert boot_with_program(node, CONFIG_OF_ROUTE, waits=1) == (
            11,
            [f"waiting up to 1 s: {refused}", f"refused: {refused}"],
        )
        node.ip("link set eth0 up")
        assert boot_with_program(node, CONFIG_OF_ROUTE, waits=1) == (10, ["routes in force: 1"])

    def test_a_line_that_bash_cannot_evaluate(self, node: KernelNode) -> None:
        """A line that bash cannot evaluate ends the script with 12, so that nothing counts as
        known.
        """
        node.ip(f"route append {ROUTE} proto dhcp")
        script = impatient(CONFIG_OF_ROUTE)
        broken = script.replace(b"route=$1 metric=0\n", b"route=$1 metric=$((08))\n")
        assert broken != script
        argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", "-s"]
        done = subprocess.run(argv, input=broken, capture_output=True, check=False)
        assert b"value too great for base" in done.stderr
        assert done.returncode == 12

    def test_a_folder_in_place_of_the_program(self, node: KernelNode) -> None:
        """A folder in the place of the program is reported as unreadable with a next step."""
        node.ip("route add blackhole 172.21.0.0/16 proto 142")
        program = "/etc/aks-flex-node/hostrouting.zip"
        before = f"rm {program}; mkdir {program}"
        status, [line] = boot_with_program(node, CONFIG_OF_ROUTE, before=before)
        assert status == 12
        assert f"; {program} is no file that can be read; run: hostrouting apply " in line

    def test_an_intent_that_is_lost(self, node: KernelNode) -> None:
        """A node whose installed config is lost gets no answer of the program or the script."""
        node.ip("route add blackhole 172.21.0.0/16 proto 142")
        status, [line] = boot_with_program(
            node, CONFIG_OF_ROUTE, before="rm /etc/aks-flex-node/hostrouting.json"
        )
        assert status == 12
        assert "row (blackhole 172.21.0.0/16); no config is installed: " in line

    @pytest.mark.parametrize("name", ["dev", "via", "metric", "onlink", "@", "a+b", "eth-ü"])
    def test_odd_device_names(self, node: KernelNode, name: str) -> None:
        """A device whose name is a word of ip, or may mean more to bash, has its route by the
        script or by the program.
        """
        node.ip(f"link add name {name} up type ifb")
        node.ip(f"address add 192.168.1.1/24 dev {name}")
        node.ip(f"route add default via 192.168.1.2 dev {name}")
        route = StaticRoute(destination="172.16.1.0/24", dev=name)
        if name.isascii() and name.isalpha():
            # Beside its place.
            node.ip(f"route add 172.16.1.0/24 dev {name} metric 5")
            assert boot(node, route) == (10, ["routes in force: 1"])
        else:
            assert boot(node, route)[0] == 12
            assert boot_with_program(node, config_of([route])) == (10, ["routes in force: 1"])
        assert own_routes(node) == [f"172.16.1.0/24 via 192.168.1.2 dev {name}"]

    def test_a_device_that_is_called_like_a_state(self, node: KernelNode) -> None:
        """The name of a device that is called `linkdown` is not read as the state of another
        device.
        """
        node.ip("link add name linkdown up type ifb")
        route = static_route("172.16.1.0/24 via 10.224.0.1 dev eth0")
        node.ip("route add 172.16.1.0/24 via 10.224.0.1 dev linkdown onlink proto 142")
        assert boot(node, route)[0] == 12
        assert boot_with_program(node, config_of([route])) == (10, ["routes in force: 1"])
        assert own_routes(node) == [own_route(route)]
