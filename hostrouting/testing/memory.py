"""A plain node's routing in memory: the fake of the kernel."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from hostrouting.base.errors import BackendError, LinkNotFoundError
from hostrouting.fib import Fib
from hostrouting.fib.rules import Policy
from hostrouting.fib.tables import key_of
from hostrouting.host.netlink.commit import AnyRoute, Steps, Transport, commit_routes
from hostrouting.host.ports import Announced, RouteBackend
from hostrouting.net.addresses import IPV4, IPV6, Address, parse_ipv4, require_family
from hostrouting.net.events import AddressEvent, DeviceEvent, NetworkEvent, RouteEvent, RuleEvent
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import (
    SCOPE_HOST,
    SCOPE_LINK,
    Lookup,
    ObservedRoute,
    RouteChange,
    route_key,
)
from hostrouting.net.rules import Rule
from hostrouting.testing.faults import FaultyBatches, Refused, unknown
from hostrouting.testing.kernel import (
    own_routes,
    same_subnet,
    with_device,
    with_route,
    with_rule,
    without_route,
    without_rule,
)
from hostrouting.testing.memory_events import MemoryEvents
from hostrouting.testing.node import Node
from hostrouting.testing.route_texts import route
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from hostrouting.host.netlink.frames import Failures

_Value = TypeVar("_Value")


class MemoryBackend(FaultyBatches, Node, ports=[RouteBackend]):
    """A `RouteBackend` without a kernel; tests arrange its links, addresses, routes and rules.

    `links` are names with their addresses, and `routes` are foreign routes as `ip route` shows
    them. More can be added, and everything removed, later.

    >>> node = MemoryBackend(
    ...     links={"eth0": ["10.224.0.4/16"]}, routes=["default via 10.224.0.1 dev eth0"]
    ... )
    >>> for route in node.routes():
    ...     if route.table == 254:
    ...         print(route)
    default via 10.224.0.1 dev eth0
    10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4

    It keeps links, addresses, routes and rules, adds and removes the kernel's own routes with their
    addresses, answers lookups, and refuses each change that the kernel refuses, with its errno and
    words. Where only a kernel can answer, it raises `UnknownDecisionError`: for a route with
    several next hops that loses one of their devices, for secondary addresses that lose their
    primary address, for IPv6 routes by gateways in one place, and so on. Test these on a
    `KernelNode`. Nexthop objects and anycast addresses are not modelled.

    By default, `fail_at` reports that the kernel's buffers are full. `refuse_at` refuses a change
    of a batch, and `steps.plan` runs another program before one. `fib` is the present node.
    `events` announces the changes of the handles, but not the routes that come and go with a
    device or an address, of which the kernel announces some.
    """

    families: tuple[int, ...] = (IPV4, IPV6)

    def __init__(
        self, *, links: Mapping[str, Iterable[str]] | None = None, routes: Iterable[str] = ()
    ) -> None:
        links = {} if links is None else links
        _check_links(links)
        super().__init__(Refused(errno.ENOBUFS).of("rtnetlink"))
        self.events: MemoryEvents = MemoryEvents()
        self.fib: Fib = attrs.evolve(Fib.of([], []), merged=True)
        self._indexes = count(1)
        self._unplugged: set[str] = set()
        addresses = tuple(
            DeviceAddress.parse(text)._replace(scope=SCOPE_HOST)
            for text in ("127.0.0.1/8", "::1/128")
        )
        self._change(
            "lo", Device("lo", next(self._indexes), up=True, loopback=True, addresses=addresses)
        )
        for name, owned in links.items():
            self.add_link(name)
            for address in owned:
                self.add_address(name, address)
        for text in routes:
            wanted = route(text)
            if wanted.dev is not None:
                self._device(wanted.dev)
            self.insert_route(wanted, verb="append")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.fib.devices)})"

    def listen(self) -> Announced:
        """Return the changes from now on."""
        return _Differences(self)

    def links(self) -> list[Device]:
        """See `RouteBackend.links`."""
        return self.fib.links()

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes`."""
        require_family(family)
        return self.fib.routes(family)

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        require_family(family)
        if not isinstance(protocol, int):
            raise wrong_argument("protocol", protocol, "a whole number", "1")
        return self.fib.routes_of(protocol, family)

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `RouteBackend.rules`."""
        return self.fib.rules(family)

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """See `RouteBackend.lookup`."""
        return self.fib.lookup(destinations, sources=sources, resolve=resolve, family=family)

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them."""
        try:
            commit_routes(_OneByOne(self), changes, devices=self.fib.devices, verify=verify)
        except OSError as error:  # nothing was changed
            raise BackendError(str(error.strerror), errno=error.errno) from error

    def add_link(
        self,
        name: str,
        *,
        up: bool = True,
        carrier: bool = True,
        mac: str = "",
        kind: str = "",
        master: str | None = None,
    ) -> None:
        """See `Node.add_link`; with a hardware address of 20 octets it is InfiniBand."""
        if not isinstance(name, str):
            raise wrong_argument("name", name, "a text", "'...'")
        if name in self.fib.devices:
            raise Refused(errno.EEXIST).of(f"link {name}")
        if master is not None:
            self._device(master)
        if not carrier:
            self._unplugged.add(name)
        device = Device(name, next(self._indexes), False, mac.lower(), kind, master, carrier=False)
        device = device._replace(infiniband=mac.count(":") == 19)
        self._change(name, device)
        if up:
            self.set_up(name)

    def remove_link(self, name: str) -> None:
        """See `Node.remove_link`."""
        self.set_up(name, up=False)
        self._change(name, None)
        self._unplugged.discard(name)

    def set_up(self, name: str, *, up: bool = True) -> None:
        """See `Node.set_up`."""
        device = self._device(name)
        if up:
            self._change(name, device._replace(up=True, carrier=name not in self._unplugged))
        elif device.up:
            kept = tuple(own for own in device.addresses if own.family == IPV4)
            bare = device._replace(
                up=False, carrier=False, addresses=kept, neighbours=(), failed=()
            )
            self._change(name, bare)

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.add_address`; the address gets no broadcast address."""
        device = self._device(dev)
        new = _address(address, peer)
        is_ipv6 = new.family == IPV6
        primaries = [own for own in device.addresses if same_subnet(new, own)]
        rivals = device.addresses if is_ipv6 else primaries
        if new.address in [own.address for own in rivals]:
            raise Refused(errno.EEXIST, "Address already assigned").of(
                f"address {address} on {dev}"
            )
        if is_ipv6 and peer:
            raise unknown("which routes an IPv6 address with a peer gets")
        # Primary addresses come first, and of IPv6 the new ones, but those of the link last.
        new = new._replace(secondary=bool(primaries))
        addresses = (new, *device.addresses) if is_ipv6 else (*device.addresses, new)
        order = attrgetter("family", "secondary", "address.is_link_local")
        addresses = tuple(sorted(addresses, key=order))
        self._change(dev, device._replace(addresses=addresses))

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.remove_address`."""
        device = self._device(dev)
        wanted = _address(address, peer)
        kept = tuple(own for own in device.addresses if own[:3] != wanted[:3])
        if kept == device.addresses:
            raise Refused(errno.EADDRNOTAVAIL, "Address not found").of(
                f"address {address} on {dev}"
            )
        if any(own.secondary and same_subnet(own, wanted) for own in kept):
            raise unknown(f"if secondary addresses go with {address}")
        self._change(dev, device._replace(addresses=kept))

    def add_neighbour(self, dev: str, address: str) -> None:
        """See `Node.add_neighbour`."""
        device = self._device(dev)
        neighbours = tuple(sorted({*device.neighbours, parse_ipv4(address)}))
        failed = tuple(silent for silent in device.failed if silent != Address.parse(address))
        self._change(dev, device._replace(neighbours=neighbours, failed=failed))

    def fail_neighbour(self, dev: str, address: str) -> None:
        """See `Node.fail_neighbour`."""
        device = self._device(dev)
        silent = Address.parse(address)
        known = tuple(number for number in device.neighbours if Address(IPV4, number) != silent)
        failed = tuple(sorted({*device.failed, silent}))
        self._change(dev, device._replace(neighbours=known, failed=failed))

    def own_routes(self, device: Device) -> list[ObservedRoute]:
        """Return the routes that the kernel makes for a device in its present state."""
        return own_routes(device)

    def insert_route(self, route: AnyRoute, *, verb: str = "add") -> None:
        """See `Node.insert_route`."""
        try:
            self.take(verb, route)
        except Refused as refused:
            raise refused.of(f"route {route}") from None

    def delete_route(self, route: AnyRoute) -> None:
        """See `Node.delete_route`."""
        self.insert_route(route, verb="remove")

    def take(self, verb: str, route: AnyRoute) -> None:
        """Make one change, or raise as the kernel does; `remove` takes the first fitting route."""
        before = self.fib
        announced: Any = verb
        if verb == "remove":
            self.fib = without_route(before, route)
        else:
            self.fib = with_route(before, route, verb)
        old = before.tables.bucket(key_of(route))
        new = self.fib.tables.bucket(key_of(route))
        changed = [each for each in new if each not in old]
        if verb == "remove":
            changed = [each for each in old if each not in new]
        elif route_key(route) not in map(route_key, old):
            announced = "add"
        self.events.announce(*(RouteEvent(announced, each) for each in changed))

    def add_rule(self, rule: Rule) -> None:
        """See `Node.add_rule`; the first change separates the local table from main."""
        self._change_rules("add", rule)

    def remove_rule(self, rule: Rule) -> None:
        """See `Node.remove_rule`."""
        self._change_rules("remove", rule)

    def _change_rules(self, verb: Literal["add", "remove"], rule: Rule) -> None:
        changed = with_rule if verb == "add" else without_rule
        try:
            policy = Policy(changed(self.fib.policy.rules, rule))
        except Refused as refused:
            raise refused.of(f"rule {rule.priority}") from None
        merged = self.fib.merged and rule.family == IPV6
        self.fib = attrs.evolve(self.fib, policy=policy, merged=merged)
        self.events.announce(RuleEvent(verb, rule))

    def _change(self, name: str, after: Device | None) -> None:
        """Add, replace or remove a device, with the routes that follow; announce it."""
        before = self.fib.devices.get(name)
        self.fib = with_device(self.fib, name, after, self.own_routes)
        self.events.announce(*_events_of(before, after))

    def _device(self, name: str) -> Device:
        try:
            return self.fib.devices[name]
        except KeyError:
            step = "give it in links, or add it by add_link"
            raise LinkNotFoundError(
                f"no such device: {name}; {step}", dev=name, errno=errno.ENODEV
            ) from None


@attrs.frozen
class _OneByOne(Transport):
    """A transport to a fake, which takes one step at a time."""

    node: MemoryBackend

    def send(self, steps: Steps) -> Failures:
        return self.node.steps.each(lambda step: self.node.take(*step[:2]), steps)

    def present(self) -> list[ObservedRoute]:
        try:
            return [*self.node.routes(), *self.node.routes(IPV6)]
        except BackendError as error:
            raise OSError(error.errno or errno.EIO, str(error)) from error


class _Differences:
    """The changes of a fake since this was made, but for what has gone again."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._before: Fib = backend.fib

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:
        """See `Announced.take`."""
        before, after = self._before, self._backend.fib
        self._before = after
        events: list[NetworkEvent] = []
        if before is after:
            return events
        for name in dict.fromkeys([*before.devices, *after.devices]):
            events += _events_of(before.devices.get(name), after.devices.get(name))
        for family in self._backend.families:
            gone, come = _differences(before.rules(family), after.rules(family))
            events += (RuleEvent("remove", rule) for rule in gone)
            events += (RuleEvent("add", rule) for rule in come)
            lost, new = _differences(before.routes(family), after.routes(family))
            events += (RouteEvent("remove", each) for each in lost)
            events += (RouteEvent("append", each) for each in new)
        return events


def _differences(before: list[_Value], after: list[_Value]) -> tuple[list[_Value], list[_Value]]:
    """Return the values that are gone, and those that have come."""
    old, new = {*before}, {*after}
    return [each for each in before if each not in new], [each for each in after if each not in old]


def _check_links(links: object) -> None:
    """Raise TypeError for links of another type; a text would be read as its letters."""
    if not isinstance(links, Mapping):
        raise TypeError(f"links must map names to addresses (got {links!r}); give {{'eth0': []}}")
    for name, addresses in links.items():
        if isinstance(addresses, str):
            raise TypeError(
                f"links[{name!r}] must be a list of addresses (got {addresses!r}); "
                f"give [{addresses!r}]"
            )


def _address(text: str, peer: str | None) -> DeviceAddress:
    own = DeviceAddress.parse(text)
    if own.address.is_link_local:
        own = own._replace(scope=SCOPE_LINK)
    return own if peer is None else own._replace(peer=Address.parse(peer).number)


def _events_of(before: Device | None, after: Device | None) -> Iterator[NetworkEvent]:
    """Yield the events of a changed device, removals first."""
    old, new = (device.addresses if device else () for device in (before, after))
    if before:
        yield from (AddressEvent("remove", before.name, own) for own in old if own not in new)
        if not after:
            yield DeviceEvent("remove", _bare(before))
    if after:
        if not before or _bare(before) != _bare(after):
            yield DeviceEvent("set", _bare(after))
        yield from (AddressEvent("set", after.name, own) for own in new if own not in old)


def _bare(device: Device) -> Device:
    return device._replace(addresses=(), neighbours=(), failed=())
