"""The routes that a kernel announces when a model of its routing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from hostrouting.fib.events import own_routes
from hostrouting.fib.tables import key_of
from hostrouting.net.events import RouteEvent
from hostrouting.net.routes import place
from hostrouting.testing.admission import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Bucket
    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.net.routes import ObservedRoute

__all__ = ["change_of_a_route", "changes_of_own_routes"]


def change_of_a_route(verb: str, before: Bucket, after: Bucket) -> Iterator[RouteEvent]:
    """Yield the event of one change, if it changed anything; `verb` is what it was asked to do."""
    if verb == "remove":
        yield from (RouteEvent("remove", shown(route)) for route in before if route not in after)
    else:
        yield from (RouteEvent(_placed(verb, route, before), shown(route)) for route in after if route not in before)


def changes_of_own_routes(before: Fib, after: Fib, device: Device, address: DeviceAddress) -> Iterator[RouteEvent]:
    """Yield the events of the routes that the kernel makes for an address: those that came, and those that went."""
    for route in own_routes(device, address):
        old, new = (_standing(fib, route) for fib in (before, after))
        if new is not None and old is None:
            yield RouteEvent(_placed("append", new, before.tables.bucket(key_of(new))), shown(new))
        elif old is not None and new is None:
            yield RouteEvent("remove", shown(old))


def _placed(verb: str, route: ObservedRoute, before: Bucket) -> Literal["add", "prepend", "append", "replace"]:
    if place(route) not in map(place, before):
        return "add"
    return cast("Literal['prepend', 'append', 'replace']", verb)


def _standing(fib: Fib, route: ObservedRoute) -> ObservedRoute | None:
    return next((other for other in fib.tables.bucket(key_of(route)) if other.fulfils(route)), None)
