"""pyroute2's reading of devices, routes and rules: the second opinion on our decoders."""

from typing import Any, Final

from hostrouting.host.netlink.device_codec import KNOWN_NEIGHBOUR
from hostrouting.host.netlink.frames import HEADER_LENGTH, attributes, next_hops, number_of
from hostrouting.host.netlink.route_codec import encapsulation_of, gateway_of
from hostrouting.host.netlink.rule_codec import KNOWN, RULE_ACTIONS
from hostrouting.net.addresses import IPV4, Address, parse_ipv4
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import FLAG_DEAD, FLAG_ONLINK, KINDS, Extra, NextHop, ObservedRoute
from hostrouting.net.rules import Range, Rule

#: Attributes of a route by number: those with a field in `ObservedRoute`, and those of answers only.
_OWN_FIELDS: Final = frozenset({1, 4, 5, 6, 7, 9, 15, 18, 21, 22, 30})
_ANSWER_ONLY: Final = frozenset({2, 3, 12, 16, 23, 25})
_MULTIPATH, _NH_ID = 9, 30
#: The length of a hardware address as text.
_ETHERNET: Final = len("02:00:00:00:00:01")


def links(ipr: Any) -> list[Device]:
    """Every device with its addresses."""
    names = _names(ipr)
    addresses = [(message["index"], address(message)) for message in ipr.get_addr()]
    neighbours = [
        (message["ifindex"], parse_ipv4(message.get_attr("NDA_DST")))
        for message in ipr.get_neighbours(family=IPV4)
        if message["state"] & KNOWN_NEIGHBOUR and message.get_attr("NDA_DST")
    ]
    found = [
        Device(
            name=message.get_attr("IFLA_IFNAME"),
            ifindex=message["index"],
            up=bool(message["flags"] & 0x1),
            mac=_mac(message.get_attr("IFLA_ADDRESS") or ""),
            kind=_kind(message.get_attr("IFLA_LINKINFO")),
            master=names.get(message.get_attr("IFLA_MASTER")),
            carrier=bool(message["flags"] & 0x10000),
            loopback=bool(message["flags"] & 0x8),
            addresses=tuple(address for index, address in addresses if index == message["index"]),
            neighbours=tuple(sorted(peer for index, peer in neighbours if index == message["index"])),
            group=message.get_attr("IFLA_GROUP") or 0,
        )
        for message in ipr.get_links()
    ]
    return sorted(found, key=lambda link: link.ifindex)


def routes(ipr: Any) -> list[ObservedRoute]:
    """The IPv4 routes of every table."""
    names = _names(ipr)
    return [route(message, names) for message in ipr.get_routes(family=IPV4)]


def rules(ipr: Any) -> list[Rule]:
    """The IPv4 policy rules."""
    return [rule(message) for message in ipr.get_rules(family=IPV4)]


def _names(ipr: Any) -> dict[int, str]:
    return {message["index"]: message.get_attr("IFLA_IFNAME") for message in ipr.get_links()}


def _ipv4(text: str | None) -> int | None:
    return None if text is None else parse_ipv4(text)


def route(message: Any, names: dict[int, str]) -> ObservedRoute:
    """The route of a decoded message."""
    raw = _raw(message)
    legs = [attributes(packed) for *_, packed in next_hops(raw.get(_MULTIPATH, b""))]
    return ObservedRoute(
        network=_ipv4(message.get_attr("RTA_DST")) or 0,
        prefix_length=message["dst_len"],
        gateway=_gateway(message, raw),
        dev=names.get(message.get_attr("RTA_OIF")),
        metric=message.get_attr("RTA_PRIORITY") or 0,
        table=message.get_attr("RTA_TABLE") or message["table"],
        protocol=message["proto"],
        kind=KINDS[message["type"]],
        scope=message["scope"],
        source=_ipv4(message.get_attr("RTA_PREFSRC")),
        tos=message["tos"],
        flags=message["flags"],
        nexthops=tuple(
            _next_hop(hop, leg, names) for hop, leg in zip(message.get_attr("RTA_MULTIPATH") or (), legs, strict=True)
        ),
        extra=_extra(raw),
        nexthop_id=number_of(raw.get(_NH_ID)),
        encapsulation=encapsulation_of(raw),
    )


def _raw(message: Any) -> dict[int, bytes]:
    """Return the packed attributes of a route or rule: pyroute2 keeps the datagram in which a message came."""
    end = message.offset + message["header"]["length"]
    return attributes(bytes(message.data[message.offset : end]), HEADER_LENGTH + 12)


def _extra(raw: dict[int, bytes]) -> Extra:
    return tuple((number, payload) for number, payload in raw.items() if number not in _OWN_FIELDS | _ANSWER_ONLY)


def _gateway(message: Any, raw: dict[int, bytes]) -> Address | None:
    text = message.get_attr("RTA_GATEWAY")
    return gateway_of(raw, IPV4) if text is None else Address.parse(text)


def _next_hop(hop: Any, raw: dict[int, bytes], names: dict[int, str]) -> NextHop:
    return NextHop(
        gateway=_gateway(hop, raw),
        dev=names.get(hop["oif"], ""),
        weight=hop["hops"] + 1,
        onlink=bool(hop["flags"] & FLAG_ONLINK),
        extra=_extra(raw),
        encapsulation=encapsulation_of(raw),
        dead=bool(hop["flags"] & FLAG_DEAD),
    )


def _mac(text: str) -> str:
    """Return a hardware address; tunnels show their own IPv4 or IPv6 address in its place."""
    return text if len(text) == _ETHERNET and text.strip("0:") else ""


def _kind(link_info: Any) -> str:
    kind: str | None = link_info and link_info.get_attr("IFLA_INFO_KIND")
    return kind or ""


def address(message: Any) -> DeviceAddress:
    """The address of a decoded message."""
    texts = [message.get_attr(f"IFA_{name}") for name in ("ADDRESS", "LOCAL")]
    peer, local = (None if text is None else Address.parse(text).number for text in texts)
    peer = peer or 0
    return DeviceAddress(
        local=peer if local is None else local,
        prefix_length=message["prefixlen"],
        peer=peer,
        broadcast=_ipv4(message.get_attr("IFA_BROADCAST")),
        scope=message["scope"],
        secondary=bool(message["flags"] & 0x1),
        family=message["family"],
    )


def rule(message: Any) -> Rule:
    """The rule of a decoded message."""
    raw = _raw(message)

    def value(name: str, default: Any) -> Any:
        found = message.get_attr(f"FRA_{name}")
        return default if found in {None, ""} else found

    return Rule(
        priority=value("PRIORITY", 0),
        action=RULE_ACTIONS.get(message["action"], f"action {message['action']}"),
        table=value("TABLE", 0) or message["table"],
        source=(_ipv4(message.get_attr("FRA_SRC")) or 0, message["src_len"]),
        destination=(_ipv4(message.get_attr("FRA_DST")) or 0, message["dst_len"]),
        inverted=bool(message["flags"] & 0x2),
        goto=value("GOTO", None),
        tos=message["tos"],
        mark=value("FWMARK", 0),
        mark_mask=value("FWMASK", 0),
        iif=value("IIFNAME", ""),
        oif=value("OIFNAME", ""),
        ip_protocol=value("IP_PROTO", 0),
        source_ports=_range(message, "FRA_SPORT_RANGE"),
        destination_ports=_range(message, "FRA_DPORT_RANGE"),
        uids=_range(message, "FRA_UID_RANGE"),
        tun_id=value("TUN_ID", 0),
        l3mdev=bool(value("L3MDEV", 0)),
        suppress_prefix_length=_unless_off(value("SUPPRESS_PREFIXLEN", None)),
        suppress_group=_unless_off(value("SUPPRESS_IFGROUP", None)),
        protocol=value("PROTOCOL", 0),
        unknown=tuple(item for item in raw.items() if item[0] not in KNOWN),
    )


def _range(message: Any, name: str) -> Range | None:
    found = message.get_attr(name)
    return None if found is None else Range(*map(int, found.split(":")))


def _unless_off(number: int | None) -> int | None:
    return None if number in {None, -1, 0xFFFFFFFF} else number
