"""The command and a fleet: `record`, `check --from` and `plan --from`."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from support.command_line import COMMAND, run
from support.fleets import FULL, fleet
from support.in_process import Result, run_here
from support.kernel import needs_kernel
from support.printed import ONE_LINE
from support.processes import ended

from hostrouting import OverlapMode, OverlapReport
from hostrouting.base.commands import printable
from hostrouting.base.findings import NodeFinding
from hostrouting.fleet import NodeRecord, NodeVerdict
from hostrouting.fleet.record import LONGEST
from hostrouting.fleet.stream import Summary
from hostrouting.node.report import NodeReport
from hostrouting.testing import KernelNode

STRICT = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
ROUTE = {"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Nine nodes: each third is bad."""
    path = tmp_path / "nodes"
    path.write_bytes(b"".join(line + b"\n" for line in fleet(9)))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(json.dumps({**STRICT, "staticRoutes": {"enabled": True, "routes": [ROUTE]}}))
    return path


def lines_of(result: Result) -> list[str]:
    return result.stdout.splitlines()


def test_bad_nodes_are_listed_and_grouped(nodes: Path) -> None:
    """`check --from` prints a line for each bad node, then a line for each reason, whatever the
    number of the device, with three examples.
    """
    result = run_here("check", "--from", nodes)
    assert result.returncode == 1
    assert [line.partition(":")[0] for line in lines_of(result)[:3]] == [
        "node-0",
        "node-3",
        "node-6",
    ]
    assert lines_of(result)[3:] == [
        "3 x 172.16.8.0/22 overlap ib*: node-0, node-3, node-6",
        "3 x lost-route: node-0, node-3, node-6",
        "of 9 nodes 3 are bad",
    ]
    assert "node-1: right" in lines_of(run_here("check", "-v", "--from", nodes))
    twice = run_here("check", "--from", nodes, nodes)
    assert lines_of(twice)[-3:] == [
        "6 x 172.16.8.0/22 overlap ib*: node-0, node-3, node-6 ...",
        "6 x lost-route: node-0, node-3, node-6 ...",
        "of 18 nodes 6 are bad",
    ]


def test_a_roll_out_is_compared(nodes: Path, config: Path, tmp_path: Path) -> None:
    """`plan --from` prints how many nodes overlap now, how many would, and which lose an address
    that leaves right today.
    """
    good = run_here("plan", config, "--from", nodes)
    assert good.returncode == 0
    assert lines_of(good) == ["of 9 nodes 3 overlap now; with this config all are right"]
    bare = tmp_path / "bare"
    bare.write_text(json.dumps(STRICT))
    worse = run_here("plan", bare, "--from", nodes)
    now, _, after = lines_of(worse)[-1].partition("; ")
    assert worse.returncode == 1
    assert now == "of 9 nodes 3 overlap now"
    lost = "these 6 misroute an address that is routed correctly today: node-1, node-2, node-4 ..."
    assert after == f"with this config 9 would; {lost}"


def test_the_answer_as_json(nodes: Path) -> None:
    """`check --from --json` prints a line for each node with all of `check --json`, and the summary
    at the end.
    """
    *each, last = map(json.loads, lines_of(run_here("check", "--json", "--from", nodes)))
    assert [(node["hostname"], node["ok"]) for node in each] == [
        (f"node-{n}", n % 3 > 0) for n in range(9)
    ]
    assert each[0]["cidrs"][0]["findings"][0]["dev"] == "ib0"
    assert "silent routers" in each[0]["not_asked"]
    summary = last["summary"]
    assert summary["nodes"] == 9
    assert summary["bad"] == 3
    assert summary["more_groups"] == 0
    group = {
        "reason": "172.16.8.0/22 overlap ib*",
        "nodes": 3,
        "examples": ["node-0", "node-3", "node-6"],
    }
    assert summary["groups"][0] == group


def test_bad_lines_do_not_stop_the_rest(
    nodes: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is not a record is listed with its number and the reason, also on stdin, and the
    rest is checked; without a bad node the exit status is 3.
    """
    lines = nodes.read_bytes().splitlines(keepends=True)
    content = b"".join(
        [
            lines[1],
            b"\n",
            b'{"version": 1, "devices": [{"name": []}]}\n',
            b" " * (LONGEST + 9),
            b"\n",
            lines[2][:-1],
        ]
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(content)))
    result = run_here("check", config, "--from", "-")
    assert result.returncode == 3
    assert lines_of(result) == [
        (f"-:2: column 1: Expecting value; {ONE_LINE}; put CONFIG before --from"),
        "-:3: .devices[0].name: it should be text, not list",
        "-:4: it is longer than 16 MiB",
        "3 x refused: -:2, -:3, -:4",
        "of 2 nodes 0 are bad",
    ]
    nodes.write_bytes(content + b"\n" + lines[0])
    assert run_here("check", config, "--from", nodes).returncode == 1


def test_warnings_can_fail_it(nodes: Path, tmp_path: Path) -> None:
    """An overlap in mode WARN gives `check --from` the exit status 1 only with `--fail-on warning`,
    as in a live check, and `plan --from` 0; one in mode STRICT gives 1 with this option, too.
    """
    # A plan makes the others worse, which is an error.
    nodes.write_bytes(nodes.read_bytes().splitlines()[0])
    path = tmp_path / "warn"
    path.write_text(json.dumps({"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}))
    assert [
        run_here("check", path, *more, "--from", nodes).returncode
        for more in ([], ["--fail-on", "warning"])
    ] == [0, 1]
    assert run_here("plan", path, "--from", nodes).returncode == 0
    path.write_text(json.dumps(STRICT))
    assert run_here("check", path, "--fail-on", "warning", "--from", nodes).returncode == 1


def test_a_missing_record_is_not_a_proof(tmp_path: Path) -> None:
    """An empty file, as a pipe that failed leaves it, ends `check --from` with 3."""
    (tmp_path / "empty").touch()
    done = run_here("check", "--from", tmp_path / "empty")
    assert done.returncode == 3
    assert done.stdout == "no node was checked\n"


_FOR_EVER = """
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.fleet import NodeRecord, stream
from hostrouting.net.rules import Rule
stream._SECONDS = 0.1
config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["10.0.0.0/8"]}})
rules = tuple(Rule(priority, "goto", goto=priority + 1) for priority in range(4000))
for number in (4000, 4):
    verdict = stream.verdict_on(("-:1", NodeRecord(config=config, rules=rules[:number]).to_line()))
    print(verdict.is_record, verdict.undecided)
"""


def test_no_record_takes_for_ever() -> None:
    """A record whose rules take too long to prove is refused, and the next one has its own time."""
    # Without the environment of this process: the error of the timer may meet a lock of what
    # measures coverage.
    done = ended(sys.executable, "-c", _FOR_EVER, check=True, env={})
    assert done.stdout.splitlines() == ["False checking it takes more than 0.1 s", "True "]


_CAUGHT = """
import time
from hostrouting.fleet import stream
stream._SECONDS = stream._SECONDS_BETWEEN_ERRORS = 0.2
caught = []

# A function: in Python 3.13 an error at the end of a loop's body is outside of the `try` around it.
def work():
    while time.process_time() < 9:
        pass

with stream._limited():
    for name in "first", "second":
        try:
            work()
        except ValueError as error:
            caught.append(f"{name} {error}")
print(*caught, sep="\\n")
"""


def test_a_proof_that_catches_the_error_ends_all_the_same() -> None:
    """The error of the time limit is raised again and again, until it meets code that does not
    catch it.
    """
    done = ended(sys.executable, "-c", _CAUGHT, env={})
    assert done.stdout.splitlines() == [
        "first checking it takes more than 0.2 s",
        "second checking it takes more than 0.2 s",
    ]
    assert done.stderr == ""


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    """A control character in the text of a record is printed as an escape, so that a terminal does
    not obey it.
    """
    path = tmp_path / "odd"
    path.write_bytes(attrs.evolve(FULL, hostname="a\x1b[2J\n\udcff", config=None).to_line())
    result = run_here("check", "--from", path)
    assert lines_of(result)[0].startswith("a\\x1b[2J\\n\\udcff: hostRouting: ")
    assert printable("a\x9b\u202e ü") == "a\\x9b\\u202e ü"


def test_progress_is_shown_on_a_terminal(nodes: Path) -> None:
    """The progress of `check --from` is shown on a terminal every hundred nodes, and is not written
    into a file.
    """
    nodes.write_bytes(nodes.read_bytes() * 12)
    assert run_here("check", "--from", nodes).stderr == ""
    terminal, end = os.openpty()
    subprocess.run(
        [*COMMAND, "check", "--from", nodes], check=False, stderr=end, stdout=subprocess.DEVNULL
    )
    assert os.read(terminal, 99) == b"\r\x1b[K100 nodes, 34 bad\r\r\x1b[K\r"
    os.close(terminal)
    os.close(end)


def test_a_signal_ends_it_at_once(nodes: Path) -> None:
    """A signal ends `check --from` with its processes at once, also while the command waits for the
    next line.
    """
    words = [*COMMAND, "check", "-v", "--from", "-"]
    # The error of the signal may keep a lock of what measures coverage, for ever.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe, env=env
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(nodes.read_bytes() * 60)
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"node-0: ")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(9) == 130
        assert process.stderr
        progress = process.stderr.read()
        # With -v also where it happened.
        assert progress.endswith(b"hostrouting: cancelled: SIGINT\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_groups_have_a_limit() -> None:
    """A summary holds a thousand groups and prints fifty, however many reasons a fleet has; the
    other reasons are one group.
    """
    summary = Summary()
    nothing = OverlapReport()
    for number in range(1200):
        finding = NodeFinding(f"kind {number}", "", "")
        report = NodeReport(overlap=nothing, mode=OverlapMode.WARN, findings=(finding,))
        summary.add(NodeVerdict(hostname=f"n{number}", report=report))
    assert len(summary.groups) == 1001
    *_, rest, last = summary.lines(planned=False)
    assert rest == "and 951 more reasons"
    assert last == "of 1,200 nodes 1,200 are bad"
    assert next(summary.lines(planned=False)) == "200 x other reasons: n1000, n1001, n1002 ..."
    # A reason that has a group is counted in it as before.
    known = NodeReport(
        overlap=nothing, mode=OverlapMode.WARN, findings=(NodeFinding("kind 7", "", ""),)
    )
    summary.add(NodeVerdict(hostname="n1200", report=known))
    assert summary.groups["kind 7"] == (2, ["n7", "n1200"])


def test_a_note_is_no_reason() -> None:
    """A node counts in the groups of its errors and warnings, and not in one of its notes."""
    summary = Summary()
    findings = (NodeFinding("fabric", "", "", "note"), NodeFinding("lost-route", "", "", "warning"))
    report = NodeReport(overlap=OverlapReport(), mode=OverlapMode.WARN, findings=findings)
    summary.add(NodeVerdict(hostname="n1", report=report))
    assert [*summary.groups] == ["lost-route"]


def test_the_summary_has_a_zero_for_what_no_line_is() -> None:
    """A summary counts a line that is not a record as refused, a record without an answer as
    unknown, and has the number of overlaps even if that is 0.
    """
    summary = Summary()
    assert summary.add(NodeVerdict(hostname="line 1", is_record=False))
    assert summary.add(NodeVerdict(hostname="n2"))
    assert summary.status == 3
    assert summary.to_mapping() == {
        "refused": 1,
        "unknown": 1,
        "nodes": 1,
        "overlap_now": 0,
        "groups": [
            {"reason": "refused", "nodes": 1, "examples": ["line 1"]},
            {"reason": "unknown", "nodes": 1, "examples": ["n2"]},
        ],
        "more_groups": 0,
    }


@needs_kernel
def test_a_node_is_recorded_without_privilege(node: KernelNode, tmp_path: Path) -> None:
    """`record` without privilege prints a node without a config as one line, which another command
    checks.
    """
    # Of another user, who may read our own code in a checkout that is closed to others.
    words = "setpriv --reuid=65534 --clear-groups --bounding-set=-all,+dac_read_search"
    words += " --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
    result = run("record", inside=node, prefix=words.split())
    assert result.returncode == 0
    assert result.stderr == ""
    record = NodeRecord.parse(result.stdout.encode())
    assert {device.name for device in record.devices} == {"lo", "eth0", "ib0"}
    assert "172.16.0.0/16" in {route.destination for route in record.routes}
    assert record.config is None
    assert record.checksum == ""
    assert record.merged
    # From now on the kernel searches the local table first.
    for verb in "add", "del":
        node.ip(f"rule {verb} pref 9 lookup 88")
    assert NodeRecord.parse(run("record", inside=node).stdout.encode()).merged is False
    path = tmp_path / "one"
    path.write_text(result.stdout)
    assert "no config is installed" in run_here("check", "--from", path).stdout


@needs_kernel
def test_a_record_reproduces_the_finding_of_its_node(
    node: KernelNode, config: Path, tmp_path: Path
) -> None:
    """A record of a node is enough to find its overlap on another machine, and to predict that a
    config repairs it.
    """
    node.ip("route add default via 10.224.0.1 dev eth0")
    bare = tmp_path / "bare"
    bare.write_text(json.dumps(STRICT))
    record = tmp_path / "record"
    record.write_text(run("record", inside=node).stdout)
    live = run("check", "--json", bare, inside=node)
    offline = run_here("check", "--json", bare, "--from", record)
    assert live.returncode == offline.returncode == 1
    found = json.loads(lines_of(offline)[0])["cidrs"]
    assert found == json.loads(live.stdout)["cidrs"]
    assert [finding["dev"] for finding in found[0]["findings"]] == ["ib0"]
    bare.write_text(json.dumps(STRICT).replace("STRICT", "WARN"))
    warned = run_here("check", bare, "--from", record)
    assert warned.returncode == 0
    assert lines_of(warned)[0].startswith("the node has warnings: 172.16.8.0/22 overlap ib*")
    planned = run_here("plan", config, "--from", record)
    assert lines_of(planned) == ["of 1 nodes 1 overlap now; with this config all are right"]
