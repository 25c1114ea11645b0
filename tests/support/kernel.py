"""Helpers of tests that ask the real kernel."""

from __future__ import annotations

import pytest

needs_kernel = pytest.mark.usefixtures("needs_kernel")


def powerless(*capabilities: str) -> tuple[str, ...]:
    """Return the command prefix that starts a process with these capabilities alone.

    The process may also read every file: the home folder that holds the checkout may be closed to other users.
    """
    kept = "".join(f",+{capability}" for capability in ("dac_read_search", *capabilities))
    return ("setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all")
