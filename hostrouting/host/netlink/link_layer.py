"""Neighbours, bridge stations and IPv6 routes of the kernel, over rtnetlink."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink import ipv6_messages, link_messages, neighbour_messages, probes
from hostrouting.host.netlink.commit import Failure, Places, commit_links, missing_after, slot
from hostrouting.host.netlink.conversation import BATCH, Adapter
from hostrouting.host.netlink.frames import REQUEST, message
from hostrouting.host.netlink.route_writer import DELROUTE, NEWROUTE
from hostrouting.net.links import Neighbour
from hostrouting.net.route_text import LOCAL_TABLE
from hostrouting.net.routes import route_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.host.netlink.commit import LinkThing, Steps
    from hostrouting.host.netlink.conversation import Conversation
    from hostrouting.host.netlink.neighbour_messages import NeighbourTable
    from hostrouting.net.links import Device, Station
    from hostrouting.net.routes import ObservedRoute
    from phases import Context

__all__ = [
    "NetlinkLinkLayer",
]

_REPLACE, _EXCLUSIVE, _CREATE, _APPEND = 0x100, 0x200, 0x400, 0x800
#: Of a hardware address, as text.
_ETHERNET: Final = len("02:00:00:00:00:01")


class NetlinkLinkLayer(Adapter):
    """The link layer of this process's network namespace, or of the one named `netns` (a name, or a path).

    >>> [device.name for device in NetlinkLinkLayer().devices()][0]
    'lo'
    """

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
            return sorted(_routes(kernel), key=route_order)

    def apply(
        self, *, remove: Sequence[Neighbour | ObservedRoute] = (), add: Sequence[Neighbour | ObservedRoute] = ()
    ) -> None:
        """Make all of it happen, removals first, or nothing."""
        with self._open() as kernel:
            indexes = {name: index for index, name in kernel.names().items()}
            commit_links(_KernelTransport(kernel, indexes), remove=remove, add=add, devices=indexes)


class _KernelTransport:
    """The transport of a commit that sends neighbours and IPv6 routes to the kernel."""

    def __init__(self, kernel: Conversation, indexes: Mapping[str, int]) -> None:
        self._kernel = kernel
        self._indexes = indexes
        #: Slots in which something is that need not hinder an addition: a neighbour without a known hardware address, a
        #: removed one (it stays a while if the kernel still refers to it), a route of another device.
        self._shared: set[tuple[object, ...]] = set()
        self._has_sent = False

    def standing(self) -> list[LinkThing]:
        table, routes = _neighbours(self._kernel), _routes(self._kernel)
        self._shared = {*table.unresolved, *map(slot, routes)}
        return [*table.known, *routes]

    def send(self, steps: Steps[LinkThing], *, will_verify: bool) -> dict[int, Failure]:  # noqa: ARG002 - the port has it
        # The commit has read everything before its first removal. A rollback removes later: read again, since the
        # kernel would also remove another program's neighbour of the same address.
        refused = self._not_standing(steps) if self._has_sent and "remove" in steps.verbs else {}
        self._has_sent = True
        packed = [
            self._pack(number, verb, thing)
            for number, (verb, thing) in enumerate(zip(steps.verbs, steps.things, strict=True))
            if number not in refused
        ]
        batches = (b"".join(packed[start : start + BATCH]) for start in range(0, len(packed), BATCH))
        return refused | self._kernel.deliver(batches, len(steps.verbs))

    def unfulfilled(self, steps: Steps[LinkThing]) -> dict[int, Failure]:
        return missing_after(steps, self.standing())

    def _not_standing(self, steps: Steps[LinkThing]) -> dict[int, Failure]:
        places = Places(self.standing())
        answers = {
            number: places.remove(thing)
            for number, (verb, thing) in enumerate(zip(steps.verbs, steps.things, strict=True))
            if verb == "remove"
        }
        return {number: answer for number, answer in answers.items() if isinstance(answer, Failure)}

    def _pack(self, number: int, verb: str, thing: LinkThing) -> bytes:
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
        return message(kind, flags, payload, sequence=socket.htonl(number + 1))


def _neighbours(kernel: Conversation) -> NeighbourTable:
    return kernel.consistently(
        lambda: neighbour_messages.parse_neighbours(kernel.dump(neighbour_messages.NEIGHBOURS), kernel.names())
    )


def _routes(kernel: Conversation) -> list[ObservedRoute]:
    """Return the routes in the order in which the kernel looks for the one to remove."""
    routes = kernel.consistently(lambda: ipv6_messages.parse_routes(kernel.dump(ipv6_messages.ROUTES), kernel.names()))
    return [route for route in routes if route.table != LOCAL_TABLE]
