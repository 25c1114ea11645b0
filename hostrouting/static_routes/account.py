"""The words for changed routes: a forecast, the records of a run, and the explanation of a refusal."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Literal

import attrs

from hostrouting.base.findings import AWAITED, REFUSED, NodeFinding, hindered
from hostrouting.exceptions import LinkNotFoundError, Refusal
from hostrouting.net.addresses import FAMILY_NAMES, IPV4, IPV6, Address, Prefix
from hostrouting.net.changes import RouteChange, is_merged, may_merge
from hostrouting.net.routes import OUR_PROTOCOL, PROTOCOL_NAMES, SCOPE_LINK, place, signature
from hostrouting.static_routes.reconcile import held_in, ours_in
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.exceptions import RouteRejectedError
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute, Place, Route
    from hostrouting.static_routes.reconcile import Reconciliation, Routes, Unresolved

#: The refusals that a lease, an address or a carrier may mend.
_MAY_HEAL: Final = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})
#: The beginnings of the details of changes that cannot be made before something else has come.


def read(routing: RouteBackend, wanted: Iterable[StaticRoute | Route | ObservedRoute]) -> Routes:
    """Return all IPv4 routes, and all of IPv6 if one of the wanted routes is of IPv6; else ours."""
    routes = routing.routes()
    if IPV6 not in routing.families:
        return routes
    is_needed = any(route.family == IPV6 for route in wanted)
    return [
        *routes,
        *(routing.routes(IPV6) if is_needed else routing.routes_of(OUR_PROTOCOL, IPV6)),
    ]


# --- records


@attrs.frozen
class RouteAccount:
    """The changes of a run, and all routes as they were before."""

    made: Sequence[RouteChange]
    hidden: Mapping[Route, Routes]
    _before: Routes

    @classmethod
    def between(cls, before: Routes, after: Routes) -> RouteAccount:
        """Return the account of the difference of two readings of our routes, but for those that others merged."""
        merged = {
            place(route) for routes in (before, after) for route in routes if is_merged(route)
        }
        was, now = (
            {route: None for route in ours_in(routes) if place(route) not in merged}
            for routes in (before, after)
        )
        added = [RouteChange.add(route.to_route()) for route in now if route not in was]
        removed = [RouteChange.remove(route) for route in was if route not in now]
        return cls([*added, *removed], {}, before)

    def changes(self) -> Iterator[Change]:
        """Yield the changes in words."""
        for change in self.made:
            yield _told(change, self.hidden)

    def inverse(self, observed: Routes) -> tuple[list[RouteChange], list[str]]:
        """Return the changes that reverse those of the run, and notes on the routes that do not come back as before.

        A place that another program has changed since is left alone.
        """
        touched: dict[Place, list[RouteChange]] = {}
        for change in self.made:
            touched.setdefault(place(change.route), []).append(change)
        held, held_before = held_in(observed, touched), held_in(self._before, touched)
        back: dict[RouteChange, list[RouteChange]] = {}
        notes: list[str] = []
        for spot, changes in touched.items():
            standing, before = held.get(spot, []), held_before.get(spot, [])
            removed = [change.before for change in changes]
            after = [route for route in ours_in(before) if route not in removed]
            left = {
                *map(signature, after),
                *(signature(change.after) for change in changes if change.after),
            }
            stands = {*map(signature, ours_in(standing))}
            # No IPv6 route by a gateway returns to a place that holds another one.
            holder = next(
                (route for route in standing if spot[1] == IPV6 and route.protocol != OUR_PROTOCOL),
                None,
            )
            if stands == left and holder is not None and any(removed):
                notes += [
                    f"route '{gone}' does not come back: '{holder}' has its place"
                    for gone in removed
                    if gone
                ]
            elif stands == left:
                back |= {change: _undone(change, before, standing) for change in changes}
                notes += _losing_their_position(changes, before, standing)
            elif stands != {*map(signature, ours_in(before))}:
                notes += [
                    f"route '{one.route}' changed since this run; it stays as it is now"
                    for one in changes
                ]
        return [
            inverse for change in reversed(self.made) for inverse in back.get(change, ())
        ], notes


def _undone(change: RouteChange, before: Routes, standing: Routes) -> list[RouteChange]:
    """Return the inverse of a change: a route that decided its place is the first again, any other the last."""
    stands = next(
        (route for route in standing if change.after is not None and route.fulfils(change.after)),
        None,
    )
    was = change.before
    if was is None:
        return [] if stands is None else [RouteChange.remove(stands)]
    if was.family == IPV6:
        return [
            RouteChange(
                stands,
                was.to_route(),
                "add" if may_merge(was) or before[0].fulfils(was) else "append",
            )
        ]
    verb = "prepend" if before[0].fulfils(was) else "append"
    if verb == "append" and standing and standing[-1].fulfils(was):
        return []
    return [RouteChange(stands, was.to_route(), verb)]


def _losing_their_position(
    changes: Iterable[RouteChange], before: Routes, standing: Routes
) -> Iterator[str]:
    """Yield a note for each route that comes back, but from the middle of its place: the kernel knows no middle."""
    for change in changes:
        if change.before in before[1:]:
            later = before[before.index(change.before) + 1 :]
            if any(route in standing for route in later if route.protocol != OUR_PROTOCOL):
                yield f"route '{change.before}' is now the last of its place: the kernel puts one first or last only"


def _told(change: RouteChange, hidden: Mapping[Route, Routes]) -> Change:
    """Return a change in words."""
    before, after = change.before, change.after
    if after is None:
        return Change("-", str(before))
    details = []
    if before is not None and not before.fulfils(after):
        # Metrics of the route itself, such as an mtu, do not show in its text.
        details = [
            "was the same with other attributes" if str(before) == str(after) else f"was '{before}'"
        ]
    if hidden and after in hidden:
        names = " and ".join(f"'{route}'" for route in hidden[after])
        details.append(f"hides {names} until ours is removed")
    return Change("+" if before is None else "~", str(after), "; ".join(details) or None)


# --- a forecast


def forecast(
    outcome: Reconciliation,
    missing: Sequence[Unresolved],
    links: Sequence[Device],
    observed: Routes,
) -> list[Change]:
    """Return the changes of a reconciliation, with the refusals that are certain, and those of missing routes."""
    devices = {link.name: link for link in links}
    refusals, awaited = _without_gateway(outcome.changes, observed), dict[RouteChange, str]()
    for change in outcome.changes:
        if change.after is None or change.after.dev is None:
            continue
        device = devices.get(change.after.dev)
        if device is None:
            refusals[change] = _no_device(change.after)
        elif lack := _lack(device, change.after):
            refusals.pop(change, None)
            awaited[change] = f"waits up to 30 s, since {device.name} {lack}"
    refusals |= all_in_the_way(outcome)

    def planned(change: RouteChange) -> Change:
        told = _told(change, outcome.hidden)
        if change in refusals:
            return hindered(told.action, told.subject, refusals[change])
        return told._replace(detail=awaited[change], kind=AWAITED) if change in awaited else told

    unresolved = [
        Change("+", str(route), f"looked up when a default route is there: {reason}", AWAITED)
        if route.dev in {None, *devices}
        else hindered("+", str(route), _no_device(route))
        for route, reason in missing
    ]
    merged = [hindered("-", str(route), why_merged(route)) for route in outcome.merged]
    return [*unresolved, *merged, *map(planned, outcome.changes)]


def findings_of(
    changes: Iterable[Change], connected: Mapping[Route, ObservedRoute]
) -> Iterator[NodeFinding]:
    """Yield the findings of `check` about planned changes, and about our routes that come before the kernel's own."""
    state = {
        "+": "is not in force",
        "-": "is ours, but not of this config",
        "~": "is another one now",
    }
    for change in changes:
        told = (
            f"{state[change.action]} ({change.detail})" if change.detail else state[change.action]
        )
        apply: Literal["", "now", "later"] = (
            "" if change.kind == REFUSED else "later" if change.kind == AWAITED else "now"
        )
        yield NodeFinding("lost-route", change.subject, told, apply=apply, action=change.action)
    for route, own in connected.items():
        reason = (
            f"comes before the kernel's own route '{own}', which hostrouting would not hide if it had to add its route "
            f"now"
        )
        yield NodeFinding(
            "hides-connected", str(route), reason, "warning", "configure narrower destinations"
        )


# --- refusals


def explain(
    error: RouteRejectedError, outcome: Reconciliation, observed: Routes, links: Sequence[Device]
) -> None:
    """Complete the error with explanations: where a kernel route is in the way, and if waiting may help."""
    error.retryable = error.rolled_back and _is_retryable(error.refusals, outcome.changes, links)
    lost = {} if error.retryable else _without_gateway(outcome.changes, observed)
    steps = {str(change): f"; {reason}" for change, reason in lost.items()}
    reasons = {str(change): reason for change, reason in all_in_the_way(outcome).items()}
    error.refusals = [
        Refusal(change, number, reasons.get(change, f"{reason}{steps.get(change, '')}"))
        for change, number, reason in error.refusals
    ]


def with_routes(
    error: LinkNotFoundError, routes: Iterable[Route | StaticRoute]
) -> LinkNotFoundError:
    """Return the error with the routes whose device is missing."""
    of_device = [f"\n  {route}" for route in routes if route.dev == error.dev]
    step = f"; correct the 'dev' of:{''.join(of_device)}" if of_device else ""
    return LinkNotFoundError(f"{error}{step}", dev=error.dev, errno=error.errno, retryable=True)


def _is_retryable(
    refusals: Iterable[Refusal], changes: Iterable[RouteChange], links: Iterable[Device]
) -> bool:
    """Return True if each refused route has a device that is absent, down, or without an address.

    With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the
    config: the kernel's error number is the same for both.
    """
    devices = {link.name: link for link in links}
    waiting = {
        str(change)
        for change in changes
        if (route := change.after)
        and (route.dev not in devices or _lack(devices[route.dev], route))
    }
    return all(refusal.errno in _MAY_HEAL and refusal.change in waiting for refusal in refusals)


def _without_gateway(changes: Iterable[RouteChange], observed: Routes) -> dict[RouteChange, str]:
    """Return the routes whose gateway is not on the link of their device: the kernel refuses all of them."""
    hops = {
        change: (route.gateway, route.dev)
        for change in changes
        if (route := change.after) and route.gateway and route.dev and not route.onlink
        # The routes of the other family may not be known.
        if route.gateway.family == route.family and not route.gateway.is_link_local
    }
    reached = {hop for hop in set(hops.values()) if _is_on_link(*hop, observed)}
    return {
        change: f"no network of {dev} has the gateway {gateway}; correct its 'gateway' or 'dev'"
        for change, (gateway, dev) in hops.items()
        if (gateway, dev) not in reached
    }


def _is_on_link(gateway: Address, dev: str, observed: Iterable[ObservedRoute]) -> bool:
    # Any table counts, because rules may lead the kernel there: a refusal that is foreseen here is
    # certain.
    return any(
        route.gateway is None
        and dev in route.devs
        and Prefix(route.family, route.network, route.prefix_length).covers(gateway)
        for route in observed
    )


def _lack(device: Device, route: Route) -> str:
    """Return what a device must get before the kernel takes a route by it; nothing if it has all."""
    if not device.up:
        return "is down"
    # An IPv6 gateway serves both families.
    family = (route.gateway or route).family
    if family == IPV6 and (route.gateway is None or route.gateway.is_link_local):
        return ""
    # Every device has a link-local address of IPv6.
    if any(
        own.family == family and (family == IPV4 or own.scope < SCOPE_LINK)
        for own in device.addresses
    ):
        return ""
    return f"has no {FAMILY_NAMES[family]} address"


def _no_device(route: Route | StaticRoute) -> str:
    return f"there is no network device {route.dev}; correct its 'dev'"


def all_in_the_way(outcome: Reconciliation) -> dict[RouteChange, str]:
    """Return the changes that cannot be made, with the reason."""
    return {change: _why(change, standing) for change, standing in outcome.in_the_way.items()}


def _why(change: RouteChange, standing: ObservedRoute) -> str:
    if standing.family == IPV4:
        return (
            f"the kernel's own route '{standing}' has this destination and metric, and is never overwritten; "
            f"configure narrower destinations"
        )
    owner = f"'{standing}' (protocol {PROTOCOL_NAMES.get(standing.protocol, standing.protocol)})"
    if standing.from_prefix is not None:
        return f"{owner} hides every other route to this destination, at any metric; configure narrower destinations"
    route = change.after
    if (
        is_merged(standing)
        and route
        and (route.gateway, route.dev) in [hop[:2] for hop in standing.nexthops]
    ):
        return why_merged(standing)
    return f"{owner} has this destination and metric, and the kernel might merge the two; configure another metric"


def why_merged(route: ObservedRoute) -> str:
    """Return the explanation of a route that the kernel made of ours and of another program's."""
    return (
        f"another program has merged a next hop with ours, so '{route}' stays whole; have that program use another "
        f"metric, and remove the route with `ip -6 route del {route.destination} metric {route.metric}`"
    )
