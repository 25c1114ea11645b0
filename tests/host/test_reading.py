"""A reading answers several questions about one moment of a node."""

import pytest
from support.run_nodes import gpu_node

from hostrouting.host import IPV4, IPV6, OUR_PROTOCOL, ObservedRoute, Route, RouteChange
from hostrouting.host.reading import at_one_moment
from hostrouting.testing import FakeHost

OWN_ROUTE = Route.parse("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")


@pytest.fixture
def host() -> FakeHost:
    return gpu_node()


def test_it_is_of_the_moment_of_its_first_question(host: FakeHost) -> None:
    """A reading keeps the routes, rules and devices of its first query; later ones are in the next
    reading.
    """
    node = at_one_moment(host).routes
    before = node.routes(), node.rules(), node.links()
    host.routes.add_route("10.9.0.0/16", gateway="10.224.0.9", dev="eth0")
    host.routes.add_link("eth1")
    assert (node.routes(), node.rules(), node.links()) == before
    assert at_one_moment(host).routes.routes() == host.routes.routes() != before[0]


def test_each_family_is_read_when_it_is_needed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading dumps a family once and on demand; own routes of a family are queried without a
    dump.
    """
    node = at_one_moment(host).routes
    routes = host.routes.routes
    families: list[int] = []

    def read(family: int = IPV4) -> list[ObservedRoute]:
        families.append(family)
        return routes(family)

    monkeypatch.setattr(host.routes, "routes", read)
    for _ in range(2):
        assert node.routes() == routes()
        assert node.routes_of(OUR_PROTOCOL) == []
        assert node.routes_of(OUR_PROTOCOL, IPV6) == []
    assert families == [IPV4]


def test_a_list_that_it_returned_may_be_changed(host: FakeHost) -> None:
    """A caller may change a list that a reading returned, as a proof does, without a change of
    later answers.
    """
    node = at_one_moment(host).routes
    node.routes().clear()
    node.rules().clear()
    node.links().clear()
    assert node.routes() == host.routes.routes()
    assert node.rules() == host.routes.rules()
    assert node.links() == host.routes.links()


def test_lookups_are_of_the_kernel(host: FakeHost) -> None:
    """A lookup on a reading is decided by a route that the node got after the reading."""
    node = at_one_moment(host).routes
    node.routes()
    host.routes.insert_route(OWN_ROUTE)
    [answer] = node.lookup([OWN_ROUTE.network])
    assert answer.route is not None
    # Before, the default route decided.
    assert answer.route.destination == OWN_ROUTE.destination


def test_it_forgets_all_with_its_own_change(host: FakeHost) -> None:
    """A reading through which a change was made reads the node again."""
    node = at_one_moment(host).routes
    assert node.routes_of(OUR_PROTOCOL) == []
    node.routes()
    node.apply([RouteChange.add(OWN_ROUTE)])
    assert [str(route) for route in node.routes_of(OUR_PROTOCOL)] == [str(OWN_ROUTE)]
    assert node.routes() == host.routes.routes()


def test_an_image_has_none_to_read() -> None:
    """A reading of an image has its files, units and lock."""
    image = FakeHost(is_live=False)
    node = at_one_moment(image)
    assert node.files == image.files
    assert node.services == image.services
    assert node.lock == image.lock
    assert not node.is_live
