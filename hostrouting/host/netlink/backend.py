"""The default backend for routes: rtnetlink, without a library.

Messages are packed and parsed by hand (see `bulk`), because pyroute2 needs about ninety times as
long to encode a route as the kernel needs to install it, and 145 ms to import.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

from hostrouting.base.errors import BackendError
from hostrouting.host.netlink import device_codec, rule_codec
from hostrouting.host.netlink.announced import Announcements
from hostrouting.host.netlink.bulk import RouteReader, pack_lookups, read_routes
from hostrouting.host.netlink.conversation import (
    BATCH,
    Adapter,
    Conversation,
    in_namespace,
    open_here,
)
from hostrouting.host.netlink.frames import AnswersLostError
from hostrouting.host.netlink.route_codec import LINKS
from hostrouting.net.addresses import (
    IPV4,
    IPV6,
    require_family,
    require_lookups,
)
from hostrouting.net.links import Device
from hostrouting.net.routes import Lookup, ObservedRoute, RouteChange
from hostrouting.net.rules import Rule

#: The errors of a kernel without IPv6 (`ipv6.disable=1`).
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP})


class NetlinkBackend(Adapter):
    """The routes of this process's network namespace, or of `netns` (a name, or a path).

    >>> backend = NetlinkBackend()
    >>> [link.name for link in backend.links()][0]
    'lo'
    """

    families: tuple[int, ...] = (IPV4, IPV6)

    def listen(self) -> Any:
        """Return the changes of the namespace from now on, or None if a sandbox refuses that."""
        with suppress(OSError):
            return Announcements(in_namespace(self._netns, open_here))
        return None

    def links(self) -> list[Device]:
        """Return every device with its addresses."""
        with self._open() as kernel:
            return kernel.consistently(
                lambda: device_codec.parse_devices(
                    kernel.dump(LINKS),
                    kernel.dump(device_codec.ADDRESSES),
                    kernel.dump(device_codec.NEIGHBOURS),
                )
            )

    def rules(self, family: int = IPV4) -> list[Rule]:
        """Return the policy rules in the kernel's order."""
        with self._open() as kernel:
            try:
                return kernel.consistently(
                    lambda: [*map(rule_codec.parse_rule, kernel.dump(rule_codec.RULES[family]))]
                )
            except OSError as error:
                if family == IPV4 or error.errno not in _NO_IPV6:
                    raise
                return []

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of every table."""
        require_family(family)
        with self._open() as kernel:
            return read_routes(kernel, family)

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of one protocol; the kernel filters them."""
        require_family(family)
        with self._open() as kernel:
            # The kernel does not filter for a socket without strict checking, as in pyroute2.
            return [
                route
                for route in read_routes(kernel, family, protocol)
                if route.protocol == protocol
            ]

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """Return the route that each destination uses."""
        require_lookups(destinations, sources, family)
        command = f"ip -{4 if family == IPV4 else 6} route get"

        def read(kernel: Conversation, size: int) -> list[Lookup]:
            reader = RouteReader(kernel.names(), family)
            answers: list[Lookup] = []
            for start in range(0, len(destinations), size):
                batch = destinations[start : start + size]
                batch_sources = None if sources is None else sources[start : start + size]
                packed = pack_lookups(batch, batch_sources, resolve=resolve, family=family)
                received = kernel.ask_many(packed, len(batch), command)
                decided = reader.read_answers(memoryview(received))
                if len(decided) != len(batch):
                    raise ValueError(f"{len(decided)} answers to {len(batch)} lookups")
                if family == IPV6:
                    decided = [_of_ipv6(answer, resolve=resolve) for answer in decided]
                # Lookup(destination, route, errno) for all, without a Python call for each.
                fields: Iterable[tuple[Any, ...]] = zip(batch, decided, repeat(0))
                if int in {*map(type, decided)}:
                    routes = [None if isinstance(answer, int) else answer for answer in decided]
                    refusals = [answer if isinstance(answer, int) else 0 for answer in decided]
                    fields = zip(batch, routes, refusals, strict=True)
                answers += map(tuple.__new__, repeat(Lookup), fields)
            return answers

        size = BATCH
        while True:
            try:
                with self._open() as kernel:
                    return kernel.consistently(partial(read, kernel, size))
            except AnswersLostError as error:
                if size == 1:
                    raise BackendError(
                        "the kernel's answer to a lookup was lost", errno=errno.ENOBUFS
                    ) from error
                # A lookup changes nothing: repeat it with smaller batches.
                size //= 2

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all changes, in order, or none of them."""
        # Imported here because most processes change no routes.
        from hostrouting.host.netlink.transport import commit_to_kernel

        with self._open() as kernel:
            commit_to_kernel(kernel, changes, verify=verify)


def _of_ipv6(answer: ObservedRoute | int, *, resolve: bool) -> ObservedRoute | int:
    if isinstance(answer, int):
        return errno.ENETUNREACH if answer in _NO_IPV6 else answer
    # For the path of a packet, this is only the source of the lookup.
    return answer._replace(from_prefix=None) if resolve else answer
