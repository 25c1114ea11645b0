"""The words for changed routes: a forecast, the records of a run, and the explanation of a refusal."""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import LinkNotFoundError, Refusal
from hostrouting.findings import RESTORED, refused
from hostrouting.net.routes import OUR_PROTOCOL, place
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.exceptions import RouteRejectedError
    from hostrouting.host.ports import Routing
    from hostrouting.net.addresses import Address
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute, Place, Route
    from hostrouting.static_routes.reconcile import Reconciliation, Routes
    from hostrouting.static_routes.resolve import Unresolved

__all__ = ["RouteAccount", "explain", "forecast", "ours_by_place", "with_routes"]

#: The refusals that a lease, an address or a carrier may mend.
_MAY_HEAL: Final = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


# --- records


class RouteAccount:
    """The difference that a run made to our routes: before, after, and the foreign routes that it concerned."""

    def __init__(
        self,
        before: Mapping[Place, ObservedRoute],
        after: Mapping[Place, Route | ObservedRoute],
        *,
        displaced: Iterable[ObservedRoute],
        restored: Iterable[ObservedRoute],
    ) -> None:
        pairs = {spot: (before.get(spot), after.get(spot)) for spot in (*after, *before)}
        #: By place: ours before and after.
        self._pairs = {spot: pair for spot, pair in pairs.items() if not _is_same(*pair)}
        self._restored = restored
        self._displaced: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
        for route in displaced:
            self._displaced[place(route)].append(route)

    def changes(self) -> Iterator[Change]:
        """Yield the changes: added and changed routes, then restored ones, then removed ones."""
        for spot, (was, now) in self._pairs.items():
            if now is not None:
                yield _change_of(was, now, self._displaced.get(spot, ()))
        yield from (Change("+", str(route), RESTORED) for route in self._restored)
        yield from (Change("-", str(was)) for was, now in self._pairs.values() if now is None)

    def reversed(self, observed: Routes) -> tuple[list[Route], list[str]]:
        """Return our routes as they should be after an undo, and the routes that something else has changed since."""
        wanted = ours_by_place(observed)
        altered = []
        for spot, (was, now) in self._pairs.items():
            stands = wanted.get(spot)
            if _is_same(stands, now):
                wanted.pop(spot, None)
                wanted |= {} if was is None else {spot: was}
            elif not _is_same(stands, was):
                altered.append(str(now or was))
        return [route.to_route() for route in wanted.values()], altered


def ours_by_place(observed: Routes) -> dict[Place, ObservedRoute]:
    """Return our routes by their place; of several in one place the first decides."""
    return {place(route): route for route in reversed(observed) if route.protocol == OUR_PROTOCOL}


def _is_same(stands: ObservedRoute | None, route: Route | ObservedRoute | None) -> bool:
    return stands is None if route is None else stands is not None and stands.fulfils(route)


def _change_of(before: ObservedRoute | None, after: Route | ObservedRoute, displaced: Routes) -> Change:
    """Return the change of a place that gets our route."""
    if displaced:
        names = " and ".join(f"'{route}'" for route in displaced)
        return Change("~", str(after), f"displaces {names}, restored when ours is removed")
    if before is None:
        return Change("+", str(after))
    # Metrics of the route itself, such as an mtu, do not show in its text.
    earlier = "the same with other attributes" if str(before) == str(after) else f"'{before}'"
    return Change("~", str(after), f"was {earlier}")


# --- a forecast


def forecast(
    outcome: Reconciliation, missing: Sequence[Unresolved], links: Sequence[Device], observed: Routes
) -> list[Change]:
    """Return the changes of a reconciliation, with the refusals that are certain, and those of missing routes."""
    devices = {link.name: link for link in links}
    details = dict.fromkeys(outcome.put_back, RESTORED)
    # A route that cannot be restored is given up, and hinders nothing.
    details |= _foreseen(outcome.changes, devices, observed)
    details |= {change: refused(_never_overwritten(own)) for change, own in outcome.in_the_way.items()}
    forecast = [
        Change("+", str(route), f"looked up when a default route is there: {reason}")
        if route.dev is None or route.dev in devices
        else Change("+", str(route), refused(_no_device(route.dev)))
        for route, reason in missing
    ]
    for change in outcome.all_changes:
        if change.after is None:
            shown = Change("-", str(change.before))
        else:
            shown = _change_of(change.before, change.after, outcome.displaced_by(change))
        if not outcome.only_moves(change):
            forecast.append(shown._replace(detail=details.get(change, shown.detail)))
    return forecast


def _foreseen(
    changes: Iterable[RouteChange], devices: Mapping[str, Device], observed: Routes
) -> dict[RouteChange, str]:
    """Return the foreseen refusals: the device of a route, or the gateway on it, is missing."""
    foreseen = {change: refused(reason) for change, reason in _without_gateway(changes, observed).items()}
    for change in changes:
        dev = None if change.after is None else change.after.dev
        if dev is None:
            continue
        if dev not in devices:
            foreseen[change] = refused(_no_device(dev))
        elif not _is_usable(devices[dev]):
            lack = "has no IPv4 address" if devices[dev].up else "is down"
            foreseen[change] = f"waits up to 30 s, since {dev} {lack}"
    return foreseen


# --- refusals


def explain(error: RouteRejectedError, outcome: Reconciliation, routing: Routing) -> None:
    """Complete the error with explanations: where a kernel route is in the way, and if waiting may help."""
    error.may_heal = error.rolled_back and _may_heal(error.refusals, outcome.changes, routing.links())
    lost = {} if error.may_heal else _without_gateway(outcome.changes, routing.routes())
    steps = {str(change): f"; {reason}" for change, reason in lost.items()}
    reasons = {str(change): _never_overwritten(own) for change, own in outcome.in_the_way.items()}
    error.refusals = [
        Refusal(change, number, reasons.get(change, f"{reason}{steps.get(change, '')}"))
        for change, number, reason in error.refusals
    ]


def with_routes(error: LinkNotFoundError, routes: Iterable[Route | StaticRoute]) -> LinkNotFoundError:
    """Return the error with the routes whose device is missing."""
    of_device = [f"\n  {route}" for route in routes if route.dev == error.dev]
    step = f"; correct the 'dev' of:{''.join(of_device)}" if of_device else ""
    return LinkNotFoundError(f"{error}{step}", dev=error.dev, errno=error.errno, may_heal=True)


def _may_heal(refusals: Iterable[Refusal], changes: Iterable[RouteChange], links: Iterable[Device]) -> bool:
    """Return True if each refused route has a device that is absent, down, or without an IPv4 address.

    With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the config: the kernel's
    error number is the same for both.
    """
    usable = {link.name for link in links if _is_usable(link)}
    waiting = {str(change) for change in changes if change.after is not None and change.after.dev not in usable}
    return all(refusal.errno in _MAY_HEAL and refusal.change in waiting for refusal in refusals)


def _without_gateway(changes: Iterable[RouteChange], observed: Routes) -> dict[RouteChange, str]:
    """Return the routes whose gateway is not on the link of their device: the kernel refuses all of them."""
    reached: dict[tuple[Address, str], bool] = {}
    lost: dict[RouteChange, str] = {}
    for change in changes:
        route = change.after
        if route is None or route.gateway is None or route.dev is None or route.onlink:
            continue
        hop = route.gateway, route.dev
        if hop not in reached:
            reached[hop] = _is_on_link(*hop, observed)
        if not reached[hop]:
            lost[change] = f"no network of {route.dev} has the gateway {route.gateway}; correct its 'gateway' or 'dev'"
    return lost


def _is_on_link(gateway: Address, dev: str, observed: Iterable[ObservedRoute]) -> bool:
    # Any table counts, because rules may lead the kernel there: a refusal that is foreseen here is certain.
    return any(
        route.gateway is None
        and dev in route.devs
        and (gateway.number ^ route.network) >> (32 - route.prefix_length) == 0
        for route in observed
    )


def _is_usable(link: Device) -> bool:
    return link.up and bool(link.addresses)


def _no_device(dev: str) -> str:
    return f"there is no network device {dev}; correct its 'dev'"


def _never_overwritten(own: ObservedRoute) -> str:
    return (
        f"the kernel's own route '{own}' has this destination and metric, and is never overwritten; "
        f"configure narrower destinations, or another metric"
    )
