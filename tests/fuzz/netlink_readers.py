"""The readers of rtnetlink messages, up to the public method: each gets the bytes as the kernel's
answer.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fuzz.netlink_mutator import messages_of
from support import played_kernel
from support.played_kernel import PlayedKernel, listener_of, played

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.net.addresses import IPV6, parse_ipv4
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import Route

_NEIGHBOUR = Neighbour("10.0.0.77", "e0", "02:00:00:00:00:77", permanent=True)
_IPV6_ROUTE = Route.parse("fd00:77::/64", dev="e0", metric=1024, protocol=3)
_ROUTE = Route.parse("172.30.0.0/16", gateway="10.0.0.2", dev="e0")


def _backend(ask: Callable[[NetlinkBackend], object]) -> Callable[[], object]:
    return lambda: ask(NetlinkBackend())


def _layer(ask: Callable[[NetlinkLinkLayer], object]) -> Callable[[], object]:
    return lambda: ask(NetlinkLinkLayer())


def _shown(things: Sequence[object]) -> list[str]:
    """Print the values that were read, too."""
    return list(map(str, things))


_links = _backend(lambda backend: _shown(backend.links()))
_lookup = _backend(
    lambda backend: _shown([each.route for each in backend.lookup([parse_ipv4("172.16.0.1")])])
)
_ipv6_lookup = _backend(
    lambda backend: _shown([each.route for each in backend.lookup([5], family=IPV6)])
)
_apply_route = _backend(lambda backend: backend.apply([RouteChange(None, _ROUTE)]))
_apply_ipv6 = _backend(lambda backend: backend.apply([RouteChange(None, _IPV6_ROUTE)]))
_apply_neighbour = _layer(lambda layer: layer.add_neighbours([_NEIGHBOUR]))

#: The public methods, by the type of the request that they send.
_ASKED: Final[dict[str, tuple[tuple[int, ...], tuple[Callable[[], object], ...]]]] = {
    "links": ((played_kernel.LINKS,), (_links,)),
    "addresses": (
        (played_kernel.ADDRESSES,),
        (_links, _layer(lambda layer: layer.newest_address("e0"))),
    ),
    "neighbours": (
        (played_kernel.NEIGHBOURS,),
        (
            _links,
            _layer(lambda layer: _shown(layer.neighbours())),
            _layer(lambda layer: layer.stations("br0")),
        ),
    ),
    "rules": (
        (played_kernel.RULES,),
        (_backend(lambda backend: backend.rules()), _backend(lambda backend: backend.rules(IPV6))),
    ),
    "routes": (
        (played_kernel.ROUTES,),
        (
            _backend(lambda backend: _shown(backend.routes())),
            _backend(lambda backend: _shown(backend.routes(IPV6))),
        ),
    ),
    # Read before a change, and after it.
    "read-backs": ((played_kernel.ROUTES,), (_apply_route, _apply_ipv6)),
    "lookups": ((played_kernel.ROUTES,), (_lookup, _ipv6_lookup)),
    "filters": ((played_kernel.FILTERS,), (_layer(lambda layer: layer.classifiers("e0")),)),
    "acks": (
        (played_kernel.NEW_ROUTE, played_kernel.NEW_NEIGHBOUR),
        (_apply_route, _apply_ipv6, _apply_neighbour),
    ),
}


def _reader(requests: Sequence[int], ask: Callable[[], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        with played(dict.fromkeys(requests, data)):
            return ask()

    return read


def _events(data: bytes) -> list[str]:
    with played({}):
        listener = listener_of(PlayedKernel({}, announced=messages_of(data)))
        try:
            return _shown([value for event in listener.take() for value in event])
        finally:
            # An error must not spoil what comes after it.
            assert listener.take() == []


#: The readers of each sort of answer, and of announcements.
READERS = {
    **{
        name: tuple(_reader(requests, ask) for ask in asked)
        for name, (requests, asked) in _ASKED.items()
    },
    "events": (_events,),
}
