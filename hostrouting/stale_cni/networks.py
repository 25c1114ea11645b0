"""Addresses of both families as text, and the networks that they lie in; pure."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Networks", "canonical", "parse_address"]


class _Network(NamedTuple):
    bits: int
    shift: int
    prefix: int


class Networks:
    """Ranges of addresses.

    >>> networks = Networks(["10.240.0.0/16", "fd00:1::/64"])
    >>> "10.240.3.1" in networks, "fd00:1::9" in networks, "10.241.0.1" in networks, "no address" in networks
    (True, True, False, False)
    """

    def __init__(self, cidrs: Iterable[str]) -> None:
        self._networks = [_parse_network(cidr) for cidr in cidrs]

    def __contains__(self, address: str) -> bool:
        parsed = parse_address(address)
        if parsed is None:
            return False
        bits, number = parsed
        return any(bits == network.bits and number >> network.shift == network.prefix for network in self._networks)

    def covers(self, cidr: str) -> bool:
        """Whether all of a network lies in one of the ranges.

        >>> Networks(["10.240.0.0/16"]).covers("10.240.1.0/24"), Networks(["10.240.0.0/16"]).covers("10.0.0.0/8")
        (True, False)
        """
        other = _parse_network(cidr)
        return any(
            other.bits == network.bits
            and other.shift <= network.shift
            and other.prefix >> (network.shift - other.shift) == network.prefix
            for network in self._networks
        )


def parse_address(text: str) -> tuple[int, int] | None:
    """The number of bits of an address, and the address as a number; None for anything else.

    >>> parse_address("10.0.0.1") == (32, 0x0A000001), parse_address("::1"), parse_address("10.0.0.0/8")
    (True, (128, 1), None)
    """
    try:
        packed = inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    # A NUL or a lone surrogate is a ValueError before libc sees it.
    except (OSError, ValueError):
        return None
    return 8 * len(packed), int.from_bytes(packed, "big")


def canonical(text: str) -> str | None:
    """The address in the spelling of `ip` and the kernel; None if it is none.

    >>> canonical("FD00:0::9"), canonical("10.0.0.1"), canonical("10.0.0.1/32")
    ('fd00::9', '10.0.0.1', None)
    """
    parsed = parse_address(text)
    if parsed is None:
        return None
    bits, number = parsed
    return inet_ntop(AF_INET if bits == 32 else AF_INET6, number.to_bytes(bits // 8, "big"))


def _parse_network(cidr: str) -> _Network:
    address, _, length = cidr.partition("/")
    parsed = parse_address(address)
    if parsed is None:
        raise ValueError(f"{cidr!r} is not a CIDR such as '10.240.0.0/16' or 'fd00::/64'")
    bits, number = parsed
    shift = bits - int(length)
    return _Network(bits, shift, number >> shift)
