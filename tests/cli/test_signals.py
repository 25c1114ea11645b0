"""Signals of `apply` and `reset`: the exit status, and what a run that ends reports of its changes;
and of a watch that has not begun.
"""

import json
import logging
import os
import signal
import sys
from tempfile import TemporaryFile
from unittest.mock import patch

import pytest
from support.command_line import OTHER_COMMAND
from support.in_process import Result, run_here, run_in_process
from support.kernel import connect
from support.printed import (
    IN_FORCE,
    KEPT_NOWHERE,
    NONE_HELD,
    NOTHING_CHANGED,
    SECOND_SIGNAL,
    UNKNOWN_STATE,
    leaves,
    next_step,
)
from support.run_nodes import node as node_in_memory

from hostrouting import Host, HostRoutingConfig
from hostrouting.cli import changing
from hostrouting.exceptions import BackendError, HostFileError, UnitError
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.node.status import verdict_now
from hostrouting.testing import FakeHost
from phases import Context, Report, progress, run

pytestmark = pytest.mark.skipif(bool(OTHER_COMMAND), reason="they run within this process")

FIRST = {"destination": "172.16.8.0/22"}
BOTH = [FIRST, {"destination": "172.16.16.0/24"}]
STAYS = (
    f"hostrouting: {SECOND_SIGNAL}; what was changed until then stays; see: hostrouting status\n"
)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    host = node_in_memory()

    def live(*, boot: bool = True) -> FakeHost:
        object.__setattr__(host, "has_boot", boot)
        return host

    monkeypatch.setattr(Host, "live", live)
    return host


def apply(*routes: object, words: tuple[str, ...] = (), **sections: object) -> Result:
    """Apply a config with these routes."""
    config = {"gates": [], "staticRoutes": {"enabled": True, "routes": routes}, **sections}
    with TemporaryFile("w+") as stdin, patch.object(sys, "stdin", stdin):
        json.dump({"hostRouting": config}, stdin)
        stdin.seek(0)
        return run_here("apply", *words, "-")


def signalled_look(ctx: Context, *arguments: object) -> object:
    """Look at the node after a run, as the command does, while SIGTERM comes."""
    signal.raise_signal(signal.SIGTERM)
    return verdict_now(ctx, *arguments)  # type: ignore[arg-type]  # as it is called


def own_routes(host: FakeHost) -> int:
    return sum(route.protocol == OUR_PROTOCOL for route in host.routes.routes())


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("command", ["apply", "reset"])
def test_a_signal_before_the_run(
    command: str, by: signal.Signals, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal before the run ends the command with 128 and its number, and nothing is changed."""
    apply(FIRST)

    def signalled(*arguments: object, **options: object) -> Report:
        signal.raise_signal(by)
        return run(*arguments, **options)  # type: ignore[arg-type]  # as it is called

    monkeypatch.setattr(changing, "run", signalled)
    ended = apply(*BOTH) if command == "apply" else run_here("reset")
    assert ended.returncode == 128 + by
    assert own_routes(host) == 1
    assert ended.stderr == f"hostrouting: cancelled: {by.name}\n"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_after_the_run(
    by: signal.Signals, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal after the run of an apply changes neither the answer nor the exit status."""

    def signalled(*arguments: object, **options: object) -> Report:
        report = run(*arguments, **options)  # type: ignore[arg-type]  # as it is called
        signal.raise_signal(by)
        return report

    monkeypatch.setattr(changing, "run", signalled)
    ended = apply(FIRST)
    assert ended.returncode == 0
    assert own_routes(host) == 1
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1].startswith("right: ")


def test_a_signal_in_the_look_at_the_node(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal during the look after a run ends the command with the signal's status, and the
    changes are printed.
    """
    monkeypatch.setattr(changing, "verdict_now", signalled_look)
    ended = apply(FIRST)
    assert ended.returncode == 143
    assert own_routes(host) == 1
    assert ended.stderr == ""
    assert "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in ended.stdout.splitlines()


def test_a_signal_in_the_look_after_a_failed_run(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during the look after a failed reset does not hide the error, and the answer shows
    the state as unknown.
    """
    apply(FIRST)
    monkeypatch.setattr(changing, "verdict_now", signalled_look)
    host.services.fail_at(1, UnitError("systemd is busy"))
    ended = run_here("reset")
    assert ended.returncode == 143
    assert ended.stderr == "hostrouting: reset: systemd is busy\n"
    assert ended.stdout == (
        f"{UNKNOWN_STATE}cancelled: SIGTERM\n" + next_step("hostrouting check\n")
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGTERM, signal.SIGQUIT),
        (signal.SIGQUIT, signal.SIGQUIT),
    ],
)
def test_two_signals(first: signal.Signals, second: signal.Signals, host: FakeHost) -> None:
    """A second signal ends the undo of an apply: the status is that of the first one, and each
    change that stays has a line.
    """
    apply(FIRST)
    before = [signal.getsignal(each) for each in (first, second)]

    def interrupt() -> None:
        signal.raise_signal(first)
        host.routes.steps.plan(1, lambda: signal.raise_signal(second))

    host.routes.steps.plan(1, interrupt)
    ended = apply(*BOTH)
    assert ended.returncode == 128 + first
    assert ended.stderr.splitlines(keepends=True)[-1] == STAYS
    assert ended.stdout == (
        "these changes may stay:\n  + 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142\n"
    )
    assert [signal.getsignal(each) for each in (first, second)] == before


def test_a_second_signal_in_the_look_at_the_node(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal during the look after a complete run ends the look, and all that the run has
    changed is printed.
    """

    def signalled(*_: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the second signal ends the look")

    monkeypatch.setattr(changing, "verdict_now", signalled)
    ended = apply(FIRST)
    assert ended.returncode == 143
    assert own_routes(host) == 1
    assert "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in ended.stdout.splitlines()
    assert ended.stderr == (
        "hostrouting: a second signal ended the last look at the node; see: hostrouting status\n"
    )


@pytest.mark.parametrize("words", ["apply config.json", "reset", "sweep config.json"])
def test_a_run_outlives_its_terminal(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP is ignored while a command that changes the node runs, and only then."""
    usual = signal.getsignal(signal.SIGHUP)
    seen: list[object] = []

    def look(*_: object, **__: object) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise HostFileError("the command ends here")

    monkeypatch.setattr(HostRoutingConfig, "from_file", look)
    monkeypatch.setattr(Host, "live", look)
    run_here(*words.split())
    assert seen == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGHUP) == usual


def test_ctrl_c_before_a_watch_keeps_anything(capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is the usual end of a watch also before it keeps anything: with status 0, and `ok` in
    the last line of its JSON.
    """
    with patch.object(Host, "live", side_effect=KeyboardInterrupt):
        status, _ = run_in_process("watch", "--json")
    assert status == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["ok"] is True


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_undoes_the_run(by: signal.Signals, host: FakeHost) -> None:
    """A signal while an apply changes routes undoes the run, and the answer lists the undone
    changes.
    """
    apply(FIRST)
    host.routes.steps.plan(1, lambda: signal.raise_signal(by))
    ended = apply(*BOTH)
    assert ended.returncode == 128 + by
    assert own_routes(host) == 1
    assert ended.stdout.splitlines()[:-1] == [
        "these were undone:",
        "  + 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
    ]


# --- a failed apply


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next step of a failed apply be that of root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root")
def test_what_stays_is_apart_from_what_has_started(host: FakeHost) -> None:
    """An apply that fails its check lists the changes that stay apart from the watch that it has
    started, or restarted for a new unit.
    """
    connect(host.routes, ib0="172.16.1.4/16")
    host.files.write("/usr/bin/hostrouting", b"#!/bin/sh\n", mode=0o755)
    unit = "/etc/systemd/system/hostrouting-watch.service"
    new = [
        "  + 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
        "  + /run/hostrouting/route-overlap.detected",
    ]
    for changes, word in (new, "started"), ([f"  ~ {unit}"], "restarted"):
        failed = apply(
            FIRST,
            watch={"enabled": True, "mode": "service"},
            routeOverlap={"expectedCidrs": ["172.16.32.0/24"], "mode": "STRICT"},
        )
        assert failed.returncode == 1
        lines = failed.stdout.splitlines()
        assert [line for line in lines if not line.startswith("  + /etc/")] == [
            "these changes stay:",
            *changes,
            "these have started:",
            f"  ~ hostrouting-watch.service ({word})",
            f"wrong: {leaves('172.16.32.0/24', 'ib0')}",
            next_step("hostrouting check --fix | hostrouting apply -"),
        ]
        host.files.write(unit, (host.files.read(unit) or b"") + b"\n", mode=0o644)


@pytest.mark.usefixtures("as_root")
def test_what_was_undone_is_apart_from_what_stays(host: FakeHost) -> None:
    """An apply over an installed config that fails after its routes lists them as undone, or as
    staying if the inverse fails.
    """
    apply(FIRST)
    host.services.fail_at(3, UnitError("systemd is busy"))
    undone = apply(*BOTH)
    assert undone.returncode == 3
    assert undone.stdout == (
        "these were undone:\n"
        "  + 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142\n"
        f"right: {IN_FORCE}, no CIDR is expected, {NONE_HELD}\n"
    )

    def fail() -> None:
        host.routes.steps.fail(1, BackendError("busy"))
        raise UnitError("systemd is busy")

    host.services.operations.plan(3, fail)
    stays = apply(*BOTH)
    assert stays.returncode == 3
    assert stays.stdout == (
        "these changes stay:\n"
        "  + 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142\n"
        "wrong: 172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142 (1 of 2): has protocol 142, "
        "but is not in this config\n"
        + next_step("hostrouting apply /etc/aks-flex-node/hostrouting.json\n")
    )


def test_what_stays_of_a_first_try_is_kept_at_no_boot(host: FakeHost) -> None:
    """`apply --live` that fails its check, and whose undo is refused, lists the change that stays,
    and its verdict has the way to remove it.
    """
    connect(host.routes, ib0="172.16.1.4/16")
    expected = {"expectedCidrs": ["172.16.8.0/24"], "mode": "STRICT"}

    def overlap() -> None:
        host.routes.add_route("172.16.8.0/24", dev="ib0")
        host.routes.steps.fail(1, BackendError("busy"))

    host.routes.steps.plan(1, overlap)
    tried = apply(FIRST, words=("--live",), routeOverlap=expected)
    assert tried.returncode == 1
    assert tried.stdout == (
        "these changes stay:\n"
        "  + 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142\n"
        f"wrong: 1 of 1 expected CIDRs do not leave entirely through eth0; {KEPT_NOWHERE}\n"
        + next_step("hostrouting check CONFIG\n")
    )


def test_how_a_run_ended_is_not_cut(host: FakeHost) -> None:
    """A run that ends by a second signal prints how it ended, eight errors, and the number of the
    rest on stderr.
    """
    routes = [{"destination": f"172.16.{number}.0/24"} for number in range(20)]

    def interrupt() -> None:
        for number in range(12):
            logging.getLogger("hostrouting").error("line %d", number)
        signal.raise_signal(signal.SIGTERM)
        host.routes.steps.plan(1, lambda: signal.raise_signal(signal.SIGTERM))

    host.routes.steps.plan(20, interrupt)
    apply(FIRST)
    ended = apply(*routes)
    lines = ended.stderr.splitlines(keepends=True)
    assert ended.returncode == 143
    shown = [f"hostrouting: line {number}\n" for number in range(8)]
    # Four of the twelve, the dropped route, and the end of the undo.
    assert lines == [STAYS, *shown, "and 6 more: hostrouting check\n"]


def test_a_first_try_may_make_a_node_worse(host: FakeHost) -> None:
    """`apply --live` of a config that makes the node worse is refused before any change, unless
    `--force` is given.
    """
    connect(host.routes, ib0="172.16.1.4/16")
    worse = {"destination": "10.96.0.0/12", "gateway": "172.16.1.9", "dev": "ib0"}
    expected = {"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}
    refused = apply(worse, words=("--live",), routeOverlap=expected)
    assert f"'; {NOTHING_CHANGED}\n" in refused.stdout
    assert own_routes(host) == 0
    forced = apply(worse, words=("--live", "--force"), routeOverlap=expected)
    assert f"; {KEPT_NOWHERE}\n" in forced.stdout
    assert "is installed" not in forced.stderr
    assert own_routes(host) == 1


def test_an_apply_shows_on_a_terminal_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an apply runs a terminal shows each step, and nothing of that stays afterwards."""
    lines: list[str] = []
    monkeypatch.setattr(progress, "show_line", lines.append)
    assert apply(FIRST).returncode == 0
    assert "configure/plan-changes: running" in lines
    assert lines[-1] == ""
