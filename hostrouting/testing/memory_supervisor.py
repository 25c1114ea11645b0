"""A service manager in memory that hears the signs of a process."""

from __future__ import annotations

from hostrouting.host.systemd.notify import Signs

__all__ = ["MemorySupervisor"]


class MemorySupervisor(Signs):
    """The manager of a fake machine; `heard` has each message as the assignments that systemd would read.

    It implements `Supervisor`.

    >>> supervisor = MemorySupervisor()
    >>> supervisor.ready("2 routes in force")
    >>> supervisor.heard
    [{'READY': '1', 'STATUS': '2 routes in force'}]
    """

    def __init__(self) -> None:
        self.heard: list[dict[str, str]] = []
        #: Set it to let the manager wait for `alive`.
        self.seconds_between_signs: float | None = None

    def _deliver(self, message: bytes) -> None:
        self.heard.append(dict(line.split("=", 1) for line in message.decode().splitlines()))
