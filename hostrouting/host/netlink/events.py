"""The adapter of `NetworkEvents`: a separate socket, which a thread reads without delay.

The kernel announces each event in a datagram of its own, and drops events once a socket's queue is
full: it makes 20,000 route changes in 70 ms, while a task may be busy with a check. So the thread
only stores bytes, and `take` parses them in the thread of its caller.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock, Thread
from typing import TYPE_CHECKING, Literal

from hostrouting.base.errors import BackendError, EventsLostError
from hostrouting.host.netlink.bulk import RouteReader
from hostrouting.host.netlink.conversation import (
    GROUPS,
    LONGEST,
    SOCKET_BYTES,
    Adapter,
    collector_paused,
    enlarge,
    in_namespace,
    open_here,
)
from hostrouting.host.netlink.device_codec import parse_address, parse_device
from hostrouting.host.netlink.frames import (
    EXCLUSIVE,
    HEADER_LENGTH,
    REPLACE,
    UNREADABLE,
    message_start,
    number_of,
    parsed,
)
from hostrouting.host.netlink.route_codec import NEWROUTE, Names, UnknownDeviceError, device_of
from hostrouting.host.netlink.rule_codec import parse_rule
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.events import (
    AddressEvent,
    DeviceEvent,
    NetworkEvent,
    NexthopEvent,
    RouteEvent,
    RuleEvent,
    SettingEvent,
)
from phases.context import notify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from phases import Context


_NEWLINK = 16
_NEWADDR = 20
_NEWRULE = 32
_NEWNETCONF = 80
_NEWNEXTHOP = 104
#: The families of each kind of message about something new; the number of its removal is one more.
#: Left out are links of the family AF_BRIDGE, whose removal means that a port left its bridge.
_FAMILIES = {
    _NEWLINK: (0,),
    **dict.fromkeys((_NEWADDR, NEWROUTE, _NEWRULE, _NEWNETCONF), (IPV4, IPV6)),
}
_nhmsg = struct.Struct("=8x")
_netconfmsg = struct.Struct("=4x")
_NHA_ID = 1
_NETCONFA_FORWARDING = 2
_NETCONFA_IGNORE_LINKDOWN = 6
_sender = struct.Struct("=12xI").unpack_from
_kind_and_family = struct.Struct("=4xH10xB").unpack_from

_Placing = Literal["add", "prepend", "append", "replace"]
#: NLM_F_REPLACE, EXCL, CREATE and APPEND. The kernel sets them by the place of the route, whatever
#: the request had.
_PLACING = 0xF00
_VERBS: dict[int, _Placing] = {0x600: "add", 0x400: "prepend", 0xC00: "append", 0x100: "replace"}


def is_event(datagram: bytes) -> bool:
    """Return True if `EventReader` has to see the datagram."""
    if len(datagram) <= HEADER_LENGTH:
        return False
    kind, family = _kind_and_family(datagram)
    # Nexthop objects are of any family: an IPv4 route may have an IPv6 gateway, and a group is of
    # neither.
    return bool(kind & ~1 == _NEWNEXTHOP or family in _FAMILIES.get(kind & ~1, ()))


class EventReader:
    """Parses events in their order; `names` are the names of devices by interface index."""

    def __init__(self, names: Names) -> None:
        self._names = dict(names)
        self._routes = RouteReader(self._names)

    def read(self, datagram: bytes) -> NetworkEvent | None:
        """Return the event of a datagram; None if it is of a setting that concerns no route."""
        length, kind, flags = message_start(datagram)
        if length != len(datagram):
            raise ValueError(f"an announcement is {length} bytes long, but {len(datagram)} came")
        new = kind & ~1
        is_gone = bool(kind & 1)
        if new == NEWROUTE:
            verb = "remove" if is_gone else _placed(flags, family=datagram[HEADER_LENGTH])
            # Half of the time that a NamedTuple takes: a storm has ten thousand a second.
            [sender] = _sender(datagram)
            return tuple.__new__(RouteEvent, (verb, self._routes.read_announced(datagram), sender))
        payload = datagram[HEADER_LENGTH:]
        if new == _NEWLINK:
            return self._link(payload, is_gone=is_gone)
        if new == _NEWADDR:
            index, address = parse_address(payload)
            return AddressEvent(
                "remove" if is_gone else "set", device_of(index, self._names), address
            )
        if new == _NEWRULE:
            return RuleEvent("remove" if is_gone else "add", parse_rule(payload))
        if new == _NEWNEXTHOP:
            _, fields = parsed(payload, _nhmsg)
            return NexthopEvent("remove" if is_gone else "set", number_of(fields, _NHA_ID))
        _, fields = parsed(payload, _netconfmsg)
        # A new device shows all its settings at once, and a removed one none.
        is_changed = _NETCONFA_IGNORE_LINKDOWN in fields and _NETCONFA_FORWARDING not in fields
        return SettingEvent("set", "ignore_routes_with_linkdown") if is_changed else None

    def _link(self, payload: bytes, *, is_gone: bool) -> DeviceEvent:
        device = parse_device(payload, self._names)
        before = self._names.get(device.ifindex, device.name)
        if is_gone or before != device.name:
            # It has the old name in its caches.
            self._routes = RouteReader(self._names)
        if is_gone:
            self._names.pop(device.ifindex, None)
            return DeviceEvent("remove", device)
        self._names[device.ifindex] = device.name
        return DeviceEvent("set", device, before if before != device.name else "")


def _placed(flags: int, *, family: int) -> _Placing:
    if family == IPV6:
        # The rest of the flags are those of the request.
        return "replace" if flags & REPLACE else "add" if flags & EXCLUSIVE else "append"
    try:
        return _VERBS[flags & _PLACING]
    except KeyError:
        raise ValueError(f"the flags {flags:#x} name no place of a new route") from None


#: A listener stores so much until the caller takes it: 130,000 routes, in twice as much memory.
_MOST_BYTES = 8 << 20
#: In a storm the socket is emptied so often, not for each announcement: that would take three times
#: the time, and every 5 ms a fifth more.
_MILLISECONDS_TOGETHER = 20


class NetlinkEvents(Adapter):
    """The events of this process's network namespace, or of `netns` (a name, or a path).

    >>> from phases import Context
    >>> with NetlinkEvents().listen(Context()) as listener:
    ...     events = listener.take()
    """

    @contextmanager
    def listen(
        self, ctx: Context, *, families: Sequence[int] = (IPV4, IPV6)
    ) -> Iterator[NetlinkListener]:
        """Listen until the end of the `with` block."""
        ctx.check()
        with ExitStack() as stack:
            with self._translated():
                opened = stack.enter_context(in_namespace(self._netns, open_here))
                enlarge(opened, SOCKET_BYTES)
                opened.bind((0, sum(GROUPS[family] for family in (0, *families))))
                end = os.eventfd(0, os.EFD_CLOEXEC)
                stack.callback(os.close, end)
            listener = NetlinkListener(opened, netns=self._netns)
            thread = Thread(
                target=listener.empty,
                args=(end, partial(notify, ctx)),
                name="network-events",
                daemon=True,
            )
            thread.start()
            stack.callback(thread.join)
            stack.callback(os.eventfd_write, end, 1)
            yield listener


class NetlinkListener(Adapter):
    """Stores the announcements of a socket; `empty` runs in a separate thread."""

    def __init__(self, opened: socket.socket, *, netns: str | None = None) -> None:
        super().__init__(netns=netns)
        self._socket = opened
        # Two threads receive announcements, one at a time.
        self._lock = RLock()
        self._stored: list[bytes] = []
        self._size = 0
        self._loss: EventsLostError | None = None
        self._failure: Exception | None = None
        # After the socket has joined: no rename is missed.
        self._reader = self._new_reader()

    @property
    def has_news(self) -> bool:
        """True if `take` has something to return or to raise."""
        return bool(self._stored or self._loss or self._failure)

    def take(self) -> list[NetworkEvent]:
        """Return the events since the last call."""
        if self._failure is not None:
            raise BackendError(
                f"listening to network events has ended: {self._failure}"
            ) from self._failure
        with self._translated(), self._lock:
            self._receive()
            announced = self._stored
            self._stored = []
            self._size = 0
            loss = self._loss
            self._loss = None
        try:
            if loss is not None:
                raise loss
            return self._read(announced)
        except EventsLostError as error:
            try:
                # A rename may be among the lost events.
                self._reader = self._new_reader()
            except BackendError:
                self._lose(error)
                raise
            raise

    def _read(self, announced: list[bytes]) -> list[NetworkEvent]:
        try:
            with collector_paused():
                return [event for event in map(self._reader.read, announced) if event is not None]
        except (UnknownDeviceError, *UNREADABLE) as error:
            raise EventsLostError(
                f"an event cannot be read, so it and those after it are lost: {error}; read "
                "everything again",
                errno=errno.EBADMSG,
            ) from error

    def _new_reader(self) -> EventReader:
        with self._open() as kernel:
            return EventReader(kernel.names())

    def empty(self, end: int, notify: Callable[[], None]) -> None:
        """Store announcements, and call `notify` for them, until `end` (an eventfd) is written."""
        any_of_both = select.poll()
        the_end = select.poll()
        any_of_both.register(self._socket, select.POLLIN)
        for poll in any_of_both, the_end:
            poll.register(end, select.POLLIN)
        try:
            while end not in dict(any_of_both.poll()):
                self._receive()
                if self._stored or self._loss:
                    notify()
                    # Events that follow at once come together. `take` does not wait for this.
                    the_end.poll(_MILLISECONDS_TOGETHER)
        except Exception as error:  # noqa: BLE001 - `take` raises it
            self._failure = error
            notify()

    def _receive(self) -> None:
        """Store all that the kernel has announced by now."""
        receive = self._socket.recv
        with self._lock:
            while True:
                try:
                    datagram = receive(LONGEST, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    # The kernel reports it once, before the announcements that fitted: they are
                    # useless now.
                    self._lose(_too_many("in the socket's buffer"))
                    continue
                if self._loss is None and is_event(datagram):
                    self._size += len(datagram)
                    self._stored.append(datagram)
                    if self._size > _MOST_BYTES:
                        self._lose(_too_many("before they were taken"))

    def _lose(self, loss: EventsLostError) -> None:
        """Forget all that is stored, and store nothing more until `take` has raised the error."""
        with self._lock:
            self._stored = []
            self._size = 0
            self._loss = loss


def _too_many(where: str) -> EventsLostError:
    return EventsLostError(
        f"too many network events came at once {where}; read everything again", errno=errno.ENOBUFS
    )
