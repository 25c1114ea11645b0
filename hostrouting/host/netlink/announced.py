"""What the kernel announces while a node is read.

A check takes the announcements within milliseconds. The watch must not miss a burst between two
rounds, so it has a thread that listens; see `events`.
"""

from __future__ import annotations

import errno
import struct
import weakref
from typing import TYPE_CHECKING

from hostrouting.base.errors import EventsLostError
from hostrouting.host.netlink.conversation import (
    GROUPS,
    LONGEST,
    SOCKET_BYTES,
    enlarge,
    errors_of,
)
from hostrouting.host.netlink.frames import REQUEST, UNREADABLE, message

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from hostrouting.host.netlink.events import EventReader
    from hostrouting.net.events import NetworkEvent

#: A request about `lo`, the first device of each namespace.
_BARRIER = message(18, REQUEST, struct.pack("=BxHiII", 0, 0, 1, 0, 0))


class Announcements:
    """The events of a network namespace from now on; see `hostrouting.host.ports.Announced`."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        weakref.finalize(self, opened.close)
        enlarge(opened, SOCKET_BYTES)
        opened.bind((0, sum(GROUPS.values())))
        self._reader: EventReader | None = None

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:
        """Return the events since the last call.

        The kernel answers the request about `lo` under the lock that changes of devices hold. So
        pending changes are complete and were announced before the answer, such as the removal of a
        device, whose routes vanish without events.
        """
        with errors_of("rtnetlink"):
            self._socket.send(_BARRIER)
            announced = []
            while True:
                try:
                    datagram, (_, group) = self._socket.recvfrom(LONGEST)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    text = "too many network events came at once"
                    raise EventsLostError(text, errno=errno.ENOBUFS) from error
                if not group:
                    # The answer to this socket, not an announcement.
                    break
                announced.append(datagram)
        return self._parsed(announced, names) if announced else []

    def _parsed(self, announced: list[bytes], names: Mapping[int, str]) -> list[NetworkEvent]:
        # Imported here because during most checks nothing changes.
        from hostrouting.host.netlink.events import EventReader, is_event
        from hostrouting.host.netlink.route_codec import UnknownDeviceError

        if self._reader is None:
            self._reader = EventReader(dict(names))
        try:
            events = [*map(self._reader.read, filter(is_event, announced))]
        except (UnknownDeviceError, *UNREADABLE) as error:
            text = f"a network event cannot be read: {error}"
            raise EventsLostError(text, errno=errno.EBADMSG) from error
        return [event for event in events if event is not None]
