"""A backend over the pyroute2 `IPRoute` or `NetNS` that an agent already holds.

It is simple instead of fast: one request for each route. pyroute2 carries the messages, which are packed and parsed as
those of the default backend.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.commit import Failure, OneByOne
from hostrouting.host.netlink.device_codec import parse_devices, parse_names
from hostrouting.host.netlink.frames import ACK, HEADER_LENGTH, REQUEST, message
from hostrouting.host.netlink.route_codec import GETROUTE, UnknownDeviceError, pack_route, parse_route
from hostrouting.host.netlink.route_commit import check_devices, commit_routes
from hostrouting.host.netlink.route_writer import HEADS, pack_lookups
from hostrouting.host.netlink.rule_codec import parse_rules
from hostrouting.net.addresses import IPV4
from hostrouting.net.routes import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute, Route
    from hostrouting.net.rules import Rule

__all__ = [
    "Pyroute2Backend",
]

T = TypeVar("T")

#: How often routes are read again because a device of theirs is newer than the reading of the devices.
_READINGS: Final = 20


class Pyroute2Backend:
    """A `RouteBackend` over `ipr`, which belongs to the caller: it is neither configured nor closed here.

    >>> from pyroute2 import IPRoute
    >>> with IPRoute() as ipr:
    ...     Pyroute2Backend(ipr).links()[0].name
    'lo'
    """

    def __init__(self, ipr: Any) -> None:
        self._ipr = ipr
        # The socket belongs to the caller: one request at a time.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._ipr).__name__})"

    def links(self) -> list[Device]:
        """Return every device with its addresses."""
        with self._translated():
            links = map(_raw, self._ipr.get_links())
            addresses = map(_raw, self._ipr.get_addr(family=IPV4))
            return parse_devices(links, addresses, map(_raw, self._ipr.get_neighbours(family=IPV4)))

    def routes(self) -> list[ObservedRoute]:
        """Return the routes of every table."""
        return self._with_names(
            lambda names: [parse_route(_raw(message), names) for message in self._ipr.get_routes(family=IPV4)]
        )

    def rules(self) -> list[Rule]:
        """Return the policy rules in the kernel's order."""
        with self._translated():
            return parse_rules(map(_raw, self._ipr.get_rules(family=IPV4)))

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Ask which route decides each destination."""
        if sources is not None and len(sources) != len(destinations):
            raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations: give one for each, or none")
        asked = list(zip(destinations, sources or [None] * len(destinations), strict=True))
        return self._with_names(
            lambda names: [self._ask(destination, source, names, resolve=resolve) for destination, source in asked]
        )

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them."""
        with self._translated():
            indexes = {name: index for index, name in self._names().items()}
            check_devices(changes, indexes)
            transport = OneByOne(partial(self._change, indexes), self.routes)
            commit_routes(transport, changes, verify=verify)

    def _change(self, indexes: dict[str, int], verb: str, route: Route | ObservedRoute) -> Failure | None:
        from pyroute2 import NetlinkError

        try:
            self._request(*HEADS[verb], pack_route(route, indexes))
        except NetlinkError as error:
            return Failure(error.code, _reason(error))
        return None

    def _ask(self, destination: int, source: int | None, names: dict[int, str], *, resolve: bool) -> Lookup:
        from pyroute2 import NetlinkError

        packed = bytes(pack_lookups([destination], None if source is None else [source], resolve=resolve))
        try:
            [answer] = self._request(GETROUTE, REQUEST, packed[HEADER_LENGTH:])
        except NetlinkError as error:
            return Lookup(destination, None, error.code)
        return Lookup(destination, parse_route(_raw(answer), names))

    def _request(self, kind: int, flags: int, payload: bytes) -> Any:
        """Send one message and return the answers; raise NetlinkError if the kernel refuses it."""
        packed = _packed_message()()
        packed["header"].update(type=kind, flags=flags | ACK)
        packed.payload = payload
        return self._ipr.nlm_request_batch([packed])

    def _names(self) -> dict[int, str]:
        return parse_names(map(_raw, self._ipr.get_links()))

    def _with_names(self, read: Callable[[dict[int, str]], list[T]]) -> list[T]:
        """Call `read` with the device names, and again if it finds a device that is newer."""
        with self._translated():
            for _ in range(_READINGS):
                with suppress(UnknownDeviceError):
                    return read(self._names())
        raise BackendError("pyroute2: the devices changed during each reading; try again", errno=errno.EAGAIN)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from pyroute2 import NetlinkError

        with self._lock:
            try:
                yield
            except NetlinkError as error:
                raise BackendError(f"pyroute2: {_reason(error)}", errno=error.code) from error
            except OSError as error:
                raise BackendError(f"pyroute2: {error.strerror or error}", errno=error.errno) from error


@cache
def _packed_message() -> Any:
    """Return the class of a message whose payload is packed already."""
    from pyroute2.netlink import nlmsg

    class Packed(nlmsg):  # type: ignore[misc]  # pyroute2 has no annotations
        payload = b""

        def encode(self) -> None:
            head = self["header"]
            self.data += message(head["type"], head["flags"], self.payload, sequence=head["sequence_number"])

    return Packed


def _reason(error: Any) -> str:
    """Return the text of a refusal: the kernel's message if the socket asked for one, else that of the errno."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _raw(message: Any) -> bytes:
    """Return a message without its header, as the kernel sent it: pyroute2 keeps the datagram in which it came."""
    return bytes(message.data[message.offset + HEADER_LENGTH : message.offset + message["header"]["length"]])
