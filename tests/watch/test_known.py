"""The routes in a few places are known from events as a reading shows them."""

from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.exceptions import BackendError
from hostrouting.host import OUR_PROTOCOL, Listener, ObservedRoute, Route, RouteChange, RouteEvent
from hostrouting.net.addresses import IPV4, IPV6, Address
from hostrouting.net.routes import Place, place, resting
from hostrouting.testing import MemoryBackend
from hostrouting.watch.known import KnownRoutes, NearRoutes, WholeRoutes
from phases import Context

OURS = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
ADDRESS = Address.parse("10.224.0.4").number
THEIRS = [attrs.evolve(OURS, protocol=protocol, source=source) for protocol in (3, 16) for source in (None, ADDRESS)]
CHANGED = attrs.evolve(OURS, source=ADDRESS)
MOVED = Route.parse("172.16.1.0/24", gateway="10.224.0.2", dev="eth0")
ELSEWHERE = attrs.evolve(OURS, metric=7)
SPOT = place(OURS)
changes = st.tuples(
    st.sampled_from(["add", "prepend", "append", "replace", "remove"]),
    st.sampled_from([OURS, CHANGED, *THEIRS, ELSEWHERE, attrs.evolve(ELSEWHERE, protocol=3)]),
)


def unreadable(family: int = IPV4) -> list[ObservedRoute]:  # noqa: ARG001
    pytest.fail("the routes were read")


class Seen:
    """A node whose routes in one place are known."""

    def __init__(self, node: MemoryBackend, listener: Listener, places: frozenset[Place] = frozenset({SPOT})) -> None:
        self.node = node
        self._listener = listener
        self.known = KnownRoutes(node, self.catch_up)
        self.known.forget(places)
        self.known.read()

    def catch_up(self) -> None:
        for event in self._listener.take():
            if isinstance(event, RouteEvent):
                self.known.hear(event)

    def standing(self, spot: Place = SPOT) -> tuple[ObservedRoute, ...]:
        return tuple(resting(route) for route in self.node.routes() if place(route) == spot)


def node_with_eth0() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


@pytest.fixture
def seen() -> Iterator[Seen]:
    node = node_with_eth0()
    with node.events.listen(Context()) as listener:
        yield Seen(node, listener)


@given(st.lists(changes, max_size=12))
def test_events_tell_what_a_reading_shows(made: list[tuple[str, Route]]) -> None:
    """After any changes of routes, what is known of a place of the config is the reading of it.

    A route of ours elsewhere is known, too, or its place is in doubt: it is never missed.
    """
    node = node_with_eth0()
    with node.events.listen(Context()) as listener:
        seen, elsewhere = Seen(node, listener), place(ELSEWHERE)
        for verb, route in made:
            try:
                if verb == "remove":
                    node.delete_route(route)
                else:
                    node.insert_route(route, verb=verb)
            except BackendError:
                continue
            seen.catch_up()
            assert seen.known.at(SPOT) == seen.standing()
            if any(route.protocol == OUR_PROTOCOL for route in seen.standing(elsewhere)):
                assert seen.known.at(elsewhere) in (None, seen.standing(elsewhere))


def test_an_event_that_does_not_fit(seen: Seen) -> None:
    """A route that goes without ever having come is no knowledge: everything must be read."""
    seen.known.hear(RouteEvent("remove", resting(OURS)))
    assert seen.known.at(SPOT) is None
    with pytest.raises(BackendError):
        NearRoutes(seen.known, [SPOT]).routes()
    WholeRoutes(seen.known, Context()).routes()
    assert seen.known.at(SPOT) == ()


def test_an_event_while_the_routes_are_read(seen: Seen) -> None:
    """A change between the two looks at the events may be in the reading or not, so the place is in doubt."""

    class Disturbed(MemoryBackend):
        def routes(self, family: int = IPV4) -> list[ObservedRoute]:
            found = super().routes(family)
            seen.node.insert_route(OURS)
            return found

    seen.known.backend = Disturbed()
    seen.known.read()
    assert seen.known.at(SPOT) is None


def test_near_routes_are_not_read(seen: Seen) -> None:
    """A view of a few places reads no routes, and its changes count on what the events told."""
    seen.node.insert_route(OURS)
    seen.node.insert_route(ELSEWHERE)
    near = NearRoutes(seen.known, [SPOT])
    assert IPV6 not in near.families, "a repair of IPv4 asks for no route of IPv6"
    reading = seen.node.routes
    seen.node.routes = unreadable  # type: ignore[method-assign]
    assert near.routes() == [resting(OURS)]
    near.apply([RouteChange.replace(resting(OURS), MOVED)])
    assert near.routes() == [resting(MOVED)]
    seen.node.routes = reading  # type: ignore[method-assign]
    assert seen.standing() == (resting(MOVED),)


def test_ours_are_confirmed(seen: Seen) -> None:
    """The routes of ours that the kernel shows are those of the events; another one, or one less, is a difference."""
    seen.node.insert_route(OURS)
    seen.catch_up()
    assert seen.known.confirmed_by(seen.node.routes_of(OUR_PROTOCOL))
    assert not seen.known.confirmed_by([])
    assert not seen.known.confirmed_by([*seen.node.routes_of(OUR_PROTOCOL), resting(CHANGED)])
    seen.known.forget()
    assert not seen.known.confirmed_by(seen.node.routes_of(OUR_PROTOCOL))
