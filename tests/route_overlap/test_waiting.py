"""The check waits only if its proof fails and may heal, and 30 s in all: the task for a run, the
script for a boot. What may heal, the program finds out for the script.
"""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.counted_ip import IP, another_ip
from support.kernel import connect, needs_kernel
from support.overlap_answers import ScriptRun, run_script
from support.printed import leaves

from hostrouting import HostRoutingConfig
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap.look import check_now
from hostrouting.route_overlap.script import render_script
from hostrouting.testing import FakeHost, KernelNode
from phases import Context
from phases.testing import ManualClock

pytestmark = needs_kernel

CIDR = "10.96.0.0/16"
WHOLE = f"{CIDR}: no-route 10.96.0.0-10.96.255.255"
FINE = leaves(CIDR, "eth0\n")
NO_DEFAULT = "table main has no IPv4 default route"
#: Without the program.
NO_ANSWER = "not plain (ip), and no answer of /nonexistent/hostrouting.zip"
#: The node is isolated: no default route is expected.
ISOLATED = {"expectedDevs": ["eth0"]}
ABSENT = {"expectedDevs": ["eth0", "eth1"]}
NO_DEVICE = "there is no network device eth1"
HALF = "10.96.0.0/17 via 10.224.0.1"
ASTRAY = f"{CIDR} dev ib0"
#: What is missing at a boot: routes, section, and the reason to wait; without one the node is not
#: waited for.
CASES: Mapping[str, tuple[list[str], Mapping[str, object], str]] = {
    "no default route": ([], {}, NO_DEFAULT),
    "no route": ([], ISOLATED, WHOLE),
    "no route for a part": ([HALF], ISOLATED, f"{CIDR}: no-route 10.96.128.0-10.96.255.255"),
    "no route, no device": ([HALF], ABSENT, NO_DEVICE),
    "another way, no device": ([ASTRAY], ABSENT, NO_DEVICE),
    "another way, no device of the network": (
        [ASTRAY],
        {"expectedDevs": ["10.224.0.0/16"]},
        "there is no network device with a default route and an address in 10.224.0.0/16 (a bridge must be given by its name)",
    ),
    "another way": ([ASTRAY], ISOLATED, ""),
    "another way than the default route": (["default via 10.224.0.1", ASTRAY], {}, ""),
    "another way for a part": (["10.96.0.0/17 dev ib0"], ISOLATED, ""),
    "blocked": ([HALF, "blackhole 10.96.128.0/17"], ABSENT, ""),
    "local": (["local 10.96.0.1 dev ib0 table local"], ABSENT, ""),
    "announced": ([f"{CIDR} via 10.224.0.1"], {**ABSENT, "fabric": ["10.96.0.0/20"]}, ""),
}
#: Runs the command after it where $1 cannot be written, $2 seconds after the boot.
UNWRITABLE = """
mount -t tmpfs -o ro none "$1"; echo "$2" > "$1.uptime"; mount --bind "$1.uptime" /proc/uptime; exec "${@:3}"
"""


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        yield node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hold what the scripts write below /run."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def logged_waits(ran: ScriptRun) -> list[str]:
    return [line for line in ran.output.splitlines() if line.startswith("waiting")]


def checked(node: KernelNode, section: Mapping[str, object]) -> tuple[bool, float]:
    """Return the answer of the library, and the seconds that it waited."""
    clock = ManualClock(auto=True)
    config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": [CIDR], **section}})
    report = check_now(Context(clock=clock), config, FakeHost(NetlinkBackend(netns=node.name)))
    return report.ok, clock.monotonic()


@pytest.mark.parametrize("case", CASES)
def test_what_may_heal(node: KernelNode, caplog: pytest.LogCaptureFixture, case: str) -> None:
    """The task waits for these things, with the reason, and for nothing else."""
    routes, section, reason = CASES[case]
    for route in routes:
        node.ip(f"route add {route}")
    assert checked(node, section) == (False, 30 if reason else 0)
    assert caplog.messages == ([f"waiting up to 30 s: {reason}"] if reason else [])


@pytest.mark.parametrize("rule", ["del pref 32766", f"add pref 100 to {CIDR} unreachable"])
def test_a_rule_is_not_waited_for(
    node: KernelNode, caplog: pytest.LogCaptureFixture, rule: str
) -> None:
    """No program adds the rule of table main again, or removes one that refuses, with the errno of
    a missing route.
    """
    node.ip("route add default via 10.224.0.1")
    node.ip(f"rule {rule}")
    assert checked(node, {}) == (False, 0)
    assert caplog.messages == []


@pytest.mark.parametrize("section", [ISOLATED, ABSENT])
def test_a_right_node_starts_at_once(
    node: KernelNode, folder: Path, caplog: pytest.LogCaptureFixture, section: Mapping[str, object]
) -> None:
    """Without a default route, and without one of the expected devices."""
    node.ip(f"route add {CIDR} via 10.224.0.1")
    assert checked(node, section) == (True, 0)
    assert caplog.messages == []
    ran = run_script(node, folder, [CIDR], options=section, waits=30, second=0.01)
    assert ran == (10, FINE, {"route-overlap.ok": FINE}) or section is ABSENT


@pytest.mark.parametrize("section", [{}, ISOLATED])
def test_it_passes_when_the_route_comes(
    node: KernelNode, folder: Path, section: Mapping[str, object]
) -> None:
    """The script looks again after a second, with all that is there then."""
    lease = f"{IP} route add default via 10.224.0.1 dev eth0 2>/dev/null"
    program = f'[[ -e {folder}/waited ]] && {lease}; exec {IP} "$@"'
    environment = another_ip(folder.with_name("tools"), program)
    ran = run_script(
        node, folder, [CIDR], options=section, waits=30, environment=environment, second=0.01
    )
    assert ran.status == 10
    assert len(logged_waits(ran)) == 1
    assert ran.markers == {"route-overlap.ok": FINE, "waited": "1\n"}


class TestOnceInABoot:
    """The scripts count the seconds in a file."""

    @pytest.mark.parametrize(
        ("waited", "left", "after"),
        [
            (None, 2, 2),
            ("1\n", 1, 2),
            ("2\n", 0, 2),
            ("30\n", 0, 30),
            ("", 2, 2),
            ("nonsense\n", 2, 2),
        ],
    )
    def test_the_rest_is_waited_for(
        self, node: KernelNode, folder: Path, *, waited: str | None, left: int, after: int
    ) -> None:
        """Whichever script has waited; a file without content counts as none."""
        if waited is not None:
            (folder / "waited").write_text(waited)
        ran = run_script(node, folder, [CIDR], waits=2, second=0.01)
        assert logged_waits(ran) == ([f"waiting up to {left} s: {NO_ANSWER}"] if left else [])
        assert ran.status == 12
        assert ran.markers["waited"].strip() == str(after)

    @pytest.mark.parametrize("marker", ["route-overlap.ok", "route-overlap.detected"])
    def test_a_start_after_the_first_verdict_does_not_wait(
        self, node: KernelNode, folder: Path, marker: str
    ) -> None:
        """Right or not, that of the script or of an apply."""
        (folder / marker).write_text("\n")
        ran = run_script(node, folder, [CIDR], waits=30, second=0.01)
        assert logged_waits(ran) == []
        assert ran.markers == {}

    def test_a_killed_script_has_counted(self, node: KernelNode, folder: Path) -> None:
        """The next start waits for the rest alone."""
        config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": [CIDR]}})
        script = folder.with_name("script")
        text = render_script(config).replace(b"/run/aks-flex-node", bytes(folder))
        text = text.replace(b"/etc/aks-flex-node/hostrouting.zip", b"/nonexistent/hostrouting.zip")
        script.write_bytes(text.replace(b"python=/usr/bin/python3", b"python=/nonexistent"))
        argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", str(script)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline().decode() == f"waiting up to 30 s: {NO_ANSWER}\n"
            waiting.kill()
        assert (folder / "waited").read_text() == "1\n"
        assert logged_waits(run_script(node, folder, [CIDR], waits=2, second=0.01)) == [
            f"waiting up to 1 s: {NO_ANSWER}"
        ]

    @pytest.mark.parametrize(
        ("uptime", "waits"), [("299.99 1.2", True), ("300.00 1.2", False), ("", False)]
    )
    def test_where_nothing_can_be_counted(
        self, node: KernelNode, folder: Path, *, uptime: str, waits: bool
    ) -> None:
        """If /run cannot be written, only the first five minutes of a boot wait."""
        through = ["unshare", "--mount", "bash", "-ec", UNWRITABLE, "bash", str(folder), uptime]
        ran = run_script(node, folder, [CIDR], waits=2, through=through, second=0.01)
        assert logged_waits(ran) == ([f"waiting up to 2 s: {NO_ANSWER}"] if waits else [])
        assert ran.status == 12

    def test_what_an_answer_takes_counts(
        self, node: KernelNode, folder: Path, tmp_path: Path
    ) -> None:
        """With 10 s for each answer of ip, the fourth is the last."""
        uptime = tmp_path / "uptime"
        uptime.write_text("100.00 1.2\n")
        slow = f'read -r now _ <{uptime}; echo $((${{now%.*}} + 10)).00 >{uptime}; exec {IP} "$@"'
        [path] = another_ip(tmp_path / "bin", slow).values()
        mounted = f'mount --bind {uptime} /proc/uptime; PATH={path} exec "$@"'
        through = ["unshare", "--mount", "bash", "-ec", mounted, "bash"]
        ran = run_script(node, folder, [CIDR], waits=30, through=through, second=0.01)
        assert logged_waits(ran) == [f"waiting up to 30 s: {NO_ANSWER}"]
        assert uptime.read_text() == "140.00\n"
