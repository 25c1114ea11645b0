"""All or nothing, when things go wrong that the contract cannot provoke."""

import errno
import struct

import attrs
import pytest
from support.kernel import connect

from hostrouting.exceptions import PermissionDeniedError, RouteRejectedError
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import ObservedRoute, Route
from hostrouting.testing import MemoryBackend

NINE = Route.parse("9.0.0.0/8", dev="eth0")
EIGHT = Route.parse("8.0.0.0/8", dev="eth0")


class Forgetful(MemoryBackend):
    """A backend that accepts one route and does not keep it, as when a daemon removes it at once."""

    def take(self, verb: str, route: Route | ObservedRoute) -> None:
        super().take(verb, route)
        if verb == "add" and route.network == NINE.network:
            self.delete_route(route)


@pytest.fixture
def node() -> MemoryBackend:
    return with_eth0(MemoryBackend())


def with_eth0(backend: MemoryBackend) -> MemoryBackend:
    connect(backend, eth0="10.224.0.4/16")
    return backend


def test_a_rollback_that_fails_names_the_differences(node: MemoryBackend) -> None:
    """If a step of the rollback fails, the error names the differences, and does not say 'as
    before'.
    """
    node.add_route("7.0.0.0/8", dev="eth0")
    seven = next(route for route in node.routes() if route.network >> 24 == 7)
    node.fail_at(3)
    node.fail_at(4)
    node.fail_at(5)
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(NINE), RouteChange.remove(seven), RouteChange.add(EIGHT)])
    assert caught.value.rolled_back is False
    assert str(caught.value) == (
        "1 route change was refused:\n"
        "  + 8.0.0.0/8 dev eth0 proto 142 scope link: injected fault (No buffer space available)\n"
        "THE ROLLBACK IS INCOMPLETE, these differ from before:\n"
        "  still there: 9.0.0.0/8 dev eth0 proto 142 scope link\n"
        "  missing: 7.0.0.0/8 dev eth0 scope link"
    )


def test_a_changed_route_that_cannot_be_removed_is_named(node: MemoryBackend) -> None:
    """The kernel limits the mtu; if it does not remove the route that it changed, the error names
    that route.
    """
    metrics = (8, struct.pack("=HHI", 8, 2, 70_000))
    node.fail_at(3)
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(attrs.evolve(NINE, extra=(metrics,)))])
    assert caught.value.rolled_back is False
    assert caught.value.left_behind == ["still there: 9.0.0.0/8 dev eth0 proto 142 scope link"]


def test_a_link_that_vanishes_midway_fails_the_batch(node: MemoryBackend) -> None:
    """If a link vanishes midway, the later changes are refused, and the earlier routes are gone
    with the link.
    """
    node.steps.plan(2, lambda: node.remove_link("eth0"))
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(NINE), RouteChange.add(EIGHT)])
    assert [(refusal.change, refusal.errno) for refusal in caught.value.refusals] == [
        ("+ 8.0.0.0/8 dev eth0 proto 142 scope link", errno.ENODEV)
    ]
    assert caught.value.rolled_back
    assert [route for route in node.routes() if route.protocol == 142] == []


def test_a_route_that_did_not_last_counts_as_refused() -> None:
    """If reading back does not find an accepted route, the whole batch is rolled back."""
    node = with_eth0(Forgetful())
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(NINE), RouteChange.add(EIGHT)])
    assert [(r.change, r.reason) for r in caught.value.refusals] == [
        ("+ 9.0.0.0/8 dev eth0 proto 142 scope link", "not refused, but not there on reading back")
    ]
    assert caught.value.rolled_back
    assert [route for route in node.routes() if route.protocol == 142] == []


def test_a_batch_is_verified_by_its_final_state(node: MemoryBackend) -> None:
    """A route that a batch adds, replaces and removes again is expected to be gone."""
    node.apply([RouteChange.add(NINE)])
    nine = next(route for route in node.routes() if route.protocol == 142)
    node.apply([RouteChange.remove(nine), RouteChange.add(NINE), RouteChange.remove(nine)])
    assert [route for route in node.routes() if route.protocol == 142] == []


def test_a_lack_of_privilege_is_known_from_the_additions(node: MemoryBackend) -> None:
    """A batch that ends with removals is refused by the same error."""
    node.add_route("7.0.0.0/8", dev="eth0")
    seven = next(route for route in node.routes() if route.network >> 24 == 7)
    node.fail_at(1, number=errno.EPERM)
    with pytest.raises(PermissionDeniedError):
        node.apply([RouteChange.add(NINE), RouteChange.remove(seven)])
