"""The adapter of the port `LinkLayer`, over rtnetlink."""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import classifiers, device_codec
from hostrouting.host.netlink.batches import Neighbours, commit_neighbours
from hostrouting.host.netlink.commit import Transport, slot
from hostrouting.host.netlink.conversation import BATCH, Adapter, in_namespace
from hostrouting.host.netlink.frames import CHANGE_FLAGS, REPLACE, message
from hostrouting.net.links import Neighbour

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from hostrouting.host.netlink.commit import Failures, Steps
    from hostrouting.host.netlink.conversation import Conversation
    from hostrouting.host.netlink.route_codec import Indexes
    from hostrouting.host.ports import LinkAddress
    from hostrouting.net.links import Device, Station
    from phases import Context

_logger = logging.getLogger(__name__)

#: The kernel asks three times, a second apart.
_SECONDS_TO_RESOLVE, _SECONDS_BETWEEN_READINGS = 2.5, 0.05
_SECONDS_BETWEEN_DATAGRAMS = 1.25
#: The length of a hardware address as text.
_ETHERNET: Final = len("02:00:00:00:00:01")


class NetlinkLinkLayer(Adapter):
    """The link layer of this process's network namespace, or of the one named `netns` (a name, or a path).

    >>> NetlinkLinkLayer().stations("no-such-bridge")
    []
    """

    #: The log is to say so once.
    _has_told_of_tcx: bool = False

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
            for device in self._devices()
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
        wired = {device.name for device in self._devices() if device.carrier}
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

    def _devices(self) -> list[Device]:
        with self._open() as kernel:
            return kernel.consistently(lambda: device_codec.parse_devices(kernel.dump(device_codec.LINKS), ()))

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

    def apply(self, *, remove: Sequence[Neighbour] = (), add: Sequence[Neighbour] = ()) -> None:
        """Make all the changes, removals first, or none of them."""
        with self._open() as kernel:
            indexes = kernel.indexes()
            commit_neighbours(_KernelTransport(kernel, indexes), remove=remove, add=add, devices=indexes)


@attrs.define
class _KernelTransport(Transport[Neighbour]):
    """The transport of a commit that sends neighbours to the kernel."""

    _kernel: Conversation
    _indexes: Indexes
    #: Slots in which something is that need not hinder an addition: a neighbour without a known hardware address, or a
    #: removed one (it stays a while if the kernel still refers to it).
    _shared: set[Hashable] = attrs.field(factory=set)
    _has_sent: bool = False

    def standing(self) -> list[Neighbour]:
        table = self._kernel.neighbours()
        self._shared = {*table.unresolved}
        return table.known

    def send(self, steps: Steps[Neighbour]) -> Failures:
        # The commit has read everything before its first removal. A rollback removes later: read again, since the
        # kernel would also remove another program's neighbour of the same address.
        refused: Failures = {}
        removals = [(number, one) for number, (verb, one, _) in enumerate(steps) if verb == "remove"]
        if self._has_sent and removals:
            table = Neighbours(self.standing())
            answers = {number: table.take("remove", one) for number, one in removals}
            refused = {number: failure for number, failure in answers.items() if failure is not None}
        self._has_sent = True
        packed = [self._pack(number, verb, one) for number, (verb, one, _) in enumerate(steps) if number not in refused]
        batches = (b"".join(packed[start : start + BATCH]) for start in range(0, len(packed), BATCH))
        return refused | self._kernel.deliver(batches, len(steps))

    def _pack(self, number: int, verb: str, one: Neighbour) -> bytes:
        if verb == "add" and slot(one) in self._shared:
            verb = "append"
        self._shared.add(slot(one))
        kind = device_codec.DELNEIGH if verb == "remove" else device_codec.NEWNEIGH
        # A slot has one neighbour.
        flags = CHANGE_FLAGS[verb] | (REPLACE if verb == "append" else 0)
        payload = device_codec.pack_neighbour(one, self._indexes[one.dev])
        return message(kind, flags, payload, sequence=socket.htonl(number + 1))
