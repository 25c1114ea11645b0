"""`status`, the end of an apply, and commands without CONFIG have one verdict; and how much each of
them prints.
"""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import Mock, patch

import pytest
from support.command_line import CHECKED, MENDED, OTHER_COMMAND, run
from support.images import make_image
from support.in_process import Result, run_here
from support.kernel import connect, needs_kernel
from support.printed import (
    ASKED_AGAIN,
    BEFORE_THE_PIPE,
    CHOSEN,
    DEFAULT_THROUGH,
    IF_RIGHT,
    IN_FORCE,
    LEFT_FILES,
    NARROW,
    NONE_HELD,
    NOT_IN_FORCE,
    ONCE_ADDED,
    OWN_ADDRESS,
    REFUSED_THEN,
    SECOND_SIGNAL,
    STARTS_NOT,
    STAY_SHUT,
    STRICT_HOLDS,
    UNDO_ENDED,
    UNTIL_THE_BOOT,
    WITHOUT_CONFIG,
    leaves,
    next_step,
    overlap,
)
from support.run_nodes import lose_our_routes, lose_the_default_route
from support.run_nodes import node as node_in_memory

from hostrouting import Host
from hostrouting.boot.installed_config import NOT_INSTALLED, read_installed_config
from hostrouting.boot.layout import CONFIG_PATH, PROGRAM_PATH, drop_in_of, unit_path
from hostrouting.exceptions import BackendError, HostFileError, UnitError
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import OUR_PROTOCOL, TABLE_NAMES, RouteChange
from hostrouting.net.rules import FIRST_RULES
from hostrouting.node import history
from hostrouting.node.status import node_status
from hostrouting.route_overlap.script import MARKER_DETECTED
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

NSPAWN = "systemd-nspawn@.service"
FINE = leaves("172.16.8.0/22", "eth0")
RIGHT = f"{IN_FORCE}, {FINE}"
REACHED = "1 of 1 CIDRs are right"
WRONG = leaves("172.16.8.0/22", "ib0")
LOST = f"172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142: {NOT_IN_FORCE}"
APPLY = f"hostrouting apply {CONFIG_PATH}"
FIX = "hostrouting check --fix | hostrouting apply -"
FABRIC = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
OVERLAP = f"172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 ({FABRIC})"

pytestmark = pytest.mark.skipif(bool(OTHER_COMMAND), reason="most run within this process")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    host = node_in_memory()
    connect(host.routes, ib0="172.16.1.4/16")
    monkeypatch.setattr(Host, "live", lambda: host)
    return host


def on_stdin(config: object, *words: str) -> Result:
    """Run the command with a config on stdin."""
    text = config if isinstance(config, str) else json.dumps({"hostRouting": config})
    with TemporaryFile("w+") as stdin, patch.object(sys, "stdin", stdin):
        stdin.write(text)
        stdin.seek(0)
        return run_here(*words, "-")


@pytest.fixture
def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Return the verdict of the next entry in the journal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        monkeypatch.setattr(
            history, "recorded", partial(history.recorded, journal=str(tmp_path / "journal"))
        )
        yield (
            lambda: (
                journal.recv(10_000).partition(b"): ")[2].decode(errors="replace").partition(";")[0]
            )
        )


def gated(section: Mapping[str, object], **more: object) -> dict[str, Any]:
    return {"gates": [NSPAWN], **section, **more}


def on_mended(*words: str) -> Result:
    return on_stdin(gated(MENDED), *words)


def test_a_node_that_is_right() -> None:
    """The sentence on a right node is the first line of `status` and the last one of `apply`, with
    exit status 0 of both.
    """
    sentence = f"right: {RIGHT}, {NONE_HELD}"
    applied = on_stdin(gated(MENDED, watch={"enabled": True}), "apply")
    assert applied.returncode == 0
    assert applied.stdout.splitlines()[-1] == sentence
    assert applied.stderr == ""
    result = run_here("status")
    first, *facts = result.stdout.splitlines()
    assert result.returncode == 0
    assert first == sentence
    assert result.stderr == ""
    assert [fact for fact in facts if not fact.startswith(("checksum: ", "last change: "))] == [
        f"config: {CONFIG_PATH}",
        "mode: STRICT",
        "boot files: right",
        "break glass: not set",
        "watch: hostrouting-watch.timer (active)",
        f"routes: {IN_FORCE}",
        f"addresses: {FINE}",
        f"gates: {NONE_HELD}",
        f"  {NSPAWN}: open (inactive)",
        next_step("nothing to do"),
    ]


def test_an_apply_that_changes_something_else_than_the_config(host: FakeHost) -> None:
    """A timer that was stopped is a warning whose next step is an apply; the last change in a
    status is that of the newest file: the config, a unit, or the drop-in of a gate.
    """
    config = gated({"routeOverlap": {"expectedCidrs": ["10.224.0.0/16"]}})
    on_stdin({**config, "watch": {"enabled": True}}, "apply")
    host.services.stop(Context(), "hostrouting-watch.timer")
    verdict, named_once, *_, step = run_here("status").stdout.splitlines()
    assert verdict == "warning: hostrouting-watch.timer: does not run"
    assert named_once == f"config: {CONFIG_PATH}"
    assert step == next_step(APPLY)
    now = Context().clock.time()
    for newest in CONFIG_PATH, unit_path("check-route-overlap.service"), drop_in_of(NSPAWN):
        host.files.modified = lambda path, newest=newest: now - 3600 * (path != newest)  # type: ignore[method-assign, misc]
        assert "\nlast change: 0:0" in run_here("status").stdout


def test_a_program_that_the_boot_needs_is_gone(host: FakeHost) -> None:
    """A program of the boot that a node does not have is an error of `status` and `check` with the package
    to install, and fails an apply; without probes nft is not missed.
    """
    on_mended("apply")
    host.files.programs -= {"/usr/bin/flock", "/usr/bin/nft"}
    reason = f"is not installed on this node: {STAY_SHUT}"
    result = run_here("status")
    assert result.returncode == 1
    assert (
        result.stdout.splitlines()[0] == f"wrong: flock: is not installed on this node: {STAY_SHUT}"
    )
    assert f"  flock: {reason}; install the package util-linux" in result.stdout.splitlines()
    assert "nft" not in result.stdout
    applied = on_mended("apply", "--json")
    assert applied.returncode == 1
    answer = json.loads(applied.stdout)
    assert answer["ok"] is False
    assert "no-program" in [finding["kind"] for finding in answer["findings"]]
    found = f"error: no-program: flock: {reason}; install the package util-linux"
    checked = run_here("check", "--fail-on", "warning")
    assert checked.returncode == 1
    assert found in checked.stdout.splitlines()


@pytest.mark.parametrize(
    ("trouble", "status", "sentence", "step"),
    [
        (lose_our_routes, 1, f"wrong: {LOST}", APPLY),
        (
            lambda host: host.files.write("/run/hostrouting.disabled", b"", mode=0o644),
            0,
            f"right: every gate is open: the break glass is set, {RIGHT}",
            "rm /run/hostrouting.disabled",
        ),
        (
            lambda host: host.files.remove(f"/lib/systemd/system/{NSPAWN}"),
            0,
            (
                f"right: {RIGHT}, {NONE_HELD}, {NSPAWN}: has no unit file, so nothing waits for "
                "routing there yet; correct hostRouting.gates unless it will be installed later"
            ),
            None,
        ),
        (
            lambda host: host.services.start(
                Context(), "hostrouting-held@systemd-nspawn@kube1.service.service"
            ),
            1,
            f"waiting: systemd-nspawn@kube1.service is held, {RIGHT}",
            None,
        ),
        (
            lambda host: (
                host.services.start(
                    Context(), "hostrouting-held@systemd-nspawn@kube1.service.service"
                ),
                host.files.remove("/etc/aks-flex-node/static-routes.sh"),
            ),
            1,
            (
                "wrong: /etc/aks-flex-node/static-routes.sh: is missing; "
                "systemd-nspawn@kube1.service is held"
            ),
            APPLY,
        ),
    ],
)
def test_a_node_in_trouble(
    host: FakeHost,
    trouble: Callable[..., object],
    status: int,
    sentence: str,
    step: str | None,
) -> None:
    """The sentence of a status has the first cause and the held unit, its exit status is that of
    `check`, and a template is held as its unit is; the key `break_glass` in JSON is the reason why
    every gate is open, and null while the gates act.
    """
    on_mended("apply")
    trouble(host)
    result = run_here("status", "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == status
    assert answer["verdict"] == sentence
    assert answer["next"] == step
    assert answer["ok"] == (status == 0)
    assert (answer["break_glass"] is None) is ("the break glass is set" not in sentence)
    states = {gate["state"] for gate in answer["gates"].values()}
    assert (states == {"held"}) is (".service is held" in sentence)
    assert run_here("check").returncode == status


def test_a_socket_that_failed_with_its_gate(host: FakeHost) -> None:
    """A socket that has failed with its gate is a warning of `status` on a right node, and is not
    listed as a gate.
    """
    on_mended("apply")
    drop_in = f"/etc/systemd/system/{NSPAWN}.d/50-socket.conf"
    host.files.write(drop_in, b"[Unit]\nTriggeredBy=kube1.socket\n", mode=0o644)
    host.files.write("/lib/systemd/system/kube1.socket", b"[Unit]\n", mode=0o644)
    host.services.daemon_reload(Context())
    host.services.failing.add("kube1.socket")
    host.services.start(Context(), "kube1.socket")
    answer = json.loads(run_here("status", "--json").stdout)
    failed = f"kube1.socket: has failed (exit-code) {STARTS_NOT}{NSPAWN}"
    assert (answer["ok"], answer["verdict"]) == (True, f"warning: {failed}")
    assert "kube1.socket" not in answer["gates"]


def test_an_apply_is_not_a_step_while_the_default_route_is_missing(host: FakeHost) -> None:
    """The next step for a missing default route is to add one by the known gateway, since an apply
    would wait, and fail.
    """
    on_mended("apply")
    lose_the_default_route(host)
    step = "ip route add default via 10.224.0.1 dev eth0"
    assert run_here("status").stdout.splitlines()[-1] == next_step(step)


def lose_ipv6(host: FakeHost) -> None:
    """Remove the IPv6 default route, and what needs it."""
    [default] = [route for route in host.routes.routes(IPV6) if not route.prefix_length]
    lost = [default, *host.routes.routes_of(OUR_PROTOCOL, IPV6)]
    host.routes.apply([RouteChange.remove(route) for route in lost])


def test_a_route_that_waits_beside_a_right_address(host: FakeHost) -> None:
    """No command is the next step while a route of the config waits for its default route, for
    which an apply would wait, too.
    """
    routes = [{"destination": "fd00:64::/48"}, {"destination": "172.16.8.0/22"}]
    expected = {"expectedCidrs": ["172.16.8.0/22", "10.224.0.0/16"], "mode": "WARN"}
    static = {"enabled": True, "routes": routes}
    applied = on_stdin({"gates": [], "staticRoutes": static, "routeOverlap": expected}, "apply")
    assert applied.returncode == 0
    lose_ipv6(host)
    lose_our_routes(host)
    [*_, last] = run_here("status").stdout.splitlines()
    assert last.startswith(next_step("no command repairs this: fd00:64::/48 "))
    assert f"; {ONCE_ADDED}run: {APPLY}" in last


def test_a_route_that_waits_beside_an_address_without_a_route(host: FakeHost) -> None:
    """The route of the config that waits is named first if an address does not have another one, too: the
    check names the route for that address.
    """
    section = {"enabled": True, "routes": [{"destination": "fd00:64::/48"}]}
    expected = {"expectedCidrs": ["172.16.128.0/24"], "mode": "WARN"}
    config = {"gates": [], "staticRoutes": section, "routeOverlap": expected}
    assert on_stdin(config, "apply").returncode == 0
    lose_ipv6(host)
    lines = run_here("status").stdout.splitlines()
    assert f"; {ONCE_ADDED}run: {APPLY}" in lines[2]
    assert lines[-1].startswith(next_step("no command repairs this: fd00:64::/48 "))
    assert '"destination": "172.16.128.0/24"' in run_here("check").stdout


def test_a_route_that_waits_beside_one_that_is_refused(host: FakeHost) -> None:
    """The route that would be refused is named as the next step if another route of the config
    waits for a default route.
    """
    connect(host.routes, eth9="10.9.0.4/16")
    routes = [
        {"destination": "fd00:64::/48"},
        {"destination": "172.16.64.0/24", "gateway": "10.9.0.1", "dev": "eth9"},
    ]
    config = {"gates": [], "staticRoutes": {"enabled": True, "routes": routes}}
    assert on_stdin(config, "apply").returncode == 0
    lose_ipv6(host)
    host.routes.remove_link("eth9")
    status = run_here("status").stdout
    assert "once each route can be added" not in status
    last = status.splitlines()[-1]
    assert last.startswith(next_step("no command repairs this: 172.16.64.0/24 "))
    assert last.endswith("there is no network device eth9; correct its 'dev')")


def test_a_file_of_another_owner_is_named_once(host: FakeHost) -> None:
    """A foreign file in the way of the config is an error with its step, which no command does; a
    namesake that is not in the way has one row.
    """
    on_mended("apply")
    text = b"[Service]\nExecStart=/opt/site/check\n"
    host.files.write("/etc/systemd/system/probe-snat.service", text, mode=0o644)
    row = "foreign files: /etc/systemd/system/probe-snat.service: belongs to another owner"
    assert run_here("status").stdout.count(row) == 1
    host.files.write("/etc/systemd/system/check-route-overlap.service", text, mode=0o644)
    lines = run_here("status").stdout.splitlines()
    moving = "an apply that needs this path is refused; move the file away or rename it"
    steps = [line.partition("; ")[2] for line in lines if "check-route-overlap.service" in line]
    assert steps == ["", moving, moving]
    assert lines[-1].startswith(next_step("no command repairs this: "))


def test_the_next_step_of_a_user_without_rights(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply that has failed for another user than root names the way to more rights; one that
    has changed the node, and finds it wrong under WARN, does not.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    warned = on_stdin({"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}, "apply")
    assert warned.stdout.splitlines()[-1] == next_step(FIX)
    on_mended("apply")
    lose_our_routes(host)
    host.lock.fail_at(1)
    failed = on_mended("apply")
    assert failed.returncode == 3
    assert failed.stdout.splitlines()[-1] == next_step(f"sudo {APPLY}")
    assert run_here("status").stdout.splitlines()[-1] == next_step(APPLY)


def test_a_silent_cloud_is_not_queried_by_status(host: FakeHost) -> None:
    """A status on a node with installed rules for probes does not send a request to the cloud."""
    host.metadata.error = BackendError("no answer")
    assert on_stdin({"probeSnat": {"enabled": True, "dev": "eth0"}}, "apply").returncode == 0
    requests = list(host.metadata.operations.calls)
    assert run_here("status").stderr == ""
    assert host.metadata.operations.calls == requests


def test_an_overlap_that_is_only_warned_of_is_a_warning() -> None:
    """An overlap under WARN has exit status 0 and a sentence that begins with `warning`; under
    STRICT the apply fails by the same check.
    """
    config = gated({"routeOverlap": {**CHECKED["routeOverlap"], "mode": "WARN"}})
    warned = on_stdin(config, "apply")
    sentence = f"warning: {WRONG}"
    assert warned.returncode == 0
    assert warned.stdout.splitlines()[-2:] == [sentence, next_step(FIX)]
    # One line for each warning: how to resolve it is in the sentence.
    assert warned.stderr == f"hostrouting: {OVERLAP}\n"
    answer = json.loads(on_stdin(config, "apply", "--json").stdout)
    assert answer["ok"] is True
    assert answer["degraded"] is True
    assert answer["overlap"]["ok"] is False
    assert run_here("status").stdout.splitlines()[0] == sentence
    failed = json.loads(on_stdin(gated(CHECKED), "apply", "--json").stdout)
    assert failed["ok"] is False
    assert failed["overlap"]["ok"] is False


def test_where_nothing_is_installed(tmp_path: Path) -> None:
    """Where nothing is installed, each command that needs the installed config ends with 2 and one
    sentence, with which a reset ends as well.
    """
    for command in "status", "check", "plan", "sweep":
        refused = run_here(command, "--json")
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert json.loads(refused.stdout)["error"].startswith(NOT_INSTALLED)
    assert run_here("reset").stdout == f"{NOT_INSTALLED}\n"
    assert run_here("check", "--root", tmp_path).returncode == 2


@pytest.mark.parametrize(
    "lost",
    [
        (CONFIG_PATH,),
        (CONFIG_PATH, "/etc/systemd/system/static-routes.service"),
        (CONFIG_PATH, "/etc/systemd/system/hostrouting-ready.service"),
        # It leads to the scripts, and to the config.
        ("/etc/aks-flex-node/hostrouting",),
    ],
)
def test_what_an_earlier_config_has_left(host: FakeHost, lost: tuple[str, ...]) -> None:
    """Files that an earlier config has left are named with status 2, and with an apply as the step
    instead of a reset, which would remove the routes.
    """
    on_mended("apply")
    for path in lost:
        host.files.remove(path)
    result = run_here("status")
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.search(
        f"{NOT_INSTALLED}{LEFT_FILES}/etc/.* and [0-9]+ more; apply your config again: "
        "hostrouting apply CONFIG; a reset would take its routes away",
        result.stderr,
    )
    assert "run: hostrouting reset" not in result.stderr
    reset = run_here("reset")
    assert reset.returncode == 0
    assert reset.stdout.splitlines()[-1] == NOT_INSTALLED
    assert run_here("status").stderr == f"hostrouting: {WITHOUT_CONFIG}\n"
    host.files.write(MARKER_DETECTED, b"", mode=0o644)
    assert f"{NOT_INSTALLED}{LEFT_FILES}{MARKER_DETECTED}; " in run_here("status").stderr


def test_a_route_that_an_interrupted_reset_has_left(host: FakeHost) -> None:
    """A route in force without an installed config, as an interrupted reset leaves it, is listed
    with exit status 0, and a reset removes it.
    """
    on_mended("apply")
    [route] = host.routes.routes_of(OUR_PROTOCOL)
    run_here("reset")
    host.routes.insert_route(route.to_route())
    shown = run_here("status")
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [
        UNTIL_THE_BOOT,
        f"  {route}",
        "to keep them, run: hostrouting apply CONFIG; to remove them: hostrouting reset",
    ]
    answer = json.loads(run_here("status", "--json").stdout)
    assert answer["ok"] is True
    assert answer["config"] is None
    assert answer["routes"]["in_force"] == 1
    assert answer["last_change"] is None
    host.routes.add_route("172.16.99.0/24", gateway="10.224.0.1", dev="eth0")
    assert run_here("reset").returncode == 0
    assert run_here("status").returncode == 2


def test_a_clock_that_was_set_back(host: FakeHost) -> None:
    """The last change of a status is unknown in the text if its time is in the future; JSON has the
    time.
    """
    on_mended("apply")
    host.files.modified = lambda _: 1e11  # type: ignore[method-assign, assignment]
    assert "\nlast change: unknown, since its time is later" in run_here("status").stdout
    assert json.loads(run_here("status", "--json").stdout)["last_change"] == "5138-11-16T09:46:40Z"


def test_without_config_the_installed_one_is_meant(
    host: FakeHost, config: Path, tmp_path: Path
) -> None:
    """A check and a plan without CONFIG read the config in force; with --root they read the one in
    the image.
    """
    on_mended("apply")
    lose_our_routes(host)
    planned = "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142\n"
    assert run_here("plan").stdout == f"{planned}after apply: {FINE}\n"
    assert "error: lost-route" in run_here("check").stdout
    image = make_image(tmp_path / "image")
    run_here("apply", "--root", image, config)
    assert run_here("plan", "--root", image).stdout == ""
    assert (
        run_here("check", "--root", image).stdout
        == run_here("check", "--root", image, config).stdout
    )


def test_an_answer_that_cannot_be_written_changes_no_verdict(
    verdict: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply whose answer cannot be written has its verdict in the journal, and the reason on
    stderr with status 3.
    """
    with monkeypatch.context() as patched:
        patched.setattr(
            "hostrouting.cli.shared.print_lines", Mock(side_effect=HostFileError("no room"))
        )
        applied = on_mended("apply")
    assert applied.returncode == 3
    assert applied.stderr == "hostrouting: no room\n"
    assert verdict() == f"right: {RIGHT}, {NONE_HELD}"
    on_stdin("{", "apply")
    assert " is not JSON: line 1, column 2" in verdict()


def test_the_journal_has_the_reason_of_a_failed_apply(verdict: Callable[[], str]) -> None:
    """The journal has the error of a failed apply as its verdict."""
    on_stdin(gated(CHECKED), "apply")
    assert verdict() == (
        "configure/check-route-overlap: 1 of 1 expected CIDRs do not leave entirely through eth0: "
        "172.16.8.0/22"
    )


def test_a_second_signal_is_named_in_the_journal(
    host: FakeHost, verdict: Callable[[], str]
) -> None:
    """A second signal that ends the undo of an apply is the verdict in the journal, and stderr has
    a line on what is left.
    """
    on_mended("apply")
    verdict()

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        host.routes.steps.plan(1, lambda: signal.raise_signal(signal.SIGTERM))

    host.routes.steps.plan(1, interrupt)
    both = [{"destination": "172.16.8.0/22"}, {"destination": "172.16.16.0/24"}]
    ended = on_stdin(gated(MENDED, staticRoutes={"enabled": True, "routes": both}), "apply")
    left = f"{UNDO_ENDED}1 changes stay, the newest may be: + 172.16.16.0/24"
    assert left in ended.stderr
    assert verdict() == SECOND_SIGNAL


@pytest.mark.parametrize("words", ["check", "init --cidr 10.0.0.0/8", "plan", "reset", "status"])
def test_no_command_goes_on_after_its_timeout(words: str) -> None:
    """A command whose timeout is over ends with 3, and names the limit."""
    on_mended("apply")
    ended = run_here(*words.split(), "--timeout", "1e-9")
    assert ended.returncode == 3
    assert "deadline exceeded: not done within 1e-09 s" in ended.stdout + ended.stderr


def test_an_apply_prints_little() -> None:
    """An apply that changes nothing prints one line; with -v the log of the tasks is printed, and
    each change once.
    """
    first = on_mended("apply", "-v")
    assert "completed task=configure/install-boot-files" in first.stderr
    assert not [change for change in first.stdout.splitlines() if change in first.stderr]
    # Stdout and stderr, which follow the exit status.
    assert [len(result.splitlines()) for result in on_mended("apply")[1:]] == [1, 0]


def test_a_failed_apply_prints_ten_lines_of_errors() -> None:
    """A failed apply prints ten lines on stderr, its error first and the number of the rest last;
    with -v all are printed.
    """
    cidrs = [f"172.16.{number}.0/24" for number in range(0, 60, 2)]
    strict = gated({"routeOverlap": {"expectedCidrs": cidrs, "mode": "STRICT"}})
    failed = on_stdin(strict, "apply")
    lines = failed.stderr.splitlines()
    assert failed.returncode == 1
    assert len(lines) == 10
    assert lines[0].startswith(
        "hostrouting: configure/check-route-overlap: 30 of 30 expected CIDRs do not leave"
    )
    assert re.fullmatch("and [0-9]{2} more: hostrouting check", lines[-1])
    assert len(on_stdin(strict, "apply", "-v").stderr.splitlines()) > 70


def test_a_status_without_an_answer_of_systemd(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status without an answer of systemd checks the routes, shows the state of a gate as
    unknown, and has the reason.
    """
    on_mended("apply")
    monkeypatch.setattr(host.services, "state", Mock(side_effect=UnitError("no answer")))
    result = run_here("status")
    sentence, unasked, *facts = result.stdout.splitlines()
    assert result.returncode == 0
    assert sentence == f"right as far as checked: {IN_FORCE}, {REACHED}, no gate held"
    assert unasked == "  not checked: no answer"
    last = next_step("no command repairs this: not checked: no answer")
    assert facts[-2:] == [f"  {NSPAWN}: open (unknown)", last]


@needs_kernel
def test_plan_and_render_need_no_systemd(node: KernelNode, config: Path, tmp_path: Path) -> None:
    """A plan and a render succeed where systemd does not run, or systemctl is not on the PATH; the
    plan has a notice of that.
    """
    empty = tmp_path / "bin"
    empty.mkdir()
    for path in os.environ["PATH"], str(empty):
        prefix = ["env", f"PATH={path}"]
        planned = run("plan", "--json", config, inside=node, prefix=prefix)
        assert planned.returncode == 0, planned.stderr
        answer = json.loads(planned.stdout)
        changed = [change["subject"] for change in answer["changes"]]
        assert "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in changed
        assert any("systemd does not run here" in notice for notice in answer["notices"])
        assert run("render", config, inside=node, prefix=prefix).returncode == 0
    assert run("watch", inside=node).returncode == 2


def test_a_plan_reports_the_agents_list(host: FakeHost) -> None:
    """The units that a config takes from the agent are a notice, and an apply keeps them."""
    bootstrap = {"additionalRequiredServices": ["ib.service"]}
    whole = json.dumps({"hostRouting": gated(MENDED), "bootstrap": bootstrap})
    notice = "after: ib.service, from bootstrap.additionalRequiredServices; to change that, set hostRouting.after"
    assert notice in json.loads(on_stdin(whole, "plan", "--json").stdout)["notices"]
    assert notice in on_stdin(whole, "apply").stderr
    installed = read_installed_config(host.files)
    assert installed is not None
    assert installed.after == ("ib.service",)


@pytest.mark.parametrize("is_installed", [False, True])
def test_explain_paints_what_the_config_does_not_expect(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """`explain` paints red each device that the config does not expect, and any other device in a
    colour of its own; without a config none is red.

    Without colours the line of such a device begins with a mark, and JSON has the fact.
    """
    for name, address in {"cilium_host": "10.1.0.1/16", "ib1": "172.17.1.4/16"}.items():
        host.routes.add_link(name)
        host.routes.add_address(name, address)
    if is_installed:
        on_stdin(MENDED, "apply")
    with monkeypatch.context() as patched:
        patched.setattr("hostrouting.cli.commands.explain.has_colours", lambda: True)
        shown = run_here("explain", "172.16.9.1", "172.16.1.9", "172.17.1.9", "10.1.0.9", "9.9.9.9")
    words = re.findall(r"\x1b\[30;(\d+)m(\w+)\x1b\[0m  \d", shown.stdout)
    usual = "42 ib0, 42 ib0, 46 ib1, 43 cilium_host, 45 eth0"
    red = "42 eth0, 41 ib0, 41 ib1, 46 cilium_host, 42 eth0"
    assert ", ".join(map(" ".join, words)) == (red if is_installed else usual)
    lines = run_here("explain", "172.16.9.1", "9.9.9.9").stdout.splitlines()
    assert [line[:2] for line in lines] == ["17", "  ", "9.", "  "]
    marked = run_here("explain", "172.17.1.9").stdout.splitlines()[1]
    assert marked.startswith("! ib1" if is_installed else "  ib1")
    answer = json.loads(run_here("explain", "172.17.1.9", "9.9.9.9", "--json").stdout)
    mark = " (not expected)" if is_installed else ""
    assert answer["verdict"] == f"172.17.1.9: ib1{mark}; 9.9.9.9: eth0"
    [part] = answer["explanations"][0]["parts"]
    assert part["is_expected"] is (False if is_installed else None)


def test_a_plan_lists_what_its_apply_does(host: FakeHost) -> None:
    """A plan lists the gates that STRICT would hold, and what the apply would make worse or refuse,
    with the exit status of the apply.
    """
    ungated = on_stdin({**CHECKED, "gates": []}, "plan")
    assert f"\n{STRICT_HOLDS}none, since no unit has a gate\n" in ungated.stdout
    held = on_stdin(gated(CHECKED), "plan")
    assert held.returncode == 1
    assert held.stdout.splitlines()[-2:] == [
        f"{STRICT_HOLDS}{NSPAWN}",
        "files: 15 new; all with -v",
    ]
    assert on_mended("plan").returncode == on_mended("apply").returncode == 0
    worse = f"{OVERLAP}, by the change '- 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142'"
    planned = on_stdin(gated(CHECKED), "plan")
    assert planned.returncode == 1
    assert planned.stdout.splitlines()[-3:-1] == [
        f"worse than now: {worse}",
        REFUSED_THEN,
    ]
    result = json.loads(on_stdin(gated(CHECKED), "plan", "--json").stdout)
    assert result["worse"] == [worse]
    assert result["verdict"].split("; ") == [
        f"changes: {len(result['changes'])}",
        "after apply: 1 of 1 expected CIDRs do not leave entirely through eth0",
        f"worse than now: {worse}",
        REFUSED_THEN,
    ]
    assert [finding["kind"] for finding in result["findings"]] == ["overlap", "worse"]
    assert "holds" not in result
    refused = on_stdin(gated(CHECKED), "apply")
    assert refused.returncode == 1
    assert refused.stdout.partition(":")[0] == "right"
    assert worse in refused.stderr
    forced = on_stdin(gated(CHECKED), "apply", "--force")
    assert forced.returncode == 1
    assert forced.stdout.splitlines()[-2].partition(":")[0] == "wrong"
    assert host.routes.routes_of(OUR_PROTOCOL) == []


def test_break_glass_keeps_the_gates_of_a_plan_open(host: FakeHost) -> None:
    """A plan with the break glass set does not list a gate as held, and fails by the same check as
    without.
    """
    assert json.loads(on_stdin(gated(CHECKED), "plan", "--json").stdout)["holds"] == [NSPAWN]
    host.files.write("/run/hostrouting.disabled", b"", mode=0o644)
    open_by = "none, break-glass keeps them open: /run/hostrouting.disabled exists"
    result = on_stdin(gated(CHECKED), "plan")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-2] == f"{STRICT_HOLDS}{open_by}"
    assert "holds" not in json.loads(on_stdin(gated(CHECKED), "plan", "--json").stdout)


def test_a_check_advises_no_apply_that_would_be_refused(tmp_path: Path) -> None:
    """A check names the fix for a config that an apply would refuse, and the apply for any other
    config.
    """
    on_mended("apply")
    path = tmp_path / "config.json"
    for section, step, status in (
        (CHECKED, "hostrouting check {path} --fix | hostrouting apply -", 1),
        ({**MENDED, "watch": {"enabled": True}}, "hostrouting apply {path}", 0),
    ):
        path.write_text(json.dumps({"hostRouting": gated(section)}))
        shown = run_here("check", path).stdout
        assert "hostrouting plan" not in shown
        assert shown.splitlines()[-1] == next_step(step.format(path=path))
        assert run_here("apply", path).returncode == status


def test_a_plan_shows_the_files_that_differ() -> None:
    """`plan --diff` prints the lines of a new file, of a changed one and of one that goes, and
    nothing of an unchanged one.
    """
    new = on_mended("plan", "--diff").stdout
    assert f"+ {CONFIG_PATH}\n" in new
    assert "all with -v" not in new
    assert f"--- {CONFIG_PATH}\n+++ {CONFIG_PATH}\n@@ -0,0 +1,4 @@\n" in new
    assert f"Binary files {PROGRAM_PATH} and {PROGRAM_PATH} differ\n" in new
    on_mended("apply")
    assert "@@" not in on_mended("plan", "--diff").stdout
    changed = on_stdin(gated(MENDED, watch={"enabled": True}), "plan", "--diff").stdout
    assert '\n+  "watch": {"enabled": true},\n' in changed
    assert (
        "\n-#!/bin/bash"
        in on_stdin({"staticRoutes": MENDED["staticRoutes"]}, "plan", "--diff").stdout
    )


def test_a_plan_lists_the_file_that_it_cannot_write(host: FakeHost) -> None:
    """A plan lists a file that it cannot write first, and of the other new files the number."""
    host.files.link("/etc/systemd/system/static-routes.service", "/dev/null")
    refused, route, *_, files = on_mended("plan").stdout.splitlines()
    assert refused.startswith("~ /etc/systemd/system/static-routes.service (will be refused: ")
    assert route == "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
    assert files == "files: 17 new; all with -v"


@pytest.mark.parametrize("closed", [".service.d/", "/etc/aks-flex-node", "/etc/systemd/system"])
def test_a_plan_and_a_check_without_root_go_on(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """A plan and a check that may not read a folder have the check and the reason; the plan has
    status 3, or 1 if it is known to fail.
    """

    def look(usual: Callable[..., object], path: str, **options: object) -> object:
        if closed in path:
            raise HostFileError(f"cannot look for {path}: Permission denied")
        return usual(path, **options)

    for name in "exists", "exposed", "mode", "names", "read", "read_link":
        monkeypatch.setattr(host.files, name, partial(look, getattr(host.files, name)))
    planned = on_mended("plan")
    assert planned.returncode == 3
    assert planned.stdout.splitlines()[-1] == f"after apply: {FINE}"
    assert "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in planned.stdout
    assert planned.stderr.startswith("hostrouting: not compared: cannot look for")
    assert on_stdin(gated(CHECKED), "plan").returncode == 1
    checked = on_mended("check").stdout
    assert "do not leave entirely through eth0" in checked
    assert "note: not checked: cannot look for" in checked
    assert run_here("explain", "9.9.9.9").stdout.startswith("9.9.9.9\n")


@pytest.mark.parametrize(("lost", "counts"), [(0, [1, 0, 0]), (1, [1, 1, 1])])
def test_a_built_in_rule_that_is_gone_is_named_as_the_cause(
    host: FakeHost, lost: int, counts: list[int]
) -> None:
    """`status` offers the command that restores the rule; `plan` and `explain` print it only if
    addresses are lost.
    """
    on_mended("apply")
    host.routes.remove_rule(rule := FIRST_RULES[lost])
    answers = run_here("status"), on_mended("plan"), run_here("explain", "9.9.9.9")
    step = f"ip rule add pref {rule.priority} lookup {TABLE_NAMES[rule.table]}"
    assert [answer.stdout.count(step) for answer in answers] == counts


def test_a_node_without_any_ipv4_rule_has_the_commands_for_both_tables(host: FakeHost) -> None:
    """On a node without any IPv4 rule, `status` has the command for the table local, and once that
    rule is back the one for main.
    """
    on_mended("apply")
    rules = [rule for rule in FIRST_RULES if rule.family == IPV4]
    for rule in rules:
        host.routes.remove_rule(rule)
    steps = []
    for rule in rules[:2]:
        steps += run_here("status").stdout.splitlines()[-1:]
        host.routes.add_rule(rule)
    assert steps == [
        next_step("ip rule add pref 0 lookup local"),
        next_step("ip rule add pref 32766 lookup main"),
    ]
    assert run_here("status").stdout.splitlines()[-1] == next_step("nothing to do")


def test_an_image_without_config_is_named(tmp_path: Path) -> None:
    """`check --root` of an image without a config is refused with a sentence that names the image,
    and with the command for it.
    """
    told = run_here("check", f"--root={tmp_path}")
    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.startswith(
        f"hostrouting: {NOT_INSTALLED} in the image; run, with your config: "
    )
    assert "; hostrouting apply --root DIR CONFIG (" in told.stderr


def test_init_leaves_out_a_device_that_no_config_may_name(host: FakeHost) -> None:
    """`init` leaves a device out whose name a config may not have, such as one with a command of a
    shell.
    """
    # Without an IPv4 default route no network stands for the device.
    lose_the_default_route(host)
    host.routes.add_link("e;id")
    host.routes.add_address("e;id", "fd00::4/64")
    host.routes.add_route("default", gateway="fd00::1", dev="e;id")
    told = run_here("init", "--cidr", "fd01::/64", "--cidr", "fd02::/64")
    assert told.returncode == 0
    overlap = json.loads(told.stdout)["hostRouting"]["routeOverlap"]
    assert overlap == {"mode": "WARN", "expectedCidrs": ["fd01::/64", "fd02::/64"]}
    assert "missing: expectedDevs: no config may have the name 'e;id'; rename it" in told.stderr


def test_the_first_line_about_a_refused_route_has_its_verdict() -> None:
    """The first line about a refused route has `will be refused` before the route, which may take
    most of the line.
    """
    on_mended("apply")
    routes = [{"destination": "172.16.8.0/22", "gateway": "10.9.9.9", "dev": "eth0", "metric": 7}]
    other = gated({"staticRoutes": {"enabled": True, "routes": routes}})
    first = on_stdin(other, "check").stdout.splitlines()[0]
    assert "will be refused: 172.16.8.0/22 via 10.9.9.9 dev eth0" in first


# --- a step is offered if it helps


def test_a_bridge_inside_an_expected_network(host: FakeHost) -> None:
    """For a bridge whose address is inside an expected network, `status` names the cause and the
    command that removes the address, and `check --fix` is refused.
    """
    expected = gated({"routeOverlap": {"expectedCidrs": ["172.17.0.0/16"], "mode": "WARN"}})
    assert on_stdin(expected, "apply").returncode == 0
    host.routes.add_link("docker0", kind="bridge")
    host.routes.add_address("docker0", "172.17.0.1/24")
    command = "ip address del 172.17.0.1/24 dev docker0"
    [sentence, first, *_, following] = run_here("status").stdout.splitlines()
    assert sentence == f"warning: {leaves('part of 172.17.0.0/16', 'docker0')}, and 3 more"
    route = "172.17.0.0/24 dev docker0 proto kernel scope link src 172.17.0.1"
    assert first == "  " + overlap("172.17.0.0", "docker0", route=route)
    assert following == next_step(command)
    assert on_stdin(expected, "apply").stdout.splitlines()[-2:] == [sentence, following]
    shown = run_here("check").stdout
    assert shown.splitlines()[-1] == following
    assert "staticRoutes" not in shown
    assert "main table" not in shown
    refused = run_here("check", "--fix")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1] == (
        f"{OWN_ADDRESS}narrow expectedCidrs, or run: " + command
    )
    # What the pipe ends with.
    assert on_stdin("", "apply").stderr.endswith(f" is empty; {BEFORE_THE_PIPE}\n")
    host.routes.remove_address("docker0", "172.17.0.1/24")
    assert run_here("status").stdout.startswith("right: ")


def test_the_address_of_hardware_is_left_to_the_operator(host: FakeHost) -> None:
    """For a network card whose address is inside an expected network, the step is the fix instead
    of a removal, which could cut the operator off.
    """
    host.routes.add_link("eth1")
    host.routes.add_address("eth1", "10.9.0.4/16")
    expected = gated({"routeOverlap": {"expectedCidrs": ["10.9.0.0/16"], "mode": "WARN"}})
    following = on_stdin(expected, "apply").stdout.splitlines()[-1]
    assert following == next_step("hostrouting check --fix | hostrouting apply -")
    assert NARROW in run_here("check").stdout


def test_warnings_of_a_node_that_is_right(host: FakeHost) -> None:
    """An apply warns of a router that does not answer, and a status has a note of a default route
    that decides by its metric alone.
    """
    host.routes.add_route("default", gateway="172.16.0.1", dev="ib0")
    host.routes.delete_route(
        next(r for r in host.routes.routes() if r.dev == "eth0" and not r.prefix_length)
    )
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0", metric=100)
    host.link_layer.mute.add(("ib0", "172.16.0.1"))
    expected = gated({"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}})
    applied = on_stdin(expected, "apply")
    silent = f"172.16.0.1 dev ib0: {ASKED_AGAIN}"
    last = next_step(f"no command repairs this: {silent}")
    assert applied.stdout.splitlines()[-2:] == [f"warning: {silent}", last]
    host.link_layer.mute.clear()
    assert run_here("status").stdout.splitlines()[:2] == [
        f"right: no route is wanted, {REACHED}, no gate held",
        f'  {DEFAULT_THROUGH}ib0: {CHOSEN}eth0; {IF_RIGHT}["ib0"] to routeOverlap',
    ]


def test_status_waits_until_the_node_is_right(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status --wait` logs each state once until the node is right or the limit is reached, and its
    answer is the last state.
    """
    monkeypatch.setattr("hostrouting.cli.shared._SECONDS_BETWEEN_CHECKS", 0.001)
    on_mended("apply")
    lose_our_routes(host)
    waited = run_here("status", "--wait", "0.01")
    assert waited.returncode == 1
    [line] = waited.stderr.splitlines()
    assert line == f"hostrouting: waiting: wrong: {LOST}"
    assert waited.stdout.splitlines()[0] == line.removeprefix("hostrouting: waiting: ")
    looks = iter([None, None, lambda: on_mended("apply")])

    def look(ctx: Context, node: FakeHost) -> object:
        mend = next(looks, None)
        if mend is not None:
            mend()
        return node_status(ctx, node)

    monkeypatch.setattr("hostrouting.cli.commands.status.node_status", look)
    waited = run_here("status", "--wait")
    assert waited.returncode == 0
    assert waited.stderr == f"{line}\n"
    assert waited.stdout.splitlines()[0] == f"right: {RIGHT}, {NONE_HELD}"
    assert run_here("status", "--wait", "60").stderr == ""
    refused = run_here("status", "--wait", "soon")
    assert refused.returncode == 2
    assert "must be more than 0 seconds, such as 60 (got soon)" in refused.stderr
