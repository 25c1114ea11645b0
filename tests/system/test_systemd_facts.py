"""Facts about systemd that explain why a gate is a drop-in that checks, and not a dependency
(docs/decisions/).
"""

from collections.abc import Iterator

import pytest
from support.systemd_box import SystemdBox

#: Two checks that fail while /etc/overlap exists, and units for the facts below.
UNITS = {
    "check.service": """\
[Unit]
Before=machine@.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c '! test -e /etc/overlap'
""",
    "remaining.service": """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c '! test -e /etc/overlap'
""",
    "machine@.service": """\
[Service]
ExecStart=/bin/sleep infinity
""",
    "bound.service": """\
[Unit]
Requires=remaining.service
After=remaining.service
[Service]
ExecStart=/bin/sleep infinity
Restart=always
RestartSec=100ms
""",
    "skipping.service": """\
[Service]
Restart=always
RestartSec=2
ExecCondition=sh -c '[ "$$(systemctl show --property=NRestarts skipping.service)" = NRestarts=0 ]'
ExecStartPre=/bin/false
ExecStart=/bin/sleep infinity
""",
    "failing.service": """\
[Service]
Type=oneshot
Restart=on-failure
RestartSec=1h
ExecStart=/bin/false
""",
    "needing.service": """\
[Unit]
Requires=skipping.service
After=skipping.service
[Service]
ExecStart=/bin/sleep infinity
""",
}


@pytest.fixture
def box() -> Iterator[SystemdBox]:
    files = "".join(
        f"cat > /etc/systemd/system/{name} <<'END'\n{text}END\n" for name, text in UNITS.items()
    )
    with SystemdBox(prepare=files) as booted:
        yield booted


def show(box: SystemdBox, unit: str, setting: str) -> str:
    return box.run("systemctl", "show", "--value", f"--property={setting}", unit).stdout.strip()


def start(box: SystemdBox, *words: str) -> int:
    return box.run("systemctl", *words, check=False).returncode


def test_before_a_template_orders_nothing(box: SystemdBox) -> None:
    """A bare template is filled with the prefix of the unit that names it, so it means no instance."""
    start(box, "start", "machine@one.service")
    assert "check.service" not in show(box, "machine@one.service", "After").split()
    assert "machine@one.service" not in show(box, "check.service", "Before").split()


def test_a_machine_whose_requirement_failed_is_not_tried_again(box: SystemdBox) -> None:
    """With Requires= and After= the refused unit is inactive, and its Restart= does nothing."""
    box.run("touch", "/etc/overlap")
    assert start(box, "start", "bound.service") == 1
    box.run("rm", "/etc/overlap")
    assert start(box, "start", "remaining.service") == 0
    assert show(box, "bound.service", "ActiveState") == "inactive"
    assert show(box, "bound.service", "NRestarts") == "0"


@pytest.mark.parametrize("verb", ["restart", "stop"])
def test_a_verb_on_a_required_unit_reaches_the_machine(box: SystemdBox, verb: str) -> None:
    """A restart or stop of the required unit ends the process of the machine that requires it."""
    start(box, "start", "bound.service")
    before = show(box, "bound.service", "MainPID")
    start(box, verb, "remaining.service")
    assert before != "0"
    assert show(box, "bound.service", "MainPID") != before


def test_a_oneshot_that_remains_is_not_run_again(box: SystemdBox) -> None:
    """With RemainAfterExit=yes a second start succeeds and runs nothing; without it the command
    runs.
    """
    assert start(box, "start", "remaining.service", "check.service") == 0
    box.run("touch", "/etc/overlap")
    assert start(box, "start", "remaining.service") == 0
    assert start(box, "start", "check.service") == 1


def test_a_start_joins_an_automatic_restart(box: SystemdBox) -> None:
    """If a condition skips systemd's own restarts, a start in the meantime succeeds, and so does
    one that needs it.
    """
    assert start(box, "start", "skipping.service") == 1
    assert show(box, "skipping.service", "SubState") == "auto-restart"
    assert start(box, "start", "needing.service") == 0
    assert show(box, "skipping.service", "ActiveState") == "inactive"
    assert show(box, "needing.service", "ActiveState") == "active"


def test_a_start_waits_for_an_automatic_restart(box: SystemdBox) -> None:
    """Before systemd 257 a start of a failed oneshot with `Restart=` waits for its RestartSec=; it
    never counts as failed.
    """
    assert start(box, "start", "failing.service") == 1
    assert start(box, "start", "--no-block", "failing.service") == 0
    # systemd takes jobs in turn.
    assert start(box, "start", "check.service") == 0
    assert bool(show(box, "failing.service", "Job")) == (box.version < 257)
    assert start(box, "is-failed", "failing.service") == 1
