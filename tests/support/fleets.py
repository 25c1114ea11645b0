"""Records of nodes: one with a value in every field, random ones, and a fleet whose nodes are alike
but for numbers.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from hypothesis import strategies as st
from support import small_world

from hostrouting import HostRoutingConfig
from hostrouting.fleet import NodeRecord
from hostrouting.fleet.record import Line
from hostrouting.host import (
    IPV4,
    IPV6,
    Address,
    Device,
    DeviceAddress,
    NextHop,
    ObservedRoute,
    Rule,
)
from hostrouting.net.routes import KINDS, Encapsulation
from hostrouting.net.rules import Range
from hostrouting.route_overlap.fabric import Fabric, FabricAddress
from hostrouting.testing import strategies

CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}],
        },
        "routeOverlap": {
            "expectedCidrs": ["172.16.8.0/22", "10.0.0.0/24", "fd00:9::/64"],
            "mode": "STRICT",
        },
    }
)
OWN_ROUTE = ObservedRoute.parse("172.16.8.0/22", "eth0", "10.224.0.1", protocol=142)
FULL = NodeRecord(
    hostname="node-1",
    is_router=True,
    time="2026-01-01T00:00:00Z",
    tool="0.1.0",
    config=CONFIG,
    checksum="0123456789ab",
    devices=(
        Device("lo", 1, up=True, addresses=(DeviceAddress.parse("127.0.0.1/8"),), loopback=True),
        Device(
            "eth0",
            2,
            up=True,
            mac="00:15:5d:33:ff:01",
            kind="veth",
            master="bond0",
            addresses=(
                DeviceAddress(
                    0x0AE00004, 16, 0x0AE00005, broadcast=0x0AE0FFFF, scope=253, secondary=True
                ),
                DeviceAddress(
                    0xFD << 120 | 4, 64, 0xFD << 120 | 4, family=IPV6, usable=False, deprecated=True
                ),
            ),
            group=3,
            neighbours=(0x0AE00001,),
            failed=(Address.parse("10.224.0.1"), Address.parse("fe80::1")),
        ),
        Device("ib0", 3, up=False, mac="80:" * 19 + "01", carrier=False, infiniband=True),
    ),
    rules=(
        Rule(0, table=255, protocol=2),
        Rule(
            9,
            table=88,
            suppress_prefix_length=0,
            suppress_group=3,
            source=(0x0AE00004, 32),
            destination=(0x0A000000, 8),
            inverted=True,
            tos=8,
            mark=1,
            mark_mask=255,
            iif="eth0",
            oif="ib0",
            ip_protocol=6,
            source_ports=Range(1, 2),
            destination_ports=Range(443, 443),
            uids=Range(0, 9),
            tun_id=1 << 40,
            l3mdev=True,
            dscp=8,
            unknown=((26, b"\1"),),
        ),
        Rule(10, action="goto", goto=32766),
        Rule(32766, table=254, protocol=2),
        Rule(32766, table=254, protocol=2, family=IPV6),
    ),
    routes=(
        ObservedRoute.parse(
            "0.0.0.0/0", "eth0", "10.224.0.1", protocol=16, metric=100, source="10.224.0.4"
        ),
        OWN_ROUTE,
        ObservedRoute.parse(
            "172.16.0.0/16", "ib0", protocol=2, scope=253, tos=8, flags=16, extra=((8, b"\0\1"),)
        ),
        ObservedRoute.parse("10.0.0.0/25", None, kind="blackhole", table=88),
        ObservedRoute.parse(
            "10.0.0.128/25",
            nexthop_id=7,
            nexthops=(
                NextHop(Address.parse("10.224.0.1"), "eth0", 2, onlink=True),
                NextHop(
                    Address.parse("fe80::1"),
                    "ib0",
                    dead=True,
                    encapsulation=Encapsulation(1, b"\5"),
                ),
            ),
        ),
        ObservedRoute.parse(
            "::/0", "eth0", "fe80::1", protocol=9, metric=1024, expires=1800, from_prefix="fd00::/8"
        ),
    ),
    merged=False,
    fabric=Fabric(
        addresses=(FabricAddress("00155D33FF1D", 0xAC100104),),
        source="pool",
        notes=("odd",),
        awaited=True,
    ),
    lines=(Line("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1"),),
)


_gateways = strategies.gateways(IPV4) | strategies.gateways(IPV6)
_numbers = st.integers(0, (1 << 32) - 1)
#: Names are bytes to the kernel, which may be no text.
_names = strategies.device_names() | st.just("\udcff\x1b[31m")


def _changed(
    values: Iterable[Any], **changes: st.SearchStrategy[Any]
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return lists of some of the values, with other ones in these fields."""
    changed = st.builds(
        lambda value, **fields: value._replace(**fields), st.sampled_from([*values]), **changes
    )
    return st.lists(changed, max_size=4).map(tuple)


records = st.builds(
    NodeRecord,
    hostname=st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | _names,
    config=st.none() | strategies.configs(),
    devices=_changed(
        FULL.devices,
        name=_names,
        ifindex=st.integers(1, 99),
        up=st.booleans(),
        kind=st.just("") | _names,
        master=st.none() | _names,
        addresses=_changed(
            FULL.devices[1].addresses, broadcast=st.none() | _numbers, scope=st.integers(0, 255)
        ),
    ),
    rules=st.lists(
        st.sampled_from([IPV4, IPV6]).flatmap(
            lambda family: (
                small_world.rules(family=family) | small_world.selecting_rules(family=family)
            )
        ),
        max_size=3,
    ).map(tuple),
    routes=_changed(
        FULL.routes,
        gateway=st.none() | _gateways.map(Address.parse),
        dev=st.none() | _names,
        metric=_numbers,
        table=_numbers,
        kind=st.sampled_from(KINDS),
        source=st.none() | _numbers,
        extra=st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=4)), max_size=2).map(tuple),
        expires=st.integers(-9, 9),
    ),
    merged=st.none() | st.booleans(),
    fabric=st.sampled_from([FULL.fabric, Fabric()]),
)


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each leaf of a document, with its container and its key there."""
    keys = document.keys() if isinstance(document, dict) else range(len(document))
    for key in keys:
        inner = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]"
        if isinstance(document[key], dict | list):
            yield from leaves(document[key], inner)
        else:
            yield inner.removeprefix("."), document, key


def fleet(count: int) -> Iterator[bytes]:
    """Lines of nodes that are right, but for each third, which has lost the route of its config."""
    plain = NodeRecord(
        config=HostRoutingConfig.from_mapping(
            {**CONFIG.to_mapping(), "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}
        ),
        devices=(
            FULL.devices[0],
            FULL.devices[1]._replace(addresses=(DeviceAddress.parse("10.224.0.4/16"),)),
        ),
        rules=tuple(
            Rule(each, table=table, protocol=2)
            for each, table in ((0, 255), (32766, 254), (32767, 253))
        ),
        routes=(
            FULL.routes[0]._replace(source=None),
            ObservedRoute.parse("10.224.0.0/16", "eth0", protocol=2, scope=253),
        ),
        merged=True,
    )
    for number in range(count):
        dev = f"ib{number % 8}"
        more = (
            ObservedRoute.parse("172.16.0.0/16", dev, protocol=2, scope=253),
            *[OWN_ROUTE] * bool(number % 3),
        )
        devices = (
            *plain.devices,
            Device(dev, 3, up=True, addresses=(DeviceAddress.parse("172.16.1.4/16"),)),
        )
        made = attrs.evolve(
            plain, hostname=f"node-{number}", routes=(*plain.routes, *more), devices=devices
        )
        yield made.to_line()


def as_document(record: NodeRecord) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(record.to_line())
    return document
