"""The boot script and its unit: their files, and the behaviour of the script apart from the task."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from support.boot_units import assert_systemd_accepts
from support.counted_ip import IP, another_ip, counted_ip, take_counts
from support.examples import FEW
from support.filled import asset, changes
from support.kernel import connect, needs_kernel
from support.needs import needs
from support.static_route_worlds import boot, config_of, impatient, static_route

from hostrouting import HostRoutingConfig, StaticRoute
from hostrouting.boot import units_in
from hostrouting.static_routes import render_script
from hostrouting.static_routes.script import boot_part
from hostrouting.testing import KernelNode, strategies

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
        """As ip shows them, in the kernel's order: a network of IPv6 follows all that lies in it.
        What a default route completes is between bars.
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
            *("-tables[4]='@TABLE@'", "+tables[4]='route show table main root 10.0.0.0/8'"),
            *("-exits[4]='@EXIT@'", "+exits[4]=''"),
            *("-@ROUTES6@'", "-counts[6]=@COUNT6@", "-tables[6]='@TABLE6@'", "-exits[6]='@EXIT6@'"),
            "+fd00:1::9 via fe80::1 dev eth0 metric 5 pref medium",
            "+fd00:1::/32 |via ? dev eth0| metric 1 pref medium",
            "+fd00::/16 |via ? dev ?| metric 1 pref medium",
            *("+'", "+counts[6]=3", "+tables[6]='route show table main root fd00::/16'"),
            "+exits[6]=''",
        ]

    def test_where_they_go(self) -> None:
        """The script before the unit that names it, with the modes that they need; rendered twice
        it is the same.
        """
        assert [(file.path, oct(file.mode)) for file in UNIT.files] == [
            ("/etc/aks-flex-node/static-routes.sh", "0o755"),
            ("/etc/systemd/system/static-routes.service", "0o644"),
        ]
        assert UNIT.files[0].content == render_script(CONFIG)

    @pytest.mark.slow
    def test_shellcheck_has_nothing_to_say(self, tmp_path: Path) -> None:
        """The rendered script, with and without routes."""
        both = config_of(
            [StaticRoute(destination=destination) for destination in ("fd00::/8", "10.0.0.0/8")]
        )
        for config in CONFIG, both, HostRoutingConfig():
            (tmp_path / "script.sh").write_bytes(render_script(config))
            subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    @needs("systemd-analyze")
    def test_systemd_has_nothing_to_say(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing, and the unit is exposed to 3.2 at most."""
        assert_systemd_accepts(UNIT, tmp_path)

    @settings(max_examples=FEW)
    @given(strategies.configs())
    def test_any_config_is_data_to_bash(self, config: HostRoutingConfig) -> None:
        """Whatever validates, bash reads it as the words that the config has, and runs nothing of
        it.
        """
        script = render_script(config)
        start = script.index(b"routes[4]=")
        text = script[start : script.index(b"\n\n", start)]
        program = b"LC_ALL=C\nset -f\n" + text + b'\nprintf %s "${routes[@]}"\n'
        done = subprocess.run(
            ["bash", "-r"], input=program, capture_output=True, check=True, env={}
        )
        lines = [
            f"{route.destination.removesuffix('/128' if ':' in route.destination else '/32')} via "
            f"{'inet6 ' if ':' in (route.gateway or '') and ':' not in route.destination else ''}"
            f"{route.gateway or '?'} dev {route.dev or '?'} {f'metric {route.metric} ' if route.metric else ''}"
            f"{'pref medium' if ':' in route.destination else ''}"
            for route in config.static_routes.routes
        ]
        said = done.stdout.decode()
        assert sorted(filter(None, said.replace("|", "").splitlines())) == sorted(lines)
        assert done.stderr == b""


#: What most tests here want, on a node whose eth0 has the gateway on its link.
ROUTE = static_route("172.20.1.0/24 via 10.224.0.1 dev eth0")
JOURNAL = {"JOURNAL_STREAM": "8:4711"}


@contextmanager
def waiting(
    node: KernelNode, folder: Path, route: StaticRoute, reason: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the script until it waits, for this reason."""
    script = impatient(config_of([route]), waits=30, folder=str(folder)).decode()
    argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", "-c", script]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting up to 30 s: {reason}\n"
        yield process


def ours(node: KernelNode) -> list[str]:
    return [line.strip() for line in node.ip("route show table all proto 142").splitlines()]


def ours_of(route: StaticRoute) -> str:
    return f"{route.destination} via {route.gateway} dev {route.dev}"


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
        with waiting(node, tmp_path, open_route, "table main has no IPv4 default route") as process:
            node.ip("route append default via 10.224.0.1 dev eth0 proto 16")
            assert process.communicate(timeout=300) == ("routes in force: 1\n", "")
        assert ours(node) == ["172.16.1.0/24 via 10.224.0.1 dev eth0"]

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
        """The route says gateway and device, and neither is there yet: refused by the kernel, it is
        tried again.
        """
        node.ip(missing)
        with waiting(node, tmp_path, ROUTE, f"{ours_of(ROUTE)}: {reason}") as process:
            for step in steps.split("; "):
                node.ip(step)
            assert process.communicate(timeout=300) == ("routes in force: 1\n", "")
        assert ours(node) == [ours_of(ROUTE)]
        assert int((tmp_path / "waited").read_text()) in range(1, 20)

    @pytest.mark.parametrize(
        ("gateway", "dev", "reason"),
        [
            (None, "ib0", "no IPv4 default route leaves by ib0, so it has no gateway there"),
            (None, "eth9", "there is no network device eth9"),
            ("10.224.0.1", "eth9", 'Cannot find device "eth9"'),
        ],
    )
    def test_a_route_that_does_not_heal(
        self, node: KernelNode, gateway: str | None, dev: str, reason: str
    ) -> None:
        """The reason comes before the wait and after it; the route that is complete is in force."""
        whole = static_route("172.16.1.0/24 via 10.224.0.1 dev eth0")
        status, said = boot(
            node, whole, StaticRoute(destination="172.16.2.0/24", gateway=gateway, dev=dev), waits=1
        )
        assert status == 11
        assert [line.partition(": ")[0] for line in said] == ["waiting up to 1 s", "refused"]
        assert all(reason in line for line in said)
        assert ours(node) == [ours_of(whole)]

    def test_now_is_one_look(self, node: KernelNode, tmp_path: Path) -> None:
        """With `now` nothing is waited for or counted; the verdict and the exit status are the
        same.
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
        """A node that was right at its boot and lost its default route: the verdict comes at once."""
        node.ip("route append default via 10.224.0.1 dev eth0 proto 16")
        route = StaticRoute(destination="172.16.1.0/24")
        assert boot(node, route, waits=30, folder=tmp_path, environment=JOURNAL) == (
            10,
            ["<5>routes in force: 1"],
        )
        node.ip("route flush all proto dhcp")
        node.ip("route flush proto 142")
        status, [line] = boot(node, route, waits=30, folder=tmp_path, environment=JOURNAL)
        verdict = "<3>refused: 172.16.1.0/24 via ? dev ?: table main has no IPv4 default route"
        assert (status, line.partition("; ")[0]) == (11, verdict)
        assert [path.name for path in tmp_path.iterdir()] == ["static-routes.told"]

    def test_a_repair_is_told_in_one_line(self, node: KernelNode, tmp_path: Path) -> None:
        """For the journal: the first run gives its verdict, and a later one only the routes that it
        had to add.
        """
        first, second, refused = (
            StaticRoute(destination=f"172.20.{n}.0/24", gateway=gateway, dev="eth0")
            for n, gateway in enumerate(["10.224.0.1", "10.224.0.1", "10.9.9.9"])
        )

        def said(*routes: StaticRoute) -> list[str]:
            return boot(node, *routes, folder=tmp_path, environment=JOURNAL)[1]

        assert (said(first, second), said(first, second)) == (["<5>routes in force: 2"], [])
        node.ip("route del 172.20.1.0/24")
        assert said(first, second) == ["<4>repaired: + 172.20.1.0/24 via 10.224.0.1 dev eth0"]
        node.ip("route del 172.20.1.0/24")
        node.ip("route replace 172.20.0.0/24 via 10.224.0.9 dev eth0 proto 142")
        several = "<4>repaired: + 172.20.0.0/24 via 10.224.0.1 dev eth0, and 1 more"
        assert (said(first, second), said(first, second)) == ([several], [])
        # Beside a refusal that stays.
        assert [line.partition(": ")[0] for line in said(first, refused)] == ["<3>refused"]
        node.ip("route del 172.20.0.0/24")
        repaired, short = said(first, refused)
        assert repaired == "<4>repaired: + 172.20.0.0/24 via 10.224.0.1 dev eth0"
        fact = "refused: 172.20.2.0/24 via 10.9.9.9 dev eth0: Error: Nexthop has invalid gateway."
        assert re.fullmatch(r"<3>as before, since \d\d:\d\d: " + re.escape(fact), short)
        assert said(first, refused) == [short]

    def test_ours_that_stands_needs_no_default_route(self, node: KernelNode) -> None:
        """As for the task: what the config names has to stand as it says; whatever else ours has,
        it keeps.
        """
        mine = [
            "172.20.1.0/24 via 10.224.0.1 dev eth0 metric 5 onlink",
            "172.20.2.0/24 dev eth0 scope link",
        ]
        for line in mine:
            node.ip(f"route add proto 142 {line}")
        first, second = static_route("172.20.1.0/24 metric 5"), static_route("172.20.2.0/24")
        assert boot(node, first, second) == (10, ["routes in force: 2"])
        assert [line.split()[0] for line in ours(node)] == [line.split()[0] for line in mine]
        for kept in "via 10.224.0.1 metric 5", "dev eth0 metric 5":
            assert boot(node, static_route(f"172.20.1.0/24 {kept}"))[0] == 10
        for other in "via 10.224.0.9 metric 5", "dev ib0 metric 5", "metric 6":
            assert boot(node, static_route(f"172.20.1.0/24 {other}"))[0] == 11
        assert ours(node) == [mine[0]]

    def test_ours_behind_another_of_ours_does_not_decide(self, node: KernelNode) -> None:
        """Without a default route nothing says which of both is right, so both stay, and the task
        refuses it, too.
        """
        for hop in "via 10.224.0.1 dev eth0", "dev ib0":
            node.ip(f"route prepend 172.20.1.0/24 {hop} proto 142")
        before = ours(node)
        status, [said] = boot(node, static_route("172.20.1.0/24 via 10.224.0.1"), now=True)
        assert (status, said.split(": ")[2].partition(";")[0]) == (
            11,
            "table main has no IPv4 default route",
        )
        assert ours(node) == before

    @pytest.mark.parametrize("now", [False, True])
    def test_several_next_hops_of_ours_that_begin_with_the_wanted_one(
        self, node: KernelNode, now: bool
    ) -> None:
        """The kernel takes a deletion of them for one of the wanted ROUTE, too; the script ends
        with that one alone.
        """
        several = "nexthop via 10.224.0.1 dev eth0 nexthop dev ib0"
        node.ip(f"route add 172.20.1.0/24 proto 142 {several}")
        assert boot(node, ROUTE, now=now) == (10, ["routes in force: 1"])
        assert ours(node) == [ours_of(ROUTE)]

    def test_a_gateway_that_is_taken_to_be_on_the_link(self, node: KernelNode) -> None:
        """An `onlink` default gateway needs the same word in our route."""
        node.ip("route add default via 192.0.2.1 dev eth0 onlink")
        assert boot(node, StaticRoute(destination="172.20.1.0/24"))[0] == 10
        assert ours(node) == ["172.20.1.0/24 via 192.0.2.1 dev eth0 onlink"]

    def test_a_dead_next_hop_is_passed_over(self, node: KernelNode) -> None:
        """As the kernel does: of a default route with two next hops, the one whose device is up
        counts.
        """
        node.ip("route add default nexthop via 172.16.1.1 dev ib0 nexthop via 10.224.0.1 dev eth0")
        node.ip("link set ib0 down")
        assert boot(node, StaticRoute(destination="172.20.1.0/24")) == (10, ["routes in force: 1"])
        assert ours(node) == ["172.20.1.0/24 via 10.224.0.1 dev eth0"]

    @pytest.mark.parametrize("now", [False, True])
    @pytest.mark.parametrize("verb", ["add", "prepend"])
    @pytest.mark.parametrize(
        "theirs", ["via 10.224.0.9 dev eth0 proto dhcp", "via 10.224.0.1 dev eth0"]
    )
    def test_a_foreign_route_in_the_place_is_kept_after_ours(
        self, node: KernelNode, theirs: str, verb: str, now: bool
    ) -> None:
        """Also if it came before ours, all of which are there. It decides again when ours goes. One
        that leads elsewhere is logged once.
        """
        if verb == "prepend":
            assert boot(node, ROUTE)[0] == 10
        node.ip(f"route {verb} 172.20.1.0/24 {theirs}")
        hidden = (
            f"foreign route '172.20.1.0/24 {theirs}' is hidden by '172.20.1.0/24 via 10.224.0.1 dev eth0'; "
            "it decides again when ours is removed"
        )
        told = ["routes in force: 1", *([hidden] if "10.224.0.9" in theirs else [])]
        assert boot(node, ROUTE, now=now) == (10, told)
        both = f"172.20.1.0/24 via 10.224.0.1 dev eth0 proto 142 \n172.20.1.0/24 {theirs} \n"
        assert node.ip("route show 172.20.1.0/24") == both
        assert boot(node, ROUTE) == (10, ["routes in force: 1"])
        assert boot(node) == (10, ["routes in force: 0"])
        assert node.ip("route show 172.20.1.0/24") == f"172.20.1.0/24 {theirs} \n"

    def test_a_connected_route_that_came_after_ours(self, node: KernelNode) -> None:
        """After a flap the kernel's own route follows ours, which stays, and is put first again."""
        assert boot(node, ROUTE)[0] == 10
        node.ip("address add 172.20.1.4/24 dev ib0")
        assert boot(node, ROUTE) == (10, ["routes in force: 1"])
        node.ip("route prepend 172.20.1.0/24 via 10.224.0.9 dev eth0 proto dhcp")
        assert boot(node, ROUTE)[0] == 10
        assert [line.split()[2] for line in node.ip("route show 172.20.1.0/24").splitlines()] == [
            "10.224.0.1",
            "10.224.0.9",
            "ib0",
        ]
        node.ip("route del 172.20.1.0/24 proto 142")
        node.ip("route del 172.20.1.0/24 proto dhcp")
        status, (line,) = boot(node, ROUTE)
        assert (status, line.partition(": '")[0]) == (11, f"refused: {ours_of(ROUTE)}")

    @pytest.mark.parametrize("is_first", [False, True])
    @pytest.mark.parametrize(
        "also", ["", "add 172.20.1.0/32 via 10.224.0.9 dev eth0", "append 172.20.1.0/24 dev eth0"]
    )
    def test_one_ip_where_all_is_right(
        self, node: KernelNode, tmp_path: Path, also: str, is_first: bool
    ) -> None:
        """One batch proves that ours are in force, also where another place decides an address, or
        follows ours.

        So it is at the first start after an apply, which has added the routes: the kernel refuses
        to add them again.
        """
        assert boot(node, ROUTE)[0] == 10
        if also:
            node.ip(f"route {also}")
        if not is_first:
            (tmp_path / "static-routes.told").touch()
        environment = another_ip(tmp_path, f'echo >>{tmp_path}/calls; exec {IP} "$@"')
        assert boot(node, ROUTE, folder=tmp_path, environment=environment) == (
            10,
            ["routes in force: 1"],
        )
        assert (tmp_path / "calls").read_text() == "\n"

    def test_an_addition_precedes_a_deletion(self, node: KernelNode, tmp_path: Path) -> None:
        """A route that left the config is deleted after the narrower one that replaces it was
        added.
        """
        assert boot(node, ROUTE)[0] == 10
        narrow = attrs.evolve(ROUTE, destination="172.20.1.0/25")
        assert boot(node, narrow, now=True, environment=counted_ip(tmp_path))[0] == 10
        sent = "".join(path.read_text() for path in tmp_path.glob("in.*"))
        assert re.findall("^route (add|prepend|delete) ", sent, re.MULTILINE) == ["add", "delete"]

    def test_a_second_reading_repeats_no_change(self, node: KernelNode, tmp_path: Path) -> None:
        """The script sends its changes once, also where a dump was interrupted and it reads the
        tables again.
        """
        environment = another_ip(
            tmp_path,
            f"""
            text=$(cat) && printf '%s\\n' "$text" >>{tmp_path}/in
            {IP} "$@" 2>&1 <<<"$text" | if mkdir {tmp_path}/told; then
                awk '{{ print }} /^Command failed -:/ && !told++ {{ print "Dump was interrupted" }}'
            else
                cat
            fi
            """,
        )
        assert (
            boot(node, ROUTE, folder=tmp_path, environment=environment)[1][0]
            == "routes in force: 1"
        )
        sent = (tmp_path / "in").read_text()
        assert (sent.count(f"route add {ours_of(ROUTE)}"), sent.count("route show table all")) == (
            1,
            2,
        )

    def test_another_programs_replace_between_reading_and_changing_loses_nothing(
        self, node: KernelNode, tmp_path: Path
    ) -> None:
        """Our gateway changes while a daemon replaces our route: no route of the daemon is
        overwritten.
        """
        assert boot(node, ROUTE)[0] == 10
        # The daemon is quick: after every reading of the place it has replaced the first route,
        # once.
        environment = another_ip(
            tmp_path,
            f"""
            text=$(cat)
            {IP} "$@" <<<"$text"; status=$?
            if [[ $text == *'show table main root'* && ! -e {tmp_path}/done ]]; then
              touch {tmp_path}/done; {IP} route replace 172.20.1.0/24 via 10.224.0.247 dev eth0 proto bird
            fi
            exit $status
            """,
        )
        assert (
            boot(node, attrs.evolve(ROUTE, gateway="10.224.0.2"), environment=environment)[0] == 10
        )
        assert (tmp_path / "done").exists()
        assert node.ip("route show 172.20.1.0/24").splitlines() == [
            "172.20.1.0/24 via 10.224.0.2 dev eth0 proto 142 ",
            "172.20.1.0/24 via 10.224.0.247 dev eth0 proto bird ",
        ]

    @pytest.mark.slow
    def test_what_grows_with_the_routes(self, node: KernelNode, tmp_path: Path) -> None:
        """A boot sends a command for each and reads two rows, a later start only the rows; the
        processes stay.
        """
        counts = []
        for size in 1_000, 10_000:
            destinations = [f"11.{n >> 16}.{n >> 8 & 255}.{n & 255}/32" for n in range(size)]
            (tmp_path / "static-routes.told").unlink(missing_ok=True)
            for _ in "a boot", "a later start":
                routes = (
                    attrs.evolve(ROUTE, destination=destination) for destination in destinations
                )
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
    def test_a_broken_ip_is_told_at_once(
        self, node: KernelNode, tmp_path: Path, program: str
    ) -> None:
        """Missing, killed, or ended half-way: its output is no verdict, and the script does not
        wait.
        """
        if program:
            another_ip(tmp_path, program)
        for tool in "bash", "head":
            (tmp_path / tool).symlink_to(shutil.which(tool) or "")
        status, [line] = boot(node, ROUTE, waits=3600, environment={"PATH": str(tmp_path)})
        reason = "ip ended early" if program else f"there is no program 'ip' in {tmp_path}"
        assert status == 12
        assert f"cannot see or change routes: {reason}" in line

    def test_a_surplus_route_by_a_nexthop_object(self, node: KernelNode) -> None:
        """It is removed by the number of the object alone: ip refuses the next hops beside that. A
        blackhole is the object's kind, and not always the route's. For a `local` route, ip needs
        the table main, too.
        """
        node.ip("nexthop add id 5 via 10.224.0.7 dev eth0")
        node.ip("nexthop add id 6 blackhole")
        for route in (
            "172.30.0.0/16 nhid 5",
            "172.31.0.0/16 nhid 5 table 100",
            "172.30.0.0/17 nhid 6",
            "blackhole 172.31.0.0/17 nhid 6",
            "local 172.31.0.0/18 dev lo table main",
        ):
            node.ip("route add", *route.split(), "proto 142")
        wanted = static_route("172.16.2.0/24 via 10.224.0.1 dev eth0")
        assert boot(node, wanted) == (10, ["routes in force: 1"])
        assert ours(node) == [ours_of(wanted)]

    def test_an_open_route_whose_place_is_taken_meanwhile(
        self, node: KernelNode, tmp_path: Path
    ) -> None:
        """The refusal is for the place alone, and says nothing of the default route that was waited
        for.
        """
        open_route = StaticRoute(destination="172.20.0.0/16")
        with waiting(node, tmp_path, open_route, "table main has no IPv4 default route") as process:
            node.add_address("ib0", "172.20.1.4/16")
            _, said = process.communicate(timeout=300)
        assert said == (
            "refused: 172.20.0.0/16 via ? dev ?: '172.20.0.0/16 dev ib0 proto kernel scope link src 172.20.1.4' has "
            "this destination and metric, and is never overwritten; configure narrower destinations\n"
        )
        assert int((tmp_path / "waited").read_text()) < 30

    def test_each_refused_route_is_named(self, node: KernelNode) -> None:
        """With ip's own words; routes that succeeded stay, and so does the route in the refused
        one's place.
        """
        node.ip("route append 172.16.3.0/24 via 10.224.0.9 dev eth0 proto 142")
        routes = [
            static_route("172.16.1.0/24 via 10.9.9.9 dev eth0"),
            static_route("172.16.2.0/24 via 10.224.0.1 dev eth0"),
            static_route("172.16.3.0/24 via 10.224.0.1 dev eth7"),
            static_route("172.16.0.0/16 via 10.224.0.1 dev eth0"),
        ]
        assert boot(node, *routes) == (
            11,
            [
                (
                    "refused: 172.16.0.0/16 via 10.224.0.1 dev eth0: '172.16.0.0/16 dev ib0 proto kernel scope link "
                    "src 172.16.1.4' has this destination and metric, and is never overwritten; configure narrower "
                    "destinations"
                ),
                "refused: 172.16.1.0/24 via 10.9.9.9 dev eth0: Error: Nexthop has invalid gateway.",
                'refused: 172.16.3.0/24 via 10.224.0.1 dev eth7: Cannot find device "eth7"',
            ],
        )
        assert ours(node) == [
            "172.16.2.0/24 via 10.224.0.1 dev eth0",
            "172.16.3.0/24 via 10.224.0.9 dev eth0",
        ]
        assert "172.16.0.0/16 dev ib0 proto kernel" in node.ip("route show 172.16.0.0/16")

    @pytest.mark.parametrize("name", ["linkdown", "dev", "via", "metric", "@", "a+b", "eth-ü"])
    def test_odd_device_names(self, node: KernelNode, name: str) -> None:
        """A device may be called as a word of ip's, or have a name that bash could take for more."""
        node.ip(f"link add name {name} up type ifb")
        node.ip(f"address add 192.168.1.1/24 dev {name}")
        node.ip(f"route add default via 192.168.1.2 dev {name} onlink")
        assert boot(node, StaticRoute(destination="172.16.1.0/24", dev=name))[0] == 10
        assert ours(node) == [f"172.16.1.0/24 via 192.168.1.2 dev {name} onlink"]
