"""The waits of the check, which are made only if its proof fails and may become right, and last 30
s in all: the task for a run, the script for a boot.

What may become right, the program finds out for the script.
"""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.counted_ip import IP, another_ip
from support.kernel import connect, needs_kernel
from support.overlap_answers import ScriptRun, run_script
from support.printed import NO_DEVICE_OF, WAITING, leaves

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
        f"there is no network device {NO_DEVICE_OF}",
    ),
    "another way": ([ASTRAY], ISOLATED, ""),
    "another way than the default route": (["default via 10.224.0.1", ASTRAY], {}, ""),
    "another way for a part": (["10.96.0.0/17 dev ib0"], ISOLATED, ""),
    "blocked": ([HALF, "blackhole 10.96.128.0/17"], ABSENT, ""),
    "local": (["local 10.96.0.1 dev ib0 table local"], ABSENT, ""),
    "announced": ([f"{CIDR} via 10.224.0.1"], {**ABSENT, "fabric": ["10.96.0.0/20"]}, ""),
}
#: Runs the command after it so many seconds after the boot, which no wait adds to.
FROZEN = 'printf %b "$1" > "$0"; mount --bind "$0" /proc/uptime; exec "${@:2}"'
#: Runs the command after it where $0 cannot be written.
UNWRITABLE = 'mount -t tmpfs -o ro none "$0"; exec "$@"'


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
    """The task waits if its proof may become right, logs the reason, and does not wait
    otherwise.
    """
    routes, section, reason = CASES[case]
    for route in routes:
        node.ip(f"route add {route}")
    assert checked(node, section) == (False, 30 if reason else 0)
    assert caplog.messages == ([f"{WAITING}{reason}"] if reason else [])


@pytest.mark.parametrize("rule", ["del pref 32766", f"add pref 100 to {CIDR} unreachable"])
def test_a_rule_is_not_waited_for(
    node: KernelNode, caplog: pytest.LogCaptureFixture, rule: str
) -> None:
    """The task does not wait for a missing rule of table main, or for the removal of a rule that
    refuses: a program mends neither, though the errno is that of a missing route.
    """
    node.ip("route add default via 10.224.0.1")
    node.ip(f"rule {rule}")
    assert checked(node, {}) == (False, 0)
    assert caplog.messages == []


@pytest.mark.parametrize("section", [ISOLATED, ABSENT])
def test_a_right_node_starts_at_once(
    node: KernelNode, caplog: pytest.LogCaptureFixture, section: Mapping[str, object]
) -> None:
    """The task does not wait on a right node without a default route, or without one of the
    expected devices.
    """
    node.ip(f"route add {CIDR} via 10.224.0.1")
    assert checked(node, section) == (True, 0)
    assert caplog.messages == []


def test_a_script_does_not_wait_at_a_right_node(node: KernelNode, folder: Path) -> None:
    """The script does not wait on a right node without a default route."""
    node.ip(f"route add {CIDR} via 10.224.0.1")
    ran = run_script(node, folder, [CIDR], options=ISOLATED, waits=30, second=0.01)
    assert ran == (10, FINE, {"route-overlap.ok": FINE})


@pytest.mark.parametrize("section", [{}, ISOLATED])
def test_it_passes_when_the_route_comes(
    node: KernelNode, folder: Path, section: Mapping[str, object]
) -> None:
    """The script looks again after a second, and accepts the node once the route has come."""
    lease = f"{IP} route add default via 10.224.0.1 dev eth0 2>/dev/null"
    program = f'[[ -e {folder}/waited ]] && {lease}; exec {IP} "$@"'
    environment = another_ip(folder.with_name("tools"), program)
    ran = run_script(
        node, folder, [CIDR], options=section, waits=30, environment=environment, second=0.01
    )
    assert ran.status == 10
    assert len(logged_waits(ran)) == 1
    assert {*ran.markers} == {"route-overlap.ok", "waited"}
    assert ran.markers["route-overlap.ok"] == FINE


class TestOnceInABoot:
    """The waits of one boot: the first script that waits notes the second of /proc/uptime at which
    the waiting ends.
    """

    @staticmethod
    def run(
        node: KernelNode, folder: Path, *, uptime: str = "100.25 1.2\\n", waits: int = 30
    ) -> ScriptRun:
        """Run the script so long after the boot; each look of it takes 10 s."""
        clock = folder.with_name("uptime")
        slow = f'read -r now _ <{clock}; echo $((${{now%.*}} + 10)).00 >{clock}; exec {IP} "$@"'
        [path] = another_ip(folder.with_name("bin"), slow).values()
        through = ["unshare", "--mount", "bash", "-ec", FROZEN, str(clock), uptime]
        through += ["env", f"PATH={path}"]
        return run_script(node, folder, [CIDR], waits=waits, through=through, second=0.01)

    @pytest.mark.parametrize(
        ("end", "is_first", "until"),
        [
            (None, True, 140),
            ("111\n", False, 120),
            ("110\n", False, 110),
            ("100\n", False, 110),
            ("", True, 140),
            ("nonsense\n", True, 140),
        ],
    )
    def test_the_rest_is_waited_for(
        self, node: KernelNode, folder: Path, *, end: str | None, is_first: bool, until: int
    ) -> None:
        """A script waits for the rest of the boot's time, and logs the wait if it is the first to
        wait; a file without a number counts as absent.
        """
        if end is not None:
            (folder / "waited").write_text(end)
        ran = self.run(node, folder)
        assert logged_waits(ran) == ([f"{WAITING}{NO_ANSWER}"] if is_first else [])
        assert ran.status == 12
        assert folder.with_name("uptime").read_text() == f"{until}.00\n"

    @pytest.mark.parametrize("end", ["141\n", "99999999999999999999\n", "0x77\n", "-1\n", "08\n"])
    def test_no_damage_lasts_longer_than_a_boot(
        self, node: KernelNode, folder: Path, end: str
    ) -> None:
        """A script waits 30 s at most, even if the file has an end that a script has not written."""
        (folder / "waited").write_text(end)
        ran = self.run(node, folder)
        assert ran.status == 12
        assert float(folder.with_name("uptime").read_text()) <= 150

    @pytest.mark.parametrize("marker", ["route-overlap.ok", "route-overlap.detected"])
    def test_a_start_after_the_first_verdict_does_not_wait(
        self, node: KernelNode, folder: Path, marker: str
    ) -> None:
        """A script does not wait once a marker of the boot exists, right or not."""
        (folder / marker).write_text("\n")
        ran = run_script(node, folder, [CIDR], waits=30, second=0.01)
        assert logged_waits(ran) == []
        assert ran.markers == {}

    def test_a_killed_script_has_counted(self, node: KernelNode, folder: Path) -> None:
        """A script that is killed during its wait has noted the end of the wait for the next
        start.
        """
        config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": [CIDR]}})
        script = folder.with_name("script")
        text = render_script(config).replace(b"/run/aks-flex-node", bytes(folder))
        text = text.replace(b"/etc/aks-flex-node/hostrouting.zip", b"/nonexistent/hostrouting.zip")
        script.write_bytes(text.replace(b"python=/usr/bin/python3", b"python=/nonexistent"))
        argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", str(script)]
        before = seconds_since_boot()
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline().decode() == f"{WAITING}{NO_ANSWER}\n"
            waiting.kill()
        end = int((folder / "waited").read_text())
        assert before + 30 <= end <= seconds_since_boot() + 30

    @pytest.mark.parametrize("uptime", ["100.25 1.2\\n", ""])
    def test_where_nothing_can_be_noted(self, node: KernelNode, folder: Path, uptime: str) -> None:
        """A script does not wait if /run cannot be written, or the time since the boot is
        unknown.
        """
        clock = folder.with_name("uptime")
        through = ["unshare", "--mount", "bash", "-ec", FROZEN, str(clock), uptime]
        if uptime:
            through += ["bash", "-ec", UNWRITABLE, str(folder)]
        ran = run_script(node, folder, [CIDR], waits=2, through=through, second=0.01)
        assert logged_waits(ran) == []
        assert ran.status == 12


def seconds_since_boot() -> int:
    return int(float(Path("/proc/uptime").read_text().split()[0]))
