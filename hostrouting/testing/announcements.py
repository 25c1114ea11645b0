"""The events that a kernel announces when a model of its routing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from hostrouting.fib.events import own_routes, same_subnet
from hostrouting.fib.tables import key_of
from hostrouting.net.events import AddressEvent, RouteEvent
from hostrouting.net.routes import place
from hostrouting.testing.admission import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Bucket
    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.net.routes import ObservedRoute

__all__ = ["change_of_a_route", "changes_of_own_routes", "removals_of_addresses"]


def change_of_a_route(verb: str, before: Bucket, after: Bucket) -> Iterator[RouteEvent]:
    """Yield the event of one change, if it changed anything; `verb` is the one that was asked for."""
    if verb == "remove":
        yield from (RouteEvent("remove", shown(route)) for route in before if route not in after)
    else:
        yield from (RouteEvent(_placed(verb, route, before), shown(route)) for route in after if route not in before)


def changes_of_own_routes(before: Fib, after: Fib, device: Device, address: DeviceAddress) -> Iterator[RouteEvent]:
    """Yield the events of the routes that the kernel makes for an address: those that came, and those that went."""
    for route in own_routes(after, device, address):
        old, new = (_standing(fib, route) for fib in (before, after))
        if new is not None and old is None:
            yield RouteEvent(_placed("append", new, before.tables.bucket(key_of(new))), shown(new))
        elif old is not None and new is None:
            yield RouteEvent("remove", shown(old))


def removals_of_addresses(
    before: Fib, after: Fib, device: Device, gone: Sequence[DeviceAddress]
) -> Iterator[AddressEvent | RouteEvent]:
    """Yield the events of addresses that go in this order, each with its own routes that went."""
    told: set[RouteEvent] = set()
    for position, address in enumerate(gone):
        yield AddressEvent("remove", device.name, address)
        primaries = [one for one in gone[:position] if not one.secondary]
        if address.secondary and any(same_subnet(address, primary) for primary in primaries):
            # The kernel finds its routes by its primary address, which is gone by now.
            continue
        for event in changes_of_own_routes(before, after, device, address):
            # Two addresses may share a route.
            if event not in told:
                told.add(event)
                yield event


def _placed(verb: str, route: ObservedRoute, before: Bucket) -> Literal["add", "prepend", "append", "replace"]:
    if place(route) not in map(place, before):
        return "add"
    return cast("Literal['prepend', 'append', 'replace']", verb)


def _standing(fib: Fib, route: ObservedRoute) -> ObservedRoute | None:
    return next((other for other in fib.tables.bucket(key_of(route)) if other.fulfils(route)), None)
