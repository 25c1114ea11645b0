"""`watch --json` writes a line of JSON for each repair, alarm and trouble, and its reader delays
nothing.
"""

import fcntl
import json
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.answers import require_valid
from support.command_line import CHECKED, COMMAND, ROUTES, enter, installed, run
from support.needs import needs

from hostrouting import HostRoutingConfig
from hostrouting.node.output import log_to_stderr
from hostrouting.testing import KernelNode
from hostrouting.watch.installed import duties_of


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """Restore the log for later tests."""
    root = logging.getLogger()
    before = root.level, root.handlers.copy()
    yield
    root.level, root.handlers[:] = before


def read_line(stream: IO[str]) -> Any:
    """Read a line that has the keys of its schema."""
    line = json.loads(stream.readline())
    require_valid("watch", line)
    return line


@needs("kernel", "ebtables-nft")
def test_each_line_is_an_object(node: KernelNode, tmp_path: Path) -> None:
    """`watch --json` writes one object each for what it keeps, a repair, an alarm, the end of the
    alarm, and its own end.
    """
    path = tmp_path / "config.json"
    watched = {**ROUTES, **CHECKED, "gates": [], "watch": {"readings": 1, "interval": "30s"}}
    path.write_text(json.dumps(watched))
    words = [*enter(node), *installed(path), *COMMAND, "watch", "--json", str(path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        try:
            assert watching.stdout is not None
            keeps = read_line(watching.stdout)
            repair = read_line(watching.stdout)
            duties = f"keeps {duties_of(HostRoutingConfig.from_mapping(watched))}"
            # The version and the time come first.
            assert [*keeps.values()][2:] == ["info", "keeps", None, duties]
            route = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
            assert [*repair.values()][2:] == ["warning", "repair", route, f"repaired: + {route}"]
            node.add_route("172.16.8.0/24", dev="ib0")
            alarm = read_line(watching.stdout)
            assert [*alarm.values()][2:5] == ["error", "alarm", "172.16.8.0/22"]
            assert (alarm["finding"]["kind"], alarm["finding"]["dev"]) == ("overlap", "ib0")
            assert "overlap" in alarm["text"]
            node.ip("route delete 172.16.8.0/24")
            advice = read_line(watching.stdout)
            over = read_line(watching.stdout)
            assert advice["kind"] == "note"
            assert over["kind"] == "over"
            assert over["severity"] == "info"
            watching.send_signal(signal.SIGTERM)
            last, log = watching.communicate(timeout=60)
            assert json.loads(last) == {"version": 1, "ok": True}
            assert watching.returncode == 0
            # The log for people is as always.
            assert log.startswith(f"hostrouting: {keeps['text']}\nhostrouting: {repair['text']}\n")
        finally:
            watching.kill()


def test_a_watch_that_cannot_begin() -> None:
    """A watch that cannot begin writes the line of its log, and a last line with the reason, as
    other commands answer.
    """
    refused = run("watch", "--json", "/nowhere.json")
    assert refused.returncode == 3
    trouble, answer = map(json.loads, refused.stdout.splitlines())
    assert answer["version"] == 1
    assert answer["ok"] is False
    assert "'/nowhere.json'" in answer["error"]
    assert trouble["kind"] == "trouble"
    assert trouble["text"] == answer["error"]


def test_a_reader_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `watch --json` for which a pipe does not have room are left out at once, and the next line
    has their number.
    """
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    with os.fdopen(reader, "rb", buffering=0) as read, os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        log_to_stderr(verbose=False, talks=True, is_brief=False, as_json=True)
        for number in range(200):
            logging.getLogger("hostrouting").warning("number %d", number)
        held = read.read(size)
        lines = [json.loads(line) for line in held.splitlines()]
        assert 10 < len(lines) < 100
        logging.getLogger("hostrouting").warning("on")
        following = json.loads(read.read(size))
        logging.getLogger("hostrouting").warning("and on")
        last = json.loads(read.read(size))
    assert [line["text"] for line in lines] == [f"number {number}" for number in range(len(lines))]
    assert following["text"] == "on"
    assert following["lost"] == 200 - len(lines)
    # They are counted once.
    assert last["text"] == "and on"
    assert "lost" not in last
    assert following["kind"] == "trouble"


def test_the_kind_of_a_line_without_an_event(capfd: pytest.CaptureFixture[str]) -> None:
    """The kind of a line without an event is trouble for a warning or an error, and a note for
    anything less; its command is a value of its own.
    """
    log_to_stderr(verbose=False, talks=True, is_brief=False, as_json=True)
    for level in logging.INFO, logging.WARNING, logging.ERROR:
        logging.getLogger("hostrouting").log(level, "on", extra={"command": "hostrouting check"})
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["note", "trouble", "trouble"]
    assert {line["command"] for line in lines} == {"hostrouting check"}


def test_a_reader_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A closed pipe, or a full disk, as the stdout of `watch --json` does not end its log."""
    for path in "pipe", "/dev/full":
        if path == "pipe":
            reader, writer = os.pipe()
            os.close(reader)
        else:
            writer = os.open(path, os.O_WRONLY)
        with os.fdopen(writer, "w") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            log_to_stderr(verbose=False, talks=True, is_brief=False, as_json=True)
            for number in range(3):
                logging.getLogger("hostrouting").info("number %d", number)
        assert capfd.readouterr().err.splitlines() == [
            f"hostrouting: number {number}" for number in range(3)
        ]


def test_what_it_keeps() -> None:
    """The first line of a watch names each duty of its config."""
    config = HostRoutingConfig.from_mapping(
        {
            **ROUTES,
            "routeOverlap": {**CHECKED["routeOverlap"], "expected": ["azure"]},
            "probeSnat": {"enabled": True},
            "staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"], "sweep": "clean"},
            "watch": {"interval": "5m"},
        }
    )
    assert duties_of(config) == (
        "static routes: 1, expected CIDRs: 3 (STRICT), the rules for IPv6 probes, stale objects of azure-vnet "
        "(clean); checks everything every 300s and after network events"
    )
