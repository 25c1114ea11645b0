"""The table in docs/apply-matrix.md: read it, compare it with a measured row, write it on demand."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from system.matrix import APPLIES, MODES
from system.troubles import TROUBLES

_T = TypeVar("_T")
#: Trouble, apply and mode; and the rest of their row.
Cell = tuple[str, str, str]
Row = tuple[str, ...]

DOCUMENT = Path(__file__).parents[2] / "docs/apply-matrix.md"
KILLED = "SIGKILL after a step"
#: Two applies, or modes, with the same row.
BOTH = "both"
_TROUBLES = *(trouble.name for trouble in TROUBLES), KILLED
CELLS: tuple[Cell, ...] = tuple(itertools.product(_TROUBLES, APPLIES, MODES))
_HEAD = (
    "Trouble",
    "Apply",
    "Mode",
    "Exit",
    "Installed",
    "Live",
    "Gate",
    "After a reboot",
    "Then",
)
_ABOVE_ROWS = _HEAD, ("---",) * len(_HEAD)
_TEXT = """\
# The apply matrix

The state of a node after an apply that ran into trouble. `nox -s matrix -- write` writes this page. Each row was measured on real
systemd, with the distribution's own `systemd-nspawn@.service` as the gated unit: the test ran `hostrouting apply`, started a
container, and booted again from the same `/etc` with the trouble still there.

- **Apply**: `first` on a node without an installed config; `again` over another config that was in force.
- **Installed**: the config whose scripts, units and gates are on disk. **Live**: the config whose routes are in the kernel.
- **Gate**: `open` if a container that is started now passes. Running containers always continue.
- **After a reboot**: whether the container that is started at boot runs.
- **Then**: how a held container starts once the trouble is over.

"""


def committed() -> dict[Cell, Row]:
    """Return the rows of the committed table; none if there is no table."""
    rows: dict[Cell, Row] = {}
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    for line in text.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if line.startswith("| ") and tuple(words) not in _ABOVE_ROWS:
            trouble, applies, modes, *row = words
            for apply in APPLIES if applies == BOTH else (applies,):
                for mode in MODES if modes == BOTH else (modes,):
                    rows[trouble, apply, mode] = tuple(row)
    return rows


def render(rows: Mapping[Cell, Row]) -> str:
    """Return the whole document; a row that both applies or both modes share appears once."""
    lines: list[Row] = [*_ABOVE_ROWS]
    for trouble in _TROUBLES:
        by_apply = {
            apply: {mode: rows.get((trouble, apply, mode)) for mode in MODES} for apply in APPLIES
        }
        for apply, by_mode in _shared(by_apply):
            lines += [(trouble, apply, mode, *row) for mode, row in _shared(by_mode) if row]
    return _TEXT + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shared(values: Mapping[str, _T]) -> list[tuple[str, _T]]:
    """Return each key with its value, or a single item if the two values are the same."""
    first, second = values.values()
    return [(BOTH, first)] if first == second else [*values.items()]


def compare(cell: Cell, row: Row) -> None:
    """Assert that the table has this row; with HOSTROUTING_MATRIX=write, write it instead."""
    if os.environ.get("HOSTROUTING_MATRIX") != "write":
        assert committed().get(cell) == row, (
            f"{DOCUMENT} differs; `nox -s matrix -- write` renews it"
        )
        return
    DOCUMENT.parent.mkdir(exist_ok=True)
    # A lock of the folder: tests run in parallel, and the file may not exist yet.
    folder = os.open(DOCUMENT.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        DOCUMENT.write_text(render({**committed(), cell: row}), encoding="utf-8")
    finally:
        os.close(folder)
