"""Records of changed routes: all changes of a batch, and the inverse that restores our earlier routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.findings import RESTORED
from hostrouting.net.routes import OUR_PROTOCOL, place
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.net.routes import ObservedRoute, Place, Route

__all__ = ["RouteAccount", "change_of", "ours_by_place"]


class RouteAccount:
    """The difference that a batch made to our routes: before, after, and the foreign routes that it concerned."""

    def __init__(
        self,
        before: Sequence[ObservedRoute],
        after: Mapping[Place, Route | ObservedRoute],
        *,
        displaced: Iterable[ObservedRoute],
        restored: Sequence[ObservedRoute],
    ) -> None:
        was = ours_by_place(before)
        self._restored = restored
        self._displaced: dict[Place, list[ObservedRoute]] = {}
        for route in displaced:
            self._displaced.setdefault(place(route), []).append(route)
        #: By place: ours before and after.
        self._pairs: dict[Place, tuple[ObservedRoute | None, Route | ObservedRoute | None]] = {}
        for spot, now in after.items():
            earlier = was.get(spot)
            if earlier is None or not earlier.fulfils(now):
                self._pairs[spot] = earlier, now
        self._pairs |= {spot: (route, None) for spot, route in was.items() if spot not in after}

    def changes(self) -> Iterator[Change]:
        """Yield the changes: added and changed routes, then restored ones, then removed ones."""
        pairs = [(spot, *pair) for spot, pair in self._pairs.items()]
        yield from (change_of(was, now, self._displaced.get(spot, ())) for spot, was, now in pairs if now is not None)
        yield from (Change("+", str(route), RESTORED) for route in self._restored)
        yield from (Change("-", str(was)) for _, was, now in pairs if now is None)

    def reversed(self, observed: Sequence[ObservedRoute]) -> tuple[list[Route], list[str]]:
        """Return our routes as they should be after an undo, and the routes that something else has changed since."""
        wanted = ours_by_place(observed)
        altered = []
        for spot, (was, now) in self._pairs.items():
            stands = wanted.get(spot)
            if _same(stands, now):
                wanted.pop(spot, None)
                wanted |= {} if was is None else {spot: was}
            elif not _same(stands, was):
                altered.append(str(now or was))
        return [route.to_route() for route in wanted.values()], altered


def ours_by_place(observed: Sequence[ObservedRoute]) -> dict[Place, ObservedRoute]:
    """Return our routes by their place; of several in one place the first decides."""
    return {place(route): route for route in reversed(observed) if route.protocol == OUR_PROTOCOL}


def change_of(
    before: Route | ObservedRoute | None, after: Route | ObservedRoute, displaced: Sequence[ObservedRoute]
) -> Change:
    """Return the change of a place that gets our route."""
    if displaced:
        names = " and ".join(f"'{route}'" for route in displaced)
        return Change("~", str(after), f"displaces {names}, restored when ours is removed")
    if before is None:
        return Change("+", str(after))
    # Metrics of the route itself, such as an mtu, do not show in its text.
    earlier = "the same with other attributes" if str(before) == str(after) else f"'{before}'"
    return Change("~", str(after), f"was {earlier}")


def _same(stands: ObservedRoute | None, route: Route | ObservedRoute | None) -> bool:
    return stands is None if route is None else stands is not None and stands.fulfils(route)
