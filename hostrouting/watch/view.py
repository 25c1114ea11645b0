"""The view of a node's routing: a model that follows the events, and is compared with readings.

A reading takes some milliseconds, and events that came before it may be heard after it. They are applied to it, too:
for a network with one route, which is nearly every one, that ends in the kernel's routes. Where that is not sure, the
reading does not count, and another one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.fib.live import Effect, LiveFib, differences
from hostrouting.fib.tables import key_of
from hostrouting.host import NeighbourEvent, RouteEvent
from hostrouting.net.routes import LOCAL_TABLE
from hostrouting.route_overlap.assumed import model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Tables
    from hostrouting.host import Device, Lookup, NetworkEvent, ObservedRoute, Rule
    from hostrouting.host.ports import Routing

__all__ = ["Reading", "View"]

#: With more routes, the model has only those that can decide an expected address.
MOST_ROUTES: Final = 50_000
#: A difference is told by so many of its parts.
_MOST_TOLD: Final = 3
#: The verbs after which a network has one route, if it had no more before.
_PLAIN: Final = frozenset({"add", "replace", "remove"})


@attrs.frozen
class Reading:
    """One reading of a node, which implements `Routing`: only lookups are asked anew."""

    _backend: Routing
    _links: list[Device]
    _routes: list[ObservedRoute]
    _rules: list[Rule]

    @classmethod
    def of(cls, backend: Routing) -> Reading:
        """Read a node."""
        return cls(backend, backend.links(), backend.routes(), backend.rules())

    def links(self) -> list[Device]:
        """See `Routing.links`."""
        return self._links

    def routes(self) -> list[ObservedRoute]:
        """See `Routing.routes`."""
        return self._routes

    def rules(self) -> list[Rule]:
        """See `Routing.rules`."""
        return self._rules

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """See `Routing.lookup`."""
        return self._backend.lookup(destinations, sources=sources, resolve=resolve)


class View:
    """The model of a node, and the reading that is compared with it next.

    `concerns` returns True for a network that has expected addresses.
    """

    def __init__(self, concerns: Callable[[int, int], bool]) -> None:
        self._concerns = concerns
        self._model: LiveFib | None = None
        #: It is compared when all events are heard that came before it.
        self._reading: LiveFib | None = None
        self._is_sure = True
        #: True if events came between the last reading and its comparison.
        self.was_disturbed: bool = False
        #: True if a reading shows carriers that may be announced soon: the kernel waits with that, at most a second.
        self.is_early: bool = False

    @property
    def fib(self) -> Fib | None:
        """The node as it is now; None if it must be read."""
        return None if self._model is None else self._model.fib

    @property
    def is_read(self) -> bool:
        """True between a reading and its comparison."""
        return self._reading is not None

    def forget(self) -> None:
        """Forget everything, because the model is not known to be right any more."""
        self._model = self._reading = None

    def read(self, reading: Reading) -> None:
        """Take a reading; `hear` must then have all events that came before, and `compare` is next."""
        self._reading = self._followed(model_of(reading))
        self._is_sure, self.was_disturbed = True, False

    def hear(self, events: Sequence[NetworkEvent]) -> Effect:
        """Apply events to the model, and return the parts that they changed."""
        if self._reading is not None and events:
            self.was_disturbed = True
            tables = self._reading.fib.tables
            self._is_sure = self._is_sure and all(_ends_as_read(event, tables) for event in events)
            self._is_sure = not self._reading.apply(events).unknown and self._is_sure
        if self._model is None:
            return Effect()
        effect = self._model.apply(events)
        if effect.devices:
            # A carrier that comes and goes all the time is announced once a second.
            self.is_early = False
        if effect.unknown:
            self._model = None
            return effect
        if len(self._model.fib.tables) > MOST_ROUTES and not self._model.is_part:
            self._model = self._followed(self._model.fib)
        return effect

    def compare(self) -> str | None:
        """Compare the model with the reading; return the difference, empty if there is none, None if it is unknown.

        If there is no model, or it differs, the reading is the model from now on.
        """
        reading, self._reading = self._reading, None
        if reading is None or not self._is_sure:
            return None
        model, self._model = self._model, self._model or reading
        if model is None or model.is_part != reading.is_part:
            self._model = reading
            return ""
        found = list(differences(model.fib, reading.fib))
        self.is_early = (
            bool(found) and not self.is_early and not any(differences(*map(_linked, (model.fib, reading.fib))))
        )
        if self.is_early:
            return None
        if found:
            self._model = reading
        return "; ".join(found[:_MOST_TOLD]) + (f"; and {len(found) - _MOST_TOLD} more" * (len(found) > _MOST_TOLD))

    def _followed(self, fib: Fib) -> LiveFib:
        """Return a model that will be kept current: of all routes, or of a part of them if there are too many."""
        if len(fib.tables) <= MOST_ROUTES:
            return LiveFib(fib)
        return LiveFib(fib, keeps=self._decides)

    def _decides(self, route: ObservedRoute) -> bool:
        """Return True for a route that can decide an expected address, or where the node sends from."""
        return route.table == LOCAL_TABLE or self._concerns(route.network, route.prefix_length)


def _linked(fib: Fib) -> Fib:
    """Return a model in which each device has a carrier; its routes stay as they are."""
    return attrs.evolve(fib, devices={name: one._replace(carrier=True) for name, one in fib.devices.items()})


def _ends_as_read(event: NetworkEvent, tables: Tables) -> bool:
    """Return True if an event leaves a reading right, whether it came before it or after it."""
    if not isinstance(event, RouteEvent):
        return isinstance(event, NeighbourEvent)
    return event.verb in _PLAIN and len(tables.bucket(key_of(event.route))) <= 1
