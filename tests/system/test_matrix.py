"""The node after each trouble of an apply, as promised, and as in docs/apply-matrix.md.

`make test` runs one row, `make check` one for each trouble, `nox -s matrix`
(HOSTROUTING_MATRIX=all) the whole; `nox -s matrix -- write` writes the table.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.systemd_box import require_program
from system.matrix import APPLIES, MODES, Disk, count_steps, interrupt, measure, survive
from system.matrix_table import CELLS, DOCUMENT, KILLED, committed, compare, render
from system.troubles import TROUBLES

IS_WHOLE = "HOSTROUTING_MATRIX" in os.environ
BY_NAME = {trouble.name: trouble for trouble in TROUBLES}
#: Each trouble once.
SAMPLE = (("an overlap remains", "first", "STRICT"),)
SLOW_SAMPLE = (
    ("nothing is wrong", "again", "STRICT"),
    ("a route is refused", "again", "STRICT"),
    ("a typo in a gateway", "again", "WARN"),
    ("no lease", "first", "WARN"),
    ("a device is missing", "first", "STRICT"),
    ("IMDS is silent", "first", "WARN"),
    ("IMDS answers 404", "again", "WARN"),
    ("nft is missing", "again", "STRICT"),
    ("ebtables is missing", "first", "WARN"),
    ("azure-vnet is configured", "first", "STRICT"),
    ("/run is full", "again", "STRICT"),
    ("/etc is read-only", "again", "WARN"),
)
#: In how many tests the steps of one apply are killed; the sample is one of them.
PARTS = 5 if IS_WHOLE else 15
PART_OF_SAMPLE = 7


@pytest.fixture(autouse=True)
def _possible() -> None:
    require_program()


@pytest.mark.parametrize(
    ("name", "apply", "mode"),
    [cell for cell in CELLS if cell[0] != KILLED]
    if IS_WHOLE
    else [*SAMPLE, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in SLOW_SAMPLE)],
)
def test_a_trouble(tmp_path: Path, name: str, apply: str, mode: str) -> None:
    """The exit status, the installed config, the live routes and the gate after a trouble, at once
    and after a reboot, are as promised.
    """
    outcome, then = measure(tmp_path, BY_NAME[name], apply, mode)
    assert outcome == BY_NAME[name].promised(apply, mode)
    compare((name, apply, mode), (*map(str, outcome), then))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS) if IS_WHOLE else [PART_OF_SAMPLE])
@pytest.mark.parametrize("mode", MODES if IS_WHOLE else ["STRICT"])
@pytest.mark.parametrize("apply", APPLIES if IS_WHOLE else ["again"])
def test_killed_after_each_step(tmp_path: Path, apply: str, mode: str, part: int) -> None:
    """A node whose apply is killed after any step boots, no gate is shut by half an installation or
    by two configs, and the next apply ends the same.
    """
    steps, wanted = count_steps(tmp_path / "wanted", apply, mode)
    booted: list[Disk] = []
    for step in range(1 + part * steps // PARTS, 1 + (part + 1) * steps // PARTS):
        survive(tmp_path / str(step), apply, mode, step=step, wanted=wanted, booted=booted)
    live = "the earlier or the new" if apply == "again" else "nothing or the new"
    then = "nothing is held, wherever it is killed; the next apply ends as if it never was"
    compare((KILLED, apply, mode), ("killed", "up to that step", live, "open", "started", then))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS) if IS_WHOLE else [PART_OF_SAMPLE])
@pytest.mark.parametrize("apply", APPLIES)
def test_interrupted_after_each_step(tmp_path: Path, apply: str, part: int) -> None:
    """An apply that SIGTERM ends after any step leaves one whole config, live and for the boot; a
    first apply may leave it for the boot alone.
    """
    steps, _ = count_steps(tmp_path / "wanted", apply, "STRICT")
    for step in range(1 + part * steps // PARTS, 1 + (part + 1) * steps // PARTS):
        status, installed, live = interrupt(tmp_path / str(step), apply, step=step)
        assert status == 143 or installed == "the new"
        assert installed == live or (apply, installed, live) == ("first", "the new", "nothing")


@pytest.mark.parametrize(
    ("by", "end"), [(signal.SIGHUP, (0, "the new")), (signal.SIGQUIT, (131, "the earlier"))]
)
def test_a_terminal_ends(tmp_path: Path, by: signal.Signals, end: tuple[int, str]) -> None:
    """An apply whose terminal is closed after its routes have changed goes on; SIGQUIT undoes the
    apply as Ctrl-C does.
    """
    assert interrupt(tmp_path, "again", step=1, by=by) == (*end, end[1])


def test_the_table_is_whole() -> None:
    """The table has a row for each cell of the matrix, and no other row."""
    if os.environ.get("HOSTROUTING_MATRIX") == "write":
        return
    rows = committed()
    assert set(rows) == set(CELLS)
    assert DOCUMENT.read_text(encoding="utf-8") == render(rows)
