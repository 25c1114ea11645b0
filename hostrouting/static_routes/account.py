"""Route changes as text: a forecast, the records of a run, and the explanation of a refusal."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.base.findings import AWAITED, REFUSED, NodeFinding, hindered
from hostrouting.exceptions import LinkNotFoundError
from hostrouting.net.addresses import FAMILY_NAMES, IPV4, IPV6, Prefix
from hostrouting.net.exits import Exits, working
from hostrouting.net.routes import (
    OUR_PROTOCOL,
    PROTOCOL_NAMES,
    SCOPE_LINK,
    ObservedRoute,
    Place,
    Route,
    RouteChange,
    is_merged,
    may_merge,
    place,
    signature,
)
from hostrouting.static_routes.reconcile import (
    Reconciliation,
    Resolution,
    Routes,
    Unresolved,
    owned_in,
    present_in,
    resolve,
)
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.exceptions import Refusal, RouteRejectedError
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.addresses import Address
    from hostrouting.net.links import Device

#: The refusals that a lease, an address or a carrier may end.
_MAY_END = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


def read(routing: RouteBackend, wanted: Iterable[StaticRoute | Route | ObservedRoute]) -> Routes:
    """Return all IPv4 routes, and all IPv6 routes if any is wanted, else those of hostrouting."""
    routes = routing.routes()
    if IPV6 not in routing.families:
        return routes
    if any(route.family == IPV6 for route in wanted):
        return [*routes, *routing.routes(IPV6)]
    return [*routes, *routing.routes_of(OUR_PROTOCOL, IPV6)]


def resolved(
    routes: Sequence[StaticRoute], observed: Routes, routing: RouteBackend, pinned: Exits
) -> Resolution:
    """Complete routes from the default routes in `observed`, by the pinned exits that work."""
    exits = working(pinned, routing.links(), observed) if pinned else {}
    return resolve(routes, observed, exits)


# --- records


@attrs.frozen(eq=False, repr=False)
class RouteAccount:
    """The changes of a run, and all routes as they were before."""

    made: Sequence[RouteChange]
    hidden: Mapping[Route, Routes]
    _before: Routes

    @classmethod
    def between(cls, before: Routes, after: Routes) -> RouteAccount:
        """Return the account of what two readings of our routes differ in, without merged ones."""
        routes = (*before, *after)
        merged = {place(route) for route in routes if is_merged(route)}
        old, new = (
            {route: None for route in owned_in(routes) if place(route) not in merged}
            for routes in (before, after)
        )
        added = [RouteChange.add(route.to_route()) for route in new if route not in old]
        removed = [RouteChange.remove(route) for route in old if route not in new]
        return cls([*added, *removed], {}, before)

    def inverse(self, observed: Routes) -> tuple[list[RouteChange], list[str]]:
        """Return the changes that reverse those of the run, and notes on routes that differ then.

        A place that another program has changed since is left alone.
        """
        touched: dict[Place, list[RouteChange]] = {}
        for change in self.made:
            touched.setdefault(place(change.route), []).append(change)
        by_place, by_place_before = present_in(observed, touched), present_in(self._before, touched)
        inverses: dict[RouteChange, list[RouteChange]] = {}
        notes: list[str] = []
        for key, changes in touched.items():
            present, before = by_place.get(key, []), by_place_before.get(key, [])
            removed = [change.before for change in changes if change.before]
            added = [signature(change.after) for change in changes if change.after]
            kept = [route for route in owned_in(before) if route not in removed]
            owned = {*map(signature, owned_in(present))}
            if owned != {*map(signature, kept), *added}:
                if owned != {*map(signature, owned_in(before))}:
                    text = "changed since this run; it stays as it is now"
                    notes += [f"route '{change.route}' {text}" for change in changes]
                continue
            foreign = (route for route in present if route.protocol != OUR_PROTOCOL)
            holder = next(foreign, None) if key[1] == IPV6 and removed else None
            if holder is not None:
                # The kernel would merge an IPv6 route by a gateway with that of another program.
                text = f"does not come back: '{holder}' has its place"
                notes += [f"route '{route}' {text}" for route in removed]
                continue
            for change in changes:
                inverses[change] = _undone(change, before, present)
                if change.before in before[1:]:
                    later = before[before.index(change.before) + 1 :]
                    if any(route in present for route in later if route.protocol != OUR_PROTOCOL):
                        notes.append(
                            f"route '{change.before}' is now the last of its place: the kernel "
                            f"puts one first or last only"
                        )
        ordered = [
            inverse for change in reversed(self.made) for inverse in inverses.get(change, ())
        ]
        return ordered, notes


def _undone(change: RouteChange, before: Routes, present: Routes) -> list[RouteChange]:
    """Return the inverse of a change: the route that decided its place comes first, others last."""
    route, after = change.before, change.after
    new = next((own for own in present if after is not None and own.fulfils(after)), None)
    if route is None:
        return [] if new is None else [RouteChange.remove(new)]
    was_first = before[0].fulfils(route)
    if route.family == IPV6:
        verb = "add" if may_merge(route) or was_first else "append"
        return [RouteChange(new, route.to_route(), verb)]
    if not was_first and present and present[-1].fulfils(route):
        return []
    return [RouteChange(new, route.to_route(), "prepend" if was_first else "append")]


def described(change: RouteChange, hidden: Mapping[Route, Routes]) -> Change:
    """Return a change as an entry of a report."""
    before, after = change.before, change.after
    if after is None:
        return Change("-", str(before))
    details = []
    if before is not None and not before.fulfils(after):
        # Metrics of the route itself, such as an mtu, do not show in its text.
        is_same = str(before) == str(after)
        details = ["was the same with other attributes" if is_same else f"was '{before}'"]
    if hidden and after in hidden:
        names = " and ".join(f"'{route}'" for route in hidden[after])
        details.append(f"hides {names} until this route is removed")
    return Change("+" if before is None else "~", str(after), "; ".join(details) or None)


# --- a forecast


class Foreseen(NamedTuple):
    """A planned change as an entry of a report, and the place of its route."""

    entry: Change
    place: Place
    #: True if the route waits for a default route.
    is_incomplete: bool = False

    @property
    def is_refused(self) -> bool:
        """True if the kernel certainly refuses it."""
        return self.entry.kind == REFUSED

    def __str__(self) -> str:
        return str(self.entry)


def foresee(
    outcome: Reconciliation,
    missing: Sequence[Unresolved],
    links: Sequence[Device],
    observed: Routes,
) -> list[Foreseen]:
    """Return the changes of a reconciliation and of missing routes, with the certain refusals."""
    devices = {link.name: link for link in links}
    no_gateway, in_the_way = _without_gateway(outcome.changes, observed), all_in_the_way(outcome)
    planned = []
    for change in outcome.changes:
        entry, route = described(change, outcome.hidden), change.after
        reason = in_the_way.get(change)
        if reason is None and route and route.dev:
            device = devices.get(route.dev)
            if device is None:
                reason = _no_device(route)
            elif lack := _lack(device, route):
                waits = f"waits up to 30 s, since {device.name} {lack}"
                entry = entry._replace(detail=waits, kind=AWAITED)
            else:
                reason = no_gateway.get(change)
        if reason:
            entry = hindered(entry.action, entry.subject, reason)
        planned.append(Foreseen(entry, place(change.route)))
    unresolved = []
    for lacking, reason in missing:
        entry = hindered("+", str(lacking), _no_device(lacking))
        if lacking.dev in {None, *devices}:
            waits = f"looked up when a default route is there: {reason}"
            entry = Change("+", str(lacking), waits, AWAITED)
        unresolved.append(Foreseen(entry, lacking.place, is_incomplete=True))
    merged = [
        Foreseen(hindered("-", str(route), why_merged(route)), place(route))
        for route in outcome.merged
    ]
    return [*unresolved, *merged, *planned]


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


# --- refusals


def explain(
    error: RouteRejectedError, outcome: Reconciliation, observed: Routes, links: Sequence[Device]
) -> None:
    """Add to the error which routes are in the way, and whether waiting may help."""
    # With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the
    # config: the kernel's error number is the same for both.
    devices = {link.name: link for link in links}
    waiting = {
        change
        for change in outcome.changes
        if (route := change.after)
        and (route.dev not in devices or _lack(devices[route.dev], route))
    }
    error.retryable = error.rolled_back and all(
        refusal.errno in _MAY_END and refusal.change in waiting for refusal in error.refusals
    )
    lost = {} if error.retryable else _without_gateway(outcome.changes, observed)
    reasons = all_in_the_way(outcome)

    def explained(refusal: Refusal[RouteChange]) -> Refusal[RouteChange]:
        step = f"; {lost[refusal.change]}" if refusal.change in lost else ""
        reason = reasons.get(refusal.change, f"{refusal.reason}{step}")
        return attrs.evolve(refusal, reason=reason)

    error.refusals = [explained(refusal) for refusal in error.refusals]


def with_routes(
    error: LinkNotFoundError, routes: Iterable[Route | StaticRoute]
) -> LinkNotFoundError:
    """Return the error with the routes whose device is missing."""
    of_device = [str(route) for route in routes if route.dev == error.dev]
    message = f"{error.message}; correct the 'dev' of" if of_device else error.message
    return LinkNotFoundError(
        message, dev=error.dev, errno=error.errno, retryable=True, routes=of_device
    )


def _without_gateway(changes: Iterable[RouteChange], observed: Routes) -> dict[RouteChange, str]:
    """Return the routes whose gateway is on no network of their device: the kernel refuses them."""
    needed = {change: hop for change in changes if (hop := _needed_hop(change.after))}
    reached = {hop for hop in set(needed.values()) if _is_reached(*hop, observed)}
    return {
        change: f"no network of {dev} has the gateway {gateway}; correct its 'gateway' or 'dev'"
        for change, (gateway, dev) in needed.items()
        if (gateway, dev) not in reached
    }


def _needed_hop(route: Route | None) -> tuple[Address, str] | None:
    """Return the gateway of a route, and the device on whose networks it must be; None if none."""
    if route is None or route.gateway is None or route.dev is None:
        return None
    # The routes of the gateway's family may not have been read.
    is_known = route.gateway.family == route.family and not route.gateway.is_link_local
    return (route.gateway, route.dev) if is_known and not route.onlink else None


def _is_reached(gateway: Address, dev: str, observed: Routes) -> bool:
    """Return True if a device has a network with the gateway.

    Any table counts, because rules may lead the kernel there: a refusal that is foreseen here is
    certain.
    """
    on_link = (route for route in observed if route.gateway is None and dev in route.devs)
    networks = (Prefix(route.family, route.network, route.prefix_length) for route in on_link)
    return any(network.covers(gateway) for network in networks)


def _lack(device: Device, route: Route) -> str:
    """Return what a device needs before the kernel takes a route by it; "" if it has everything."""
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
    reasons = {}
    for change, present in outcome.in_the_way.items():
        owner = f"'{present}' (protocol {PROTOCOL_NAMES.get(present.protocol, present.protocol)})"
        route, hops = change.after, [hop[:2] for hop in present.nexthops]
        if present.family == IPV4:
            reason = (
                f"the kernel's own route '{present}' has this destination and metric, and is never "
                f"overwritten; configure narrower destinations"
            )
        elif present.from_prefix is not None:
            reason = (
                f"{owner} hides every other route to this destination, at any metric; configure "
                f"narrower destinations"
            )
        elif is_merged(present) and route and (route.gateway, route.dev) in hops:
            reason = why_merged(present, route)
        else:
            reason = (
                f"{owner} has this destination and metric, and the kernel might merge the two; "
                f"configure another metric"
            )
        reasons[change] = reason
    return reasons


def why_merged(route: ObservedRoute, ours: Route | None = None) -> str:
    """Return the explanation of a route that the kernel merged with that of another program.

    `ours` is the merged one, if known. A deletion takes no next hop of another protocol, and a dump
    shows the protocol of one only.
    """
    import shlex  # few nodes have one

    end = f"proto {OUR_PROTOCOL} metric {route.metric} table {route.table}"
    commands = " or ".join(
        f"`ip -6 route del {route.destination} via {hop.gateway} dev {shlex.quote(hop.dev)} {end}`"
        for hop in route.nexthops
        if ours is None or (hop.gateway, hop.dev) == (ours.gateway, ours.dev)
    )
    return (
        f"another program has merged a next hop with hostrouting's, so '{route}' stays whole; have "
        f"that program use another metric, and remove hostrouting's next hop alone with {commands}"
        f"{'' if ours else ', of which the kernel accepts one'}"
    )
