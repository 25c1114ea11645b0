"""The marks of held units: lost, damaged or failed ones, and since when a unit is held."""

from collections.abc import Iterator

import pytest
from support.gated_machine import STAND_INS, STRICT, GatedMachine, more_machines

from hostrouting.boot.gates import Gates

MARK = "/etc/systemd/system/hostrouting-held@.service"
#: A machine that an operator starts.
LATE = "systemd-nspawn@late.service"
#: Its payload fails.
FAULTY = "systemd-nspawn@faulty.service"
RELOAD = "; systemctl daemon-reload"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedMachine]:
    """A machine on which routing is right at first."""
    payload = "[Service]\nType=exec\nExecStart=\nExecStart=/bin/false"
    prepare = more_machines(faulty=payload)
    with GatedMachine(tmp_path_factory.mktemp("marks"), prepare=prepare) as machine:
        machine.wait_until_up()
        yield machine


@pytest.fixture(autouse=True)
def afresh(machine: GatedMachine) -> None:
    """An installed config and right routing; the machine of the operator does not run."""
    machine.mend_routing()
    machine.boot.install(machine.ctx, *STAND_INS, STRICT)
    machine.systemctl("stop", LATE)
    machine.systemctl("reset-failed")


@pytest.mark.parametrize(
    "lose",
    [
        f"rm {MARK}",
        f"truncate -s 0 {MARK}{RELOAD}",
        f"head -c 999 /dev/zero > {MARK}{RELOAD}",
        f"printf '[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nExecStart=/bin/false\\n' > {MARK}{RELOAD}",
    ],
)
def test_a_lost_mark_is_made_good(machine: GatedMachine, lose: str) -> None:
    """A unit that was refused while its mark was lost or damaged is held by the next apply on a
    wrong node, and starts once routing is right.
    """
    machine.run("bash", "-c", lose)
    machine.break_routing()
    assert machine.systemctl("start", LATE) == 1
    # systemd forgets by what command the unit failed.
    machine.services.daemon_reload(machine.ctx)
    assert LATE not in Gates(machine.services).held(machine.ctx)
    assert machine.boot.install(machine.ctx, *STAND_INS, STRICT)
    assert Gates(machine.services).held(machine.ctx) == [LATE]
    machine.mend_routing()
    machine.until(f"systemctl is-active --quiet {LATE}", unit=LATE)
    machine.wait_for_retry()
    assert Gates(machine.services).held(machine.ctx) == []


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_mark_outlives_its_file(machine: GatedMachine, is_reloaded: bool) -> None:
    """A unit stays held after its mark's file is removed while systemd has the mark loaded; a stop
    by an operator is respected after the next apply.
    """
    machine.break_routing()
    assert machine.systemctl("start", LATE) == 1
    machine.files.remove(MARK)
    if is_reloaded:
        machine.services.daemon_reload(machine.ctx)
    assert machine.boot.install(machine.ctx, *STAND_INS, STRICT)
    assert Gates(machine.services).held(machine.ctx) == [LATE]
    machine.systemctl("stop", LATE)
    assert Gates(machine.services).held(machine.ctx) == []
    assert machine.systemctl("start", LATE) == 1
    machine.mend_routing()
    machine.until(f"systemctl is-active --quiet {LATE}", unit=LATE)


def test_an_apply_leaves_alone_what_an_operator_stopped(machine: GatedMachine) -> None:
    """An apply does not hold a failed unit that an operator stopped while its mark could be
    started, nor one whose payload failed.
    """
    machine.break_routing()
    assert machine.systemctl("start", LATE) == 1
    machine.systemctl("stop", LATE)
    machine.files.write(MARK, (machine.files.read(MARK) or b"") + b"# An edit.\n", mode=0o644)
    assert machine.boot.install(machine.ctx, *STAND_INS, STRICT)
    assert Gates(machine.services).held(machine.ctx) == []
    machine.systemctl("reset-failed", LATE)
    machine.mend_routing()
    machine.systemctl("start", FAULTY)
    machine.until(f"systemctl is-failed --quiet {FAULTY}", unit=FAULTY)
    machine.files.remove(MARK)
    assert machine.boot.install(machine.ctx, *STAND_INS, STRICT)
    assert Gates(machine.services).held(machine.ctx) == []
