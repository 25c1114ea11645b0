"""The adapter of the port `LinkLayer`, over rtnetlink."""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.host.netlink import classifiers, device_codec
from hostrouting.host.netlink.conversation import (
    BATCH,
    Adapter,
    Conversation,
    errors_of,
    in_namespace,
)
from hostrouting.host.netlink.frames import (
    CHANGE_FLAGS,
    AnswersLostError,
    Failures,
    message,
)
from hostrouting.host.netlink.neighbours import refuse_changed, refuse_failed
from hostrouting.host.netlink.route_codec import LINKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host.ports import LinkAddress
    from hostrouting.net.links import Device, Neighbour, Station
    from phases import Context

_logger = logging.getLogger(__name__)

#: The kernel sends three requests, a second apart.
_SECONDS_TO_RESOLVE = 2.5
_SECONDS_BETWEEN_READINGS = 0.05
_SECONDS_BETWEEN_DATAGRAMS = 1.25
_DISCARD_PORT = 9
_GONE = frozenset({errno.ENETDOWN, errno.ENXIO, errno.ENODEV})


class NetlinkLinkLayer(Adapter):
    """The link layer of this process's network namespace, or of `netns` (a name, or a path).

    >>> NetlinkLinkLayer().stations("no-such-bridge")
    []
    """

    #: It is logged once.
    _has_logged_tcx: bool = False

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbours of both families that have a hardware address."""
        with self._open() as kernel:
            return _table(kernel).known

    def stations(self, bridge: str) -> list[Station]:
        """Return the forwarding database of a bridge."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: device_codec.parse_stations(
                    kernel.dump(device_codec.STATIONS), kernel.names(), bridge
                )
            )

    def silent(self, ctx: Context, addresses: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Make the kernel resolve each (device, IPv4 address); return those without an answer."""
        ctx.check()
        known = {(neighbour.dev, neighbour.address) for neighbour in self.neighbours()}
        waiting = frozenset(addresses) - known
        if not waiting:
            return waiting
        wired = {device.name for device in self._devices() if device.carrier}
        waiting = frozenset(pair for pair in waiting if pair[0] in wired)
        # Hardly ever: a node has resolved the neighbours to which it sends.
        touch(waiting, netns=self._netns)
        until = ctx.clock.monotonic() + _SECONDS_TO_RESOLVE
        again = ctx.clock.monotonic() + _SECONDS_BETWEEN_DATAGRAMS
        while True:
            with self._open() as kernel:
                waiting &= _table(kernel).unresolved
            now = ctx.clock.monotonic()
            if not waiting or now >= until:
                return waiting
            if now >= again:
                # For the first datagram the kernel may have been at the end of an earlier
                # resolution.
                touch(waiting, netns=self._netns)
                again = until
            ctx.sleep(_SECONDS_BETWEEN_READINGS)

    def _devices(self) -> list[Device]:
        with self._open() as kernel:
            return kernel.consistently(lambda: device_codec.parse_devices(kernel.dump(LINKS), ()))

    def newest_address(self, dev: str) -> float | None:
        """Return the seconds since an IPv6 address was added to a device."""
        with self._open() as kernel:
            index = kernel.indexes().get(dev)
            return kernel.consistently(
                lambda: device_codec.parse_youngest(
                    kernel.dump(device_codec.ADDRESSES), index, time.monotonic()
                )
            )

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """Return the names of the BPF programs of tc and tcx on the device, in and out."""
        with self._open() as kernel:
            index = kernel.indexes().get(dev)
            if index is None:
                return ()
            requests = classifiers.filter_requests(index, dev)
            names = kernel.consistently(
                lambda: classifiers.parse_bpf_names(chain.from_iterable(map(kernel.dump, requests)))
            )
        with errors_of("bpf"):
            try:
                names |= in_namespace(self._netns, lambda: classifiers.program_names(index))
            except PermissionError:
                # A watch reads them twice for each repair of the rules for IPv6 probes.
                if not self._has_logged_tcx:
                    _logger.info(
                        "which BPF programs are attached with tcx cannot be read without "
                        "CAP_SYS_ADMIN"
                    )
                self._has_logged_tcx = True
        return tuple(sorted(names))

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours, each by its full description."""
        with self._open() as kernel:
            refuse_changed(neighbours, _table(kernel).known)
            indexes = kernel.indexes()
            messages = [
                message(
                    device_codec.DELNEIGH,
                    CHANGE_FLAGS["remove"],
                    device_codec.pack_neighbour(neighbour, indexes[neighbour.dev]),
                    sequence=socket.htonl(number),
                )
                for number, neighbour in enumerate(neighbours, 1)
            ]
            batches = (
                b"".join(messages[start : start + BATCH])
                for start in range(0, len(messages), BATCH)
            )
            failures: Failures = {}
            # If answers were lost, reading back decides.
            with suppress(AnswersLostError):
                failures = kernel.deliver(batches, len(messages))
            refuse_failed(neighbours, failures, _table(kernel).known)


def touch(pairs: Iterable[LinkAddress], *, netns: str | None) -> None:
    """Send an empty datagram to each (device, IPv4 address), so that the kernel resolves it."""
    for dev, address in pairs:
        made = partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        denied = f"a datagram to {address} through {dev} is not permitted; its answer is unknown"
        name = dev.encode(errors="surrogateescape")
        with errors_of(f"a datagram to {address} by {dev}", denied=denied):
            try:
                with in_namespace(netns, made) as opened:
                    opened.setblocking(False)
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
                    opened.sendto(b"", (address, _DISCARD_PORT))
            except OSError as error:
                if error.errno not in _GONE:
                    raise


def _table(kernel: Conversation) -> device_codec.NeighbourTable:
    return kernel.consistently(
        lambda: device_codec.parse_neighbours(kernel.dump(device_codec.NEIGHBOURS), kernel.names())
    )
