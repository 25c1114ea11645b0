"""The verbs of the program that the boot scripts run: their answers, and what they leave."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boot_units import NSPAWN
from support.documents import ROOT
from support.images import make_image
from support.kernel import connect, uplink
from support.needs import needs
from support.overlap_answers import verdict_of
from support.printed import HELPFUL_ROUTES, NOT_ENDED
from support.shell_nodes import run_on

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.exceptions import HostFileError, InvalidConfigError
from hostrouting.node.at_boot import BootVerdict, answer, known_since, log_lines
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

FOLDER = "/run/aks-flex-node"
OK, DETECTED, LOGGED = (f"{FOLDER}/route-overlap.{name}" for name in ("ok", "detected", "told"))
FABRIC = {"ib0": "172.16.1.4/16"}
FINE = "172.16.8.0/22 leaves by eth0"
FACT = (
    "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 by ib0 "
    "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)"
)
HEADLINE = "1 of 1 expected CIDRs do not leave by eth0 as a whole:"
BAD = f"{HEADLINE}\n  {FACT}\n{HELPFUL_ROUTES}"
HELD = (
    "The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right."
)
LEASE = "table main has no IPv4 default route"


def installed(host: FakeHost, **section: object) -> None:
    """Install the intent of a check."""
    section = {"expectedCidrs": ["172.16.8.0/22"], **section}
    text = json.dumps({"hostRouting": {"routeOverlap": section}})
    host.files.write(INTENT_PATH, text.encode(), mode=0o644)


def verdict_at_boot(host: FakeHost, *options: str) -> BootVerdict:
    return answer(["check", "rule", *options], host)


def markers(host: FakeHost) -> dict[str, str]:
    paths = (OK, DETECTED)
    texts = {path: host.files.read(path) for path in paths}
    return {
        path: verdict_of(path, text.decode()) for path, text in texts.items() if text is not None
    }


# --- check


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_a_right_node(mode: str) -> None:
    """A check at boot of a right node has exit status 10 in either mode, writes the marker of a
    right node, and removes the opposite one.
    """
    host = FakeHost()
    uplink(host.routes)
    installed(host, mode=mode)
    host.files.write(DETECTED, b"old\n", mode=0o644)
    assert verdict_at_boot(host) == BootVerdict(10, FINE, 5, LOGGED)
    assert markers(host) == {OK: f"{FINE}\n"}


@pytest.mark.parametrize(
    ("mode", "priority", "more"), [("WARN", 4, ""), ("STRICT", 3, f"\n{HELD}")]
)
def test_a_wrong_node(mode: str, priority: int, more: str) -> None:
    """A check at boot of a wrong node has exit status 11 in either mode, with `wait`, too, and
    replaces the marker of a right node by its findings.
    """
    host = FakeHost()
    uplink(host.routes, **FABRIC)
    installed(host, mode=mode)
    host.files.write(OK, b"old\n", mode=0o644)
    assert verdict_at_boot(host) == BootVerdict(11, f"{BAD}{more}", priority, LOGGED, fact=FACT)
    # Nothing heals it.
    assert verdict_at_boot(host, "wait").status == 11
    assert markers(host) == {DETECTED: f"{FACT}\n"}


def test_many_findings_are_in_the_marker() -> None:
    """Of twelve findings the text of a check at boot has ten, the number of the rest, and a step;
    the marker has all.
    """
    host = FakeHost()
    uplink(host.routes, **FABRIC)
    installed(host, mode="WARN", expectedCidrs=[f"172.16.{number}.0/24" for number in range(8, 20)])
    lines = verdict_at_boot(host).text.split("\n")
    assert [len(lines), lines[11:]] == [
        13,
        [f"  and 2 more in {DETECTED}", HELPFUL_ROUTES],
    ]
    assert len(markers(host)[DETECTED].splitlines()) == 12


def test_what_may_heal_is_a_reason_to_wait() -> None:
    """A check at boot with `wait` returns a missing default route as a reason to wait, without a
    marker; without `wait` the node is wrong.
    """
    host = FakeHost()
    host.routes.add_link("eth0")
    installed(host, mode="WARN")
    assert verdict_at_boot(host, "wait") == BootVerdict(14, LEASE)
    assert markers(host) == {}
    # The second word is that of a gate that asks.
    assert verdict_at_boot(host, "asked").status == 11
    assert markers(host) == {DETECTED: "172.16.8.0/22: no-route 172.16.8.0-172.16.11.255\n"}


def test_warnings_are_printed() -> None:
    """A warning about the config is the line below the verdict."""
    host = FakeHost()
    uplink(host.routes, **FABRIC)
    installed(host, mode="WARN", allowedDevs=["*"])
    warning = "warning: routeOverlap.allowedDevs: '*' allows every device, so nothing is an overlap; name the devices that are meant"
    assert verdict_at_boot(host).text.split("\n")[1:] == [warning]


def test_late_units() -> None:
    """A unit of `after` that is not up yet makes a node wrong under STRICT, and is a warning about
    a right node under WARN.
    """
    host = FakeHost()
    uplink(host.routes)
    host.files.write("/etc/systemd/system/fabric.service", b"[Service]\n", mode=0o644)
    late = (
        f"fabric.service: is inactive (dead), {NOT_ENDED}; see: systemctl status 'fabric.service'"
    )
    text = json.dumps(
        {
            "hostRouting": {
                "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
                "after": ["fabric.service"],
            }
        }
    )
    host.files.write(INTENT_PATH, text.encode(), mode=0o644)
    assert verdict_at_boot(host, "wait") == BootVerdict(14, late)
    assert verdict_at_boot(host) == BootVerdict(11, f"{late}\n{HELD}", 3, LOGGED)
    assert markers(host) == {DETECTED: f"{late}\n"}
    host.files.write(INTENT_PATH, text.replace("STRICT", "WARN").encode(), mode=0o644)
    assert verdict_at_boot(host) == BootVerdict(10, f"{FINE}\nwarning: {late}", 4, LOGGED)


def test_without_a_readable_intent_there_is_no_answer() -> None:
    """A check at boot without a readable intent raises an error, and writes neither marker."""
    host = FakeHost()
    uplink(host.routes)
    with pytest.raises(InvalidConfigError, match=r"no config is installed"):
        verdict_at_boot(host)
    for damage in b"", b"{", b"{}", bytes(60):
        host.files.write(INTENT_PATH, damage, mode=0o644)
        with pytest.raises(InvalidConfigError, match=r"hostrouting\.json"):
            verdict_at_boot(host)
    assert markers(host) == {}


def test_an_intent_without_cidrs_is_not_an_answer() -> None:
    """A check at boot refuses an intent without expected CIDRs, since a proof of nothing would be
    right.
    """
    host = FakeHost()
    uplink(host.routes)
    routes = {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}
    text = json.dumps({"hostRouting": {"staticRoutes": routes}})
    host.files.write(INTENT_PATH, text.encode(), mode=0o644)
    with pytest.raises(HostFileError) as caught:
        verdict_at_boot(host)
    assert str(caught.value) == f"{INTENT_PATH} has no expected CIDRs; apply the config again"
    assert markers(host) == {}


def test_a_full_disk_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check at boot on a full disk keeps its answer, removes the old marker, and warns that the
    marker is out of date.
    """
    host = FakeHost()
    uplink(host.routes)
    installed(host)
    host.files.write(DETECTED, b"old\n", mode=0o644)

    def refuse(path: str, *_: object, **_options: object) -> bool:
        raise HostFileError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(host.files, "write", refuse)
    verdict = verdict_at_boot(host)
    warning = f"warning: the marker of the check is out of date: cannot write {OK}: No space left on device"
    assert verdict == BootVerdict(10, f"{FINE}\n{warning}", 5, LOGGED)
    assert markers(host) == {}
    assert log_lines(verdict, host, is_journal=True) == [f"<5>{FINE}", f"<5>{warning}"]


# --- what is printed


def test_the_journal_gets_each_verdict_once() -> None:
    """The journal receives a failure in full once, and later in one line with the time of the
    first; it receives a right verdict once. A terminal receives all lines.
    """
    host = FakeHost()
    strict = BootVerdict(11, f"{BAD}\n{HELD}", 3, LOGGED, fact=FACT)
    lines = [f"<3>{line}" for line in f"{BAD}\n{HELD}".split("\n")]
    assert log_lines(strict, host, is_journal=True) == lines
    [again] = log_lines(strict, host, is_journal=True)
    assert again.partition("since ")[0] == "<3>as before, "
    assert again.partition(": ")[2] == FACT
    assert log_lines(strict, host, is_journal=False) == f"{BAD}\n{HELD}".split("\n")
    fine = BootVerdict(10, FINE, 5, LOGGED)
    assert log_lines(fine, host, is_journal=True) == [f"<5>{FINE}"]
    assert log_lines(fine, host, is_journal=True) == []
    assert host.files.read(LOGGED) == FINE.encode()


def test_a_reason_to_wait_is_one_plain_line() -> None:
    """A reason to wait is printed as one line without a priority, with its control characters
    escaped.
    """
    host = FakeHost()
    early = BootVerdict(14, "there is no network device a\x1b[2J")
    assert log_lines(early, host, is_journal=True) == ["there is no network device a\\x1b[2J"]
    assert not host.files.exists(FOLDER)


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
RUN = f"{OWN} -I -S /etc/aks-flex-node/hostrouting.zip"
#: Prints the exit status and the marker, without its time.
GATE_SCRIPT = (
    f"status=0; {RUN} check rule > /dev/null || status=$?; echo $status; "
    f"sed '/^proven 20.*Z$/d' {FOLDER}/route-overlap.[od]*"
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
def test_it_answers_with_the_privileges_of_a_gate_and_of_its_unit(
    node: KernelNode, image: Path
) -> None:
    """The program of the boot scripts gives its answer with CAP_NET_ADMIN alone, and without any
    capability.
    """
    for kept in "-all,+net_admin", "-all":
        bound = (
            f"status=0; setpriv --bounding-set={kept} {RUN} check rule || status=$?; echo $status"
        )
        assert run_on(node, image, bound) == [FINE, "10"]


@needs("kernel")
def test_a_failure_is_a_line_and_no_answer(node: KernelNode, image: Path) -> None:
    """An installed config that cannot be parsed ends the program with one line and exit status 12,
    and without a marker.
    """
    damage = "echo '{' > /etc/aks-flex-node/hostrouting/hostrouting.json; "
    lines = run_on(
        node, image, f"{damage}status=0; {RUN} check rule || status=$?; echo $status; ls {FOLDER}"
    )
    assert len(lines) == 2
    assert lines[1] == "12"
    assert lines[0].startswith("the installed config /etc/aks-flex-node/hostrouting.json")


def test_what_the_journal_has_is_known_by_its_text() -> None:
    """A logged verdict is recognised by its text; its first fact is the given one, or else the
    first line of the text.
    """
    host = FakeHost()
    strict = BootVerdict(11, f"{BAD}\n{HELD}", 3, LOGGED, fact=FACT)
    assert known_since(strict, host) == ""
    assert strict.first_fact == FACT
    log_lines(strict, host, is_journal=True)
    assert re.fullmatch(r"\d\d:\d\d", known_since(strict, host))
    assert known_since(strict._replace(text=FINE), host) == ""
    assert BootVerdict(10, f"{FINE}:\n  more").first_fact == f"{FINE}:"
    assert known_since(BootVerdict(14, FINE), host) == ""
