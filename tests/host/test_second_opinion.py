"""Our decoders of links, addresses, neighbours, rules and IPv6 routes against messages of pyroute2.

Each message also has unknown attributes, of all lengths: the next kernel will send such.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from support import pyroute_reading

from hostrouting.host.netlink import device_codec, frames, neighbour_codec, route_codec, rule_codec
from hostrouting.host.netlink.frames import HEADER_LENGTH, attribute, error_of, message
from hostrouting.net.addresses import IPV6, Address
from hostrouting.net.route_text import KIND_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.net.routes import ObservedRoute

NAMES = {1: "lo", 2: "e0", 3: "br0", 70000: "e1"}

numbers = st.integers(0, 0xFFFFFFFF)
bytes_of_a_number = st.integers(0, 0xFF)
ipv4 = st.builds(str, st.builds(IPv4Address, st.integers(1, 0xFFFFFFFF)))
ipv6 = st.builds(str, st.builds(IPv6Address, st.integers(1, 2**128 - 1)))
macs = st.binary(min_size=6, max_size=6).filter(any).map(lambda packed: packed.hex(":"))
devices = st.sampled_from(sorted(NAMES))
#: Numbers far above those that any kernel has given away, with and without the bits for nesting and byte order.
unknown = st.lists(
    st.tuples(st.integers(200, 0x3FFF) | st.integers(0x8000 + 200, 0x8FFF), st.binary(max_size=23)), max_size=4
)


def packed(
    message_class: type[Any],
    kind: int,
    fields: Mapping[str, object],
    attributes: Sequence[tuple[str, object]],
    more: Sequence[tuple[int, bytes]],
) -> bytes:
    """Pack it with pyroute2, and append more attributes."""
    made = message_class()
    for name, value in fields.items():
        made[name] = value
    made["attrs"] = [(name, value) for name, value in attributes if value is not None]
    made["header"]["type"] = kind
    made.encode()
    whole = bytes(made.data) + b"".join(attribute(*one) for one in more)
    return struct.pack("=I", len(whole)) + whole[4:]


@given(devices, st.integers(0, 32), ipv4, st.none() | ipv4, st.none() | ipv4, bytes_of_a_number, st.booleans(), unknown)
def test_an_ipv4_address(  # noqa: PLR0917 - a value for each field
    index: int,
    length: int,
    address: str,
    local: str | None,
    broadcast: str | None,
    scope: int,
    secondary: bool,
    more: list[tuple[int, bytes]],
) -> None:
    """Our decoder agrees with pyroute2's."""
    fields = {"family": 2, "prefixlen": length, "flags": int(secondary), "scope": scope, "index": index}
    attributes = [("IFA_ADDRESS", address), ("IFA_LOCAL", local), ("IFA_BROADCAST", broadcast)]
    made = packed(ifaddrmsg, 20, fields, attributes, more)
    theirs = ifaddrmsg(made)
    theirs.decode()
    assert device_codec.parse_address(made[HEADER_LENGTH:]) == (index, pyroute_reading.address(theirs))
    link = packed(ifinfmsg, 16, {"index": index, "flags": 1}, [("IFLA_IFNAME", NAMES[index])], [])
    [device] = device_codec.parse_devices([link[HEADER_LENGTH:]], [made[HEADER_LENGTH:]])
    assert tuple(map(str, device.addresses)) == (f"{address if local is None else local}/{length}",)


@given(
    devices, st.none() | macs, st.sampled_from([None, "bridge", "veth"]), st.none() | devices, st.booleans(), unknown
)
def test_a_link(  # noqa: PLR0917 - a value for each field
    index: int, mac: str | None, kind: str | None, master: int | None, up: bool, more: list[tuple[int, bytes]]
) -> None:
    """A link is read with the name, state, hardware address, kind and bridge that pyroute2 packed."""
    attributes = [
        ("IFLA_IFNAME", NAMES[index]),
        ("IFLA_ADDRESS", mac),
        ("IFLA_MASTER", master),
        ("IFLA_LINKINFO", None if kind is None else {"attrs": [("IFLA_INFO_KIND", kind)]}),
    ]
    made = packed(ifinfmsg, 16, {"index": index, "flags": 0x10001 if up else 0}, attributes, more)
    others = [
        packed(ifinfmsg, 16, {"index": other, "flags": 0}, [("IFLA_IFNAME", name)], [])
        for other, name in NAMES.items()
        if other != index
    ]
    links = [one[HEADER_LENGTH:] for one in (made, *others)]
    device = next(one for one in device_codec.parse_devices(links, []) if one.ifindex == index)
    assert (device.name, device.up, device.carrier) == (NAMES[index], up, up)
    assert (device.mac, device.kind, device.master) == (
        mac or "",
        kind or "",
        None if master is None else NAMES[master],
    )
    assert device_codec.parse_names([made[HEADER_LENGTH:]]) == {index: NAMES[index]}


@given(devices, ipv4 | ipv6, macs, st.booleans(), bytes_of_a_number, st.none() | bytes_of_a_number, unknown)
def test_a_neighbour(  # noqa: PLR0917 - a value for each field
    index: int,
    address: str,
    mac: str,
    permanent: bool,
    flags: int,
    protocol: int | None,
    more: list[tuple[int, bytes]],
) -> None:
    """A neighbour of either family is read, and packed again into the message of pyroute2."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    fields = {"family": family, "ifindex": index, "state": 0x80 if permanent else 4, "flags": flags}
    attributes = [("NDA_DST", address), ("NDA_LLADDR", mac), ("NDA_PROTOCOL", protocol)]
    made = packed(ndmsg, 28, fields, attributes, more)
    [known] = neighbour_codec.parse_neighbours([made[HEADER_LENGTH:]], NAMES).known
    assert (known.dev, known.mac, known.permanent, known.flags) == (NAMES[index], mac, permanent, flags)
    assert socket.inet_pton(family, known.address) == socket.inet_pton(family, address)
    assert known.protocol == (protocol or 0)
    again = neighbour_codec.pack_neighbour(known, index)
    assert neighbour_codec.parse_neighbours([again], NAMES).known == [known]


@given(
    st.integers(0, 32),
    st.integers(0, 32),
    st.none() | ipv4,
    st.none() | ipv4,
    numbers,
    st.integers(1, 0xFFFFFFFF),
    st.sampled_from([1, 6, 7, 8, 77]),
    st.integers(0, 3),
    st.none() | numbers,
)
def test_a_rule(  # noqa: PLR0917 - a value for each field
    to_length: int,
    from_length: int,
    to: str | None,
    source: str | None,
    priority: int,
    table: int,
    action: int,
    flags: int,
    mark: int | None,
) -> None:
    """Our decoder agrees with pyroute2's."""
    fields = {
        "family": 2,
        "dst_len": to_length,
        "src_len": from_length,
        "table": min(table, 252),
        "action": action,
        "flags": flags,
    }
    attributes = [
        ("FRA_DST", to),
        ("FRA_SRC", source),
        ("FRA_PRIORITY", priority),
        ("FRA_TABLE", table),
        ("FRA_FWMARK", mark),
    ]
    made = packed(fibmsg, 32, fields, attributes, [])
    theirs = fibmsg(made)
    theirs.decode()
    assert rule_codec.parse_rules([made[HEADER_LENGTH:]]) == [pyroute_reading.rule(theirs)]


@given(
    st.integers(0, 128),
    ipv6,
    st.none() | ipv6,
    st.none() | ipv6,
    numbers,
    st.integers(1, 0xFFFFFFFF),
    st.sampled_from(["unicast", "blackhole", "unreachable"]),
    unknown,
)
def test_an_ipv6_route(  # noqa: PLR0917 - a value for each field
    length: int,
    network: str,
    gateway: str | None,
    source: str | None,
    metric: int,
    table: int,
    kind: str,
    more: list[tuple[int, bytes]],
) -> None:
    """Unknown attributes travel along, and go into the message that restores the route."""
    fields = {"family": 10, "dst_len": length, "table": min(table, 252), "proto": 3, "type": KIND_NUMBERS[kind]}
    attributes = [
        ("RTA_TABLE", table),
        ("RTA_DST", network),
        ("RTA_PRIORITY", metric),
        ("RTA_OIF", 2),
        ("RTA_GATEWAY", gateway),
        ("RTA_PREFSRC", source),
    ]
    route = parsed_route(packed(rtmsg, 24, fields, attributes, more)[HEADER_LENGTH:])
    assert route.destination == f"{_canonical(network)}/{length}"
    assert route.gateway == (gateway and Address.parse(gateway))
    assert route.source == (source and Address.parse(source).number)
    assert (route.metric, route.table, route.protocol, route.kind) == (metric, table, 3, kind)
    assert route.dev == ("e0" if kind == "unicast" else None)
    assert dict(route.extra) == {number & 0x3FFF: payload for number, payload in more}
    assert parsed_route(route_codec.pack_route(route, {"e0": 2, "lo": 1})) == route


def parsed_route(payload: bytes) -> ObservedRoute:
    return route_codec.parse_route(payload, NAMES, family=IPV6)


def _canonical(address: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address))


@given(st.integers(1, 133), st.none() | st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text), unknown)
def test_a_refusal_is_told_in_the_kernels_words(number: int, said: str | None, more: list[tuple[int, bytes]]) -> None:
    """The sentence is read also if the acknowledgement has an offset or a policy."""
    sentence = [] if said is None else [attribute(1, said.encode() + b"\0")]
    request = struct.pack("=IHHII", 16, 24, 5, 1, 0)
    words = b"".join([attribute(2, struct.pack("=I", 40)), *(attribute(*one) for one in more), *sentence])
    payload = struct.pack("=i", -number) + request + words
    assert error_of(message(frames.ERROR, 0x300, payload)) == (
        number,
        os.strerror(number) if said is None else f"{said.removeprefix('Error: ')} ({os.strerror(number)})",
    )


@pytest.mark.parametrize(
    "payload", [b"", b"\0", struct.pack("=i", -errno.EINVAL), struct.pack("=i", -errno.EINVAL) + bytes(20)]
)
def test_a_refusal_that_is_cut_off_is_an_error_or_a_number(payload: bytes) -> None:
    """Existing fields are read; missing ones are not made up."""
    try:
        number, reason = error_of(message(frames.ERROR, 0x200, payload))
    except frames.UNREADABLE:
        return
    assert (number, reason) == (errno.EINVAL, os.strerror(errno.EINVAL))
