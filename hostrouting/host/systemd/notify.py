"""Notifications to systemd, and journal entries with additional fields, without its library.

A service notifies the manager that started it: sd_notify(3). Entries are in the native protocol.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from typing import TYPE_CHECKING

import attrs

from hostrouting.host.offline import NoSupervisor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.host.ports import Supervisor

_logger = logging.getLogger(__name__)

#: How long to wait for a reader whose queue is full.
_SECONDS_TO_SEND = 1.0
#: Characters of a value in the journal: the kernel refuses a datagram of some 200 kB.
_LONGEST = 2000
#: Notify after half of the watchdog's timeout, as systemd recommends.
_SIGNS_IN_TIME = 2


@attrs.frozen
class NotifySocket:
    """The manager that listens on a socket: a path, or an abstract name (`@name`).

    It implements `Supervisor`.
    """

    address: str
    seconds_between_signs: float | None = None

    def notify(self, **assignments: str) -> None:
        """See `Supervisor.notify`."""
        # A line is an assignment, so a value is one line.
        lines = (f"{name}={' '.join(value.split())}\n" for name, value in assignments.items())
        # Go on; a manager that misses notifications restarts this process.
        send(self.address, "".join(lines).encode(errors="backslashreplace"))


def send(address: str, message: bytes) -> None:
    """Send a datagram to a socket of systemd, a path or an abstract name; log a failure."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SECONDS_TO_SEND)
            # An abstract name begins with a NUL.
            sender.sendto(message, f"\0{address[1:]}" if address.startswith("@") else address)
    except (OSError, ValueError) as error:
        _logger.debug("cannot notify %s: %s", address, error)


def entry(**fields: str) -> bytes:
    r"""Return an entry as a datagram; each value has its length, and so may contain line breaks.

    >>> entry(MESSAGE="fine")
    b'MESSAGE\n\x04\x00\x00\x00\x00\x00\x00\x00fine\n'
    """
    values = {
        name: value[:_LONGEST].encode(errors="backslashreplace") for name, value in fields.items()
    }
    return b"".join(
        b"%b\n%b%b\n" % (name.encode(), len(value).to_bytes(8, "little"), value)
        for name, value in values.items()
    )


def supervisor_of(environment: Mapping[str, str]) -> Supervisor:
    """Return the manager that started this process: sd_notify(3), sd_watchdog_enabled(3).

    >>> supervisor_of({"NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_USEC": "60000000"})
    NotifySocket(address='/run/systemd/notify', seconds_between_signs=30.0)
    >>> supervisor_of({}).seconds_between_signs is None
    True
    """
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return NoSupervisor()
    microseconds = environment.get("WATCHDOG_USEC", "")
    # A child inherits the variables of a process that is waited for.
    is_meant = environment.get("WATCHDOG_PID", "") in {"", str(os.getpid())}
    # systemd writes a number of 64 bits.
    is_number = re.fullmatch(r"[0-9]{1,20}", microseconds)
    seconds = int(microseconds) / 1e6 / _SIGNS_IN_TIME if is_meant and is_number else 0
    return NotifySocket(address, seconds or None)
