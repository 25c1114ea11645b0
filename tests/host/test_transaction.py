"""Batches that are in force as a whole or not at all, with failures that the contract cannot
provoke.
"""

import errno

import pytest
from support.kernel import connect
from support.printed import NOT_ROLLED_BACK

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import RouteChange
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange, find, shown
from hostrouting.testing.route_texts import route

NINE = route("9.0.0.0/8 dev eth0 proto 142")
EIGHT = route("8.0.0.0/8 dev eth0 proto 142")
SEVEN = "7.0.0.0/8 dev eth0 scope link"


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    arrange(node, SEVEN)
    return node


def test_a_rollback_that_fails_names_the_differences(node: MemoryBackend) -> None:
    """A rollback that fails at a step raises an error that lists the differences, and does not
    claim 'as before'.
    """
    for step in 3, 4, 5:
        node.refuse_at(step)
    removal = RouteChange.remove(find(node, SEVEN))
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(NINE), removal, RouteChange.add(EIGHT)])
    assert caught.value.rolled_back is False
    assert str(caught.value) == (
        "1 route change was refused:\n"
        "  + 8.0.0.0/8 dev eth0 proto 142 scope link: injected fault (No buffer space available)\n"
        f"{NOT_ROLLED_BACK}:\n"
        "  still there: 9.0.0.0/8 dev eth0 proto 142 scope link\n"
        "  missing: 7.0.0.0/8 dev eth0 scope link"
    )


def test_a_link_that_vanishes_midway_fails_the_batch(node: MemoryBackend) -> None:
    """A batch whose link vanishes midway has its later changes refused; its earlier routes are gone
    with the link.
    """
    node.steps.plan(2, lambda: node.remove_link("eth0"))
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.add(NINE), RouteChange.add(EIGHT)])
    assert [(refusal.change, refusal.errno) for refusal in caught.value.refusals] == [
        (RouteChange.add(EIGHT), errno.ENODEV)
    ]
    assert caught.value.rolled_back
    assert shown(node, protocol=142) == []


def test_a_batch_is_verified_by_its_final_state(node: MemoryBackend) -> None:
    """A route that a batch adds, replaces and removes again is expected to be gone."""
    node.apply([RouteChange.add(NINE)])
    [nine] = node.routes_of(142)
    node.apply([RouteChange.remove(nine), RouteChange.add(NINE), RouteChange.remove(nine)])
    assert shown(node, protocol=142) == []


def test_the_reason_is_that_of_the_first_refusal(node: MemoryBackend) -> None:
    """The replacement of an IPv6 route, which is a removal and an addition, has the reason of the
    first refusal, and not that the place is taken.
    """
    node.add_address("eth0", "fd00:1::4/64")
    arrange(node, "fd05::/32 via fd00:1::5 dev eth0 metric 1")
    before = find(node, "fd05::/32 via fd00:1::5 dev eth0 metric 1")
    after = route("fd05::/32 via fd00:1::9 dev eth0 proto 142 metric 1")
    node.refuse_at(1, number=errno.ENOMEM)
    with pytest.raises(RouteRejectedError) as caught:
        node.apply([RouteChange.replace(before, after)])
    [refusal] = caught.value.refusals
    assert refusal.errno == errno.ENOMEM
    assert refusal.reason == "injected fault (Cannot allocate memory)"
