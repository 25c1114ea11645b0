"""The adapter of the port `LinkLayer`, over rtnetlink."""

from __future__ import annotations

import errno
import logging
import socket
import time
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import classifiers, device_codec, route_codec
from hostrouting.host.netlink.batches import Places, commit_links
from hostrouting.host.netlink.commit import Failure, LinkThing, Transport, slot
from hostrouting.host.netlink.conversation import BATCH, Adapter, in_namespace
from hostrouting.host.netlink.frames import CHANGE_FLAGS, REPLACE, message
from hostrouting.net.addresses import IPV6, parse_address
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import LOCAL_TABLE, route_order

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from hostrouting.host.netlink.commit import Failures, Steps
    from hostrouting.host.netlink.conversation import Conversation
    from hostrouting.host.netlink.route_codec import Indexes
    from hostrouting.host.ports import LinkAddress
    from hostrouting.net.addresses import Address
    from hostrouting.net.links import Device, Station
    from hostrouting.net.routes import ObservedRoute
    from phases import Context

_logger = logging.getLogger(__name__)

#: The errors of a lookup without a route or with one that blocks: EINVAL is a blackhole, EACCES a prohibition. The last
#: two come from a kernel without IPv6 (`ipv6.disable=1`).
_LEADS_NOWHERE: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}
)
#: The kernel asks three times, a second apart.
_SECONDS_TO_RESOLVE, _SECONDS_BETWEEN_READINGS = 2.5, 0.05
_SECONDS_BETWEEN_DATAGRAMS = 1.25
#: The length of a hardware address as text.
_ETHERNET: Final = len("02:00:00:00:00:01")


class NetlinkLinkLayer(Adapter):
    """The link layer of this process's network namespace, or of the one named `netns` (a name, or a path).

    >>> [device.name for device in NetlinkLinkLayer().devices()][0]
    'lo'
    """

    #: The log is to say so once.
    _has_told_of_tcx: bool = False

    def devices(self) -> list[Device]:
        """Return every network device."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: device_codec.parse_devices(kernel.dump(device_codec.LINKS), kernel.dump(device_codec.ADDRESSES))
            )

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbours of both families that have a hardware address."""
        with self._open() as kernel:
            return kernel.neighbours().known

    def stations(self, bridge: str) -> list[Station]:
        """Return the forwarding database of a bridge."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: device_codec.parse_stations(kernel.dump(device_codec.STATIONS), kernel.names(), bridge)
            )

    def answering(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Ask on the link for each (device, address); return the pairs that were answered."""
        ctx.check()
        if not asked:
            return frozenset()
        macs = {
            device.name: bytes.fromhex(device.mac.replace(":", ""))
            for device in self.devices()
            if device.up and len(device.mac) == _ETHERNET
        }
        from hostrouting.host.netlink import probes  # only a sweep asks

        return probes.ask(ctx, asked, macs, netns=self._netns)

    def silent(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Make the kernel ask for each (device, IPv4 address) that it does not know; return those without an answer."""
        ctx.check()
        known = {(neighbour.dev, neighbour.address) for neighbour in self.neighbours()}
        if known.issuperset(asked):
            return frozenset()
        wired = {device.name for device in self.devices() if device.carrier}
        waiting = frozenset(pair for pair in asked if pair not in known and pair[0] in wired)
        from hostrouting.host.netlink import probes  # hardly ever: a node knows the neighbours to which it sends

        probes.touch(waiting, netns=self._netns)
        until = ctx.clock.monotonic() + _SECONDS_TO_RESOLVE
        again = ctx.clock.monotonic() + _SECONDS_BETWEEN_DATAGRAMS
        while waiting := self._unresolved(waiting):
            now = ctx.clock.monotonic()
            if now >= until:
                break
            if now >= again:
                # The kernel may have been at the end of an earlier question, and did not ask for the first datagram.
                probes.touch(waiting, netns=self._netns)
                again = until
            ctx.sleep(_SECONDS_BETWEEN_READINGS)
        return waiting

    def _unresolved(self, asked: Iterable[LinkAddress]) -> frozenset[LinkAddress]:
        with self._open() as kernel:
            unresolved = kernel.neighbours().unresolved
        return frozenset((dev, address) for dev, address in asked if (address, dev) in unresolved)

    def newest_address(self, dev: str) -> float | None:
        """Return the seconds since an IPv6 address was added to a device."""
        with self._open() as kernel:
            index = kernel.indexes().get(dev)
            return kernel.consistently(
                lambda: device_codec.parse_youngest(kernel.dump(device_codec.ADDRESSES), index, time.monotonic())
            )

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """Return the names of the BPF programs that tc or tcx runs for packets in and out of the device."""
        with self._open() as kernel:
            index = kernel.indexes().get(dev)
            if index is None:
                return ()
            requests = classifiers.filter_requests(index, dev)
            found = kernel.consistently(
                lambda: classifiers.parse_bpf_names(each for request in requests for each in kernel.dump(request))
            )
        return tuple(sorted(found | self._programs(index)))

    def _programs(self, index: int) -> frozenset[str]:
        try:
            return in_namespace(self._netns, lambda: classifiers.program_names(index))
        except PermissionError:
            # A watch asks twice for each repair of the rules for IPv6 probes.
            if not self._has_told_of_tcx:
                _logger.info("which BPF programs are attached by tcx cannot be told without CAP_SYS_ADMIN")
            self._has_told_of_tcx = True
        except OSError as error:
            raise BackendError(f"bpf: {error.strerror or error}", errno=error.errno) from error
        return frozenset()

    def routes(self) -> list[ObservedRoute]:
        """Return the IPv6 routes of every table but the local one."""
        with self._open() as kernel:
            return sorted(_routes(kernel), key=route_order)

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """Return the devices by which a packet to the IPv6 address may leave."""
        asked = parse_address(address)
        if asked is None or asked.family != IPV6:
            raise BackendError(f"{address!r} is not an IPv6 address", errno=errno.EINVAL)
        with self._open() as kernel:
            # If the kernel shows a nexthop object by its number only, ask for one packet's path.
            return kernel.consistently(
                lambda: _ask(kernel, asked, fib_match=True) or _ask(kernel, asked, fib_match=False)
            )

    def apply(self, *, remove: Sequence[LinkThing] = (), add: Sequence[LinkThing] = ()) -> None:
        """Make all the changes, removals first, or none of them."""
        with self._open() as kernel:
            indexes = kernel.indexes()
            commit_links(_KernelTransport(kernel, indexes), remove=remove, add=add, devices=indexes)


@attrs.define
class _KernelTransport(Transport[LinkThing]):
    """The transport of a commit that sends neighbours and IPv6 routes to the kernel."""

    _kernel: Conversation
    _indexes: Indexes
    #: Slots in which something is that need not hinder an addition: a neighbour without a known hardware address, a
    #: removed one (it stays a while if the kernel still refers to it), a route of another device.
    _shared: set[Hashable] = attrs.field(factory=set)
    _has_sent: bool = False

    def standing(self) -> list[LinkThing]:
        table, routes = self._kernel.neighbours(), _routes(self._kernel)
        self._shared = {*table.unresolved, *map(slot, routes)}
        return [*table.known, *routes]

    def send(self, steps: Steps[LinkThing]) -> Failures:
        # The commit has read everything before its first removal. A rollback removes later: read again, since the
        # kernel would also remove another program's neighbour of the same address.
        refused: Failures = {}
        removals = [(number, thing) for number, (verb, thing, _) in enumerate(steps) if verb == "remove"]
        if self._has_sent and removals:
            places = Places(self.standing())
            answers = {number: places.remove(thing) for number, thing in removals}
            refused = {number: answer for number, answer in answers.items() if isinstance(answer, Failure)}
        self._has_sent = True
        packed = [
            self._pack(number, verb, thing) for number, (verb, thing, _) in enumerate(steps) if number not in refused
        ]
        batches = (b"".join(packed[start : start + BATCH]) for start in range(0, len(packed), BATCH))
        return refused | self._kernel.deliver(batches, len(steps))

    def _pack(self, number: int, verb: str, thing: LinkThing) -> bytes:
        if verb == "add" and slot(thing) in self._shared:
            verb = "append"
        self._shared.add(slot(thing))
        flags = CHANGE_FLAGS[verb]
        if isinstance(thing, Neighbour):
            kind = device_codec.DELNEIGH if verb == "remove" else device_codec.NEWNEIGH
            payload = device_codec.pack_neighbour(thing, self._indexes[thing.dev])
            # A slot has one neighbour.
            flags |= REPLACE if verb == "append" else 0
        else:
            kind = route_codec.DELROUTE if verb == "remove" else route_codec.NEWROUTE
            payload = route_codec.pack_route(thing, self._indexes)
        return message(kind, flags, payload, sequence=socket.htonl(number + 1))


def _ask(kernel: Conversation, address: Address, *, fib_match: bool) -> tuple[str, ...]:
    names = kernel.names()
    try:
        answer = kernel.ask(route_codec.lookup_request(address, fib_match=fib_match))
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return ()
        raise
    route = route_codec.parse_route(answer, names, family=IPV6)
    return tuple(sorted({hop.dev for hop in route.hops if not hop.dead}))


def _routes(kernel: Conversation) -> list[ObservedRoute]:
    """Return the routes in the order in which the kernel looks for the one to remove."""
    routes = kernel.consistently(
        lambda: route_codec.parse_ipv6_routes(kernel.dump(route_codec.IPV6_ROUTES), kernel.names())
    )
    return [route for route in routes if route.table != LOCAL_TABLE]
