"""The adapter for IPv6 reading: addresses, routes and classifiers over rtnetlink."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import classifiers, device_codec, route_codec
from hostrouting.host.netlink.conversation import Adapter
from hostrouting.host.netlink.frames import HEADER_LENGTH
from hostrouting.host.netlink.namespaces import in_namespace
from hostrouting.net.addresses import IPV6
from hostrouting.net.default_route import default_routes

if TYPE_CHECKING:
    from hostrouting.host.netlink.conversation import Conversation
    from hostrouting.net.routes import ObservedRoute

__all__ = [
    "NetlinkIPv6",
]

_logger = logging.getLogger(__name__)

#: The errors of a lookup without a route or with one that blocks: EINVAL is a blackhole, EACCES a prohibition. The last
#: two come from a kernel without IPv6 (`ipv6.disable=1`).
_LEADS_NOWHERE: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}
)


class NetlinkIPv6(Adapter):
    """IPv6 in this process's network namespace, or in the one named `netns` (a name, or a path).

    >>> NetlinkIPv6().leaves_by("::1")
    ('lo',)
    """

    def default_devs(self) -> tuple[str, ...]:
        """Return the devices of the best default route in the main table."""
        with self._open() as kernel:

            def read() -> tuple[str, ...]:
                names = kernel.names()
                by_rank: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
                for route in default_routes(route_codec.parse_ipv6_routes(kernel.dump(route_codec.IPV6_ROUTES), names)):
                    rank = route.metric, route_codec.preference(route)
                    by_rank[rank] += _alive(route)
                return tuple(dict.fromkeys(by_rank[min(by_rank)])) if by_rank else ()

            return kernel.consistently(read)

    def addresses(self, dev: str) -> tuple[str, ...]:
        """Return the usable addresses of global scope on a device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return ()
            return kernel.consistently(
                lambda: device_codec.parse_usable_addresses(kernel.dump(device_codec.IPV6_ADDRESSES), index)
            )

    def newest_address(self, dev: str) -> float | None:
        """Return the seconds since an address was added to a device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return None
            return kernel.consistently(
                lambda: device_codec.parse_youngest(kernel.dump(device_codec.IPV6_ADDRESSES), index, time.monotonic())
            )

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """Return the devices by which a packet to the address may leave."""
        try:
            socket.inet_pton(socket.AF_INET6, address)
        except (OSError, ValueError) as error:  # ValueError: a null byte within
            raise BackendError(f"{address!r} is not an IPv6 address", errno=errno.EINVAL) from error
        with self._open() as kernel:
            # If the kernel shows a nexthop object by its number only, ask for one packet's path.
            return kernel.consistently(
                lambda: _ask(kernel, address, fib_match=True) or _ask(kernel, address, fib_match=False)
            )

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """Return the names of the BPF programs that tc or tcx runs for packets in and out of the device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return ()

            def read() -> tuple[str, ...]:
                names: set[str] = set()
                for request in classifiers.filter_requests(index, dev):
                    names |= classifiers.parse_bpf_names(kernel.dump(request))
                return tuple(sorted(names))

            found = kernel.consistently(read)
        return tuple(sorted({*found, *self._programs(index)}))

    def _programs(self, index: int) -> frozenset[str]:
        try:
            if self._netns is None:
                return classifiers.program_names(index)
            return in_namespace(self._netns, lambda: classifiers.program_names(index))
        except PermissionError:
            _logger.info("which BPF programs are attached by tcx cannot be told without root")
        except OSError as error:
            raise BackendError(f"bpf: {error.strerror or error}", errno=error.errno) from error
        return frozenset()


def _index(kernel: Conversation, dev: str) -> int | None:
    return next((index for index, name in kernel.names().items() if name == dev), None)


def _ask(kernel: Conversation, address: str, *, fib_match: bool) -> tuple[str, ...]:
    names = kernel.names()
    try:
        answer = kernel.ask(route_codec.lookup_request(address, fib_match=fib_match))
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return ()
        raise
    return tuple(sorted(set(_alive(route_codec.parse_route(answer[HEADER_LENGTH:], names, family=IPV6)))))


def _alive(route: ObservedRoute) -> list[str]:
    return [hop.dev for hop in route.hops if not hop.dead]
