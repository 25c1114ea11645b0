"""The relay: events from the thread of the routes to that of the siblings."""

from math import inf

import pytest

from hostrouting.exceptions import EventsLostError
from hostrouting.host import Device, DeviceEvent, Neighbour, NeighbourEvent, ObservedRoute, RouteEvent
from hostrouting.watch.siblings import Relay
from phases import Context

DEVICE = DeviceEvent("set", Device("azv1", 4, up=True))
NEIGHBOUR = NeighbourEvent("set", Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True))
ROUTE = RouteEvent("add", ObservedRoute.parse("172.16.0.0/16", "eth0"))


def made() -> tuple[Relay, list[str]]:
    """Return a relay, and the list of its notifications."""
    rung: list[str] = []
    return Relay(lambda: rung.append("!")), rung


def test_events_are_passed_on_in_order() -> None:
    """Events of devices and neighbours come in their order, once; the first thread has nothing to do for them."""
    relay, rung = made()
    assert relay.hear([DEVICE, ROUTE, NEIGHBOUR]) == relay.act(Context()) == inf
    assert (relay.has_news, rung) == (True, ["!"])
    assert relay.take() == [DEVICE, NEIGHBOUR]
    assert (relay.has_news, relay.take()) == (False, [])


def test_routes_wake_nothing() -> None:
    """A storm of routes does not wake the other thread."""
    relay, rung = made()
    relay.hear([ROUTE] * 5000)
    assert (relay.has_news, rung) == (False, [])


def test_only_so_many_are_stored() -> None:
    """More events than it holds are lost as a whole, and the other thread is told; later ones come again."""
    relay, _ = made()
    for _ in range(3):
        relay.hear([DEVICE] * 500)
    assert relay.has_news
    with pytest.raises(EventsLostError):
        relay.take()
    relay.hear([NEIGHBOUR])
    assert relay.take() == [NEIGHBOUR]


def test_a_loss_is_passed_on() -> None:
    """If the first thread lost events, so has the other, and what was stored before counts for nothing."""
    relay, rung = made()
    relay.hear([DEVICE])
    relay.lose()
    assert rung == ["!", "!"]
    with pytest.raises(EventsLostError):
        relay.take()
    assert not relay.has_news
