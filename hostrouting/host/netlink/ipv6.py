"""What the kernel knows of IPv6, over rtnetlink."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import ipv6_messages, tcx
from hostrouting.host.netlink.conversation import Adapter
from hostrouting.host.netlink.namespaces import in_namespace
from hostrouting.host.netlink.route_reader import RouteReader
from hostrouting.net.default_route import default_routes

if TYPE_CHECKING:
    from hostrouting.host.netlink.conversation import Conversation
    from hostrouting.net.routes import ObservedRoute

__all__ = [
    "NetlinkIPv6",
]

_logger = logging.getLogger(__name__)

#: How the kernel says that no route leads there, or one that blocks: EINVAL is a blackhole, EACCES a prohibition; and
#: the last two that it has no IPv6 at all (`ipv6.disable=1`).
_LEADS_NOWHERE: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}
)


class NetlinkIPv6(Adapter):
    """IPv6 in this process's network namespace, or in the one named `netns` (a name, or a path).

    >>> NetlinkIPv6().leaves_by("::1")
    ('lo',)
    """

    def default_devs(self) -> tuple[str, ...]:
        """The devices of the best default route in the main table."""
        with self._open() as kernel:

            def read() -> tuple[str, ...]:
                names = kernel.names()
                by_rank: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
                for route in default_routes(ipv6_messages.parse_routes(kernel.dump(ipv6_messages.ROUTES), names)):
                    rank = route.metric, ipv6_messages.preference(route)
                    by_rank[rank] += _alive(route)
                return tuple(dict.fromkeys(by_rank[min(by_rank)])) if by_rank else ()

            return kernel.consistently(read)

    def addresses(self, dev: str) -> tuple[str, ...]:
        """The usable addresses of global scope on a device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return ()
            return kernel.consistently(
                lambda: ipv6_messages.parse_usable_addresses(kernel.dump(ipv6_messages.ADDRESSES), index)
            )

    def newest_address(self, dev: str) -> float | None:
        """The seconds since an address was added to a device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return None
            return kernel.consistently(
                lambda: ipv6_messages.parse_youngest(kernel.dump(ipv6_messages.ADDRESSES), index, time.monotonic())
            )

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """The devices by which a packet to the address may leave."""
        try:
            socket.inet_pton(socket.AF_INET6, address)
        except (OSError, ValueError) as error:  # ValueError: a null byte within
            raise BackendError(f"{address!r} is not an IPv6 address", errno=errno.EINVAL) from error
        with self._open() as kernel:
            # Where nexthop objects are shown by their number only, one packet's way is what can be learned.
            return kernel.consistently(
                lambda: _ask(kernel, address, fib_match=True) or _ask(kernel, address, fib_match=False)
            )

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """The names of the BPF programmes that tc or tcx runs for packets in and out of the device."""
        with self._open() as kernel:
            index = _index(kernel, dev)
            if index is None:
                return ()

            def read() -> tuple[str, ...]:
                names: set[str] = set()
                for request in ipv6_messages.filter_requests(index, dev):
                    names |= ipv6_messages.parse_bpf_names(kernel.dump(request))
                return tuple(sorted(names))

            found = kernel.consistently(read)
        return tuple(sorted({*found, *self._programs(index)}))

    def _programs(self, index: int) -> frozenset[str]:
        try:
            if self._netns is None:
                return tcx.program_names(index)
            return in_namespace(self._netns, lambda: tcx.program_names(index))
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
        answer = kernel.ask(ipv6_messages.lookup_request(address, fib_match=fib_match))
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return ()
        raise
    return tuple(sorted(set(_alive(RouteReader(names).read(answer)))))


def _alive(route: ObservedRoute) -> list[str]:
    return [hop.dev for hop in route.hops if not hop.dead]
