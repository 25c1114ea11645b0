"""The reasons for which the kernel refuses a change of a route, before and after it does."""

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

#: The refusals that a lease, an address or a carrier may end.
_MAY_END = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


def explain(error: RouteRejectedError, outcome: Reconciliation, routing: RouteBackend) -> None:
    """Add to the error which routes are in the way, and whether waiting may help."""
    # With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the
    # config: the kernel's error number is the same for both.
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
    """Yield the built-in rules without which the kernel finds no gateway, and their commands."""
    if route is None or route.gateway is None:
        return
    family = route.gateway.family
    for rule in lost_rules(routing.rules(family), family):
        yield f"the {FAMILY_NAMES[family]} rule '{rule}' is gone; run: {addition(rule)}"


def _waits(route: Route | None, devices: Mapping[str, Device]) -> bool:
    """Return True if a route waits for its device, or for something that this lacks."""
    if route is None:
        return False
    if route.dev is None or route.dev not in devices:
        return True
    return bool(lack(devices[route.dev], route))


def with_routes(
    error: LinkNotFoundError, routes: Iterable[Route | ObservedRoute | StaticRoute]
) -> LinkNotFoundError:
    """Return the error with the routes whose device is missing."""
    of_device = [str(route) for route in routes if route.dev == error.dev]
    message = f"{error.message}; correct the 'dev' of" if of_device else error.message
    return LinkNotFoundError(
        message, dev=error.dev, errno=error.errno, retryable=True, routes=of_device
    )


def without_gateway(outcome: Reconciliation) -> dict[RouteChange, str]:
    """Return the routes whose gateway is on no network of their device: the kernel refuses them."""
    needed = {change: hop for change in outcome.changes if (hop := _needed_hop(change.after))}
    reached = {hop for hop in set(needed.values()) if _is_reached(*hop, outcome.observed)}
    return {
        change: f"no network of {dev} has the gateway {gateway}; correct its 'gateway' or 'dev'"
        for change, (gateway, dev) in needed.items()
        if (gateway, dev) not in reached
    }


def _needed_hop(route: Route | None) -> tuple[Address, str] | None:
    """Return the gateway of a route, and the device on whose networks it must be; None if none."""
    if route is None or route.gateway is None or route.dev is None:
        return None
    return None if route.gateway.is_link_local or route.onlink else (route.gateway, route.dev)


def _is_reached(gateway: Address, dev: str, observed: Routes) -> bool:
    """Return True if a device has a network with the gateway.

    Any table counts, because rules may lead the kernel there: a refusal that is foreseen here is
    certain.
    """
    on_link = (route for route in observed if route.gateway is None and dev in route.devs)
    networks = (Prefix(route.family, route.network, route.prefix_length) for route in on_link)
    return any(network.covers(gateway) for network in networks)


def lack(device: Device, route: Route) -> str:
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


def giver(family: int, devs: Collection[str], links: Sequence[Device]) -> str:
    """Return where a missing default route comes from: a device that is set up, or a program."""
    down, is_one_the_exit = devices_down(devs, links)
    if down and is_one_the_exit:
        [dev, *others] = down
        command = quoted("ip", "link", "set", "DEVICE" if others else dev, "up")
        return f"{' and '.join(down)} {'are' if others else 'is'} set down; run: {command}"
    return f"see {LOGS[family]}, or its network configuration"


def no_way(route: Route | StaticRoute, devices: Mapping[str, Device]) -> str:
    """Return why nothing leaves by the device of a route; "" if it may, or is not known yet."""
    if route.dev is None:
        return ""
    if route.dev not in devices:
        return f"there is no network device {route.dev}"
    if devices[route.dev].loopback:
        return f"{route.dev} is the loopback device, and leads nowhere"
    return ""


def own_gateways(links: Iterable[Device]) -> dict[Address, str]:
    """Return the addresses of the node that cannot be gateways, each with the reason."""
    own = ((address.address, link.name) for link in links for address in link.addresses)
    return {
        address: f"is an address of this node, on {dev}; give that of the router"
        for address, dev in own
        # Link-local addresses repeat on other links; the kernel refuses that of the same link.
        if not address.is_link_local
    }


def refuse_own_gateways(config: HostRoutingConfig, host: Host) -> None:
    """Raise InvalidConfigError for gateways of the node itself, which the kernel accepts."""
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
