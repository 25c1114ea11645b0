"""The IPv6 state of a node, in memory: an `IPv6Backend` of plain attributes."""

from __future__ import annotations

import errno
import os
from ipaddress import IPv6Address, IPv6Network

from hostrouting.exceptions import BackendError
from hostrouting.testing.faults import Operations

__all__ = ["MemoryIPv6"]


class MemoryIPv6:
    """Arranged by setting its attributes.

    >>> node = MemoryIPv6()
    >>> node.defaults = ["eth0"]
    >>> node.by_dev = {"eth0": ["fd00:1::4"]}
    >>> node.routes = {"fd00:2::/64": ("ib0", "ib1"), "fd00:3::/64": ()}
    >>> node.leaves_by("2001:db8::1"), node.leaves_by("fd00:1::4"), node.leaves_by("fd00:2::9")
    (('eth0',), ('eth0',), ('ib0', 'ib1'))
    """

    def __init__(self) -> None:
        #: The devices of the default route: of the best, if there are several.
        self.defaults: list[str] = []
        #: The usable global addresses of each device.
        self.by_dev: dict[str, list[str]] = {}
        #: The seconds since an address was added to each device that has one.
        self.ages: dict[str, float] = {}
        #: The devices to which each CIDR is routed, none where the route blocks; the longest prefix decides. The
        #: default routes lead to `defaults` unless `::/0` is here.
        self.routes: dict[str, tuple[str, ...]] = {}
        #: The names of the BPF programmes on each device.
        self.programs: dict[str, tuple[str, ...]] = {}
        self.operations: Operations = Operations()

    def fail_at(self, number: int, error: BaseException | None = None) -> None:
        """Let the `number`-th operation from now (1 is the next) fail: by default the kernel has no memory for it."""
        self.operations.fail(
            number, error or BackendError(f"rtnetlink: {os.strerror(errno.ENOBUFS)}", errno=errno.ENOBUFS)
        )

    def default_devs(self) -> tuple[str, ...]:
        """See `IPv6Backend.default_devs`."""
        self.operations.record("default_devs")
        return tuple(dict.fromkeys(self.defaults))

    def addresses(self, dev: str) -> tuple[str, ...]:
        """See `IPv6Backend.addresses`."""
        self.operations.record("addresses", dev)
        return tuple(self.by_dev.get(dev, ()))

    def newest_address(self, dev: str) -> float | None:
        """See `IPv6Backend.newest_address`."""
        self.operations.record("newest_address", dev)
        return self.ages.get(dev)

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """See `IPv6Backend.leaves_by`."""
        self.operations.record("leaves_by", address)
        try:
            wanted = IPv6Address(address)
        except ValueError as error:
            raise BackendError(f"{address!r} is not an IPv6 address", errno=errno.EINVAL) from error
        if wanted.is_loopback:
            return ("lo",)
        for dev, addresses in self.by_dev.items():
            if wanted in map(IPv6Address, addresses):
                return (dev,)
        routes = {IPv6Network("::/0"): tuple(self.defaults)}
        routes |= {IPv6Network(destination): devs for destination, devs in self.routes.items()}
        matching = [network for network in routes if wanted in network]
        return tuple(sorted(set(routes[max(matching, key=lambda network: network.prefixlen)])))

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """See `IPv6Backend.classifiers`."""
        self.operations.record("classifiers", dev)
        return tuple(sorted(set(self.programs.get(dev, ()))))
