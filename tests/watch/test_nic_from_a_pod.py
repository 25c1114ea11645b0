"""A NIC that was lent to a pod comes back without its addresses and routes, as in dranet#42."""

from collections.abc import Callable

import attrs
import pytest
from support.kept_routes import OWN_ROUTE as ROUTE
from support.kept_routes import ROUTE as WANTED
from support.kept_routes import Kept, standing
from support.kernel import connect
from support.printed import NO_DEVICE

from hostrouting.testing import MemoryBackend
from phases import Context


def test_it_waits_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A route is repaired once its device has its address again; of the reasons for its wait the
    first one alone is logged.
    """
    caplog.set_level("INFO")
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    with node.events.listen(Context()) as listener:
        kept = Kept(node, listener, WANTED)
        kept.act()
        caplog.clear()
        steps: list[Callable[[], None]] = [
            lambda: node.remove_link("eth0"),
            lambda: node.add_link("eth0", up=False),
            lambda: node.set_up("eth0"),
            lambda: node.add_address("eth0", "10.224.0.4/16"),
        ]
        for step in steps:
            step()
            # It wants to act in 0 seconds.
            assert kept.catch_up() == 0
            kept.act()
        assert standing(node) == [str(ROUTE)]
    assert caplog.messages == [
        f"route '{ROUTE}' waits: {NO_DEVICE}",
        f"repaired: + {ROUTE}",
        "no route waits any more",
    ]


def test_the_end_of_one_wait_is_not_that_of_all(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a wait is not logged while the route of another NIC waits."""
    caplog.set_level("INFO")
    node = MemoryBackend()
    other = attrs.evolve(WANTED, destination="172.16.2.0/24", dev="eth1")
    with node.events.listen(Context()) as listener:
        kept = Kept(node, listener, WANTED, other)
        kept.act()
        connect(node, eth0="10.224.0.4/16")
        kept.catch_up()
        kept.act()
    assert standing(node) == [str(ROUTE)]
    assert "no route waits any more" not in caplog.messages
