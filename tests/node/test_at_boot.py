"""The program that the boot scripts run: the answers of its verbs, and what they leave."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.boot_units import NSPAWN
from support.documents import ROOT
from support.images import make_image
from support.kept_routes import CountedNode
from support.kernel import connect, uplink
from support.needs import needs
from support.overlap_answers import verdict_of
from support.patience import boot_clock
from support.printed import HELPFUL_ROUTES, NOT_ENDED, WAITING
from support.shell_nodes import run_on

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.layout import ANSWER, CONFIG_PATH, GENERATION_LINK, WAITED
from hostrouting.exceptions import HostFileError, InvalidConfigError
from hostrouting.host import RouteChange
from hostrouting.node.at_boot import BootVerdict, answer, known_since, log_lines
from hostrouting.route_overlap.script import COPIES, LOGGED, MARKER_DETECTED, MARKER_OK
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

FABRIC = {"ib0": "172.16.1.4/16"}
FINE = "172.16.8.0/22 leaves through eth0"
FACT = (
    "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 "
    "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)"
)
HEADLINE = "1 of 1 expected CIDRs do not leave entirely through eth0:"
BAD = [HEADLINE, f"  {FACT}", HELPFUL_ROUTES]
HELD = (
    "The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right."
)
LEASE = "table main has no IPv4 default route"
NO_ROUTE = "172.16.8.0/22: no-route 172.16.8.0-172.16.11.255\n"
ROUTE = {"destination": "172.16.8.0/22"}
#: Its device does not come.
LOST = {"destination": "172.16.9.0/24", "gateway": "10.224.0.1", "dev": "eth9"}
REPAIRED = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"


def installed(host: FakeHost, *, beside: object = None, **section: object) -> None:
    """Install the config of a check."""
    section = {"expectedCidrs": ["172.16.8.0/22"], **section}
    document = {"routeOverlap": section, **(beside if isinstance(beside, dict) else {})}
    text = json.dumps({"hostRouting": document})
    host.files.write(CONFIG_PATH, text.encode(), mode=0o644)


def with_routes(host: FakeHost, *routes: object, **section: object) -> None:
    """Install the config of a check, and of static routes."""
    beside = {"staticRoutes": {"enabled": True, "routes": [*routes]}}
    installed(host, beside=beside, **section)


def marked(priority: int, *lines: str) -> list[tuple[int, str]]:
    return [(priority, line) for line in lines]


def markers(host: FakeHost) -> dict[str, str]:
    """Return the markers, of which upstream's readers have the same copies."""
    found = {}
    for path, copy in COPIES.items():
        content = host.files.read(path)
        assert host.files.read(copy) == content
        if content is not None:
            found[path] = verdict_of(path, content.decode())
    return found


@pytest.fixture
def host() -> FakeHost:
    """A node whose default route leaves through eth0."""
    host = FakeHost()
    uplink(host.routes)
    return host


@pytest.fixture
def wrong(host: FakeHost) -> FakeHost:
    """A node whose fabric has the expected addresses."""
    connect(host.routes, **FABRIC)
    return host


# --- the check


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_a_right_node(host: FakeHost, mode: str) -> None:
    """A boot starts the gates of a right node in either mode, writes the marker of a right node,
    and removes the opposite one.
    """
    installed(host, mode=mode)
    host.files.write(MARKER_DETECTED, b"old\n", mode=0o644)
    assert answer(["check"], host) == (10, marked(5, FINE))
    assert markers(host) == {MARKER_OK: f"{FINE}\n"}
    # The journal of a gate has what needs attention.
    assert answer(["ask", mode], host) == (10, [])


@pytest.mark.parametrize("configured", ["WARN", "STRICT"])
@pytest.mark.parametrize("asked", ["WARN", "STRICT"])
def test_a_wrong_node(wrong: FakeHost, configured: str, asked: str) -> None:
    """A gate of a wrong node starts with a warning if its drop-in has WARN, and is refused if it
    has STRICT, whatever the config has; the marker has the findings.
    """
    installed(wrong, mode=configured)
    wrong.files.write(MARKER_OK, b"old\n", mode=0o644)
    refused = (11, marked(3, *BAD, HELD))
    started = (10, marked(4, *BAD))
    assert answer(["ask", asked], wrong) == (refused if asked == "STRICT" else started)
    assert markers(wrong) == {MARKER_DETECTED: f"{FACT}\n"}
    wrong.files.remove(LOGGED)
    # A unit has the mode of the config.
    assert answer(["check"], wrong) == (refused if configured == "STRICT" else started)


def test_many_findings_are_in_the_marker(wrong: FakeHost) -> None:
    """Of twelve findings the journal gets ten, the number of the rest, and a step; the marker has
    all.
    """
    installed(wrong, expectedCidrs=[f"172.16.{number}.0/24" for number in range(8, 20)])
    _, lines = answer(["ask", "WARN"], wrong)
    assert len(lines) == 13
    assert lines[11:] == marked(4, f"  and 2 more in {MARKER_DETECTED}", HELPFUL_ROUTES)
    assert len(markers(wrong)[MARKER_DETECTED].splitlines()) == 12


def test_warnings_are_printed(wrong: FakeHost) -> None:
    """A warning about the config is the line below the verdict."""
    installed(wrong, allowedDevs=["*"])
    warning = "warning: routeOverlap.allowedDevs: '*' allows every device, so nothing is an overlap; name the devices that you mean"
    assert answer(["check"], wrong)[1][1:] == marked(5, warning)


@pytest.mark.parametrize("configured", ["WARN", "STRICT"])
def test_late_units(host: FakeHost, configured: str) -> None:
    """A unit of `after` that is not up yet holds a STRICT gate, and is a warning for a WARN one."""
    host.files.write("/etc/systemd/system/fabric.service", b"[Service]\n", mode=0o644)
    late = (
        f"fabric.service: is inactive (dead): {NOT_ENDED}; see: systemctl status 'fabric.service'"
    )
    installed(host, beside={"after": ["fabric.service"]}, mode=configured)
    assert answer(["ask", "STRICT"], host) == (11, marked(3, late, HELD))
    assert markers(host) == {MARKER_DETECTED: f"{late}\n"}
    host.files.remove(LOGGED)
    assert answer(["ask", "WARN"], host) == (10, marked(4, FINE, f"warning: {late}"))


def test_without_a_readable_config_there_is_no_answer(host: FakeHost) -> None:
    """A boot without a readable config has no answer, and writes no marker."""
    with pytest.raises(InvalidConfigError, match=r"no config is installed"):
        answer(["ask", "WARN"], host)
    for damage in b"", b"{", b"{}", bytes(60):
        host.files.write(CONFIG_PATH, damage, mode=0o644)
        with pytest.raises(InvalidConfigError, match=r"hostrouting\.json"):
            answer(["ask", "WARN"], host)
    assert markers(host) == {}
    assert not host.files.exists(ANSWER)


def test_a_check_without_cidrs_is_not_an_answer(host: FakeHost) -> None:
    """The check of a config without expected CIDRs has no answer, since a check of nothing would
    succeed; a gate of such a config needs no check.
    """
    with_routes(host, ROUTE, expectedCidrs=[])
    with pytest.raises(HostFileError) as caught:
        answer(["check"], host)
    assert str(caught.value) == f"{CONFIG_PATH} has no expected CIDRs; apply the config again"
    assert answer(["ask", "STRICT"], host) == (10, [])
    assert markers(host) == {}


def test_an_edited_config_is_not_in_force(wrong: FakeHost) -> None:
    """A change of the installed config changes no answer until it is applied."""
    section = {"expectedCidrs": ["172.16.8.0/22"], "mode": "WARN"}
    config = HostRoutingConfig.from_mapping({"gates": [], "routeOverlap": section})
    Configure(config, host=wrong).do(Context())
    installed(wrong, expectedCidrs=["10.96.0.0/16"])
    status, lines = answer(["ask", "STRICT"], wrong, GENERATION_LINK)
    assert status == 11
    assert (3, f"  {FACT}") in lines


# --- what a disk may refuse


def test_a_full_disk_changes_no_answer(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check on a full disk keeps its answer, removes the old marker, and warns that the marker is
    out of date.
    """
    installed(host)
    host.files.write(MARKER_DETECTED, b"old\n", mode=0o644)

    def refuse(path: str, *_: object, **_options: object) -> bool:
        raise HostFileError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(host.files, "write", refuse)
    warning = f"warning: the marker of the check is out of date: cannot write {MARKER_OK}: No space left on device"
    # Nor does a unit wait where it cannot note that it has waited.
    assert answer(["check"], host) == (10, marked(5, FINE, warning))
    assert answer(["ask", "STRICT"], host) == (10, [])
    assert markers(host) == {}


def test_the_folder_of_the_agent_stays_as_it_is(wrong: FakeHost) -> None:
    """A check leaves the mode of the agent's folder alone, and its answer is the same where that
    is a file or cannot be written.
    """
    installed(wrong)
    folder = COPIES[MARKER_OK].rpartition("/")[0]
    wrong.files.make_directory(folder)
    wrong.files.tree.change(folder, mode=0o750)
    refused = answer(["ask", "STRICT"], wrong)
    assert refused[0] == 11
    assert markers(wrong) == {MARKER_DETECTED: f"{FACT}\n"}
    assert wrong.files.folder_mode(folder) == 0o750
    wrong.routes.set_up("ib0", up=False)
    wrong.files.read_only.add(folder)
    assert answer(["check"], wrong) == (10, marked(5, FINE))
    assert wrong.files.read(COPIES[MARKER_DETECTED]) == f"{FACT}\n".encode()
    other = FakeHost(wrong.routes)
    installed(other)
    other.files.write(folder, b"a file", mode=0o600)
    assert answer(["check"], other) == (10, marked(5, FINE))
    assert other.files.exists(MARKER_OK)
    assert other.files.read(folder) == b"a file"


# --- routes and check together


@pytest.mark.parametrize("is_lost", [True, False])
def test_routes_and_check_share_a_snapshot(is_lost: bool) -> None:
    """A gate reads the routes of a node once, and again only after it has restored one."""

    class Node(CountedNode):
        def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
            # It reads its own routes to verify them.
            before = self.readings
            super().apply(changes, verify=verify)
            self.readings = before

    node = Node()
    uplink(node, **FABRIC)
    host = FakeHost(node)
    with_routes(host, ROUTE)
    assert answer(["routes"], host)[0] == 10
    if is_lost:
        [lost] = [route for route in node.routes() if str(route) == REPAIRED]
        node.delete_route(lost)
    before = node.readings
    repaired = marked(4, f"repaired: + {REPAIRED}") if is_lost else []
    assert answer(["ask", "STRICT"], host) == (10, repaired)
    assert node.readings - before == (2 if is_lost else 1)
    assert markers(host) == {MARKER_OK: f"{FINE}\n"}


def test_routes_that_change_meanwhile_are_read_again(
    wrong: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate whose routes change during its check has the answer of the node after the change."""
    installed(wrong)
    lookup = wrong.routes.lookup

    def change(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(wrong.routes, "lookup", lookup)
        wrong.routes.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
        return lookup(*given, **options)

    monkeypatch.setattr(wrong.routes, "lookup", change)
    assert answer(["ask", "STRICT"], wrong) == (10, [])


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_a_refused_route_holds_a_gate_in_either_mode(wrong: FakeHost, mode: str) -> None:
    """A route that cannot be restored refuses a gate in either mode; the routing is not checked."""
    with_routes(wrong, ROUTE, LOST, mode=mode)
    status, lines = answer(["ask", mode], wrong)
    assert status == 11
    assert (
        marked(3, "refused: 172.16.9.0/24 via 10.224.0.1 dev eth9: there is no such device")
        == lines
    )
    assert markers(wrong) == {}


# --- the answer that gates share


def test_the_answer_is_noted_for_other_gates(
    wrong: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has the time at which its check began, its mode and status, and the reason with
    the time since when the journal has it; only root can read it.
    """
    boot_clock(monkeypatch, begin=4711.239)
    monkeypatch.setattr("time.strftime", lambda *_: "12:34")
    installed(wrong)
    answer(["ask", "STRICT"], wrong)
    reason = f"as before, since 12:34: {FACT}\n"
    assert wrong.files.read(ANSWER) == f"4711.23 STRICT 11\n{reason}".encode()
    assert wrong.files.mode(ANSWER) == 0o600
    wrong.routes.set_up("ib0", up=False)
    answer(["ask", "WARN"], wrong)
    assert wrong.files.read(ANSWER) == b"4711.23 WARN 10\n\n"


def test_a_refused_route_is_the_reason(wrong: FakeHost) -> None:
    """The reason of an answer is the refusal of a route, if there is one."""
    with_routes(wrong, LOST)
    answer(["ask", "WARN"], wrong)
    noted = (wrong.files.read(ANSWER) or b"").decode()
    assert noted.endswith(
        ": refused: 172.16.9.0/24 via 10.224.0.1 dev eth9: there is no such device\n"
    )


# --- the waits of a boot


def test_the_first_check_of_a_boot_waits_for_a_lease(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first check of a boot waits for a default route, and names the reason once."""
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16")
    installed(host)

    def lease() -> None:
        if len(slept) == 3:
            host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")

    slept = boot_clock(monkeypatch, meanwhile=lease)
    assert answer(["check"], host) == (10, marked(5, FINE))
    assert slept == [1, 1, 1]
    assert capfd.readouterr().err == f"{WAITING}{LEASE}\n"


def test_all_waits_of_a_boot_end_together(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The runs of a boot wait 30 s from the start of the first one in all, and no later one waits;
    a gate never does.
    """
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16")
    beside = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.9.0/24"}]}}
    installed(host, beside=beside)
    slept = boot_clock(monkeypatch, begin=100)
    assert answer(["ask", "STRICT"], host)[0] == 11
    assert slept == []
    host.files.write(WAITED, b"127\n", mode=0o644)
    assert answer(["routes"], host)[0] == 11
    assert sum(slept) == 27
    assert capfd.readouterr().err.startswith("waiting up to 27 s: 172.16.9.0/24: ")
    assert answer(["check"], host)[0] == 10
    assert sum(slept) == 27
    assert markers(host) == {MARKER_DETECTED: NO_ROUTE}


@pytest.mark.parametrize("noted", [b"", b"x\n", b"99999999999999\n"])
def test_a_damaged_note_of_the_waits_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, noted: bytes
) -> None:
    """A boot waits 30 s at most, whatever is noted about its waits."""
    host = FakeHost()
    installed(host)
    host.files.write(WAITED, noted, mode=0o644)
    slept = boot_clock(monkeypatch, begin=100)
    answer(["check"], host)
    assert sum(slept) == 30


def test_a_wait_that_cannot_be_noted_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot that cannot note its waits does not wait: it would do so at each start of a unit."""
    host = FakeHost()
    installed(host)
    host.files.read_only.add("/run")
    slept = boot_clock(monkeypatch)
    assert answer(["check"], host)[0] == 10
    assert slept == []


# --- what is printed


def test_the_journal_gets_each_verdict_once() -> None:
    """The journal receives a failure in full once, and later in one line with the time of the
    first; it receives a right verdict once.
    """
    host = FakeHost()
    strict = BootVerdict(11, "\n".join([*BAD, HELD]), 3, LOGGED, fact=FACT)
    assert log_lines(strict, host) == marked(3, *BAD, HELD)
    [(priority, again)] = log_lines(strict, host)
    assert priority == 3
    assert re.fullmatch(r"as before, since \d\d:\d\d: (.*)", again)[1] == FACT  # type: ignore[index]
    fine = BootVerdict(10, FINE, 5, LOGGED)
    assert log_lines(fine, host) == marked(5, FINE)
    assert log_lines(fine, host) == []
    assert host.files.read(LOGGED) == FINE.encode()


def test_what_the_journal_has_is_known_by_its_text() -> None:
    """A logged verdict is recognised by its text; its first fact is the given one, or else the
    first line of the text.
    """
    host = FakeHost()
    strict = BootVerdict(11, "\n".join([*BAD, HELD]), 3, LOGGED, fact=FACT)
    assert known_since(strict, host) == ""
    assert strict.first_fact == FACT
    log_lines(strict, host)
    assert re.fullmatch(r"\d\d:\d\d", known_since(strict, host))
    assert known_since(strict._replace(text=FINE), host) == ""
    assert BootVerdict(10, f"{FINE}:\n  more").first_fact == f"{FINE}:"
    assert known_since(BootVerdict(12, FINE), host) == ""


# --- on the kernel


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        uplink(node)
        yield node


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with an installed check, for the interpreter of this process."""
    image = make_image(tmp_path / "image")
    section = {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}
    config = HostRoutingConfig.from_mapping({"gates": [NSPAWN], "routeOverlap": section})
    Configure(config, host=Host.offline(image)).do(Context(timeout=60))
    return image


OWN = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
#: The folder of the program, as program.sh finds it.
RUN = f'{OWN} -I -S "$(cd -P {GENERATION_LINK} && pwd)/hostrouting.zip"'
#: Prints the exit status and the marker, without its time.
GATE_SCRIPT = (
    f"status=0; {RUN} ask STRICT > /dev/null || status=$?; echo $status; "
    f"sed '/^proven 20.*Z$/d' /run/hostrouting/route-overlap.[od]*"
)


@needs("kernel")
def test_the_kernel_decides(node: KernelNode, image: Path) -> None:
    """A node is right, then wrong, then right again by a route."""
    assert run_on(node, image, GATE_SCRIPT) == ["10", FINE]
    connect(node, ib0=FABRIC["ib0"])
    assert run_on(node, image, GATE_SCRIPT) == ["11", FACT]
    node.ip("route add 172.16.8.0/22 via 10.224.0.1 dev eth0")
    assert run_on(node, image, GATE_SCRIPT) == ["10", FINE]


@needs("kernel")
def test_neither_the_installation_nor_its_environment_is_needed(
    node: KernelNode, image: Path
) -> None:
    """The program of the boot scripts gives its answer also once the folders of the project and of
    its environment are empty.
    """
    gone = f"for folder in {sys.prefix} {ROOT}; do mount -t tmpfs none $folder; done; cd /; "
    assert run_on(node, image, gone + GATE_SCRIPT) == ["10", FINE]


@needs("kernel")
@pytest.mark.parametrize("kept", ["-all,+net_admin", "-all"])
def test_it_answers_with_the_privileges_of_a_gate_and_of_its_unit(
    node: KernelNode, image: Path, kept: str
) -> None:
    """The program of the boot scripts gives its answer with CAP_NET_ADMIN alone, and without any
    capability.
    """
    connect(node, ib0=FABRIC["ib0"])
    bound = f"status=0; setpriv --bounding-set={kept} {RUN} ask STRICT || status=$?; echo $status"
    assert run_on(node, image, bound) == [*BAD, HELD, "11"]


@needs("kernel")
def test_a_failure_is_a_line_and_no_answer(node: KernelNode, image: Path) -> None:
    """A config that cannot be parsed ends the program with one line and exit status 12, and without
    a marker.
    """
    # The files are those of an image, for which they were rendered.
    damage = "cp -a $(realpath /etc/aks-flex-node/hostrouting) /run/x; rm /run/x/applied.json; echo '{' > /run/x/hostrouting.json; "
    lines = run_on(
        node,
        image,
        f"{damage}status=0; {OWN} -I -S /run/x/hostrouting.zip ask WARN || status=$?; echo $status; "
        "ls /run/hostrouting",
    )
    assert len(lines) == 2
    assert lines[1] == "12"
    assert lines[0].startswith("the installed config /etc/aks-flex-node/hostrouting.json")
