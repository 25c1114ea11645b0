"""The events of IPv6 routes and addresses, as the kernel sends them."""

import socket
import struct
from collections.abc import Iterator

RTM_DELADDR = 21
RTM_DELROUTE = 25
#: The groups to which a listener binds.
IPV6_ADDRESS_EVENTS = 0x100
IPV6_ROUTE_EVENTS = 0x400


def datagrams(listener: socket.socket) -> Iterator[bytes]:
    """Return the queued events."""
    while True:
        try:
            yield listener.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return


def kinds_of_events(listener: socket.socket) -> list[int]:
    """Return the type of each event that is queued."""
    found: list[int] = []
    for datagram in datagrams(listener):
        offset = 0
        while offset < len(datagram):
            length, kind = struct.unpack_from("=IH", datagram, offset)
            found.append(kind)
            offset += (length + 3) & ~3
    return found
