"""The plan of a config's routes: what an apply would change on a node, by one reading of it."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.base.errors import BackendError, LinkNotFoundError
from hostrouting.base.findings import AWAITED, REFUSED, NodeFinding, hindered
from hostrouting.boot.intent import with_found_devs
from hostrouting.net.routes import ObservedRoute, Place, Route, RouteChange, place
from hostrouting.route_overlap.waiting import check_once
from hostrouting.static_routes.account import described
from hostrouting.static_routes.reconcile import (
    Reconciliation,
    Resolution,
    Routes,
    present_in,
    read,
    reconcile,
    resolve,
)
from hostrouting.static_routes.refusals import (
    all_in_the_way,
    giver,
    lack,
    no_way,
    own_gateways,
    why_merged,
    with_routes,
    without_gateway,
)
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoutesConfig
    from hostrouting.host import Host
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device
    from hostrouting.route_overlap.proven import OverlapReport


class RoutePlan:
    """The changes that a config makes to the routes of a node, by one reading.

    A value that is missing counts as one that can be looked up later.
    """

    def __init__(
        self, section: StaticRoutesConfig, routing: RouteBackend, devs: Collection[str]
    ) -> None:
        """Plan for a node as it is; `devs` are those of the config."""
        self._section = section
        self._devs = devs
        observed = read(routing, section.routes)
        links = routing.links()
        self._devices = {link.name: link for link in links}
        self.resolution: Resolution = resolve(section.routes, observed, devs, links)
        undecided = {route.place for route, _ in self.resolution.missing}
        #: The changes, and their consequences for other routes.
        self.outcome: Reconciliation = reconcile(
            self.resolution.routes, observed, undecided=undecided
        )

    @property
    def changes(self) -> list[RouteChange]:
        """The changes in their order."""
        return self.outcome.changes

    def changed_since(self, routing: RouteBackend) -> str:
        """Return what differs now of all by which these changes were decided; "" if nothing does.

        These are the values that complete its routes, and the routes in each of their places.
        """
        observed = read(routing, self._section.routes)
        resolution = resolve(self._section.routes, observed, self._devs, routing.links())
        was, now = _basis(self.resolution, self.outcome.observed), _basis(resolution, observed)
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
            if fact := no_way(route, self._devices):
                text = f"{fact}. No route was changed"
                if route.dev is None or route.dev in self._devices:
                    raise BackendError(f"{text}; correct the 'dev' of: {route}")
                error = LinkNotFoundError(text, dev=route.dev)
                raise with_routes(error, self._section.routes)
        if not missing:
            return
        links = [*self._devices.values()]
        givers = " and ".join(
            giver(family, self._devs, links)
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

    @cached_property
    def _hindered(self) -> dict[RouteChange, Hindrance]:
        """The changes that cannot be made now."""
        return dict(hindrances(self.outcome, self._devices))

    @property
    def entries(self) -> list[Change]:
        """The changes as entries of a report, with those that the kernel certainly refuses."""
        planned = (self._entry(change, self._hindered.get(change)) for change in self.changes)
        return [*self._without_change.values(), *planned]

    def _entry(self, change: RouteChange, hindrance: Hindrance | None) -> Change:
        entry = described(change, self.outcome.hidden)
        if hindrance is None:
            return entry
        if hindrance.may_end:
            return entry._replace(detail=hindrance.reason, kind=AWAITED)
        return hindered(entry.action, entry.subject, hindrance.reason)

    @property
    def stuck(self) -> dict[Place, Change]:
        """The entries of routes that are refused or incomplete, by their places."""
        # Thousands of changes are fine, and need no text here.
        refused = {
            place(change.route): self._entry(change, hindrance)
            for change, hindrance in self._hindered.items()
            if not hindrance.may_end
        }
        return self._without_change | refused

    @property
    def _without_change(self) -> dict[Place, Change]:
        """The entries of routes that are incomplete, or that cannot be removed."""
        entries: dict[Place, Change] = {}
        for lacking, reason in self.resolution.missing:
            waits = f"looked up when a default route is there: {reason}"
            entries[lacking.place] = Change("+", str(lacking), waits, AWAITED)
            if fact := no_way(lacking, self._devices):
                refused = hindered("+", str(lacking), f"{fact}; correct its 'dev'")
                entries[lacking.place] = refused
        for route in self.outcome.merged:
            entries[place(route)] = hindered("-", str(route), why_merged(route))
        return entries

    @property
    def accepted(self) -> StaticRoutesConfig:
        """The section without the routes that the kernel certainly refuses."""
        refused = self.stuck.keys() - {route.place for route, _ in self.resolution.missing}
        routes = tuple(route for route in self._section.routes if route.place not in refused)
        return attrs.evolve(self._section, routes=routes)

    def findings(self) -> Iterator[NodeFinding]:
        """Yield the findings of `check` about the routes."""
        return findings_of(self.entries, self.outcome.connected)


def proven_now(ctx: Context, config: HostRoutingConfig, host: Host) -> OverlapReport:
    """Prove the expected CIDRs without a wait; an apply accepts the routes that are suggested."""
    at_once = ctx.child(timeout=0)

    def accepted() -> StaticRoutesConfig:
        return plan_routes(config, host).accepted

    return check_once(ctx, config, host, waiting=at_once, accepted=accepted).report


def _basis(
    resolution: Resolution, observed: Routes
) -> tuple[Sequence[object], Mapping[Place, Sequence[object]]]:
    """Return the routes of a config, complete or not, and those that a node has in their places."""
    values = (*resolution.routes, *resolution.missing)
    return values, present_in(observed, map(place, resolution.routes))


def plan_routes(config: HostRoutingConfig, host: Host) -> RoutePlan:
    """Return the plan of the routes of a config on a node, or on a reading of it."""
    devs = with_found_devs(config, host.files).devs
    return RoutePlan(config.static_routes, host.routes, devs)


class Hindrance(NamedTuple):
    """Why a change cannot be made now."""

    reason: str
    #: True if a lease, an address or a carrier ends it: the kernel does not certainly refuse it.
    may_end: bool = False


def hindrances(
    outcome: Reconciliation, devices: Mapping[str, Device]
) -> Iterator[tuple[RouteChange, Hindrance]]:
    """Yield the changes of a reconciliation that cannot be made now."""
    own = own_gateways(devices.values())
    no_gateway = without_gateway(outcome)
    in_the_way = all_in_the_way(outcome)
    for change in outcome.changes:
        route = change.after
        if change in in_the_way:
            yield change, Hindrance(in_the_way[change])
        elif route is None or not route.dev:
            continue
        elif fact := no_way(route, devices):
            yield change, Hindrance(f"{fact}; correct its 'dev'")
        elif route.gateway in own:
            yield change, Hindrance(f"its gateway {own[route.gateway]}")
        elif needed := lack(devices[route.dev], route):
            yield change, Hindrance(f"waits up to 30 s, since {route.dev} {needed}", may_end=True)
        elif change in no_gateway:
            yield change, Hindrance(no_gateway[change])


def findings_of(
    changes: Iterable[Change], connected: Mapping[Route, ObservedRoute]
) -> Iterator[NodeFinding]:
    """Yield the findings of `check` on planned changes, and on routes before the kernel's own."""
    states = {
        "+": "is not in force",
        "-": "has protocol 142, but is not in this config",
        "~": "is another one now",
    }
    for change in changes:
        state = states[change.action]
        reason = f"{state} ({change.detail})" if change.detail else state
        apply: Literal["", "now", "later"] = "later" if change.kind == AWAITED else "now"
        if change.kind == REFUSED:
            apply = ""
        yield NodeFinding("lost-route", change.subject, reason, apply=apply, action=change.action)
    for route, own in connected.items():
        reason = (
            f"comes before the kernel's own route '{own}', which hostrouting would not hide if it "
            f"had to add its route now"
        )
        step = "configure narrower destinations"
        yield NodeFinding("hides-connected", str(route), reason, "warning", step)
