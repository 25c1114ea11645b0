"""Addresses, prefixes and device names: strict parsing of text, for both address families.

In bulk, IPv4 addresses are plain integers (`parse_ipv4`, `format_ipv4`), because lookups and
netlink messages with a million routes need the number. A single address of either family is an
`Address`.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The address families, as Linux numbers them.
IPV4: Final = 2
IPV6: Final = 10
FAMILY_NAMES: Final = {IPV4: "IPv4", IPV6: "IPv6"}
#: By family, who gives a device its default route, and where to find out why it is missing.
GIVERS: Final = {IPV4: "its DHCP client", IPV6: "its router"}
LOGS: Final = {IPV4: "the log of its DHCP client", IPV6: "the advertisements of its router"}

#: IFNAMSIZ is 16 with the terminating zero; the kernel counts bytes, not characters.
_LONGEST_DEVICE_NAME = 15
#: Names of directories: `.` and `..` everywhere, `all` and `default` in /proc/sys/net/ipv4/conf.
_RESERVED_DEVICE_NAMES = frozenset({".", "..", "all", "default"})
#: Characters that have a special meaning to bash, `ip` or systemd units.
SHELL_ACTIVE: Final = frozenset("\"'`$|&;<>()[]{}*?!#~\\%=^,")
_CIDRS = {IPV4: "IPv4 CIDR such as '172.16.0.0/16'", IPV6: "IPv6 CIDR such as 'fd00::/64'"}
#: int() would also accept '+8', ' 8', '08', '1_6' and the digits of other scripts.
_NUMBERS = {str(number): number for number in range(256)}


class Address(NamedTuple):
    """An address of either family. Addresses sort by number, IPv4 before IPv6.

    >>> sorted(["fd00::10", "10.0.0.10", "fd00::9", "10.0.0.9"], key=Address.parse)
    ['10.0.0.9', '10.0.0.10', 'fd00::9', 'fd00::10']

    >>> str(Address.parse("FD00:0::9")), str(Address.parse("10.0.0.1"))
    ('fd00::9', '10.0.0.1')
    """

    family: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; IPv4 in canonical form only.

        >>> Address.parse("10.0.0.0/8")
        Traceback (most recent call last):
        ValueError: '10.0.0.0/8' is not an IPv4 address such as '10.224.0.1'
        """
        return cls(IPV6, _parse_ipv6(text)) if ":" in text else cls(IPV4, parse_ipv4(text))

    @classmethod
    def unpack(cls, packed: bytes) -> Address:
        """Read an address of 4 or 16 bytes in network order."""
        if len(packed) not in {4, 16}:
            raise ValueError(f"an address has {len(packed)} bytes; IPv4 has 4, IPv6 has 16")
        return cls(IPV4 if len(packed) == 4 else IPV6, int.from_bytes(packed, "big"))

    @property
    def packed(self) -> bytes:
        """The bytes of the address in network order."""
        return self.number.to_bytes(address_bits(self.family) // 8, "big")

    @property
    def is_link_local(self) -> bool:
        """True for an IPv6 link-local address (fe80::/10)."""
        return self.family == IPV6 and self.number >> 118 == 0xFE80 >> 6

    def __str__(self) -> str:
        return format_address(*self)


class Prefix(NamedTuple):
    """A network of either family, or an address with its prefix length.

    >>> prefix = Prefix.parse("fd00:1::9/64")
    >>> str(prefix), str(prefix.masked)
    ('fd00:1::9/64', 'fd00:1::/64')
    """

    family: int
    network: int
    length: int

    @staticmethod
    @lru_cache  # each network of a config is parsed twice
    def parse(text: str) -> Prefix:
        """Parse `address/length`; host bits are kept."""
        family, bits = (IPV6, 128) if ":" in text else (IPV4, 32)
        address, slash, length = text.partition("/")
        try:
            network = parse_ipv4(address) if family == IPV4 else _parse_ipv6(address)
        except ValueError:
            raise ValueError(f"{text!r} is not an {_CIDRS[family]}") from None
        if not slash:
            raise ValueError(
                f"{text!r} has no prefix length; write '{text}/{bits}' for one address"
            )
        if _NUMBERS.get(length, 256) > bits:
            raise ValueError(f"{text!r} must end in a prefix length from 0 to {bits}")
        # Twice as fast as Prefix(...): an apply reads thousands.
        return tuple.__new__(Prefix, (family, network, _NUMBERS[length]))

    @property
    def masked(self) -> Prefix:
        """The network without host bits."""
        network = self.network & mask_of(self.family, self.length)
        return self if network == self.network else self._replace(network=network)

    @property
    def last(self) -> int:
        """The last address, as a number."""
        return self.network | (1 << address_bits(self.family) - self.length) - 1

    def covers(self, inner: Address | Prefix) -> bool:
        """Return True if all of `inner` is in this network."""
        family, number, *rest = inner
        [length] = rest or [address_bits(family)]
        is_longer = family == self.family and length >= self.length
        return is_longer and not (number ^ self.network) & mask_of(family, self.length)

    def __str__(self) -> str:
        return f"{format_address(self.family, self.network)}/{self.length}"


def is_network(text: str) -> bool:
    """Return True if text that names a device or a network is a network: it contains a slash."""
    return "/" in text


def parse_address(text: str) -> Address | None:
    """Parse an address; return None for anything else.

    >>> parse_address("10.0.0.1") == Address(IPV4, 0x0A000001), parse_address("10.0.0.0/8")
    (True, None)
    """
    try:
        return Address.parse(text)
    except ValueError:
        return None


def format_address(family: int, number: int) -> str:
    """Return the text of an address of either family, as `ip` prints it."""
    if family == IPV4:
        return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    # Imported here because socket takes several milliseconds, and many configs have only IPv4.
    import socket

    return socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, "big"))


def address_bits(family: int) -> int:
    """Return the number of bits of an address."""
    return 32 if family == IPV4 else 128


def require_family(family: object) -> None:
    """Raise TypeError unless this is an address family: a dump of family 6 would be empty."""
    if family not in {IPV4, IPV6}:
        raise wrong_argument("family", family, "IPV4 or IPV6", "IPV6")


def require_lookups(
    destinations: Sequence[int], sources: Sequence[int | None] | None, family: int
) -> None:
    """Raise ValueError if the arguments of a lookup do not match each other.

    >>> require_lookups([Address.parse("fd00::1").number], None, IPV4)
    Traceback (most recent call last):
    ValueError: destination fd00::1 is not an IPv4 address; write lookup(..., family=IPV6)
    """
    if sources is not None and len(sources) != len(destinations):
        raise ValueError(
            f"{len(sources)} sources for {len(destinations)} destinations: "
            "give one for each, or none"
        )
    highest = max(destinations, default=0)
    if highest >> address_bits(family):
        address = Address(IPV6, highest) if not highest >> address_bits(IPV6) else highest
        is_not = f"is not an {FAMILY_NAMES[family]} address"
        raise ValueError(f"destination {address} {is_not}; write lookup(..., family=IPV6)")


@cache
def mask_of(family: int, length: int) -> int:
    """Return the netmask of a prefix length as a number, for either family."""
    bits = address_bits(family)
    return (1 << bits) - (1 << bits - length)


def netmask(prefix_length: int) -> int:
    """Return the netmask of a prefix length as a number.

    >>> hex(netmask(20))
    '0xfffff000'
    """
    return mask_of(IPV4, prefix_length)


def format_ipv4(address: int) -> str:
    """Return the dotted quad of an address.

    >>> format_ipv4(0x0A000001)
    '10.0.0.1'
    """
    return format_address(IPV4, address)


def parse_network(text: str) -> Prefix | None:
    """Parse a network; return None for anything else."""
    try:
        return Prefix.parse(text) if is_network(text) else None
    except ValueError:
        return None


def parse_ipv4(text: str) -> int:
    """Parse a dotted quad; refuse leading zeros, white space, Unicode digits and short forms.

    >>> parse_ipv4("10.0.0.1") == 0x0A000001
    True
    >>> parse_ipv4("010.0.0.1")
    Traceback (most recent call last):
    ValueError: '010.0.0.1' is not an IPv4 address such as '10.224.0.1'
    """
    try:
        first, second, third, last = text.split(".")
        number = _NUMBERS[first] << 24 | _NUMBERS[second] << 16 | _NUMBERS[third] << 8
        return number | _NUMBERS[last]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not an IPv4 address such as '10.224.0.1'") from None


def parse_cidr(text: str) -> tuple[int, int]:
    """Parse `address/length` into (address, length); host bits are kept.

    >>> parse_cidr("172.16.1.5/24") == (0xAC100105, 24)
    True
    >>> parse_cidr("172.16.1.0")
    Traceback (most recent call last):
    ValueError: '172.16.1.0' has no prefix length; write '172.16.1.0/32' for one address
    >>> parse_cidr("10.0.0.0/255.0.0.0")
    Traceback (most recent call last):
    ValueError: '10.0.0.0/255.0.0.0' must end in a prefix length from 0 to 32
    """
    if ":" in text:
        raise ValueError(f"{text!r} is not an {_CIDRS[IPV4]}")
    return Prefix.parse(text)[1:]


def _parse_ipv6(text: str) -> int:
    # Imported here for the reason in `format_address`.
    import socket

    try:
        return int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big")
    # Python raises ValueError for a NUL or a lone surrogate.
    except (OSError, ValueError):
        raise ValueError(f"{text!r} is not an IPv6 address such as 'fd00::1'") from None


def check_device_name(name: str) -> str:
    """Return `name` if it is valid for a device and has no special meaning to a shell.

    >>> check_device_name("bond0.100"), check_device_name("a+b")
    ('bond0.100', 'a+b')
    >>> check_device_name("eth0; rm -rf /")
    Traceback (most recent call last):
    ValueError: 'eth0; rm -rf /' is not a device name: ';' is not allowed; see: ip link
    """
    problem = _device_name_problem(name)
    if problem:
        raise ValueError(f"{name!r} is not a device name: {problem}; see: ip link")
    return name


def is_device_name(name: str) -> bool:
    """Return True for a name that `check_device_name` accepts."""
    return _device_name_problem(name) is None


@lru_cache  # many routes name the same few devices
def _device_name_problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name in _RESERVED_DEVICE_NAMES:
        return "the kernel refuses it"
    if name.startswith("-"):
        return "a leading '-' looks like an option"
    for character in name:
        if character in "/:" or character in SHELL_ACTIVE:
            return f"{character!r} is not allowed"
        if character.isspace():
            return "white space is not allowed"
        if not character.isprintable():
            return f"{character!r} is not printable"
    # Lone surrogates cannot be encoded, but are not printable either.
    encoded = name.encode()
    if b"\xa0" in encoded:
        # The kernel reads bytes as Latin-1, where this one is a no-break space: for example in 'à'.
        return "the kernel reads one of its bytes as white space"
    if len(encoded) > _LONGEST_DEVICE_NAME:
        return f"it has {len(encoded)} bytes, but the kernel allows only {_LONGEST_DEVICE_NAME}"
    return None


# --- differences of networks


def outside(network: Prefix, others: Sequence[Prefix]) -> Iterator[Prefix]:
    """Yield the networks that cover what is left of `network` without `others`.

    `others` must be sorted.

    >>> others = [Prefix.parse("10.0.0.64/26"), Prefix.parse("10.1.0.0/16")]
    >>> [*map(str, outside(Prefix.parse("10.0.0.0/24"), others))]
    ['10.0.0.0/26', '10.0.0.128/25']
    >>> [*outside(Prefix.parse("10.1.2.0/24"), others)]
    []
    """
    family, first, length = network
    # Two networks are disjoint, or one contains the other.
    if any(_is_in(around, others) for around in _around(network)):
        return
    place = bisect_left(others, network)
    if place == len(others) or not network.covers(others[place]):
        yield network
        return
    half = 1 << address_bits(family) - length - 1
    for begin in (first, first + half):
        yield from outside(Prefix(family, begin, length + 1), others)


def _around(network: Prefix) -> Iterator[Prefix]:
    """Yield the network and all networks that contain it."""
    family, first, length = network
    for shorter in range(length + 1):
        yield Prefix(family, first & mask_of(family, shorter), shorter)


def _is_in(network: Prefix, networks: Sequence[Prefix]) -> bool:
    place = bisect_left(networks, network)
    return place < len(networks) and networks[place] == network
