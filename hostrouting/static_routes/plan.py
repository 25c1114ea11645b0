"""Plan the routes of a config: what changes on a node, based on one snapshot of it.

An apply, `plan`, the boot and the watch all use the same plan. They differ in what they do about a
route that cannot be installed now: an apply waits and then fails, a repair skips the route.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import BackendError, LinkNotFoundError
from hostrouting.boot.installed_config import with_found_devs
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
from hostrouting.static_routes.refusals import default_route_advice, why_unusable, with_routes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.host import Host
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class RoutePlan:
    """The changes that a config makes to the routes of a node, based on one snapshot.

    Missing values are assumed to become available later.
    """

    section: StaticRoutesConfig = attrs.field(factory=StaticRoutesConfig)
    #: The outbound devices.
    devs: Collection[str] = ()
    observed: Routes = ()
    links: Sequence[Device] = ()
    #: The route keys to leave as they are.
    leave: Collection[RouteKey] = ()
    #: The keys of routes that the kernel has refused, with the reason; these are left alone as
    #: well.
    refused: Mapping[RouteKey, str] = attrs.field(factory=dict)

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """The devices of the node by name."""
        return {link.name: link for link in self.links}

    @cached_property
    def resolution(self) -> Resolution:
        """The routes of the config, with gateways and devices filled in."""
        return resolve(self.section.routes, self.observed, self.devs, self.links)

    @cached_property
    def wanted(self) -> Mapping[RouteKey, Route]:
        """The routes that have a device and a gateway, by key."""
        return {route_key(route): route for route in self.resolution.routes}

    @cached_property
    def waiting(self) -> Mapping[RouteKey, tuple[StaticRoute | Route, str]]:
        """The routes that cannot be installed now, by key, with the reason."""
        missing = {route.route_key: (route, reason) for route, reason in self.resolution.missing}
        refused = {key: (self.wanted[key], why) for key, why in self.refused.items()}
        return {**missing, **refused}

    @cached_property
    def outcome(self) -> Reconciliation:
        """The changes, and their consequences for other routes."""
        return self.against(self.observed, leave=self.leave)

    def against(self, observed: Routes, *, leave: Collection[RouteKey]) -> Reconciliation:
        """Return the changes to another snapshot, except for the keys to leave as they are."""
        undecided = {*self.waiting, *leave}
        desired: Sequence[Route] = self.resolution.routes
        if undecided:
            desired = [route for key, route in self.wanted.items() if key not in undecided]
        return reconcile(desired, observed, undecided=undecided)

    @property
    def changes(self) -> list[RouteChange]:
        """The changes in the order in which they are made."""
        return self.outcome.changes

    @cached_property
    def deciding_devices(self) -> frozenset[str | None]:
        """The devices of these routes, and those that affect which devices they use."""
        devices = {route.dev for route in self.section.routes}
        devices.update(route.dev for route in self.wanted.values())
        for default in default_routes(self.observed):
            devices.update(hop.dev for hop in default.hops)
        return frozenset(devices)

    def without(self, refused: Mapping[RouteKey, str]) -> RoutePlan:
        """Return the plan without routes that the kernel refused."""
        return attrs.evolve(self, refused={**self.refused, **refused})

    def again(self, routing: RouteBackend) -> RoutePlan:
        """Return the plan based on a new snapshot."""
        observed = read(routing, self.section.routes)
        return attrs.evolve(self, observed=observed, links=routing.links())

    def changed_since(self, routing: RouteBackend) -> str:
        """Return what has changed on the node that this plan depends on; "" if nothing has.

        It depends on the values that complete its routes, and on the routes with the same keys.
        """
        was, now = _basis(self), _basis(self.again(routing))
        if now == was:
            return ""
        before, after = ({*values, *chain(*present.values())} for values, present in (was, now))
        return ", ".join(f"'{each}'" for each in sorted(map(str, before ^ after))[:2]) or "an order"

    def refuse_hidden(self, changes: Iterable[RouteChange]) -> None:
        """Raise if a change that was made hides a connected route that appeared in the meantime."""
        made = {change.after for change in changes}
        for route, connected in self.outcome.connected.items():
            if route in made:
                raise BackendError(
                    f"the kernel's own route '{connected}' appeared in the meantime, "
                    f"and '{route}' hides it"
                )

    def refuse_incomplete(self, seconds: float) -> None:
        """Raise if a route is still incomplete after a wait of so many seconds."""
        missing = [route for route, _ in self.resolution.missing]
        for route in missing:
            # Waiting is useless if the device does not exist or is the loopback device.
            if fact := why_unusable(route, self.devices):
                text = f"{fact}. No route was changed"
                if route.dev is None or route.dev in self.devices:
                    raise BackendError(f"{text}; correct the 'dev' of: {route}")
                error = LinkNotFoundError(text, dev=route.dev)
                raise with_routes(error, self.section.routes)
        if not missing:
            return
        advice = " and ".join(
            default_route_advice(family, self.devs, self.links)
            for family in sorted({route.family for route in missing})
        )
        incomplete = BackendError(
            f"static routes are still incomplete: {self.resolution.reasons} after "
            f"{round(seconds, 1):g} s. No route was changed. Fix that ({advice}), or "
            f"give 'dev' and 'gateway' of: {', '.join(map(str, missing))}",
            retryable=True,
        )
        incomplete.may_heal = True
        raise incomplete


def _basis(plan: RoutePlan) -> tuple[Sequence[object], Mapping[RouteKey, Sequence[object]]]:
    """Return the routes of a config, and the routes that a node has with the same keys."""
    values = (*plan.resolution.routes, *plan.resolution.missing)
    return values, present_in(plan.observed, plan.wanted)


def plan_routes(config: HostRoutingConfig, host: Host) -> RoutePlan:
    """Plan the routes of a config on a node, or on a snapshot of it."""
    return RoutePlan(
        section=config.static_routes,
        devs=with_found_devs(config, host.files).devs,
        observed=read(host.routes, config.static_routes.routes),
        links=host.routes.links(),
    )
