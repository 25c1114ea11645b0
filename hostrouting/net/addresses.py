"""Strict readers of IPv4 text and device names, shared by the config and by the machine's values.

IPv4 addresses are plain integers inside this library: a sweep over a million routes, a bulk
lookup and a packed netlink message all want the number. Text exists at the edges only.
"""

from __future__ import annotations

from socket import AF_INET, inet_ntop, inet_pton
from typing import Final

__all__ = ["check_device_name", "contains", "format_cidr", "format_ipv4", "netmask", "parse_cidr", "parse_ipv4"]

#: IFNAMSIZ is 16 with the terminating zero; the kernel counts bytes, not characters.
_LONGEST_DEVICE_NAME: Final = 15
#: Names of folders: in any filesystem, and in /proc/sys/net/ipv4/conf, where the kernel keeps 'all' and 'default'.
_RESERVED_DEVICE_NAMES: Final = frozenset({".", "..", "all", "default"})
#: What bash, `ip` or a systemd unit could take for something else than part of a name.
_SHELL_ACTIVE: Final = frozenset("\"'`$|&;<>()[]{}*?!#~\\%=^,")
_PREFIX_LENGTHS: Final = {str(length): length for length in range(33)}


def netmask(prefix_length: int) -> int:
    """The netmask of a prefix length as a number.

    >>> hex(netmask(20))
    '0xfffff000'
    """
    return 0xFFFFFFFF << (32 - prefix_length) & 0xFFFFFFFF


def format_ipv4(address: int) -> str:
    """The dotted quad of an address.

    >>> format_ipv4(0x0A000001)
    '10.0.0.1'
    """
    return inet_ntop(AF_INET, address.to_bytes(4, "big"))


def format_cidr(network: int, prefix_length: int) -> str:
    """CIDR text of a network; a /32 keeps its length, as the config writes it.

    >>> format_cidr(0xAC100000, 16)
    '172.16.0.0/16'
    """
    return f"{format_ipv4(network)}/{prefix_length}"


def parse_ipv4(text: str) -> int:
    """Read a dotted quad and nothing else: no leading zeros, white space, unicode digits or short forms.

    >>> parse_ipv4("10.0.0.1") == 0x0A000001
    True
    >>> parse_ipv4("010.0.0.1")
    Traceback (most recent call last):
    ValueError: '010.0.0.1' is not an IPv4 address
    """
    try:
        packed = inet_pton(AF_INET, text)
    # A NUL or a lone surrogate is a ValueError before libc sees it.
    except (OSError, ValueError):
        raise ValueError(f"{text!r} is not an IPv4 address") from None
    # libc's inet_pton is strict today (POSIX asks for it), musl's less so: only the canonical text passes.
    if inet_ntop(AF_INET, packed) != text:
        raise ValueError(f"{text!r} is not an IPv4 address")
    return int.from_bytes(packed, "big")


def parse_cidr(text: str) -> tuple[int, int]:
    """Read `address/length` into (address, length); host bits are the caller's business.

    >>> parse_cidr("172.16.1.5/24") == (0xAC100105, 24)
    True
    >>> parse_cidr("172.16.1.0")
    Traceback (most recent call last):
    ValueError: '172.16.1.0' has no prefix length; write it as '172.16.1.0/32' if one address is meant
    >>> parse_cidr("10.0.0.0/255.0.0.0")
    Traceback (most recent call last):
    ValueError: '10.0.0.0/255.0.0.0' has no prefix length from 0 to 32 behind the slash
    """
    address, slash, length = text.partition("/")
    try:
        network = parse_ipv4(address)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 CIDR such as '172.16.0.0/16'") from None
    if not slash:
        raise ValueError(f"{text!r} has no prefix length; write it as '{text}/32' if one address is meant")
    # Looked up, for int() would also read '+8', ' 8', '08', '1_6' and the digits of other scripts.
    if length not in _PREFIX_LENGTHS:
        raise ValueError(f"{text!r} has no prefix length from 0 to 32 behind the slash")
    return network, _PREFIX_LENGTHS[length]


def contains(outer: str, inner: str) -> bool:
    """Whether every address of the CIDR `inner` lies in the CIDR `outer`.

    >>> contains("172.16.0.0/16", "172.16.8.0/22"), contains("172.16.8.0/22", "172.16.0.0/16")
    (True, False)
    """
    network, length = parse_cidr(outer)
    address, narrower = parse_cidr(inner)
    return length <= narrower and address & netmask(length) == network


def check_device_name(name: str) -> str:
    """Return `name` if the kernel would accept it for a device and no shell could take it for anything else.

    >>> check_device_name("bond0.100"), check_device_name("a+b")
    ('bond0.100', 'a+b')
    >>> check_device_name("eth0; rm -rf /")
    Traceback (most recent call last):
    ValueError: 'eth0; rm -rf /' is not a device name: ';' is not allowed in it
    """
    problem = _device_name_problem(name)
    if problem:
        raise ValueError(f"{name!r} is not a device name: {problem}")
    return name


def _device_name_problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name in _RESERVED_DEVICE_NAMES:
        return "the kernel refuses it"
    if name.startswith("-"):
        return "a leading '-' reads as an option"
    for character in name:
        if character in "/:" or character in _SHELL_ACTIVE:
            return f"{character!r} is not allowed in it"
        if character.isspace():
            return "white space is not allowed in it"
        if not character.isprintable():
            return f"{character!r} is not printable"
    # Lone surrogates, the one text that has no UTF-8, are not printable.
    encoded = name.encode()
    if b"\xa0" in encoded:
        # The kernel reads bytes as Latin-1, where this one is a no-break space: 'à' and its like end in it.
        return "the kernel takes a byte of it for white space"
    if len(encoded) > _LONGEST_DEVICE_NAME:
        return f"it has {len(encoded)} bytes, the kernel allows {_LONGEST_DEVICE_NAME}"
    return None
