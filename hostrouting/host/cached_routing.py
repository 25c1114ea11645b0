"""Read a node's routing once, and answer several questions about the same moment from it.

What was read is kept up to date with the kernel's events. A backend without events is read again
and compared.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.base.errors import BackendError, EventsLostError
from hostrouting.host import Host
from hostrouting.net.addresses import IPV4, IPV6, Prefix
from hostrouting.net.routes import SCOPE_LINK, route_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host.ports import Announced, RouteBackend
    from hostrouting.net.events import AddressEvent, DeviceEvent, NetworkEvent, RouteEvent
    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.net.routes import Lookup, ObservedRoute, RouteChange, RouteKey
    from hostrouting.net.rules import Rule

#: Stands for the devices in a set of families.
_DEVICES: Final = 0


class CachedRouting:
    """A `RouteBackend` that reads routes, rules and devices once, and forgets them after a change.

    Lookups go to the kernel. After a lookup, `catch_up` updates what was read, and returns the
    networks for which the answers may be out of date.
    """

    def __init__(self, backend: RouteBackend) -> None:
        self._backend = backend
        self.families: tuple[int, ...] = backend.families
        self._routes: dict[int, list[ObservedRoute]] = {}
        self._rules: dict[int, list[Rule]] = {}
        #: By index; empty until they are read.
        self._links: dict[int, Device] = {}
        #: The networks whose routing has changed since the last `catch_up`, by family.
        self._changed: dict[int, list[Prefix]] = defaultdict(list)
        self._announced: Announced | None = None
        self._has_begun = False

    def links(self) -> list[Device]:
        """See `Routing.links`."""
        if not self._links:
            self._begin()
            self._links = {link.ifindex: link for link in self._backend.links()}
        return [*self._links.values()]

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `Routing.routes`."""
        if family not in self._routes:
            self._begin()
            self._routes[family] = self._backend.routes(family)
        return [*self._routes[family]]

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        if family not in self._routes:
            return self._backend.routes_of(protocol, family)
        return [route for route in self._routes[family] if route.protocol == protocol]

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `Routing.rules`."""
        if family not in self._rules:
            self._begin()
            self._rules[family] = self._backend.rules(family)
        return [*self._rules[family]]

    def lookup(self, destinations: Sequence[int], **options: Any) -> list[Lookup]:
        """See `Routing.lookup`; refuse a backend that leaves answers out."""
        answers: Any = self._backend.lookup(destinations, **options)
        if not isinstance(answers, list) or len(answers) != len(destinations):
            name = type(self._backend).__name__
            step = "run hostrouting.testing.contracts on the backend"
            raise BackendError(f"{name}.lookup must return a list with each answer; {step}")
        return answers

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """See `RouteBackend.apply`."""
        self._forget()
        # Its own changes need not be followed.
        self._has_begun = False
        self._backend.apply(changes, verify=verify)

    def catch_up(self, family: int) -> list[Prefix]:
        """Update what was read; return the networks of a family whose routing may have changed.

        They are those since the last call, or since the first read, and possibly a few more.
        """
        if self._announced is None:
            self._compare()
        else:
            names = {link.ifindex: link.name for link in self.links()}
            try:
                self._follow(self._announced.take(names))
            except EventsLostError:
                self._has_begun = False
                self._forget()
                self._change_all()
        return self._changed.pop(family, [])

    def _begin(self) -> None:
        """Begin to listen before anything is read."""
        if not self._has_begun:
            self._has_begun = True
            # An agent's own backend may not have this method.
            listen = getattr(self._backend, "listen", None)
            self._announced = listen() if listen else None

    def _forget(self) -> None:
        self._routes.clear()
        self._rules.clear()
        self._links.clear()

    def _change_all(self, *families: int) -> None:
        for family in families or self.families:
            self._changed[family].append(Prefix(family, 0, 0))

    # --- a backend without events

    def _compare(self) -> None:
        """Read the node again and note what differs."""
        links = {link.ifindex: link for link in self._backend.links()}
        rules = {family: self._backend.rules(family) for family in self._rules}
        if rules != self._rules or _without_neighbours(links) != _without_neighbours(self._links):
            self._change_all()
        self._links, self._rules = links, rules
        for family, before in self._routes.items():
            now = self._backend.routes(family)
            if now != before:
                differing = {*map(_unexpired, now)} ^ {*map(_unexpired, before)}
                self._changed[family] += map(_network_of, differing)
                self._routes[family] = now

    # --- events

    def _follow(self, events: Iterable[NetworkEvent]) -> None:
        """Apply events to what was read, and note what they change.

        What they leave unclear is read again, but only after the last event, because until then it
        shows which networks the next events concern.
        """
        # Imported here because during most checks nothing changes.
        from hostrouting.net.events import AddressEvent, DeviceEvent, RouteEvent, RuleEvent

        events = [*events]
        replaced = {route_key(event.route) for event in events if event.verb == "replace"}
        unclear: set[int] = set()
        for kind, some in groupby(events, key=type):
            if kind is RouteEvent:
                own = [event for event in some if isinstance(event, RouteEvent)]
                unclear |= self._follow_routes(own, replaced)
                continue
            for event in some:
                if isinstance(event, DeviceEvent):
                    unclear |= self._follow_device(event)
                elif isinstance(event, AddressEvent):
                    unclear |= self._follow_address(event)
                elif isinstance(event, RuleEvent):
                    self._follow_rule(event.rule)
                else:
                    # Routes of nexthop objects, and routes affected by settings, change without
                    # events.
                    unclear.update(self.families)
                    self._change_all()
        for family in unclear:
            self._routes.pop(family, None)
        if _DEVICES in unclear:
            self._forget()

    # Each of these returns the families whose routes are now unclear, or _DEVICES for everything.

    def _follow_routes(self, events: Sequence[RouteEvent], replaced: set[RouteKey]) -> set[int]:
        unclear: set[int] = set()
        for family in self.families:
            own = [event for event in events if event.route.family == family]
            self._changed[family] += {_network_of(event.route) for event in own}
            if own and family in self._routes:
                routes = _routes_after(own, self._routes[family], replaced)
                if routes is None:
                    unclear.add(family)
                else:
                    self._routes[family] = routes
        return unclear

    def _follow_device(self, event: DeviceEvent) -> set[int]:
        device = event.device
        before = self._links.get(device.ifindex)
        if event.verb == "remove":
            self._links.pop(device.ifindex, None)
        elif before is None:
            self._links[device.ifindex] = device
        else:
            self._links[device.ifindex] = device._replace(
                addresses=before.addresses, neighbours=before.neighbours, failed=before.failed
            )
        # Even if it is known already that a device is down, the effect on routes may not be.
        if before is None or (device.up and self._links.get(device.ifindex) == before):
            return set()
        is_down = event.verb == "remove" or (before.up and not device.up)
        unclear: set[int] = set()
        for family in self._routes:
            unclear |= self._follow_routes_by(before.name, family, is_down=is_down)
        if (device.name, device.master, device.group) != (before.name, before.master, before.group):
            # A rule may select by any of these.
            self._change_all()
        if device.name != before.name:
            # Its ports contain the name of their master.
            unclear.add(_DEVICES)
        return unclear

    def _follow_routes_by(self, dev: str, family: int, *, is_down: bool) -> set[int]:
        kept: list[ObservedRoute] = []
        own: list[ObservedRoute] = []
        for route in self._routes[family]:
            is_by = route.dev == dev or (route.nexthops and dev in route.devs)
            (own if is_by else kept).append(route)
        self._changed[family] += map(_network_of, own)
        if is_down and all(map(_ends_with_device, own)):
            self._routes[family] = kept
            return set()
        return {family} if own else set()

    def _follow_rule(self, rule: Rule) -> None:
        """Read the rules again; note the destinations of this rule if it may select own packets."""
        before = self._rules.pop(rule.family, ())
        sources = (own.address for link in self._links.values() for own in link.addresses)
        if not rule.may_select(sources):
            return
        network = Prefix(rule.family, *rule.destination)
        # A jump to the rule, or an inverted rule, may affect any destination.
        if rule.inverted or any(each.goto is not None for each in (rule, *before)):
            network = Prefix(rule.family, 0, 0)
        self._changed[rule.family].append(network)

    def _follow_address(self, event: AddressEvent) -> set[int]:
        address = event.address
        for index, link in self._links.items():
            if link.name == event.dev:
                kept = [own for own in link.addresses if not _is_same(own, address)]
                kept += [address] if event.verb == "set" else []
                self._links[index] = link._replace(addresses=tuple(kept))
        is_of_link = address.scope >= SCOPE_LINK
        if address.family == IPV6 and is_of_link:
            return set()
        # The kernel may now choose another source address, and rules may select by it.
        self._change_all(address.family)
        if is_of_link:
            # It changes the order of the device's addresses.
            return {_DEVICES}
        # Routes with the removed address as their source vanish without events.
        return {address.family} if event.verb == "remove" else set()


def _routes_after(
    events: Sequence[RouteEvent], routes: Sequence[ObservedRoute], replaced: set[RouteKey]
) -> list[ObservedRoute] | None:
    """Return the routes after events; None if it is unclear which route an event is about.

    Routes to the same network are in the order of a dump; otherwise the order is undefined.
    """
    numbers = {event.route.network for event in events}
    kept = [route for route in routes if route[0] not in numbers]
    near: dict[RouteKey, list[ObservedRoute]] = defaultdict(list)
    for route in routes:
        if route[0] in numbers:
            near[route_key(route)].append(route)
    for event in events:
        key = route_key(event.route)
        # It may have been replaced, before it was read, among others that stay.
        if event.verb == "remove" and key in replaced:
            return None
        if not _follow_one(near[key], event):
            return None
    after = chain.from_iterable(near.values())
    return kept + sorted(after, key=lambda route: (-route.tos, route.metric))


def _follow_one(present: list[ObservedRoute], event: RouteEvent) -> bool:
    """Apply an event to the routes with its key; return False if the result is uncertain."""
    same = [route for route in present if route.fulfils(event.route)]
    if event.verb == "remove":
        for route in same:
            present.remove(route)
        # Otherwise it was gone before. For IPv6 it may be one of several next hops.
        return bool(same) or not any(route.nexthops for route in present)
    if len(present) > 1 or (present and not same and event.verb in {"append", "prepend"}):
        return False
    present[:] = [event.route]
    return True


def _network_of(route: ObservedRoute) -> Prefix:
    return Prefix(route.family, route.network, route.prefix_length)


def _unexpired(route: ObservedRoute) -> ObservedRoute:
    """Return a route without its remaining lifetime."""
    return route._replace(expires=0) if route.expires > 0 else route


def _without_neighbours(links: dict[int, Device]) -> list[Device]:
    return [link._replace(neighbours=(), failed=()) for link in links.values()]


def _ends_with_device(route: ObservedRoute) -> bool:
    """Return True if the kernel removes a route when its device is set down.

    A route with several next hops may stay. IPv4 keeps local routes, and others of their scope.
    """
    is_gone = route.family == IPV6 or (route.kind == "unicast" and route.scope <= SCOPE_LINK)
    return route.dev is not None and is_gone


def _is_same(one: DeviceAddress, other: DeviceAddress) -> bool:
    """Return True for the same address of a device; the peer of an IPv6 address may change."""
    if (one.family, one.local, one.prefix_length) != (
        other.family,
        other.local,
        other.prefix_length,
    ):
        return False
    return one.family == IPV6 or one.peer == other.peer


def with_cached_routing(host: Host) -> Host:
    """Return the host with cached routing."""
    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    return Host(**{**ports, "routes": cached_routing(host.routes)})


def cached_routing(backend: Any) -> CachedRouting:
    """Return a backend with a cache, unless it is one already."""
    return backend if isinstance(backend, CachedRouting) else CachedRouting(backend)
