"""A changed model is a value: it equals one built again, and the old one stays as it was."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small_world
from support.kernel import connect
from support.small_world import places

from hostrouting.exceptions import RouteRejectedError
from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.fib.tables import deleted, inserted
from hostrouting.host import ObservedRoute, RouteChange
from hostrouting.testing import MemoryBackend
from hostrouting.testing.route_texts import route


def fresh(node: MemoryBackend) -> Fib:
    """Return the model of a node on which no rule was ever changed."""
    return attrs.evolve(Fib.of(node.links(), node.routes()), merged=True)


@given(data=st.data())
def test_a_changed_model_equals_one_built_anew(data: st.DataObject) -> None:
    """A model after any accepted changes has the routes and the answers of a fresh reading, and the
    old model stays as it was.
    """
    node = MemoryBackend()
    connect(node, e0="10.1.0.1/16", e1="192.168.7.1/24")
    node.add_link("e2")
    planned = before = fresh(node)
    routes = before.routes()
    answers = before.lookup(places())
    for _ in range(data.draw(st.integers(1, 4))):
        accepted = []
        for change in data.draw(small_world.changes_of(node.routes())):
            try:
                node.apply([change])
            except (RouteRejectedError, UnknownDecisionError):
                continue
            accepted.append(change)
        planned = planned.changed(accepted)
    anew = fresh(node)
    assert planned.routes() == anew.routes()
    assert planned.lookup(places()) == anew.lookup(places())
    assert before.routes() == routes
    assert before.lookup(places()) == answers


def test_a_removed_route_must_be_held() -> None:
    """The removal of a route that the model does not have is refused, and the error names the route."""
    absent = ObservedRoute.parse("9.0.0.0/8", "eth0")
    with pytest.raises(ValueError, match="the model has no route '9"):
        Fib.of([], []).changed([RouteChange.remove(absent)])


def test_the_routes_of_a_changed_model_are_in_the_order_of_a_dump() -> None:
    """The routes are sorted by table, network and length, the longest first, in whatever order they
    were added.
    """
    texts = [
        "blackhole 9.0.0.0/8 table 88",
        "blackhole 8.0.0.0/8",
        "blackhole 9.0.0.0/9",
        "blackhole 9.0.0.0/8",
    ]
    model = Fib.of([], []).changed(RouteChange.add(route(text)) for text in reversed(texts))
    assert [*map(str, model.routes())] == texts


def test_a_deletion_takes_the_first_route_that_it_fits() -> None:
    """A deletion without a gateway fits a route by any gateway, as in the kernel; the remaining
    routes keep their order.
    """
    first, second, third = (
        ObservedRoute.parse("9.0.0.0/8", "eth0", gateway)
        for gateway in ("10.1.0.1", "10.1.0.2", "10.1.0.3")
    )
    bucket = (first, second, third)
    assert deleted(bucket, first._replace(gateway=None)) == (first, (second, third))
    assert deleted(bucket, second) == (second, (first, third))
    assert deleted(bucket, first._replace(dev="eth1")) == (None, bucket)


def test_a_new_ipv6_route_is_the_last_of_its_metric() -> None:
    """An IPv6 route that is prepended stands behind those of its metric, as the kernel places
    it.
    """
    first, second = (ObservedRoute.parse("fd00:9::/32", dev, metric=5) for dev in ("eth0", "ib0"))
    assert inserted((first,), second, last=False) == (first, second)
