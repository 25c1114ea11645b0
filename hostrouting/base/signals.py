"""The signals that cancel a command, and the exit statuses that they cause."""

from __future__ import annotations

import signal
from typing import Final

#: These cancel a command that changes the node.
CANCELLING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


def status_of_signal(name: str) -> int:
    """Return the exit status of a process that was killed by a signal.

    >>> status_of_signal("SIGTERM")
    143
    """
    return 128 + signal.Signals[name]
