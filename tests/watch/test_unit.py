"""The unit of a watch: its files, and the tasks and commands that use the unit."""

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support.boot_units import assert_exposed_at_most, assert_verified
from support.command_line import ROUTES
from support.filled import asset, changes
from support.images import make_image
from support.in_process import run_here
from support.needs import needs
from support.patience import at_once
from support.printed import EMPTIED, INSTALL_THERE, MASKED, NOT_EXECUTABLE, UNSEEN
from support.run_nodes import PROBES, SWEEP, apply, config, node

from hostrouting import Configure, HostRoutingConfig, Reset, check_node
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.exceptions import UnitError
from hostrouting.testing import FakeHost
from hostrouting.testing.strategies import configs
from hostrouting.watch.unit import ConfigureWatch, boot_unit, command_path, has_duties
from phases import Change, TaskFailedError, execute, plan

COMMAND = "/opt/installation/bin/hostrouting"
UNITS = "/etc/systemd/system"
STARTS = "ExecStart=/opt/agent/bin/hostrouting watch /etc/aks-flex-node/hostrouting.json"
WITHOUT_SWEEP = (
    "# It changes routes and packet rules.",
    "CapabilityBoundingSet=CAP_NET_ADMIN",
    "RestrictAddressFamilies=AF_NETLINK AF_UNIX",
    "IPAddressDeny=any",
)
WITH_SWEEP = (
    "# It changes routes and packet rules. ebtables-legacy opens a raw IPv4 socket for that.",
    "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW",
    "RestrictAddressFamilies=AF_NETLINK AF_UNIX AF_INET",
    "IPAddressDeny=any",
)
WRITES_STATE = (
    "# The run lock is made in /run itself.",
    "ProtectSystem=strict",
    "ReadWritePaths=/run",
)
WRITES_RECORDS = (
    "# The folder of a sweep's record may be missing, and anywhere but in /etc and /usr.",
    "ProtectSystem=full",
)
TIMER = "hostrouting-watch.timer"
SERVICE = "hostrouting-watch.service"
INTERVAL = {"watch": {"enabled": True, "interval": "90s"}}
BY_TIMER = {"watch": {"enabled": True}}
BY_SERVICE = {"watch": {"enabled": True, "mode": "service"}}
COUNTING = {"watch": {"enabled": True, "readings": 3}}
CLEAN = {"staleCni": {**SWEEP["staleCni"], "sweep": "clean"}}


@pytest.fixture(autouse=True, scope="module")
def installation() -> Iterator[None]:
    """Have hostrouting installed in a lasting folder; that of this run may be below /tmp."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysconfig, "get_path", lambda _: COMMAND.rpartition("/")[0])
        patch.setattr("hostrouting.testing.host_fakes._COMMAND", None)
        yield


def with_command(path: str = COMMAND) -> FakeHost:
    host = node()
    host.files.write(path, b"#!/usr/bin/python3\n", mode=0o755)
    return host


def files_of_watch(host: FakeHost) -> list[str]:
    return sorted(path for path in host.files.tree.snapshot() if "hostrouting-watch" in path)


def planned(host: FakeHost, wanted: HostRoutingConfig) -> tuple[Change, ...]:
    return plan(Configure(wanted, host=host), at_once()).changes


def found(host: FakeHost, wanted: HostRoutingConfig) -> tuple[NodeFinding, ...]:
    return check_node(at_once(), wanted, host).findings


@pytest.mark.parametrize(
    ("sections", "filled"),
    [
        ({**ROUTES, **INTERVAL}, ["OnActiveSec=90s", "OnUnitActiveSec=90s"]),
        ({**ROUTES, **BY_SERVICE}, [STARTS, *WITHOUT_SWEEP, *WRITES_STATE]),
        ({**SWEEP, **BY_SERVICE}, [STARTS, *WITH_SWEEP, *WRITES_STATE]),
        ({**CLEAN, **BY_SERVICE}, [STARTS, *WITH_SWEEP, *WRITES_RECORDS]),
    ],
)
def test_places_that_are_filled_in(sections: dict[str, Any], filled: list[str]) -> None:
    """The unit's file is the asset with its places filled in, to the byte."""
    [file] = boot_unit(config(**sections), "/opt/agent/bin/hostrouting").files
    lines = changes(asset(f"watch/{file.path.rpartition('/')[2]}"), file.content)
    assert [line for line in lines if "@" not in line] == [f"+{line}" for line in filled]


@needs("systemd-analyze")
@pytest.mark.parametrize(
    "sections", [BY_TIMER, BY_SERVICE, {**SWEEP, **BY_SERVICE}, {**CLEAN, **BY_SERVICE}]
)
def test_systemd_accepts_them(sections: dict[str, Any], tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts the unit of each kind of watch, and a service is exposed to
    2.9 at most.
    """
    unit = boot_unit(config(**ROUTES, **sections), "/bin/true")
    path = tmp_path / unit.name
    path.write_bytes(unit.files[0].content)
    (tmp_path / "hostrouting-ready.service").write_text(
        "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    )
    assert_verified(path)
    if unit.name == SERVICE:
        assert_exposed_at_most(path, 29)


@given(configs())
def test_any_config_has_a_unit_or_none(some: HostRoutingConfig) -> None:
    """Each place in the unit's file is filled, whatever the config, and only an enabled watch has
    duties.
    """
    content = boot_unit(some, "/opt/agent/bin/hostrouting").files[0].content
    # Of systemd's own: the groups of system calls.
    for group in b"SystemCallFilter=@", b"~@", b" @":
        content = content.replace(group, b"")
    assert b"@" not in content
    assert has_duties(some) <= some.watch.enabled


@pytest.mark.parametrize(
    ("sections", "by_timer", "by_service"),
    [
        ({}, False, False),
        (ROUTES, True, True),
        (PROBES, True, True),
        ({"routeOverlap": {"expected": ["azure"]}}, True, True),
        (SWEEP, False, True),
    ],
)
def test_a_unit_needs_something_to_keep(
    sections: dict[str, Any], *, by_timer: bool, by_service: bool
) -> None:
    """A timer has duties where a boot makes something right; a service also has them for the sweep
    alone.
    """
    assert has_duties(config(**sections, **BY_TIMER)) is by_timer
    assert has_duties(config(**sections, **BY_SERVICE)) is by_service
    assert not has_duties(config(**sections))


TEMPORARY = "/tmp/hostrouting"  # noqa: S108 - of a machine in memory


def test_the_command_of_this_installation_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service runs the command of its own installation, else the one that was called by its
    path, else the installed one.
    """
    host = with_command("/usr/bin/hostrouting")
    assert command_path(host) == "/usr/bin/hostrouting"
    monkeypatch.setattr("sys.argv", ["/opt/agent/hostrouting"])
    assert command_path(host) == "/usr/bin/hostrouting"
    host.files.write("/opt/agent/hostrouting", b"", mode=0o755)
    assert command_path(host) == "/opt/agent/hostrouting"
    host.files.write(COMMAND, b"", mode=0o755)
    assert command_path(host) == COMMAND


def test_a_path_relative_to_the_root_is_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path with two slashes at its beginning, as Python writes one relative to the root, is read
    as the same path with one.
    """
    monkeypatch.setattr("sys.argv", ["//opt/agent/hostrouting"])
    assert command_path(with_command("/opt/agent/hostrouting")) == "/opt/agent/hostrouting"


@pytest.mark.parametrize(
    "path", [TEMPORARY, f"/var{TEMPORARY}", "/run/a/hostrouting", "/opt/it's/hostrouting"]
)
def test_a_command_that_the_service_could_not_start_does_not_count(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that the service could not start, such as one below /tmp or /run, is passed over
    for an installed one.
    """
    monkeypatch.setattr("sys.argv", [path])
    host = with_command(path)
    assert command_path(host) == path
    host.files.write("/usr/bin/hostrouting", b"", mode=0o755)
    assert command_path(host) == "/usr/bin/hostrouting"


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        (
            TEMPORARY,
            0o755,
            f"{UNSEEN}copy it to /usr/local/bin/",
        ),
        (
            "/run/hostrouting",
            0o755,
            f"{EMPTIED}copy it to /usr/local/bin/",
        ),
        (
            '/opt/"/hostrouting',
            0o755,
            "has a character in its path that systemd refuses; copy it to /usr/local/",
        ),
        (
            "/opt/a b/hostrouting",
            0o644,
            f"{NOT_EXECUTABLE}'/opt/a b/hostrouting', or set ",
        ),
    ],
)
def test_a_command_that_the_service_could_not_start_is_reported(
    path: str, mode: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply leaves out a service whose command it could not start; `plan` and `check` give the
    reason and the next step.
    """
    monkeypatch.setattr("sys.argv", [path])
    host = node()
    wanted = config(**ROUTES, **BY_SERVICE)
    host.files.write(path, b"", mode=mode)
    apply(host, **ROUTES, **BY_SERVICE)
    assert files_of_watch(host) == []
    [change] = planned(host, wanted)
    [finding] = found(host, wanted)
    assert finding.reason.startswith(f"the command {path} of {SERVICE} {reason}")
    assert change.detail == f"will be left out: {finding.reason}"


def test_without_a_command_the_service_is_refused_and_the_rest_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The task of the watch refuses a service without a command; an apply warns and installs all
    else, and `plan` and `check` report the reason.
    """
    host = node()
    wanted = config(**ROUTES, **BY_SERVICE)
    reason = (
        f"the command {COMMAND} of {SERVICE} {INSTALL_THERE}, or set hostRouting.watch.mode "
        "to 'timer', which needs no command"
    )
    with pytest.raises(TaskFailedError) as caught:
        execute(ConfigureWatch(wanted, host=host), at_once())
    assert isinstance(caught.value.cause, UnitError)
    assert str(caught.value.cause) == reason
    execute(Configure(wanted, host=host), at_once())
    assert reason in caplog.text
    assert host.files.exists(f"{UNITS}/static-routes.service")
    assert files_of_watch(host) == []
    [change] = planned(host, wanted)
    assert change.subject == SERVICE
    assert change.detail == f"will be left out: {reason}"
    [finding] = found(host, wanted)
    assert finding.kind == "watch"
    assert finding.subject == SERVICE
    assert finding.severity == "warning"
    assert reason in finding.reason


@pytest.mark.parametrize(
    ("sections", "unit", "target"),
    [(BY_TIMER, TIMER, "timers.target"), (BY_SERVICE, SERVICE, "multi-user.target")],
)
def test_the_unit_is_installed_and_runs(sections: dict[str, Any], unit: str, target: str) -> None:
    """An apply installs the unit with its link for the boot and starts it; a second one leaves it
    as it is, and a reset removes it.
    """
    host = with_command()
    wanted = config(**ROUTES, **sections)
    before = set(host.files.tree.snapshot())
    changes = [str(change) for change in planned(host, wanted)]
    link = f"{UNITS}/{target}.wants/{unit}"
    apply(host, **ROUTES, **sections)
    assert files_of_watch(host) == [f"{UNITS}/{unit}", link]
    assert {f"+ {UNITS}/{unit}", f"+ {link}", f"~ {unit} (started)"} <= set(changes)
    first = host.services.state(at_once(), unit)
    assert first.is_running
    assert planned(host, wanted) == ()
    assert found(host, wanted) == ()
    apply(host, **ROUTES, **sections)
    assert host.services.state(at_once(), unit) == first
    execute(Reset(config(), host=host), at_once())
    assert set(host.files.tree.snapshot()) <= before
    assert not host.services.state(at_once(), unit).is_running


def test_a_unit_whose_files_are_lost_leaves_the_intent_by_its_task_alone() -> None:
    """An undo of the task of the watch takes the section out of the installed config even if the unit's files
    are lost, as an apply of the installed config would start the unit again otherwise.
    """
    host = with_command()
    apply(host, **ROUTES, **BY_TIMER)
    for path in files_of_watch(host):
        host.files.remove(path)
    ConfigureWatch(config(**ROUTES, **BY_TIMER), host=host).undo(at_once())
    assert not require_installed_config(host).watch.enabled


def test_a_stopped_unit_is_started_again() -> None:
    """A stopped timer is reported by `plan` and `check`, and started again by an apply."""
    host = with_command()
    wanted = config(**ROUTES, **BY_TIMER)
    apply(host, **ROUTES, **BY_TIMER)
    host.services.stop(at_once(), TIMER)
    assert [str(change) for change in planned(host, wanted)] == [f"~ {TIMER} (started)"]
    assert [str(finding) for finding in found(host, wanted)] == [
        f"warning: failed-unit: {TIMER}: does not run; apply the config"
    ]
    apply(host, **ROUTES, **BY_TIMER)
    assert host.services.state(at_once(), TIMER).is_running


def test_a_service_that_fails_is_reported_with_the_way_to_its_reason() -> None:
    """The finding about a service that fails names the command that shows its log."""
    host = with_command()
    wanted = config(**ROUTES, **BY_SERVICE)
    apply(host, **ROUTES, **BY_SERVICE)
    host.services._unit(SERVICE).outcome = "activating", "auto-restart", "exit-code"
    [finding] = found(host, wanted)
    reason = f"does not run, and its last run failed (exit-code); read journalctl -u {SERVICE}"
    assert finding.reason == reason
    assert finding.apply == "now"


@pytest.mark.parametrize(
    ("unit", "sections"),
    [(TIMER, BY_TIMER), (SERVICE, BY_SERVICE), ("probe-snat.service", {**PROBES})],
)
def test_plan_and_apply_of_a_masked_optional_unit(
    unit: str, sections: dict[str, Any], tmp_path: Path
) -> None:
    """A plan and an apply report that a masked optional unit is left out, and neither fails.

    A plan after the apply reports the mask again, and that nothing is to be changed.
    """
    document = tmp_path / "config.json"
    document.write_text(json.dumps({"hostRouting": config(**ROUTES, **sections).to_mapping()}))
    mask = tmp_path / UNITS[1:] / unit
    command = tmp_path / COMMAND[1:]
    for folder in mask.parent, command.parent:
        folder.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    command.write_text("#!/usr/bin/python3\n")
    command.chmod(0o755)
    make_image(tmp_path)
    planned = run_here("plan", document, "--root", tmp_path)
    applied = run_here("apply", document, "--root", tmp_path)
    assert planned.returncode == 0, applied.stderr
    assert applied.returncode == 0, applied.stderr
    [masked] = [line for line in planned.stdout.splitlines() if "masked" in line]
    assert masked.startswith(f"~ {UNITS}/{unit} (will be left out: {MASKED}")
    assert MASKED in applied.stderr
    assert (tmp_path / f"{UNITS[1:]}/static-routes.service").exists()
    again = run_here("plan", "--exit-code", document, "--root", tmp_path)
    assert again.returncode == 0
    assert "masked" in again.stdout


@pytest.mark.parametrize(
    ("sections", "subject", "severity", "reason"),
    [
        (
            {**ROUTES, **CLEAN, **BY_TIMER},
            ".staleCni.sweep",
            "warning",
            "set hostRouting.watch.mode to 'service'",
        ),
        ({**ROUTES, **COUNTING}, ".watch.readings", "note", "only mode 'service' counts"),
        (BY_TIMER, ".watch", "warning", ""),
    ],
)
def test_what_has_no_effect_is_a_finding(
    sections: dict[str, Any], subject: str, severity: str, reason: str
) -> None:
    """A setting of the watch that a timer cannot obey, or a watch without anything to keep, is a
    finding; as a service the same config has none.
    """
    host = with_command()
    apply(host, **sections)
    [finding] = check_node(at_once(), config(**sections), host).findings
    assert finding.kind == "watch"
    assert finding.subject == f"hostRouting{subject}"
    assert finding.severity == severity
    assert reason in finding.reason
    assert bool(files_of_watch(host)) is (sections != BY_TIMER)
    if sections != BY_TIMER:
        by_service = {**sections, "watch": {**sections["watch"], "mode": "service"}}
        apply(host, **by_service)
        assert not check_node(at_once(), config(**by_service), host).findings


def test_another_interval_restarts_the_timer() -> None:
    """An apply with another interval restarts the timer, which counts by the interval that it was
    started with, and a check before it has a finding about the file.
    """
    host = with_command()
    apply(host, **ROUTES, **BY_TIMER)
    about_it = [each for each in found(host, config(**ROUTES, **INTERVAL)) if TIMER in each.subject]
    assert [each.kind for each in about_it] == ["watch"]
    calls = len(host.services.operations.calls)
    apply(host, **ROUTES, **INTERVAL)
    later = host.services.operations.calls[calls:]
    assert later.index(("stop", TIMER)) < later.index(("start", TIMER))
