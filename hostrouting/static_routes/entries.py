"""Present a plan of routes to people: entries of a report, and findings of `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.base.findings import AWAITED, REFUSED, NodeFinding, hindered
from hostrouting.net.routes import ObservedRoute, Route, RouteChange, RouteKey, route_key
from hostrouting.route_overlap.waiting import check_once
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.static_routes.refusals import (
    all_in_the_way,
    missing_on,
    own_gateways,
    why_merged,
    why_unusable,
    without_gateway,
)
from hostrouting.static_routes.undo import report_entry
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostrouting.config.sections import HostRoutingConfig, StaticRoutesConfig
    from hostrouting.host import Host
    from hostrouting.net.links import Device
    from hostrouting.route_overlap.report import OverlapReport
    from hostrouting.static_routes.reconcile import Reconciliation


def entries(plan: RoutePlan) -> list[Change]:
    """Return the changes as entries of a report, including those that will be refused."""
    hindered_by = dict(hindrances(plan.outcome, plan.devices))
    planned = (_entry(plan, change, hindered_by.get(change)) for change in plan.changes)
    return [*_without_change(plan).values(), *planned]


def stuck(plan: RoutePlan) -> dict[RouteKey, Change]:
    """Return the entries of routes that will be refused or are incomplete, by key."""
    # Avoid formatting thousands of changes that are fine.
    refused = {
        route_key(change.route): _entry(plan, change, hindrance)
        for change, hindrance in hindrances(plan.outcome, plan.devices)
        if not hindrance.may_end
    }
    return _without_change(plan) | refused


def accepted(plan: RoutePlan) -> StaticRoutesConfig:
    """Return the section without the routes that the kernel will certainly refuse."""
    refused = stuck(plan).keys() - {route.route_key for route, _ in plan.resolution.missing}
    routes = tuple(route for route in plan.section.routes if route.route_key not in refused)
    return attrs.evolve(plan.section, routes=routes)


def findings(plan: RoutePlan) -> Iterator[NodeFinding]:
    """Return the findings of `check` about static routes."""
    return findings_of(entries(plan), plan.outcome.connected)


def checked_now(ctx: Context, config: HostRoutingConfig, host: Host) -> OverlapReport:
    """Check the expected CIDRs without waiting; suggest only routes that an apply accepts."""
    at_once = ctx.child(timeout=0)

    def accepted_now() -> StaticRoutesConfig:
        return accepted(plan_routes(config, host))

    return check_once(ctx, config, host, waiting=at_once, accepted=accepted_now).report


def _entry(plan: RoutePlan, change: RouteChange, hindrance: Hindrance | None) -> Change:
    entry = report_entry(change, plan.outcome.hidden)
    if hindrance is None:
        return entry
    if hindrance.may_end:
        return entry._replace(detail=hindrance.reason, kind=AWAITED)
    return hindered(entry.action, entry.subject, hindrance.reason)


def _without_change(plan: RoutePlan) -> dict[RouteKey, Change]:
    """Return the entries of routes that are incomplete or cannot be removed, by key."""
    found: dict[RouteKey, Change] = {}
    for lacking, reason in plan.resolution.missing:
        waits = f"is completed once there is a default route: {reason}"
        found[lacking.route_key] = Change("+", str(lacking), waits, AWAITED)
        if fact := why_unusable(lacking, plan.devices):
            found[lacking.route_key] = hindered("+", str(lacking), f"{fact}; correct its 'dev'")
    for route in plan.outcome.merged:
        found[route_key(route)] = hindered("-", str(route), why_merged(route))
    return found


class Hindrance(NamedTuple):
    """Why a change cannot be made now."""

    reason: str
    #: True if a new lease, address or carrier may remove it, so that a refusal is not certain.
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
        elif fact := why_unusable(route, devices):
            yield change, Hindrance(f"{fact}; correct its 'dev'")
        elif route.gateway in own:
            yield change, Hindrance(f"its gateway {own[route.gateway]}")
        elif needed := missing_on(devices[route.dev], route):
            yield change, Hindrance(f"waits up to 30 s, since {route.dev} {needed}", may_end=True)
        elif change in no_gateway:
            yield change, Hindrance(no_gateway[change])


def findings_of(
    changes: Iterable[Change], connected: Mapping[Route, ObservedRoute]
) -> Iterator[NodeFinding]:
    """Yield the findings for planned changes, and for routes that hide the kernel's own."""
    states = {
        "+": "is not in force",
        "-": "has protocol 142, but is not in this config",
        "~": "differs now",
    }
    for change in changes:
        state = states[change.action]
        reason = f"{state} ({change.detail})" if change.detail else state
        apply: Literal["", "now", "later"] = "later" if change.kind == AWAITED else "now"
        if change.kind == REFUSED:
            apply = ""
        yield NodeFinding("lost-route", change.subject, reason, apply=apply, action=change.action)
    for route, own in connected.items():
        reason = f"hides the kernel's own route '{own}'; hostrouting would refuse to add it now"
        step = "configure narrower destinations"
        yield NodeFinding("hides-connected", str(route), reason, "warning", step)
