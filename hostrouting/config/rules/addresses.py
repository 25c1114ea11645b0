"""The rules for addresses and networks."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hostrouting.config.rules.kinds import string
from hostrouting.config.wire import accepting
from hostrouting.net.addresses import IPV6, Prefix, format_cidr, netmask, parse_address, parse_cidr, parse_ipv4

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cidr", "destination", "gateway", "ipv4_cidr", "ipv6_address"]

#: By the first byte, (first bits, their number, their meaning): a static route may not lead there, and no router lives
#: there.
_NOT_UNICAST: Final = {
    0: (0, 8, "0.0.0.0/8, which means 'this network'"),
    127: (127, 8, "127.0.0.0/8, the node's own loopback"),
    **dict.fromkeys(range(224, 240), (0xE, 4, "224.0.0.0/4, which is multicast")),
    255: (0xFFFFFFFF, 32, "the broadcast address"),
}
#: Patterns of JSON Schema, which cannot say all that a rule checks.
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_LENGTH: Final = "(?:3[0-2]|[12]?[0-9])"
_ADDRESS: Final = "[0-9A-Fa-f:.]+"


@accepting({"type": "string", "pattern": rf"^{_IPV4}/(?!0$){_LENGTH}$"})
def destination(value: object) -> str:
    """Return the destination of a static route: a routable IPv4 network without host bits."""
    if value is None:
        raise ValueError("is required: the network that the route leads to, such as '172.16.0.0/16'")
    text = string(value, "an IPv4 network such as '172.16.0.0/16'")
    address, length = parse_cidr(text)
    if length == 0:
        raise ValueError(
            f"{text!r} is the default route, which is not ours to set; name the networks that need a route"
        )
    _refuse_inside(text, address, length, "no route leads there")
    network = address & netmask(length)
    if network != address:
        raise ValueError(f"{text!r} has host bits; the network is {format_cidr(network, length)!r}")
    return text


@accepting({"type": "string", "pattern": f"^(?:{_IPV4})?$"})
def gateway(value: object) -> str | None:
    """Return the address of a gateway, or None if it is absent or empty."""
    if value is None or value == "":
        return None
    return _gateway(string(value, "an IPv4 address such as '10.224.0.1'"))


# Thousands of routes name the same few gateways and devices.
@lru_cache(64)
def _gateway(text: str) -> str:
    _refuse_inside(text, parse_ipv4(text), 32, "a gateway is one host's own address")
    return text


def _refuse_inside(text: str, address: int, length: int, consequence: str) -> None:
    if address >> 24 not in _NOT_UNICAST:
        return
    bits, count, name = _NOT_UNICAST[address >> 24]
    if length >= count and address >> (32 - count) == bits:
        raise ValueError(f"{text!r} {'lies in' if count < 32 else 'is'} {name}; {consequence}")


@accepting({"type": "string", "pattern": f"^{_IPV4}/{_LENGTH}$"})
def ipv4_cidr(value: object) -> str:
    """Return an IPv4 network with its host bits masked, as upstream does.

    >>> ipv4_cidr("10.0.0.255/24")
    '10.0.0.0/24'
    """
    address, length = parse_cidr(string(value, "an IPv4 CIDR such as '172.16.0.0/16'"))
    return format_cidr(address & netmask(length), length)


@accepting({"type": "string", "pattern": f"^{_ADDRESS}/(?!0$)(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])$"})
def cidr(value: object) -> str:
    """Return a network of either family with its host bits masked; refuse the whole address space.

    >>> cidr("10.240.3.1/16"), cidr("FD00:0::1/64")
    ('10.240.0.0/16', 'fd00::/64')
    """
    text = string(value, "a CIDR such as '10.240.0.0/16' or 'fd00::/64'")
    prefix = Prefix.parse(text).masked
    if not prefix.length:
        raise ValueError(f"{text!r} covers every address; name the range that the pods have")
    return str(prefix)


def ipv6_address(prefix: int, length: int, wanted: str) -> Callable[[object], str]:
    """Return a rule for an IPv6 address whose first `length` bits are `prefix`; it returns canonical text."""

    @accepting({"type": "string", "pattern": f"^{_ADDRESS}$"})
    def rule(value: object) -> str:
        text = string(value, wanted)
        if "%" in text:
            raise ValueError(f"{text!r} has a zone; name the device in 'dev' instead")
        address = parse_address(text)
        if address is None or address.family != IPV6 or address.number >> (128 - length) != prefix:
            raise ValueError(f"{text!r} is not {wanted}")
        return str(address)

    return rule
