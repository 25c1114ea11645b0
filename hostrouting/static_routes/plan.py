"""The plan of a config's routes: what becomes of the routes of a node, by one reading of it.

An apply, its plan, the boot and the watch all have the same plan. They differ in what they do with
a route that cannot be in force now: an apply waits and fails, a repair leaves it out.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import BackendError, LinkNotFoundError
from hostrouting.boot.intent import with_found_devs
from hostrouting.config.sections import StaticRoutesConfig
from hostrouting.net.routes import Route, RouteChange, RouteKey, default_routes, route_key
from hostrouting.static_routes.reconcile import (
    Reconciliation,
    Resolution,
    Routes,
    present_in,
    read,
    reconcile,
    resolve,
)
from hostrouting.static_routes.refusals import giver, no_way, with_routes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.host import Host
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class RoutePlan:
    """The changes that a config makes to the routes of a node, by one reading.

    A value that is missing counts as one that can be looked up later.
    """

    section: StaticRoutesConfig = attrs.field(factory=StaticRoutesConfig)
    #: The devices by which the node should leave.
    devs: Collection[str] = ()
    observed: Routes = ()
    links: Sequence[Device] = ()
    #: The places that stay as they are.
    leave: Collection[RouteKey] = ()
    #: The places of routes that the kernel has refused, with the reason: these stay, too.
    refused: Mapping[RouteKey, str] = attrs.field(factory=dict)

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """The devices of the node by name."""
        return {link.name: link for link in self.links}

    @cached_property
    def resolution(self) -> Resolution:
        """The routes of the config that are complete, and the rest."""
        return resolve(self.section.routes, self.observed, self.devs, self.links)

    @cached_property
    def wanted(self) -> Mapping[RouteKey, Route]:
        """The routes that have a device and a gateway, by their place."""
        return {route_key(route): route for route in self.resolution.routes}

    @cached_property
    def waiting(self) -> Mapping[RouteKey, tuple[StaticRoute | Route, str]]:
        """The routes that cannot be in force now, as the config has them, or completed, and why."""
        missing = {route.route_key: (route, reason) for route, reason in self.resolution.missing}
        refused = {key: (self.wanted[key], why) for key, why in self.refused.items()}
        return {**missing, **refused}

    @cached_property
    def outcome(self) -> Reconciliation:
        """The changes, and their consequences for other routes."""
        return self.against(self.observed, leave=self.leave)

    def against(self, observed: Routes, *, leave: Collection[RouteKey]) -> Reconciliation:
        """Return the changes to any reading, except in the places to leave as they are."""
        undecided = {*self.waiting, *leave}
        desired: Sequence[Route] = self.resolution.routes
        if undecided:
            desired = [route for key, route in self.wanted.items() if key not in undecided]
        return reconcile(desired, observed, undecided=undecided)

    @property
    def changes(self) -> list[RouteChange]:
        """The changes in their order."""
        return self.outcome.changes

    @cached_property
    def deciding_devices(self) -> frozenset[str | None]:
        """The devices by which these routes leave, or that may change which these are."""
        devices = {route.dev for route in self.section.routes}
        devices.update(route.dev for route in self.wanted.values())
        for default in default_routes(self.observed):
            devices.update(hop.dev for hop in default.hops)
        return frozenset(devices)

    def without(self, refused: Mapping[RouteKey, str]) -> RoutePlan:
        """Return the plan without routes that the kernel refuses."""
        return attrs.evolve(self, refused={**self.refused, **refused})

    def again(self, routing: RouteBackend) -> RoutePlan:
        """Return the plan by another reading."""
        observed = read(routing, self.section.routes)
        return attrs.evolve(self, observed=observed, links=routing.links())

    def changed_since(self, routing: RouteBackend) -> str:
        """Return what differs now of all by which these changes were decided; "" if nothing does.

        These are the values that complete its routes, and the routes in each of their places.
        """
        was, now = _basis(self), _basis(self.again(routing))
        if now == was:
            return ""
        before, after = ({*values, *chain(*present.values())} for values, present in (was, now))
        return ", ".join(f"'{each}'" for each in sorted(map(str, before ^ after))[:2]) or "an order"

    def refuse_hidden(self, changes: Iterable[RouteChange]) -> None:
        """Raise if a change that was made hides a connected route that came meanwhile."""
        made = {change.after for change in changes}
        for route, connected in self.outcome.connected.items():
            if route in made:
                raise BackendError(
                    f"the kernel's own route '{connected}' came meanwhile, and '{route}' hides it"
                )

    def refuse_incomplete(self, seconds: float) -> None:
        """Raise if a route lacks a value that only a default route has, after so long a wait."""
        missing = [route for route, _ in self.resolution.missing]
        for route in missing:
            # Neither a device that does not exist nor the loopback device gets a default route.
            if fact := no_way(route, self.devices):
                text = f"{fact}. No route was changed"
                if route.dev is None or route.dev in self.devices:
                    raise BackendError(f"{text}; correct the 'dev' of: {route}")
                error = LinkNotFoundError(text, dev=route.dev)
                raise with_routes(error, self.section.routes)
        if not missing:
            return
        givers = " and ".join(
            giver(family, self.devs, self.links)
            for family in sorted({route.family for route in missing})
        )
        incomplete = BackendError(
            f"static routes cannot be completed: {self.resolution.reasons}, not even after "
            f"{round(seconds, 1):g} s. No route was changed. Give the node one ({givers}), or "
            f"give 'dev' and 'gateway' of: {', '.join(map(str, missing))}",
            retryable=True,
        )
        incomplete.may_heal = True
        raise incomplete


def _basis(plan: RoutePlan) -> tuple[Sequence[object], Mapping[RouteKey, Sequence[object]]]:
    """Return the routes of a config, complete or not, and those that a node has in their places."""
    values = (*plan.resolution.routes, *plan.resolution.missing)
    return values, present_in(plan.observed, plan.wanted)


def plan_routes(config: HostRoutingConfig, host: Host) -> RoutePlan:
    """Return the plan of the routes of a config on a node, or on a reading of it."""
    return RoutePlan(
        section=config.static_routes,
        devs=with_found_devs(config, host.files).devs,
        observed=read(host.routes, config.static_routes.routes),
        links=host.routes.links(),
    )
