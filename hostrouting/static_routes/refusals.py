"""Why the kernel refuses a route change, predicted before it does or explained afterwards."""

from __future__ import annotations

import errno
import shlex
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.errors import PASSING, ConfigMistake, InvalidConfigError, LinkNotFoundError
from hostrouting.net.addresses import FAMILY_NAMES, IPV4, IPV6, LOGS, Address, Prefix
from hostrouting.net.outbound import devices_down
from hostrouting.net.routes import (
    OUR_PROTOCOL,
    PROTOCOL_NAMES,
    SCOPE_LINK,
    ObservedRoute,
    Route,
    RouteChange,
    is_merged,
)
from hostrouting.net.rules import addition, lost_rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.host import Host
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device
    from hostrouting.net.rejected import RouteRejectedError
    from hostrouting.static_routes.reconcile import Reconciliation, Routes

#: The refusals that a new lease, address or carrier may end.
_MAY_END = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


def explain(error: RouteRejectedError, outcome: Reconciliation, routing: RouteBackend) -> None:
    """Add to an error which routes are in the way, and whether waiting may help."""
    # If the device has a carrier and an address, 'Nexthop has invalid gateway' is a mistake in the
    # config. The errno is the same in both cases.
    devices = {link.name: link for link in routing.links()}
    healing = [
        refusal
        for refusal in error.refusals
        if refusal.errno in _MAY_END and _waits(refusal.change.after, devices)
    ]
    others = [refusal for refusal in error.refusals if refusal not in healing]
    error.may_heal = error.rolled_back and not others
    error.retryable = error.rolled_back and all(other.errno in PASSING for other in others)
    lost = {} if error.retryable else without_gateway(outcome)
    reasons = all_in_the_way(outcome)
    explained = []
    for refusal in error.refusals:
        reason = refusal.reason
        if refusal.change in reasons:
            reason = reasons[refusal.change]
        elif refusal.change in lost:
            reason = f"{reason}; {lost[refusal.change]}"
        elif refusal.errno in _MAY_END:
            reason = "; ".join([reason, *_lost_rules(refusal.change.after, routing)])
        explained.append(attrs.evolve(refusal, reason=reason))
    error.refusals = explained


def _lost_rules(route: Route | None, routing: RouteBackend) -> Iterator[str]:
    """Yield the missing built-in rules that the lookup of a gateway needs, with commands."""
    if route is None or route.gateway is None:
        return
    family = route.gateway.family
    for rule in lost_rules(routing.rules(family), family):
        yield f"the {FAMILY_NAMES[family]} rule '{rule}' is missing; run: {addition(rule)}"


def _waits(route: Route | None, devices: Mapping[str, Device]) -> bool:
    """Return True if a route waits for its device, or for something that the device needs."""
    if route is None:
        return False
    if route.dev is None or route.dev not in devices:
        return True
    return bool(missing_on(devices[route.dev], route))


def with_routes(
    error: LinkNotFoundError, routes: Iterable[Route | ObservedRoute | StaticRoute]
) -> LinkNotFoundError:
    """Return the error with the routes that name the missing device."""
    of_device = [str(route) for route in routes if route.dev == error.dev]
    message = f"{error.message}; correct the 'dev' of" if of_device else error.message
    return LinkNotFoundError(
        message, dev=error.dev, errno=error.errno, retryable=True, routes=of_device
    )


def without_gateway(outcome: Reconciliation) -> dict[RouteChange, str]:
    """Return the routes whose gateway is not on a network of their device, with the reason."""
    needed = {change: hop for change in outcome.changes if (hop := _needed_hop(change.after))}
    reached = {hop for hop in set(needed.values()) if _is_reached(*hop, outcome.observed)}
    step = "correct its 'gateway' or 'dev'"
    return {
        change: f"the gateway {gateway} is not on a network of {dev}; {step}"
        for change, (gateway, dev) in needed.items()
        if (gateway, dev) not in reached
    }


def _needed_hop(route: Route | None) -> tuple[Address, str] | None:
    """Return the gateway of a route and the device that must reach it; None if there is none."""
    if route is None or route.gateway is None or route.dev is None:
        return None
    return None if route.gateway.is_link_local or route.onlink else (route.gateway, route.dev)


def _is_reached(gateway: Address, dev: str, observed: Routes) -> bool:
    """Return True if a network of the device contains the gateway.

    Every table is searched, because rules may lead the kernel there. So if this predicts a refusal,
    it is certain.
    """
    on_link = (route for route in observed if route.gateway is None and dev in route.devs)
    networks = (Prefix(route.family, route.network, route.prefix_length) for route in on_link)
    return any(network.covers(gateway) for network in networks)


def missing_on(device: Device, route: Route) -> str:
    """Return why the kernel would not accept a route through a device yet; "" if it would."""
    if not device.up:
        return "is down"
    # A gateway's family may differ from the route's.
    family = (route.gateway or route).family
    if family == IPV6 and (route.gateway is None or route.gateway.is_link_local):
        return ""
    # Every device has an IPv6 link-local address.
    if any(
        own.family == family and (family == IPV4 or own.scope < SCOPE_LINK)
        for own in device.addresses
    ):
        return ""
    return f"has no {FAMILY_NAMES[family]} address"


def default_route_advice(family: int, devs: Collection[str], links: Sequence[Device]) -> str:
    """Return what to do about a missing default route: set a device up, or see a log."""
    down, is_one_the_exit = devices_down(devs, links)
    if down and is_one_the_exit:
        [dev, *others] = down
        command = quoted("ip", "link", "set", "DEVICE" if others else dev, "up")
        return f"{' and '.join(down)} {'are' if others else 'is'} down; run: {command}"
    return f"see {LOGS[family]}, or its network configuration"


def why_unusable(route: Route | StaticRoute, devices: Mapping[str, Device]) -> str:
    """Return why the device of a route is unusable; "" if it is usable or not known yet."""
    if route.dev is None:
        return ""
    if route.dev not in devices:
        return f"there is no network device {route.dev}"
    if devices[route.dev].loopback:
        return f"{route.dev} is the loopback device"
    return ""


def own_gateways(links: Iterable[Device]) -> dict[Address, str]:
    """Return the node's own addresses, which cannot be gateways, each with the reason."""
    own = ((address.address, link.name) for link in links for address in link.addresses)
    return {
        address: f"is an address of this node, on {dev}; give that of the router"
        for address, dev in own
        # Link-local addresses may repeat on other links; the kernel itself refuses one of the same
        # link.
        if not address.is_link_local
    }


def refuse_own_gateways(config: HostRoutingConfig, host: Host) -> None:
    """Raise InvalidConfigError for gateways that are the node itself; the kernel accepts them."""
    links = host.routes.links() if host.is_live else ()
    own = {str(address): reason for address, reason in own_gateways(links).items()}
    mistakes = [
        ConfigMistake(
            f"hostRouting.staticRoutes.routes[{index}].gateway",
            f"{route.gateway!r} {own[route.gateway]}",
        )
        for index, route in enumerate(config.static_routes.routes)
        if route.gateway in own
    ]
    if mistakes:
        raise InvalidConfigError(mistakes)


def all_in_the_way(outcome: Reconciliation) -> dict[RouteChange, str]:
    """Return the changes that cannot be made because of another route, with the reason."""
    reasons = {}
    for change, present in outcome.in_the_way.items():
        owner = f"'{present}' (protocol {PROTOCOL_NAMES.get(present.protocol, present.protocol)})"
        route, hops = change.after, [hop[:2] for hop in present.nexthops]
        if present.family == IPV4:
            reason = (
                f"the kernel's own route '{present}' has the same destination and metric and is "
                f"never hidden; configure narrower destinations"
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
                f"{owner} has the same destination and metric, and the kernel might merge the two; "
                f"configure another metric"
            )
        reasons[change] = reason
    return reasons


def why_merged(route: ObservedRoute, ours: Route | None = None) -> str:
    """Explain a route that the kernel merged with that of another program.

    `ours` is our route, if known. A deletion does not remove a next hop of another protocol, and a
    dump shows only one protocol.
    """
    end = f"proto {OUR_PROTOCOL} metric {route.metric} table {route.table}"
    commands = " or ".join(
        f"`ip -6 route del {route.destination} via {hop.gateway} dev {shlex.quote(hop.dev)} {end}`"
        for hop in route.nexthops
        if ours is None or (hop.gateway, hop.dev) == (ours.gateway, ours.dev)
    )
    return (
        f"another program merged a next hop into a route of hostrouting, so '{route}' is left as "
        "it is; let that program use another metric, and remove hostrouting's next hop with "
        f"{commands}{'' if ours else ' (only one of them succeeds)'}"
    )
