"""Helpers of tests that ask the real kernel."""

from __future__ import annotations

import pytest

needs_kernel = pytest.mark.usefixtures("needs_kernel")


def powerless(*capabilities: str) -> tuple[str, ...]:
    """Return a command prefix for a process with these capabilities alone. It may read every file, even our own code.

    (A checkout in /root, or in the home of the user that ran sudo, is closed to other users.)
    """
    kept = "".join(f",+{capability}" for capability in ("dac_read_search", *capabilities))
    return ("setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all")
