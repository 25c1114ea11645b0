"""Neighbours, bridge stations and IPv6 routes of the kernel, over rtnetlink."""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink import ipv6_messages, link_changes, link_messages, neighbour_messages, probes
from hostrouting.host.netlink.commit import Failure
from hostrouting.host.netlink.conversation import BATCH, Conversation, rtnetlink_socket
from hostrouting.host.netlink.frames import REQUEST, message
from hostrouting.host.netlink.link_changes import Things, slot
from hostrouting.host.netlink.route_writer import DELROUTE, NEWROUTE
from hostrouting.net.links import Neighbour
from hostrouting.net.route_text import LOCAL_TABLE
from hostrouting.net.routes import route_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.host.netlink.link_changes import Step
    from hostrouting.host.netlink.neighbour_messages import NeighbourTable
    from hostrouting.net.links import Device, Station
    from hostrouting.net.routes import ObservedRoute
    from phases import Context

_REPLACE, _EXCLUSIVE, _CREATE, _APPEND = 0x100, 0x200, 0x400, 0x800
#: Of a hardware address, as text.
_ETHERNET: Final = len("02:00:00:00:00:01")


class NetlinkLinkLayer:
    """The link layer of this process's network namespace, or of the one named `netns` (a name, or a path).

    >>> [device.name for device in NetlinkLinkLayer().devices()][0]
    'lo'
    """

    def __init__(self, *, netns: str | None = None) -> None:
        self._netns = netns

    def __repr__(self) -> str:
        return f"{type(self).__name__}(netns={self._netns!r})" if self._netns else f"{type(self).__name__}()"

    def devices(self) -> list[Device]:
        """Every network device."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: link_messages.parse_devices(
                    kernel.dump(link_messages.LINKS), kernel.dump(neighbour_messages.ADDRESSES)
                )
            )

    def neighbours(self) -> list[Neighbour]:
        """The neighbours of both families that have a hardware address."""
        with self._open() as kernel:
            return _neighbours(kernel).known

    def stations(self, bridge: str) -> list[Station]:
        """The forwarding database of a bridge."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: neighbour_messages.parse_stations(
                    kernel.dump(neighbour_messages.STATIONS), kernel.names(), bridge
                )
            )

    def answering(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Ask on the link who has an address, for each (device, address); those for which somebody answered."""
        ctx.check()
        if not asked:
            return frozenset()
        macs = {
            device.name: bytes.fromhex(device.mac.replace(":", ""))
            for device in self.devices()
            if device.up and len(device.mac) == _ETHERNET
        }
        return probes.ask(ctx, asked, macs, netns=self._netns)

    def routes(self) -> list[ObservedRoute]:
        """The IPv6 routes of every table but the local one."""
        with self._open() as kernel:
            return _routes(kernel)

    def apply(
        self, *, remove: Sequence[Neighbour | ObservedRoute] = (), add: Sequence[Neighbour | ObservedRoute] = ()
    ) -> None:
        """Make all of it happen, removals first, or nothing."""
        with self._open() as kernel:
            link_changes.commit(_KernelTransport(kernel), remove=remove, add=add)

    @contextmanager
    def _open(self) -> Iterator[Conversation]:
        with rtnetlink_socket(self._netns) as opened:
            yield Conversation(opened)


class _KernelTransport:
    """How `link_changes` reaches the kernel."""

    def __init__(self, kernel: Conversation) -> None:
        self._kernel = kernel
        self._indexes: dict[str, int] = {}
        #: Slots in which something is that need not hinder an addition: a neighbour that nobody could resolve, or that
        #: was removed (it stays a while if somebody refers to it), a route of another device.
        self._shared: set[tuple[object, ...]] = set()

    def read(self) -> Things:
        table, routes = _neighbours(self._kernel), _routes(self._kernel)
        self._indexes = {name: index for index, name in self._kernel.names().items()}
        self._shared = {*table.unresolved, *map(slot, routes)}
        return Things(frozenset(self._indexes), [*table.known, *routes])

    def send(self, steps: Sequence[Step]) -> dict[int, Failure]:
        # Of a device that was gone when we last read, no message can be made.
        gone = {
            position: Failure(errno.ENODEV, f"there is no device {step.thing.dev}")
            for position, step in enumerate(steps)
            if step.thing.dev is not None and step.thing.dev not in self._indexes
        }
        packed = [self._pack(position, step) for position, step in enumerate(steps) if position not in gone]
        batches = (b"".join(packed[start : start + BATCH]) for start in range(0, len(packed), BATCH))
        return gone | self._kernel.deliver(batches, len(steps))

    def _pack(self, position: int, step: Step) -> bytes:
        verb, thing = step
        is_neighbour = isinstance(thing, Neighbour)
        if verb == "remove":
            kind, flags = neighbour_messages.DELNEIGH if is_neighbour else DELROUTE, REQUEST
        else:
            kind, flags = neighbour_messages.NEWNEIGH if is_neighbour else NEWROUTE, REQUEST | _CREATE
            if verb == "add" and slot(thing) not in self._shared:
                flags |= _EXCLUSIVE
            else:
                flags |= _REPLACE if is_neighbour else _APPEND
        self._shared.add(slot(thing))
        payload = (
            neighbour_messages.pack_neighbour(thing, self._indexes[thing.dev])
            if isinstance(thing, Neighbour)
            else ipv6_messages.pack_route(thing, self._indexes)
        )
        return message(kind, flags, payload, sequence=socket.htonl(position + 1))


def _neighbours(kernel: Conversation) -> NeighbourTable:
    return kernel.consistently(
        lambda: neighbour_messages.parse_neighbours(kernel.dump(neighbour_messages.NEIGHBOURS), kernel.names())
    )


def _routes(kernel: Conversation) -> list[ObservedRoute]:
    routes = kernel.consistently(lambda: ipv6_messages.parse_routes(kernel.dump(ipv6_messages.ROUTES), kernel.names()))
    return sorted((route for route in routes if route.table != LOCAL_TABLE), key=route_order)
