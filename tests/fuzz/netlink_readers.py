"""The readers of rtnetlink messages, up to the public method: each gets the bytes as the kernel's
answer.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from support import played_kernel
from support.played_kernel import PlayedKernel, listener_of, played

from hostrouting.host import IPV6, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.frames import HEADER_LENGTH
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.net.addresses import parse_ipv4
from hostrouting.testing.route_texts import route

_IPV6_ROUTE = route("fd00:77::/64 dev e0 metric 1024")
_ROUTE = route("172.30.0.0/16 via 10.0.0.2 dev e0 proto 142")


_BACKEND, _LAYER = NetlinkBackend(), NetlinkLinkLayer()

#: By the sort of messages: the type of the request for them, and the public methods that send it,
#: by the command that their error names.
ASKED: dict[str, tuple[int, dict[str, Callable[[], Any]]]] = {
    "links": (played_kernel.LINKS, {"ip -d link": _BACKEND.links}),
    "names": (played_kernel.LINKS, {"ip -d link": _BACKEND.routes}),
    "addresses": (played_kernel.ADDRESSES, {"ip address": _BACKEND.links}),
    "neighbours": (
        played_kernel.NEIGHBOURS,
        {"ip neighbour": _LAYER.neighbours, "bridge fdb": partial(_LAYER.stations, "br0")},
    ),
    "rules": (
        played_kernel.RULES,
        {"ip -4 rule": _BACKEND.rules, "ip -6 rule": partial(_BACKEND.rules, IPV6)},
    ),
    "routes": (
        played_kernel.ROUTES,
        {
            "ip -4 route show table all": _BACKEND.routes,
            "ip -6 route show table all": partial(_BACKEND.routes, IPV6),
        },
    ),
    "filters": (
        played_kernel.FILTERS,
        {"tc filter show dev e0 ingress": partial(_LAYER.classifiers, "e0")},
    ),
    "lookups": (
        played_kernel.ROUTES,
        {
            "ip -4 route get": partial(_BACKEND.lookup, [parse_ipv4("172.16.0.1")]),
            "ip -6 route get": partial(_BACKEND.lookup, [5], family=IPV6),
        },
    ),
}
#: Methods that read such messages next to their own.
_BESIDE: dict[str, list[Callable[[], Any]]] = {
    "addresses": [partial(_LAYER.newest_address, "e0")],
    "neighbours": [_BACKEND.links],
}
_ADDITIONS = [partial(_BACKEND.apply, [RouteChange(None, each)]) for each in (_ROUTE, _IPV6_ROUTE)]


def _shown(answer: Any) -> Any:
    """Print the values that were read, too."""
    return list(map(str, answer)) if isinstance(answer, list) else answer


def _reader(requests: Sequence[int], call: Callable[[], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        with played(dict.fromkeys(requests, data)):
            return _shown(call())

    return read


def _messages_of(data: bytes) -> list[bytes]:
    """Cut the messages apart, even where a length is."""
    found, offset = [], 0
    while offset + HEADER_LENGTH <= len(data):
        length = max(HEADER_LENGTH, struct.unpack_from("=I", data, offset)[0])
        found.append(data[offset : offset + length])
        offset += length + 3 & ~3
    return found


def _events(data: bytes) -> object:
    with played({}):
        listener = listener_of(PlayedKernel({}, announced=_messages_of(data)))
        try:
            return _shown([value for event in listener.take() for value in event])
        finally:
            # An error must not spoil what comes after it.
            assert listener.take() == []


#: The readers of each sort of answer, and of announcements.
READERS: dict[str, list[Callable[[bytes], object]]] = {
    **{
        name: [_reader([request], call) for call in (*calls.values(), *_BESIDE.get(name, []))]
        for name, (request, calls) in ASKED.items()
        if name != "names"
    },
    # Read before a change, and after it.
    "read-backs": [_reader([played_kernel.ROUTES], call) for call in _ADDITIONS],
    "acks": [_reader([played_kernel.NEW_ROUTE], call) for call in _ADDITIONS],
    "events": [_events],
}
